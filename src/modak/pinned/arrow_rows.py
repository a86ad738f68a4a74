"""Rows of Postgres as an Arrow stream: several queries under one exported snapshot, read side by side, in bounded memory.

The object may be read any number of times while the snapshot is held; nothing is asked of Postgres before somebody takes the first batch.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from modak.connection import PINNED_SETTINGS, UNHURRIED, pinned
from modak.errors import ModakError, UsageError, ValueRefused
from modak.lake.data_files import conform
from modak.lake.iceberg import iceberg_type
from modak.pinned.seam import LOCK_TIMEOUT, SeamColumn
from modak.pinned.statements import BAD

BATCH_BYTES = 4 * 1024 * 1024
READERS_MAX = 8
# Batches that wait for the engine, per reader.
WAITING_MAX = 2
_POLL_SECONDS = 0.2

# A batch, a failure, or None from a reader that is done.
_Item: TypeAlias = Any


def readers_wanted() -> int:
    return min(os.cpu_count() or 1, READERS_MAX)


class ArrowRows:
    """Anything that takes the Arrow PyCapsule protocol can scan it."""

    def __init__(self, dsn: str, snapshot: str, queries: Sequence[str], columns: Sequence[SeamColumn]) -> None:
        self.schema = arrow_schema(columns)
        # An engine shows a Python exception as text inside its own; here it is as it was.
        self.failure: ModakError | None = None
        self._dsn, self._snapshot, self._queries, self._columns = dsn, snapshot, tuple(queries), tuple(columns)
        self._over = threading.Event()
        self._running: set[_Readers] = set()

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(self.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """End what still reads; from now on every scan is refused."""
        self._over.set()
        for readers in list(self._running):
            readers.stop()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._checked()
        except ModakError as error:
            self.failure = error
            raise

    def _checked(self) -> Iterator[pa.RecordBatch]:
        if self._over.is_set():
            raise UsageError("this pinned read is over", hint="read inside the `with` block, or keep the result as a table")
        readers = _Readers(self._dsn, self._snapshot, self._queries)
        self._running.add(readers)
        try:
            for batch in readers.batches():
                self._refuse_bad(batch)
                rows = pa.Table.from_batches([batch]).select(self.schema.names)
                yield from conform(rows, self.schema).to_batches()
        finally:
            readers.stop()
            self._running.discard(readers)

    def _refuse_bad(self, batch: pa.RecordBatch) -> None:
        bad = batch.column(BAD)
        if bad.null_count == len(bad):
            return
        name = str(bad.drop_null()[0].as_py())
        kept = next(column.lake.type for column in self._columns if column.name == name)
        raise ValueRefused(
            f"column {name} holds a value that the lake's {kept.iceberg} cannot, which rows of both tiers are read as",
            hint=f"leave the column out, or correct the row: {kept.iceberg} cannot hold {kept.limits}",
            column=name,
        )


def arrow_schema(columns: Sequence[SeamColumn]) -> pa.Schema:
    """The lake's types as Arrow has them; extension types (uuid) included."""
    fields = [NestedField(n, column.name, iceberg_type(column.lake.type.iceberg), required=False) for n, column in enumerate(columns, 1)]
    return schema_to_pyarrow(Schema(*fields), include_field_ids=False)


class _Readers:
    """One scan: threads that take queries off a list, each with a session of its own, and a short queue of what they read."""

    def __init__(self, dsn: str, snapshot: str, queries: Sequence[str]) -> None:
        self._dsn, self._snapshot = dsn, snapshot
        self._waiting = deque(queries)
        self._count = min(len(queries), readers_wanted())
        self._read: queue.Queue[_Item] = queue.Queue(maxsize=max(1, self._count * WAITING_MAX))
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._work, name="modak-pinned-read", daemon=True) for _ in range(self._count)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        for thread in self._threads:
            thread.start()
        at_work = self._count
        while at_work:
            item = self._next()
            if item is None:
                at_work -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item

    def stop(self) -> None:
        """Ask the threads to end; they do between two batches."""
        self._stopped.set()

    def _next(self) -> _Item:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._read.get(timeout=_POLL_SECONDS)
            if self._stopped.is_set():
                raise UsageError("this pinned read ended while it was being read", hint="finish reading inside the `with` block")

    def _work(self) -> None:
        try:
            self._work_off()
            self._put(None)
        except Exception as failure:  # noqa: BLE001 - raised again where the rows are taken
            self._put(failure)

    def _work_off(self) -> None:
        with _session(self._dsn, self._snapshot) as cursor:
            while not self._stopped.is_set():
                try:
                    query = self._waiting.popleft()
                except IndexError:
                    return
                cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
                cursor.execute(query)
                for batch in cursor.fetch_record_batch():
                    self._put(batch)
                    if self._stopped.is_set():
                        return

    def _put(self, item: _Item) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._read.put(item, timeout=_POLL_SECONDS)
                return


@contextlib.contextmanager
def _session(dsn: str, snapshot: str) -> Iterator[Any]:
    """A transaction in the shared snapshot, whose text output is the one every session of ours has."""
    import adbc_driver_postgresql.dbapi as adbc

    settings = {**PINNED_SETTINGS, "lock_timeout": LOCK_TIMEOUT, "application_name": "modak-pinned-read"}
    with adbc.connect(pinned(dsn), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("begin isolation level repeatable read read only")
        cursor.execute(f"set transaction snapshot '{snapshot}'")
        cursor.execute(UNHURRIED)
        for name, value in settings.items():
            cursor.execute(f"select set_config('{name}', '{value}', true)")
        yield cursor
