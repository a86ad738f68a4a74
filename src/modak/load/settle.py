"""Staged rows find their places: checked as a whole, routed by one look at the seam, written, recorded.

Everything happens while T and R are held, so what is decided here is still true when it commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import psycopg
from psycopg import sql

from modak.connection import Connection
from modak.errors import NotRegistered, Refused
from modak.failpoints import failpoint
from modak.load.errors import LoadRejected
from modak.load.failures import AwaitsAdoption, cold_tier
from modak.load.request import LoadOptions, LoadResult
from modak.load.rows import ColumnSets
from modak.load.spool import Spool, open_spool
from modak.load.staging import REFUSALS
from modak.load.statements import Statements, key_parameter
from modak.load.table import SQL, LoadTable

_NOTHING_BYPASSED = {"n": 0, "spooled": 0, "low": None, "high": None}
Parameters = Mapping[str, Any]


class Overtaken(Exception):
    """Another transaction was quicker; what was decided must be decided again."""


@dataclass
class Settlement:
    """One batch in the staging table, of so many ``rows``."""

    connection: Connection
    table: LoadTable
    statements: Statements
    sets: ColumnSets
    options: LoadOptions
    label: str
    digest: str
    rows: int
    _spool: Spool | None = None

    def __post_init__(self) -> None:
        self._given = len(self.sets.sets)

    def settle(self, *, ordered: bool) -> LoadResult:
        """All of it, or an error with nothing done. ``ordered``: by key, after others took the same locks in another order."""
        seam = self._one(SQL.query("hold_seam"), {"table_id": self.table.table_id})
        if seam["line"] is None:
            raise NotRegistered(f"{self.table.name} is not a registered table any more")
        given = self._given
        whole = self.sets.whole(self.table.stored_names)
        lines = self._parameters(seam, [number for number in range(given) if number != whole])
        counts: Mapping[str, Any] = {"hot": 0, "cold": 0}
        passed: Mapping[str, Any] = _NOTHING_BYPASSED
        if self.rows:
            if not self.table.unique_key:
                self.connection.execute(self.statements.lock_keys, lines)
            counts = self._counts(lines)
            bypass = counts["cold"] and self.table.may_bypass
            # One statement into the heap finds out by itself.
            if bypass or given > 1 or not self.table.unique_key:
                self._check_duplicates(lines)
            if bypass:
                passed = self._bypass(lines, counts["cold"], whole, ordered=ordered)
            if passed["n"] < self.rows:
                completed = self._look_in_cold(lines, seam, counts["cold"] - passed["n"], whole)
                self._write(lines, list(range(len(self.sets.sets) if completed else given)), ordered=ordered)
            if counts["cold"] > passed["n"]:
                self._check_corrected(lines)
        failpoint("load.before_label")
        return self._record(counts, passed)

    def discard(self) -> None:
        """The batch is certain not to commit."""
        if self._spool is not None:
            self._spool.remove()
            self._spool = None

    def _one(self, statement: sql.SQL | sql.Composed, parameters: Parameters) -> dict[str, Any]:
        """Planned anew each time: what is right for ten staged rows is wrong for a hundred thousand."""
        row = self.connection.execute(statement, parameters, prepare=False).fetchone()
        assert row is not None
        return row

    def _parameters(self, seam: Mapping[str, Any], partial: list[int]) -> Parameters:
        key_type = self.table.registered.key_type
        line, floor = (key_parameter(key_type, seam[name]) for name in ("line", "floor_line"))
        return {"line": line, "floor": floor, "partial": partial}

    def _counts(self, lines: Parameters) -> dict[str, Any]:
        """How many rows are hot and cold, if every key is sound."""
        counts = self._one(self.statements.summary, lines)
        if counts["wrong"]:
            refuse_wrong_key(self.table, self._one(self.statements.wrong_key, lines))
        return counts

    def _check_duplicates(self, lines: Parameters) -> None:
        if self._one(self.statements.has_duplicates, lines)["found"]:
            self._refuse_duplicate(lines)

    def _refuse_duplicate(self, lines: Parameters) -> None:
        found = self.connection.execute(self.statements.duplicate, lines).fetchone()
        if found is not None:
            line, earlier = found["line"], found["first_line"]
            columns = ", ".join(self.table.key)
            raise LoadRejected(
                f"line {line}: the key ({columns}) = ({found['key']}) stands in line {earlier} already",
                hint="within one batch a key may appear only once",
                line=line,
                column=columns,
                value=found["key"],
            )

    def _bypass(self, lines: Parameters, cold: int, whole: int, *, ordered: bool) -> Mapping[str, Any]:
        """Whole cold rows that the heap need not see: as files of the lake, or as corrections. What must pass by the heap stays behind."""
        if self.options.storage is not None and cold > self.options.spool_threshold:
            self._spool = open_spool(self.table, self.options.storage, self.label)
        spills = self.connection.execute(SQL.query("find_spill_conditions"), {"table_id": self.table.table_id}).fetchall()
        lake = self._spool.columns if self._spool is not None else None
        marked = self._one(self.statements.mark_bypass(whole, [row["condition"] for row in spills], lake), lines)
        if not marked["n"]:
            return marked
        refuse_violation(self.connection, self.table, self.statements, lines)
        if marked["n"] > marked["spooled"]:
            self.connection.execute(self.statements.correct(ordered=ordered), lines, prepare=False)
            if self._one(self.statements.overtaken, lines)["found"]:
                raise Overtaken
        if self._spool is not None and marked["spooled"]:
            written = self._spool.write(self.connection, self.statements)
            assert written == marked["spooled"], f"{written} rows written, {marked['spooled']} marked"
            failpoint("load.after_files")
        return marked

    def _look_in_cold(self, lines: Parameters, seam: Mapping[str, Any], cold: int, whole: int) -> bool:
        """Rows that the cold tier may hold are taken out of it before they come in anew; says whether any was completed from there.

        A key that holds the tier key is cold where its row is, and a whole row replaces what it finds: then there is nothing to look for.
        """
        partial, registered = bool(lines["partial"]), self.table.registered
        if self.table.key_says_tier and not (cold and (partial or registered.check_cold_keys)):
            return False
        if not self._one(self.statements.needs_cold, lines)["n"]:
            return False
        if partial:
            self._refuse_staged(lines)
        if seam["snapshot"] is None and not self._one(self.statements.has_corrections, {})["found"]:
            return False
        with cold_tier(self.connection, str(self.table.name)):
            if not partial:
                self.connection.execute(self.statements.unseat, lines, prepare=False)
                return False
            return self.connection.execute(self.statements.complete(self.sets.sets, whole), lines, prepare=False).rowcount > 0

    def _refuse_staged(self, lines: Parameters) -> None:
        waiting = self.connection.execute(self.statements.awaits_adoption, lines, prepare=False).fetchone()
        if waiting is not None:
            raise AwaitsAdoption(
                f"line {waiting['line']}: label {waiting['label']!r} is staged and may hold the row, whose other columns are kept",
                hint="load it again once that label is adopted, or give every column",
                line=waiting["line"],
            )

    def _write(self, lines: Parameters, numbers: list[int], *, ordered: bool) -> None:
        try:
            with self.connection.transaction():
                self._upsert(lines, numbers, ordered=ordered)
        except psycopg.errors.CardinalityViolation:
            self._refuse_duplicate(lines)
            raise
        except REFUSALS as error:
            self._refuse_row(lines, numbers, error)

    def _upsert(self, lines: Parameters, numbers: list[int], *, ordered: bool = False, part: bool = False) -> None:
        for number in numbers:
            statement = self.statements.upsert(self.sets.sets[number], only=len(numbers) == 1, ordered=ordered, part=part)
            # A plan that was made for another number of rows may be the wrong one, where rows are looked for by their keys.
            self.connection.execute(statement, {**lines, "set": number}, prepare=None if self.table.unique_key else False)

    def _refuse_row(self, lines: Parameters, numbers: list[int], error: psycopg.Error) -> NoReturn:
        """Find the first row that is refused by itself, by halves."""
        first, last, cause = 1, self._last_line(), error
        while first < last:
            middle = (first + last) // 2
            found = self._refusal({**lines, "first": first, "last": middle}, numbers)
            if found is not None:
                last, cause = middle, found
            else:
                first = middle + 1
        alone = self._refusal({**lines, "first": first, "last": first}, numbers)
        self._reject(first if alone is not None else None, alone or cause)

    def _last_line(self) -> int:
        """The number of the last row; more than there are rows where lines were blank."""
        return int(self._one(sql.SQL("select max(_modak_line) as line from {}").format(self.statements.stage), {})["line"])

    def _refusal(self, lines: Parameters, numbers: list[int]) -> psycopg.Error | None:
        try:
            with self.connection.transaction(force_rollback=True):
                self._upsert(lines, numbers, part=True)
        except REFUSALS as error:
            return error
        return None

    def _reject(self, line: int | None, error: psycopg.Error) -> NoReturn:
        diag, column = error.diag, error.diag.column_name
        message = diag.message_primary or str(error)
        # A row without a partition, and one that expired, have no constraint: it is the tier key that is wrong.
        if error.sqlstate in ("23514", "22008") and diag.constraint_name is None:
            column = self.table.tier_key
            message = message if str(self.table.name) in message else f"no partition of table {self.table.name} takes the row"
        raise LoadRejected(
            f"line {line}: {message}" if line is not None else message,
            hint=diag.message_hint,
            line=line,
            column=column,
            value=self._value(line, column) if line is not None and column in self.table.stored_names else None,
            constraint=diag.constraint_name,
            sqlstate=error.sqlstate,
        ) from error

    def _value(self, line: int, column: str | None) -> object:
        query = sql.SQL("select {}::text as value from {} where _modak_line = {}").format(
            sql.Identifier(column or ""), self.statements.stage, sql.Literal(line)
        )
        row = self.connection.execute(query).fetchone()
        return row["value"] if row else None

    def _check_corrected(self, lines: Parameters) -> None:
        missed = self._one(self.statements.uncorrected, lines)
        if missed["n"]:
            raise Refused(
                f"{missed['n']} cold rows of {self.table.name} fall into a partition that Modak does not know",
                hint="a partition was added below the cut-line: detach it, or run `modak tier`, which says what to do",
                **{self.table.tier_key: missed["example"]},
            )

    def _record(self, counts: Mapping[str, Any], passed: Mapping[str, Any]) -> LoadResult:
        files = self._spool.files if self._spool is not None else []
        result = LoadResult(
            self.label,
            "staged" if passed["spooled"] else "committed",
            hot_rows=counts["hot"],
            delta_rows=counts["cold"] - passed["spooled"],
            spooled_rows=passed["spooled"],
            staged_files=tuple(files),
        )
        facts = {
            "table_id": self.table.table_id,
            "label": self.label,
            "state": result.state,
            "hot_rows": result.hot_rows,
            "delta_rows": result.delta_rows,
            "spooled_rows": result.spooled_rows,
            "staged_files": files,
            "tier_key_lo": passed["low"],
            "tier_key_hi": passed["high"],
            "digest": self.digest,
        }
        self.connection.execute(SQL.query("record_label"), facts)
        return result


def refuse_wrong_key(table: LoadTable, found: Mapping[str, Any]) -> NoReturn:
    line, column, key = found["line"], found["column_name"], found["value"]
    if found["reason"] == "null":
        raise LoadRejected(f'line {line}: key column "{column}" is null', line=line, column=column)
    if found["reason"] == "infinite":
        raise LoadRejected(f'line {line}: tier key "{column}" cannot be infinite', line=line, column=column, value=key)
    raise LoadRejected(
        f"line {line}: row of {table.name} with {column} = {key} lies below the retention line",
        hint="rows this old have expired and are not taken back",
        line=line,
        column=column,
        value=key,
    )


def refuse_violation(connection: Connection, table: LoadTable, statements: Statements, lines: Parameters) -> None:
    """Rows that pass the heap by are held to its constraints all the same."""
    unchecked = statements.unchecked
    violated = connection.execute(unchecked, lines, prepare=False).fetchone() if unchecked is not None else None
    if violated is not None:
        line, name = violated["line"], violated["name"]
        raise LoadRejected(f'line {line}: the row violates "{name}" of {table.name}', line=line, constraint=name)
