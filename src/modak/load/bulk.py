"""Bulk rows on their way to the lake past the heap: read by Postgres in its own types, checked as the heap would, and written as files.

For ``modak ingest``, whose tasks do this side by side, each with a connection and pieces of files of its own. Nothing of it is visible
before a commit that takes every file at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import DataFile

from modak.connection import Connection
from modak.core.table import Name
from modak.load import table as tables_to_load
from modak.load.errors import LoadRejected
from modak.load.request import Rows
from modak.load.rows import Digest, Source
from modak.load.settle import refuse_violation, refuse_wrong_key
from modak.load.spool import Spool
from modak.load.staging import Staging
from modak.load.statements import Statements, key_parameter
from modak.load.table import LoadTable

STAGE = "modak_bulk"


@dataclass(frozen=True)
class Taken:
    """The files of one piece, and the canonical tier keys they span."""

    files: tuple[DataFile, ...]
    rows: int
    low: int | None = None
    high: int | None = None


class Bulk:
    """One task's connection. ``line`` and ``floor`` are T and R: rows must lie between them."""

    def __init__(self, connection: Connection, name: Name, *, line: int, floor: int | None) -> None:
        self._connection = connection
        self._table: LoadTable = tables_to_load.read(connection, name)
        self._statements = Statements(self._table, STAGE)
        self._staging = Staging(connection, self._statements)
        kind = self._table.registered.key_type
        self._lines: dict[str, Any] = {"line": key_parameter(kind, line), "floor": key_parameter(kind, floor), "partial": []}
        self._made = False

    def take(self, rows: Rows, spool: Spool, rows_max: int) -> Taken:
        """Check a piece and write it. LoadRejected names the line within the piece."""
        sets, source = self._table.column_sets(), Source(rows, rows_max)
        with self._connection.transaction():
            count = self._staging.fill(source, sets, Digest(), exists=self._made)
            if not count:
                return Taken((), 0)
            self._check_sets(sets.sets)
            self._check_keys()
            marked = self._one(self._statements.mark_bulk(spool.columns))
            if marked["unfit"] is not None:
                raise LoadRejected(
                    f"line {marked['unfit']}: the row holds a value that the lake cannot",
                    hint="load it as hot rows are",
                    line=marked["unfit"],
                )
            refuse_violation(self._connection, self._table, self._statements, self._lines)
            files = spool.write_files(self._connection, self._statements)
        # What a transaction created is there for the next one, empty.
        self._made = True
        return Taken(tuple(files), count, marked["low"], marked["high"])

    def _one(self, statement: Any) -> dict[str, Any]:
        row = self._connection.execute(statement, self._lines, prepare=False).fetchone()
        assert row is not None
        return row

    def _check_sets(self, sets: Sequence[tuple[str, ...]]) -> None:
        """Only Postgres knows a default, and these rows do not pass by the heap."""
        for column in self._table.stored:
            if (column.default or column.identity or column.not_null) and any(column.name not in given for given in sets):
                raise LoadRejected(
                    f'column "{column.name}" of {self._table.name} has a default or may not be null, and must be given',
                    hint="give every such column, or use Stream Load, which fills defaults in",
                    column=column.name,
                )

    def _check_keys(self) -> None:
        counts = self._one(self._statements.summary)
        if counts["wrong"]:
            refuse_wrong_key(self._table, self._one(self._statements.wrong_key))
        if counts["hot"]:
            found = self._one(self._statements.first_hot)
            raise LoadRejected(
                f"line {found['line']}: {self._table.tier_key} = {found['value']} is not below the cut-line",
                hint="ingest takes history only; load newer rows with Stream Load or COPY",
                line=found["line"],
                column=self._table.tier_key,
                value=found["value"],
            )
