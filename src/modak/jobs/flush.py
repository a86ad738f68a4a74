"""Flush: partitions of the heap become data files of the lake, read under one snapshot by many Spark tasks.

A task reads its page range by binary COPY into Arrow and writes Parquet; nothing passes through the driver but the list of files.
The files are invisible until they are committed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from modak.catalog import migrate, operations
from modak.connection import PINNED_SETTINGS, Connection, connect
from modak.core.lake_table import LakeColumn
from modak.core.table import Name
from modak.errors import ValueRefused
from modak.failpoints import failpoint
from modak.jobs.context import JobContext
from modak.jobs.pace import Pace, pass_gate
from modak.jobs.spark import spark_failures
from modak.lake.data_files import ROW_GROUP_ROWS, Target, Writer
from modak.lake.storage import pyiceberg_properties
from modak.source import heap
from modak.source.heap import Chunk, Snapshot

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

CHUNK_BYTES_MIN = 32 * 1024 * 1024
CHUNK_BYTES_MAX = 512 * 1024 * 1024
# More than one, so that no core waits long for another's last chunk.
CHUNKS_PER_CORE = 4
# What the copy hands over at a time: a task stops between two of them, and small ones stay in the processor's caches.
BATCH_BYTES = 4 * 1024 * 1024
BUFFER_BYTES_MAX = 64 * 1024 * 1024
REPORT_SECONDS = 1.0
NICENESS = 10
_RESULT = "task int, rows bigint, files binary, bad_column string, partition string"


@dataclass(frozen=True)
class Flushed:
    files: tuple[DataFile, ...]
    rows: int


@dataclass(frozen=True)
class FlushTask:
    """What one Spark task needs; goes to the executors as it is."""

    dsn: str
    snapshot: str
    op_id: str
    target: Target
    chunks: tuple[tuple[str, str], ...]  # (partition, SQL)

    def run(self, number: int) -> dict[str, Any]:
        # The application's sessions may share this machine: they go first.
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        _forget_zip_importers()
        partition, query = self.chunks[number]
        writer = Writer(self.target, f"{self.op_id}-{number}")
        rows, reported = 0, time.monotonic()
        with _session(self.dsn) as session, _copy(self.dsn, self.snapshot, query) as batches:
            for buffer in _buffers(self._paced(session, batches)):
                bad = _bad_column(buffer)
                if bad is not None:
                    return {"task": number, "rows": rows, "files": b"", "bad_column": bad, "partition": partition}
                writer.write(buffer)
                rows += buffer.num_rows
                if time.monotonic() - reported >= REPORT_SECONDS:
                    self._report(session, number, rows)
                    reported = time.monotonic()
            files = writer.close()
            self._report(session, number, rows)
        return {"task": number, "rows": rows, "files": pickle.dumps(files), "bad_column": None, "partition": partition}

    def _paced(self, session: Connection, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            pass_gate(session, self.op_id)

    def _report(self, session: Connection, number: int, rows: int) -> None:
        session.execute(migrate.SQL.query("report_progress"), {"op_id": self.op_id, "task": number, "rows_done": rows})


def _forget_zip_importers() -> None:
    """Spark clears import caches before each task; for the zip it lives in, that is 0.2 s of reading directories. Made anew on need."""
    for path in [path for path in sys.path_importer_cache if ".zip" in path]:
        del sys.path_importer_cache[path]


@contextlib.contextmanager
def _session(dsn: str) -> Iterator[Connection]:
    """For progress and the gate: a lost report does no harm, and a role's own timeouts are not meant for a wait at the gate."""
    with connect(dsn, application="modak-flush", autocommit=True) as session:
        for name, value in {"synchronous_commit": "off", "statement_timeout": "0", "lock_timeout": "0"}.items():
            session.execute("select set_config(%s, %s, false)", [name, value])
        yield session


@contextlib.contextmanager
def _copy(dsn: str, snapshot: str, query: str) -> Iterator[Iterator[pa.RecordBatch]]:
    """Rows of a query by binary COPY, in the snapshot that every task shares."""
    import adbc_driver_postgresql.dbapi as adbc

    with adbc.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("begin isolation level repeatable read read only")
        cursor.execute(f"set transaction snapshot '{snapshot}'")
        for name, value in {**PINNED_SETTINGS, "statement_timeout": "0"}.items():
            cursor.execute(f"select set_config('{name}', '{value}', true)")
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
        cursor.execute(query)
        yield iter(cursor.fetch_record_batch())


def _buffers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches gathered to whole row groups, and never more than memory allows."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= BUFFER_BYTES_MAX:
            buffer = pa.Table.from_batches(pending)
            whole = rows - rows % ROW_GROUP_ROWS or rows
            yield buffer.slice(0, whole)
            pending = buffer.slice(whole).to_batches()
            rows, size = rows - whole, sum(batch.nbytes for batch in pending)
    if pending:
        yield pa.Table.from_batches(pending)


