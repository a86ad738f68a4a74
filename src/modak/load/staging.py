"""The staging table: rows of a batch inside Postgres, in the heap's own types, before anything is decided about them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pyarrow as pa
from psycopg import sql

from modak.connection import Connection
from modak.load.errors import LoadRejected
from modak.load.rows import Chunk, ColumnSets, Digest, Source
from modak.load.statements import Statements

# A COPY ends after so many rows, so that a row that is refused is still at hand.
COPY_ROWS = 16_000
# What Postgres says about a value, a row or a constraint, and what a user's own trigger says.
REFUSALS = (psycopg.errors.DataError, psycopg.errors.IntegrityError, psycopg.errors.RaiseException)


class Staging:
    """The table of one connection. It holds one batch at a time: the next one of the same transaction clears it first."""

    def __init__(self, connection: Connection, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements

    def use(self, statements: Statements) -> None:
        """The same table, under statements that were composed anew."""
        self._statements = statements

    def fill(self, source: Source, sets: ColumnSets, digest: Digest, *, exists: bool) -> int:
        """Copy every row; returns how many there are."""
        self._connection.execute(self._statements.empty if exists else self._statements.create)
        supply = source.chunks(sets)
        chunk, count = next(supply, None), 0
        while chunk is not None:
            copied, chunk = self._copy(chunk, supply, sets, digest)
            count += copied
        return count

    def _copy(self, first: Chunk, supply: Iterator[Chunk], sets: ColumnSets, digest: Digest) -> tuple[int, Chunk | None]:
        """One COPY of chunks with the same columns; returns how many rows it had, and the chunk that is none of them. As a savepoint of
        its own: after a refusal the same rows are tried again in parts."""
        held: list[Chunk] = []
        left: list[Chunk | None] = [None]

        def texts() -> Iterator[pa.Buffer]:
            chunk: Chunk | None = first
            while chunk is not None and chunk.columns == first.columns and sum(one.count for one in held) < COPY_ROWS:
                held.append(chunk)
                digest.add(chunk, sets.sets)
                yield chunk.numbered()
                # Postgres reads the last chunk while the next one is made.
                chunk = next(supply, None)
            left[0] = chunk

        try:
            with self._connection.transaction():
                copy_in(self._connection, self._statements.copy_stage(first.columns), texts())
        except REFUSALS as cause:
            for chunk in held:
                self._find_refused(chunk)
            raise LoadRejected(f"Postgres refuses the rows: {cause.diag.message_primary}", sqlstate=cause.sqlstate) from cause
        return sum(one.count for one in held), left[0]

    def _find_refused(self, chunk: Chunk) -> None:
        """By halves to the first row that fails alone, and then column by column: no message is taken apart for it."""
        if self._fails(chunk, 0, chunk.count, chunk.columns) is None:
            return
        start, stop = 0, chunk.count
        while stop - start > 1:
            middle = (start + stop) // 2
            if self._fails(chunk, start, middle, chunk.columns) is not None:
                stop = middle
            else:
                start = middle
        line = chunk.line(start)
        for column in chunk.columns:
            cause = self._fails(chunk, start, stop, (column,))
            if cause is not None:
                raise LoadRejected(
                    f'line {line}, column "{column}": {cause.diag.message_primary}',
                    line=line,
                    column=column,
                    value=chunk.value(start, column),
                    sqlstate=cause.sqlstate,
                ) from cause

    def _fails(self, chunk: Chunk, start: int, stop: int, columns: tuple[str, ...]) -> psycopg.Error | None:
        try:
            with self._connection.transaction(force_rollback=True):
                copy_in(self._connection, self._statements.copy_stage(columns), iter([chunk.part(start, stop, columns)]))
        except REFUSALS as cause:
            return cause
        return None


def copy_in(connection: Connection, statement: sql.Composed, texts: Iterator[pa.Buffer]) -> int:
    """COPY these texts; returns how many rows were taken. An error of the rows' own ends the COPY and is raised as it is."""
    with contextlib.closing(connection.cursor()) as cursor:
        with cursor.copy(statement) as copy:
            for text in texts:
                copy.write(memoryview(text))
        return cursor.rowcount
