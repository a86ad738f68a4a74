"""Cursors of postgres_fdw: rows in blocks of the size it asks for, from the start again when it rescans."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from modak.gateway.failures import EngineFailed, first_line, known_failure
from modak.gateway.fdw.request import Request
from modak.gateway.fdw.residue import Residue
from modak.gateway.fdw.scan import Scan
from modak.gateway.pins import PinKeeper
from modak.gateway.wire.rows import encode_text
from modak.scan.engine import Engine

_BATCH_ROWS = 20_000


class Rows(Protocol):
    """Arrow batches of text columns."""

    def batches(self) -> Iterator[Any]: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as cause:
        message = str(cause)
        hint = "the lake's files or the gateway may be at fault: see its log"
        raise known_failure(message) or EngineFailed(first_line(message), hint=hint) from cause


class LakeRows:
    """Rows straight from the engine."""

    def __init__(self, engine: Engine, scan: Scan) -> None:
        self._cursor = engine.cursor()
        self._scan = scan  # holds the snapshot

    def batches(self) -> Iterator[Any]:
        with engine_errors():
            reader = self._cursor.execute(self._scan.sql).to_arrow_reader(_BATCH_ROWS)
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                if batch.num_rows:
                    yield batch

    def cancel(self) -> None:
        self._cursor.interrupt()

    def close(self) -> None:
        self._cursor.close()


class ColdCursor:
    """One DECLAREd cursor. Used from one thread at a time; ``cancel`` from any."""

    def __init__(self, engine: Engine, scan: Scan, request: Request, pins: PinKeeper, residue: Residue) -> None:
        self._pin = pins.hold(scan.table_id, scan.snapshot.sequence_number)
        self._pin.__enter__()
        self._rows: Rows = LakeRows(engine, scan)
        if scan.residue:
            self._rows = residue.rows(request, self._rows)
        self.columns = scan.columns if not scan.residue else None
        self._batches: Iterator[Any] | None = None
        self._left: Any = None

    def fetch(self, count: int) -> tuple[list[memoryview], int, int]:
        """Blocks of encoded rows, how many rows, how many columns each has."""
        blocks, rows = [], 0
        if self._batches is None:
            self._batches = self._rows.batches()
        while rows < count:
            batch = self._left if self._left is not None else next(self._batches, None)
            self._left = None
            if batch is None:
                break
            taken = batch.slice(0, count - rows)
            self._left = batch.slice(count - rows) if batch.num_rows > count - rows else None
            blocks.append(encode_text(taken))
            rows += taken.num_rows
            self.columns = taken.num_columns
        return blocks, rows, self.columns or 0

    def rewind(self) -> None:
        self._batches = self._left = None

    def cancel(self) -> None:
        self._rows.cancel()

    def close(self) -> None:
        try:
            self._rows.close()
        finally:
            self._pin.__exit__(None, None, None)
