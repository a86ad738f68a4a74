"""One batch in one transaction: lock the label, look at the seam, stage, check, route, write, record.

Rows that are all new and all hot, as most are, go straight into the heap by one COPY. Everything else, and every failure of that, takes the
long way through the staging table, where it is decided row by row and where errors find their line.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from modak.catalog import tables
from modak.connection import Connection
from modak.errors import UsageError
from modak.failpoints import failpoint
from modak.load import table as tables_to_load
from modak.load.columns import content
from modak.load.errors import LabelInFlight, LoadRejected
from modak.load.failures import STALE, RaceLost, translated
from modak.load.labels import label_lock
from modak.load.request import LoadOptions, LoadRequest, LoadResult, check_label
from modak.load.rows import Chunk, Digest, Source
from modak.load.settle import Overtaken, Settlement
from modak.load.staging import Staging, copy_in
from modak.load.statements import Statements
from modak.load.table import SQL, LoadTable
from modak.load.together import NotTogether, Together
from modak.source.relation import parse_name

# After so many batches at most, the short way is tried again.
_DETOURS_MAX = 32
_LOST_RACES = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure, Overtaken)


class _NotDirect(Exception):
    """The rows have to take the long way."""


@dataclass
class _Known:
    """What this connection knows of the table, and the mark it was read under."""

    table: LoadTable
    mark: str
    stage: str
    statements: Statements
    staging: Staging


class Loader:
    """Batches of one table on one connection, which ``modak.connection`` opened; not for several threads at once."""

    def __init__(self, connection: Connection, options: LoadOptions) -> None:
        self._connection = connection
        self._options = options
        self._name = parse_name(options.table)
        self._known: _Known | None = None
        # How many batches take the long way before the short one is tried again.
        self._detours = self._left = 0
        # The same for groups of batches that are not applied together.
        self._alone = self._lonely = 0

    def apply(self, request: LoadRequest) -> LoadResult:
        """One batch inside the caller's transaction, under a savepoint of its own; without one, in a transaction of its own.

        A batch that fails leaves the transaction as it was, so that its neighbours are not touched by its fate. What it returns holds once
        the caller's transaction has committed.
        """
        source = Source(request.rows, self._options.rows_max)
        return self.apply_source(check_label(request.label), source)

    def apply_source(self, label: str, source: Source) -> LoadResult:
        try:
            return self._apply(label, source)
        except psycopg.Error as error:
            stale = isinstance(error, STALE) and (source.replayable or not source.started)
            if not stale or self._known is None:
                raise translated(error, self._connection, str(self._name)) from error
        # Something the batch relied on was altered between the look at it and its use.
        self._known = None
        try:
            return self._apply(label, source)
        except psycopg.Error as error:
            raise translated(error, self._connection, str(self._name)) from error

    def apply_together(self, batches: Sequence[tuple[str, Source]]) -> list[LoadResult | None]:
        """New hot rows of several batches at once, inside the caller's transaction; None for each batch that must go by itself."""
        nothing: list[LoadResult | None] = [None] * len(batches)
        self._lonely -= 1
        known = self._known
        if known is None or not known.table.unique_key or len(batches) < 2 or self._lonely >= 0:
            return nothing
        try:
            with self._connection.transaction():
                results = Together(self._connection, known.table, known.statements, known.mark).apply(batches)
        except (NotTogether, psycopg.Error):
            if self._connection.broken or self._connection.closed:
                raise
            # As with a detour: the next groups are likely to be of the same kind.
            self._alone = self._lonely = min(_DETOURS_MAX, self._alone * 2 + 1)
            return nothing
        self._alone = 0
        return results

    def find(self, label: str) -> LoadResult | None:
        """What is recorded of a label."""
        table_id = tables.get(self._connection, self._name).table_id
        row = self._connection.execute(SQL.query("find_label"), {"table_id": table_id, "label": label}).fetchone()
        return _recorded(label, row) if row else None

    def _apply(self, label: str, source: Source) -> LoadResult:
        if not self._may_go_direct(source):
            return self._attempt(label, source, direct=False)
        with contextlib.suppress(_NotDirect):
            result = self._attempt(label, source, direct=True)
            self._detours = 0
            return result
        result = self._attempt(label, source, direct=False)
        # It was no use, and the next batch is likely to be of the same kind; one that is refused says nothing about that.
        self._detours = self._left = min(_DETOURS_MAX, self._detours * 2 + 1)
        return result

    def _may_go_direct(self, source: Source) -> bool:
        if (self._known is not None and not self._known.table.unique_key) or not source.replayable or source.is_empty:
            return False
        self._left -= 1
        return self._left < 0

    def _attempt(self, label: str, source: Source, *, direct: bool) -> LoadResult:
        with self._connection.transaction():
            opened = self._open(label)
            known = self._refresh(opened)
            if opened["recorded"]:
                return self._replay(known, label, source)
            if direct:
                return self._direct(known, label, source, int(opened["line"]))
            return self._staged(known, label, source, has_stage=opened["has_stage"])

    def _open(self, label: str) -> dict[str, Any]:
        table_id = self._known.table.table_id if self._known else tables_to_load.find(self._connection, self._name).table_id
        stage = f"pg_temp.{self._known.stage if self._known else 'modak_none'}"
        execute = self._connection.execute
        mine = execute(SQL.query("lock_label"), label_lock(table_id, label)).fetchone()
        # A statement of its own: it must see what the last holder of the lock committed.
        opened = execute(SQL.query("open_loads"), {"table_id": table_id, "labels": [label], "stage": stage}).fetchone()
        if mine is None or not mine["mine"]:
            raise LabelInFlight(
                f"label {label!r} of {self._name} is being applied by another connection",
                hint="load it again in a moment; one of the two wins, and the other sees its result",
            )
        if opened is None:
            self._known = None
            tables_to_load.find(self._connection, self._name)
            raise UsageError(f"{self._name} was registered anew meanwhile", hint="load the batch again")
        if opened["isolation"] != "read committed":
            hint = "it must see what others commit"
            raise UsageError("a load needs the isolation level READ COMMITTED", hint=hint, found=opened["isolation"])
        return opened

    def _refresh(self, opened: dict[str, Any]) -> _Known:
        if self._known is None or self._known.mark != opened["mark"]:
            table = tables_to_load.read(self._connection, self._name)
            stage = _stage_name(table)
            statements = Statements(table, stage)
            if self._known is not None and self._known.stage == stage:
                staging = self._known.staging
                staging.use(statements)
            else:
                staging = Staging(self._connection, statements)
                opened["has_stage"] = False
            self._known = _Known(table, opened["mark"], stage, statements, staging)
        return self._known

    def _replay(self, known: _Known, label: str, source: Source) -> LoadResult:
        """The recorded answer. The rows are read for their digest only."""
        row = self._connection.execute(SQL.query("find_label"), {"table_id": known.table.table_id, "label": label}).fetchone()
        assert row is not None
        sets, digest = known.table.column_sets(), Digest()
        warning = "the label was applied with other rows, which stay; these were not applied"
        try:
            for chunk in source.chunks(sets):
                digest.add(chunk, sets.sets)
        except LoadRejected:
            return _recorded(label, row, replay=True, warning=warning)
        differs = row["digest"] is not None and row["digest"] != digest.text()
        return _recorded(label, row, replay=True, warning=warning if differs else None)

    def _direct(self, known: _Known, label: str, source: Source, line: int) -> LoadResult:
        if not known.table.unique_key:
            raise _NotDirect
        sets, digest = known.table.column_sets(), Digest()
        supply = source.chunks(sets)
        first = next(supply)
        count = 0

        def texts() -> Iterator[pa.Buffer]:
            nonlocal count
            chunk: Chunk | None = first
            while chunk is not None:
                if not isinstance(chunk.sets, int) or chunk.columns != first.columns:
                    raise _NotDirect
                count += chunk.count
                digest.add(chunk, sets.sets)
                yield content(chunk.lines)
                chunk = next(supply, None)

        try:
            taken = copy_in(self._connection, known.statements.copy_heap(first.columns, line), texts())
        except psycopg.Error as error:
            if self._connection.broken:
                raise
            raise _NotDirect from error
        if taken != count:
            raise _NotDirect
        failpoint("load.after_copy")
        facts = {"table_id": known.table.table_id, "label": label, "hot_rows": count, "digest": digest.text(), "line": line}
        if self._connection.execute(SQL.query("record_hot_label"), facts).fetchone() is None:
            raise _NotDirect
        return LoadResult(label, "committed", hot_rows=count)

    def _staged(self, known: _Known, label: str, source: Source, *, has_stage: bool) -> LoadResult:
        sets, digest = known.table.column_sets(), Digest()
        rows = known.staging.fill(source, sets, digest, exists=has_stage)
        failpoint("load.after_copy")
        settlement = Settlement(self._connection, known.table, known.statements, sets, self._options, label, digest.text(), rows)
        for attempt in range(1, self._options.attempts + 1):
            try:
                with self._connection.transaction():
                    return settlement.settle(ordered=attempt > 1)
            except _LOST_RACES as lost:
                settlement.discard()
                if attempt == self._options.attempts:
                    raise RaceLost(f"the load of {self._name} met other writers: {lost}", hint="load the same label again") from lost
                time.sleep(min(1.0, 0.01 * 2**attempt) * random.uniform(0.5, 1.5))  # noqa: S311
            except BaseException:
                settlement.discard()
                raise
        raise AssertionError("unreachable")


def _stage_name(table: LoadTable) -> str:
    shape = repr([(column.name, column.type.display, column.collation) for column in table.stored])
    return f"modak_load_{table.table_id}_{hashlib.sha256(shape.encode()).hexdigest()[:8]}"


def _recorded(label: str, row: dict[str, Any], *, replay: bool = False, warning: str | None = None) -> LoadResult:
    return LoadResult(
        label,
        row["state"],
        hot_rows=row["hot_rows"],
        delta_rows=row["delta_rows"],
        spooled_rows=row["spooled_rows"],
        staged_files=tuple(row["staged_files"]),
        replay=replay,
        warning=warning,
    )
