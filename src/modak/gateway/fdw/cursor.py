"""Cursors of postgres_fdw: rows in blocks of the size it asks for, from the start again when it rescans."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from modak.gateway.failures import EngineFailed, first_line, known_failure
from modak.gateway.fdw.request import Request
from modak.gateway.fdw.residue import Residue, Rows
from modak.gateway.fdw.scan import Scan
from modak.gateway.pins import PinKeeper
from modak.gateway.wire.rows import encode_text
from modak.scan.engine import Cursor, Engine

_BATCH_ROWS = 20_000


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as cause:
        message = str(cause)
        hint = "the lake's files or the gateway may be at fault: see its log"
        raise known_failure(message) or EngineFailed(first_line(message), hint=hint) from cause


class Query(Protocol):
    @property
    def sql(self) -> str: ...


class LakeRows:
    """Rows straight from the engine, which is used while they come and not before or after."""

    def __init__(self, engine: Engine, scan: Query) -> None:
        self._engine = engine
        self._scan = scan  # holds its snapshots
        self._cursor: Cursor | None = None

    def batches(self) -> Iterator[Any]:
        with engine_errors(), contextlib.closing(self._engine.cursor()) as cursor:
            self._cursor = cursor
            reader = cursor.execute(self._scan.sql).to_arrow_reader(_BATCH_ROWS)
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                if batch.num_rows:
                    yield batch

    def cancel(self) -> None:
        cursor = self._cursor
        if cursor is not None:
            with contextlib.suppress(duckdb.ConnectionException):  # it ended meanwhile
                cursor.interrupt()


class BatchCursor:
    """One DECLAREd cursor over batches of texts. Used from one thread at a time; ``cancel`` from any."""

    def __init__(self, rows: Rows, columns: int | None) -> None:
        self._rows = rows
        self.columns = columns
        self._batches: Generator[Any] | None = None
        self._left: Any = None
        self._ended = False

    @property
    def is_idle(self) -> bool:
        """Nothing is held, so to close it takes no time."""
        return self._batches is None

    def fetch(self, count: int) -> tuple[list[memoryview], int, int]:
        """Blocks of encoded rows, how many rows, how many columns each has."""
        blocks, rows = [], 0
        if self._batches is None and not self._ended:
            self._batches = self._opened()
        while rows < count and self._batches is not None:
            batch = self._left if self._left is not None else next(self._batches, None)
            self._left = None
            if batch is None:
                self._batches, self._ended = None, True
                break
            taken = batch.slice(0, count - rows)
            self._left = batch.slice(count - rows) if batch.num_rows > count - rows else None
            blocks.append(encode_text(taken))
            rows += taken.num_rows
            self.columns = taken.num_columns
        return blocks, rows, self.columns or 0

    def _opened(self) -> Generator[Any]:
        yield from self._rows.batches()

    def rewind(self) -> None:
        self.close()
        self._ended = False

    def cancel(self) -> None:
        self._rows.cancel()

    def close(self) -> None:
        running, self._batches, self._left, self._ended = self._batches, None, None, True
        if running is not None:
            running.close()


class ColdCursor(BatchCursor):
    """A cursor over cold rows. It holds its pin from the first FETCH to the last row: Postgres's own transaction guards what is
    before and after."""

    def __init__(self, engine: Engine, scan: Scan, request: Request, pins: PinKeeper, residue: Residue) -> None:
        rows: Rows = LakeRows(engine, scan)
        super().__init__(residue.rows(request, rows) if scan.residue else rows, scan.columns if not scan.residue else None)
        self._pins, self._scan = pins, scan

    def _opened(self) -> Generator[Any]:
        with self._pins.hold(self._scan.table_id, self._scan.snapshot.sequence_number):
            yield from self._rows.batches()
