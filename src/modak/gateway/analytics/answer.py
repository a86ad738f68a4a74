"""A statement's rows on their way out of the engine: streamed, encoded, stoppable."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from modak.errors import ModakError
from modak.gateway.analytics.plan import Plan
from modak.gateway.analytics.reader import insist
from modak.gateway.failures import Cancelled, EngineFailed, first_line, known_failure
from modak.gateway.wire.cells import Unsupported
from modak.gateway.wire.frontend import format_at
from modak.gateway.wire.messages import FieldDescription
from modak.gateway.wire.rows import ColumnFormat, blocks
from modak.scan.engine import Cursor
from modak.scan.sqltext import quoted

BATCH_ROWS = 32_768
_RESULT = "modak:result"


class LakeAnswer:
    """Implements ``interception.Answer``. Everything but ``cancel`` is called by one thread at a time.

    ``held`` is what goes with the answer: cursor, pins, snapshots. Before its first block an answer may still raise Unsupported, which
    means that Postgres has to give it; a statement that cannot exclude that is computed to its end before anything is given out.
    """

    def __init__(
        self, cursor: Cursor, plan: Plan, relations: dict[str, str], held: contextlib.ExitStack, notice: str | None = None
    ) -> None:
        self.fields: Sequence[FieldDescription] = plan.fields
        self.relations, self.notice = relations, notice
        self._cursor, self._plan, self._held = cursor, plan, held
        self._source: Any = None
        self._forms: list[ColumnFormat] = []
        self._rest: pa.RecordBatch | None = None
        self._rows = 0
        self._idle = threading.Event()
        self._idle.set()
        self._exhausted = self._cancelled = self._sent = self._closed = False

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def exhausted(self) -> bool:
        return self._exhausted

    def encoded(self, result_formats: Sequence[int], rows_max: int = 0) -> Iterator[memoryview]:
        left = rows_max or None
        with self._failures():
            if self._source is None:
                self._start(tuple(result_formats))
            while left is None or left > 0:
                batch = self._next()
                if batch is None:
                    self._exhausted = True
                    return
                if left is not None and batch.num_rows > left:
                    batch, self._rest = batch.slice(0, left), batch.slice(left)
                left = None if left is None else left - batch.num_rows
                self._rows += batch.num_rows
                for block in blocks(batch, self._forms):
                    self._sent = True
                    yield block

    def sql(self, outputs: str) -> str:
        """The engine's whole statement, with the relations it reads in front."""
        parts = ", ".join(f"{quoted(name)} AS NOT MATERIALIZED ({sql})" for name, sql in self.relations.items())
        return f"WITH {parts} SELECT {outputs} FROM ({self._plan.sql}) AS q"  # noqa: S608

    def cancel(self) -> None:
        self._cancelled = True
        insist(self._cursor.interrupt, self._idle)

    def close(self) -> None:
        if self._closed:
            return
        self._closed, self._source, self._rest = True, None, None
        self._held.close()

    def _start(self, formats: tuple[int, ...]) -> None:
        outputs, self._forms = self._plan.outputs(lambda place: format_at(formats, place))
        if self._plan.certain:
            self._execute(self.sql(outputs))
        else:
            names = ", ".join(f'"c{number}"' for number in range(1, len(self._plan.types) + 1))
            self._execute(f"CREATE TEMP TABLE {quoted(_RESULT)} AS {self.sql(names)}")
            self._execute(f"SELECT {outputs} FROM {quoted(_RESULT)}")  # noqa: S608
        with self._running():
            self._source = self._cursor.to_arrow_reader(BATCH_ROWS)

    def _execute(self, sql: str) -> None:
        with self._running():
            self._cursor.execute(sql)

    def _next(self) -> pa.RecordBatch | None:
        rest, self._rest = self._rest, None
        with self._running():
            return rest if rest is not None else next(self._source, None)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        self._idle.clear()
        try:
            if self._cancelled:
                raise Cancelled("canceling statement due to user request")
            yield
        finally:
            self._idle.set()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as cause:
            raise engine_failure(str(cause), cancelled=self._cancelled, rows=self._rows, sent=self._sent) from cause


def engine_failure(message: str, *, cancelled: bool, rows: int = 0, sent: bool = False) -> ModakError:
    """What became of an answer. Unsupported: nothing was ``sent`` yet, and Postgres can do it."""
    known = known_failure(message, cancelled=cancelled)
    if known is not None:
        return known
    if not sent:
        return Unsupported("the engine cannot give this answer; Postgres can", engine=first_line(message))
    return EngineFailed(
        f"the engine gave up after {rows} rows: {first_line(message)}",
        hint="run it in a transaction that has written something, or on Postgres's own port: there Postgres answers it",
    )