def _bad_column(rows: pa.Table) -> str | None:
    column = rows.column("modak_bad")
    if column.null_count == len(column):
        return None
    return str(column.drop_null()[0].as_py())


def flush(context: JobContext, op_id: str, partitions: Sequence[Name], columns: Sequence[LakeColumn], snapshot: Snapshot) -> Flushed:
    """Copy the partitions to files. Raises ValueRefused, naming column and key, if a value does not fit the lake."""
    table = context.lake.load(context.table.lake_table_ref)
    wanted = context.cores * CHUNKS_PER_CORE
    cut = heap.chunks(context.connection, partitions, bytes_min=CHUNK_BYTES_MIN, bytes_max=CHUNK_BYTES_MAX, wanted=wanted)
    skip = _skips_corrected(context)
    task = FlushTask(
        dsn=context.dsn,
        snapshot=snapshot.name,
        op_id=op_id,
        target=Target(
            table.metadata.model_dump_json(),
            pyiceberg_properties(context.lake.storage),
            context.table.tier_key_col,
            context.table.primary_key_cols,
            context.table.layout,
        ),
        chunks=tuple((str(chunk.partition), _query(context, columns, chunk, skip)) for chunk in cut),
    )
    results = _run(context, task) if cut else []
    refused = [result for result in results if result["bad_column"] is not None]
    if refused:
        raise _refusal(context, cut[refused[0]["task"]], columns, refused[0]["bad_column"])
    files = [file for result in results for file in pickle.loads(result["files"])]  # noqa: S301 - our own tasks wrote it
    return Flushed(tuple(files), sum(result["rows"] for result in results))


def _skips_corrected(context: JobContext) -> bool:
    """A key without the tier key may have an older place in the cold tier, and a correction that hides it there.

    Such a row goes to the lake through that correction; written as a file, the correction would hide it too.
    """
    if context.table.tier_key_col in context.table.primary_key_cols:
        return False
    return context.connection.execute(migrate.SQL.query("has_delta"), {"table_id": context.table_id}).fetchone() is not None


def _query(context: JobContext, columns: Sequence[LakeColumn], chunk: Chunk, skip: bool) -> str:
    query = heap.select(columns, chunk)
    return query + f" and not {heap.is_corrected(context.table_id, context.table.primary_key_cols)}" if skip else query


def _run(context: JobContext, task: FlushTask) -> list[dict[str, Any]]:
    """Run the tasks and follow their progress meanwhile; Spark's own call blocks."""
    spark = context.spark()
    count = len(task.chunks)

    def run_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = task.run(int(number))
                yield pa.RecordBatch.from_pylist([result], schema=_result_schema())

    job = _Background(lambda: spark.range(0, count, 1, count).mapInArrow(run_tasks, _RESULT).collect())
    with context.progress.task(f"Copying {count} chunks to the lake") as bar, connect(context.dsn, autocommit=True) as watcher:
        done, pace = 0, Pace(watcher, task.op_id, job.wait)
        while not pace.turn():
            now = operations.rows_done(watcher, task.op_id)
            bar.note(f"{now:,} rows")
            bar.advance(now - done)
            done = now
            failpoint("tier.during_flush")
    return [row.asDict() for row in job.result()]


def _result_schema() -> pa.Schema:
    return pa.schema(
        [("task", pa.int32()), ("rows", pa.int64()), ("files", pa.binary()), ("bad_column", pa.string()), ("partition", pa.string())]
    )


class _Background(threading.Thread):
    """A call on a thread of its own, whose failure is raised where its result is asked for."""

    def __init__(self, call: Any) -> None:
        super().__init__(name="modak-flush", daemon=True)
        self._call = call
        self._outcome: Any = None
        self._failure: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._call()
        except Exception as failure:  # noqa: BLE001 - raised again by result()
            self._failure = failure

    def wait(self, seconds: float) -> bool:
        self.join(seconds)
        return not self.is_alive()

    def result(self) -> Any:
        self.join()
        if self._failure is not None:
            with spark_failures("the flush"):
                raise self._failure
        return self._outcome


def _refusal(context: JobContext, chunk: Chunk, columns: Sequence[LakeColumn], name: str) -> ValueRefused:
    column = next(column for column in columns if column.name == name)
    found = heap.find_bad_value(context.connection, chunk.partition, column, context.table.primary_key_cols)
    return ValueRefused(
        f"{chunk.partition} holds a value that the lake's {column.type.iceberg} cannot: the partition stays hot",
        hint=f"correct the row, or register again with --as-text {name}; {column.type.iceberg} cannot hold {column.type.limits}",
        column=name,
        key=found[0] if found else None,
        value=found[1] if found else None,
        partition=str(chunk.partition),
    )
