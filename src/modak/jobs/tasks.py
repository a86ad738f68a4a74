"""Tasks: work spread over Spark's Python workers, and how each of them reads Postgres and reports.

A task is a number; what it does is a method of a picklable object. Nothing passes through the driver but small results.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from modak.connection import PINNED_SETTINGS, UNHURRIED, Connection, connect, pinned
from modak.jobs.spark import spark_failures
from modak.lake.data_files import ROW_GROUP_ROWS, Target, in_whole_groups
from modak.lake.delete_files import Doomed, Positions, write_deletes
from modak.scan.engine import Cursor, Engine
from modak.scan.snapshot import DataFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from modak.lake.change import PositionDeletes
    from modak.lake.storage import Storage

# What the copy hands over at a time: a task stops between two of them, and small ones stay in the processor's caches.
BATCH_BYTES = 4 * 1024 * 1024
BUFFER_BYTES_MAX = 64 * 1024 * 1024
NICENESS = 10
ENGINE_MEMORY = "512MB"
# So many parts of the work for each core: a slow one does not keep the others waiting.
TASKS_PER_CORE = 4
_RESULT = "task int, result binary"


class Spread(threading.Thread):
    """``run`` of every number below ``count`` on Spark's workers, in the background; Spark's own call blocks."""

    def __init__(self, spark: Callable[[], SparkSession], run: Callable[[int], Any], count: int, name: str) -> None:
        super().__init__(name=f"modak-{name}", daemon=True)
        self._spark, self._run, self._count, self._what = spark(), run, count, name
        self._outcome: list[Any] = []
        self._failure: Exception | None = None
        self.start()

    def run(self) -> None:
        work = self._run

        def run_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            # The application's sessions may share this machine: they go first.
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
            _forget_zip_importers()
            schema = pa.schema([("task", pa.int32()), ("result", pa.binary())])
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    result = {"task": int(number), "result": pickle.dumps(work(int(number)))}
                    yield pa.RecordBatch.from_pylist([result], schema=schema)

        try:
            frame = self._spark.range(0, self._count, 1, self._count).mapInArrow(run_tasks, _RESULT)
            rows = sorted(frame.collect(), key=lambda row: int(row["task"]))
            self._outcome = [pickle.loads(row["result"]) for row in rows]  # noqa: S301 - our own tasks wrote it
        except Exception as failure:  # noqa: BLE001 - raised again by result()
            self._failure = failure

    def wait(self, seconds: float) -> bool:
        self.join(seconds)
        return not self.is_alive()

    def result(self) -> list[Any]:
        """What the tasks returned, in their order."""
        self.join()
        if self._failure is not None:
            with spark_failures(f"the {self._what}", self._spark):
                raise self._failure
        return self._outcome


def _forget_zip_importers() -> None:
    """Spark clears import caches before each task; for the zip it lives in, that is 0.2 s of reading directories. Made anew on need."""
    for path in [path for path in sys.path_importer_cache if ".zip" in path]:
        del sys.path_importer_cache[path]


@contextlib.contextmanager
def reporting_session(dsn: str) -> Iterator[Connection]:
    """For progress and the gate: a lost report does no harm, and a role's own timeouts are not meant for a wait at the gate."""
    with connect(dsn, application="modak-flush", autocommit=True, unhurried=True) as session:
        for name, value in {"synchronous_commit": "off", "lock_timeout": "0"}.items():
            session.execute("select set_config(%s, %s, false)", [name, value])
        yield session


@contextlib.contextmanager
def copied(dsn: str, snapshot: str, query: str) -> Iterator[Iterator[pa.RecordBatch]]:
    """Rows of a query by binary COPY, in the snapshot that every task shares."""
    import adbc_driver_postgresql.dbapi as adbc

    with adbc.connect(pinned(dsn), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("begin isolation level repeatable read read only")
        cursor.execute(f"set transaction snapshot '{snapshot}'")
        cursor.execute(UNHURRIED)
        for name, value in PINNED_SETTINGS.items():
            cursor.execute(f"select set_config('{name}', '{value}', true)")
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
        cursor.execute(query)
        yield iter(cursor.fetch_record_batch())


def buffers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches gathered to whole row groups, and never more than memory allows."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= BUFFER_BYTES_MAX:
            buffer = pa.Table.from_batches(pending)
            whole = in_whole_groups(rows)
            yield buffer.slice(0, whole)
            pending = buffer.slice(whole).to_batches()
            rows, size = rows - whole, sum(batch.nbytes for batch in pending)
    if pending:
        yield pa.Table.from_batches(pending)


@contextlib.contextmanager
def task_engine(storage: Storage) -> Iterator[Engine]:
    """DuckDB for one task, with one thread: Spark runs as many tasks as there are cores."""
    with tempfile.TemporaryDirectory(prefix="modak-task-") as folder:
        engine = Engine([storage], memory_limit=ENGINE_MEMORY, threads=1, temp_directory=Path(folder))
        try:
            yield engine
        finally:
            engine.close()


@contextlib.contextmanager
def engine_cursor(storage: Storage) -> Iterator[Cursor]:
    with task_engine(storage) as engine:
        cursor = engine.cursor()
        yield cursor
        cursor.close()


def grouped(
    files: Sequence[DataFile], ranges: Sequence[tuple[int, int]], places: Sequence[int], wanted: int
) -> Iterator[tuple[tuple[DataFile, ...], int, int]]:
    """Files of neighbouring keys in about as many groups as are wanted, each with the keys it spans."""
    ordered = sorted(places, key=lambda place: ranges[place])
    share = sum(files[place].rows for place in places) / wanted if wanted else 0
    group: list[int] = []
    for number, place in enumerate(ordered):
        group.append(place)
        if sum(files[one].rows for one in group) >= share or number == len(ordered) - 1:
            yield tuple(files[one] for one in group), min(ranges[one][0] for one in group), max(ranges[one][1] for one in group)
            group = []


def write_found(target: Target, prefix: str, files: Sequence[DataFile], found: Mapping[str, Positions]) -> tuple[PositionDeletes, ...]:
    """A delete file for each data file, by its path, that has rows to go."""
    known = {file.path: file for file in files}
    return tuple(
        write_deletes(
            target.metadata_json,
            target.io_properties,
            prefix,
            Doomed(known[path].location, known[path].spec_id, known[path].partition, positions),
        )
        for path, positions in found.items()
    )
