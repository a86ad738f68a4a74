"""Clients: each makes random transactions, and every statement of them on the table and on its twin alike.

Both are changed in the same transaction, so they are committed or rolled back together, whatever becomes of it.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import psycopg

from tests.oracle.changes import Change, Changes, Key
from tests.oracle.journal import Journal
from tests.oracle.world import World

RETRY = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable)
# What a statement over cold rows says while a gateway is stopped or was stopped under it.
GATEWAY_AWAY = ("08000", "08001", "08006", "08003", "HV00N", "57P01", "57P03")
LEVELS = (
    psycopg.IsolationLevel.READ_COMMITTED,
    psycopg.IsolationLevel.REPEATABLE_READ,
    psycopg.IsolationLevel.READ_COMMITTED,
    psycopg.IsolationLevel.SERIALIZABLE,
)
IDS = 1_000_000
# Once it has done its part, a client leaves the machine to the worker for so long after each transaction.
THINKING_SECONDS = 0.02


def _met_a_partition(error: psycopg.Error) -> bool:
    """A row was on its way to the spill when an untier attached the partition for it, as happens with any ATTACH."""
    return isinstance(error, psycopg.errors.CheckViolation) and "partition constraint" in str(error)


class Differs(AssertionError):
    """The table answered something else than its twin, about rows of these ids."""

    def __init__(self, message: str, ids: set[int]) -> None:
        super().__init__(message)
        self.ids = ids


class Undone(Exception):
    """A savepoint's block ends by being rolled back."""


class Client(threading.Thread):
    """One session; ``counts`` says how its transactions ended."""

    def __init__(self, world: World, journal: Journal, number: int, seed: str, changes: Changes | None, functions: bool) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self._world, self._journal, self.number = world, journal, number
        self._dice = random.Random(seed)
        self._first, self._last = number * IDS, number * IDS + IDS
        self.changes = changes or Changes(world, self._dice, self._first, self._last, functions=functions)
        self.changes.dice = self._dice
        self.counts: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._transactions, self._enough = 0, threading.Event()
        self._touched: set[int] = set()
        self._connection: psycopg.Connection[tuple[Any, ...]]

    def work(self, transactions: int, enough: threading.Event) -> None:
        """At least so many transactions, and then until the others have done enough too."""
        self._transactions, self._enough = transactions, enough
        self.start()

    def run(self) -> None:
        try:
            with psycopg.connect(self._world.dsn, options="-c timezone=UTC") as self._connection:
                self._connection.isolation_level = LEVELS[self.number % len(LEVELS)]
                self._connection.prepare_threshold = self._dice.choice([0, 2, 5, None])
                number = 0
                while number < self._transactions or not self._enough.wait(THINKING_SECONDS):
                    self.counts[self._transaction(number)] += 1
                    number += 1
        except BaseException as failure:  # noqa: BLE001 - the test looks at it
            self.failure = failure

    def _transaction(self, number: int) -> str:
        outcome, self._touched = "committed", set()
        try:
            for _ in range(self._dice.randint(1, 6)):
                self._step()
            if self._dice.random() < 0.15:
                outcome = "rolled back"
                self._connection.rollback()
            self._connection.commit()
        except RETRY as error:
            outcome = f"refused {error.sqlstate}"
            self._connection.rollback()
        except psycopg.Error as error:
            if self._connection.closed or (error.sqlstate not in GATEWAY_AWAY and not _met_a_partition(error)):
                raise
            outcome = "gateway away" if error.sqlstate in GATEWAY_AWAY else "a partition came"
            self._connection.rollback()
        self._journal.note(self.name, f"--- transaction {number}: {outcome}", self._touched)
        return outcome

    def _step(self) -> None:
        act = self._dice.random()
        if act < 0.1:
            self._look()
        elif act < 0.3:
            self._in_savepoint()
        else:
            self._change()

    def _in_savepoint(self) -> None:
        undo = self._dice.random() < 0.5
        try:
            with self._connection.transaction():
                for _ in range(self._dice.randint(1, 3)):
                    self._change()
                if undo:
                    raise Undone
        except Undone:
            self._journal.note(self.name, "rolled back to the savepoint", self._touched)

    def _look(self) -> None:
        """A client sees its own rows as the twin has them, with what it has not committed yet."""
        sql = "select * from public.{t} where id between %s and %s and ts >= %s order by id, ts"
        given = (self._first, self._last, self._world.shape.key(self._world.floor))
        self._both(Change(sql, given))

    def _change(self) -> None:
        if self._dice.random() < 0.12:
            # The table first: its locks then decide the order of everybody's changes on both.
            self._both(self.changes.shared(), table_first=True)
            return
        if self._dice.random() < 0.15:
            self._connection.execute("select")  # the transaction has begun: a savepoint's block would be one by itself otherwise
            self._pair(self.changes.contested())
            return
        change = self.changes.next(self._rows())
        if change.twin_sql is None:
            self._both(change, table_first=self._dice.random() < 0.5)
        else:
            self._pair(change)

    def _rows(self) -> list[Key]:
        found = self._connection.execute(
            "select id, ts from public.twin where id between %s and %s order by id, ts", [self._first, self._last]
        )
        # An id that expired in one place is left alone in all others: the table may still hold it there.
        return [(row[0], row[1]) for row in found.fetchall() if row[0] not in self._world.buried]

    def _both(self, change: Change, *, table_first: bool = True) -> None:
        answers = {table: self._run(change, table) for table in (("t", "twin") if table_first else ("twin", "t"))}
        self._compare(change, answers["t"], answers["twin"])

    def _pair(self, change: Change) -> None:
        assert change.twin_sql is not None
        try:
            with self._connection.transaction():
                done, rows = self._run(change, "t")
        except psycopg.errors.UniqueViolation:
            if not change.may_exist:
                raise
            self._journal.note(self.name, "refused, it exists", change.ids)
            return
        if change.if_done and not done:
            return
        given = change.twin_parameters if change.twin_parameters is not None else change.parameters
        if change.as_answered:
            given = ([int(row[1:].partition(",")[0]) for row in rows],)
        expected = self._run(Change(change.twin_sql, given), "twin")
        if change.sql.startswith("select"):
            # A function says which tier it was, and the twin has none.
            self._journal.note(self.name, f"  {rows}", change.ids)
            return
        self._compare(change, (done, rows), expected)

    def _run(self, change: Change, table: str) -> tuple[int, list[str]]:
        sql = change.sql.replace("{t}", table)
        self._touched |= change.ids
        try:
            with self._connection.cursor() as cursor:
                if change.rows:
                    with cursor.copy(sql) as copy:
                        for row in change.rows:
                            copy.write_row(row)
                    answer = cursor.rowcount, list[str]()
                else:
                    cursor.execute(sql, change.parameters)
                    rows = sorted(map(repr, cursor.fetchall())) if cursor.description else []
                    answer = cursor.rowcount, rows
        except psycopg.Error as error:
            self._journal.note(self.name, f"{sql} {change.parameters or change.rows}: {error.sqlstate} {error}", change.ids)
            raise
        self._journal.note(self.name, f"{sql} {change.parameters or change.rows}: {answer[0]}", change.ids)
        return answer

    def _compare(self, change: Change, found: tuple[int, list[str]], expected: tuple[int, list[str]]) -> None:
        if found != expected:
            strange = [row for row in found[1] if row not in expected[1]], [row for row in expected[1] if row not in found[1]]
            message = f"{change.sql} {change.parameters}: {found[0]} rows instead of {expected[0]}\n"
            message += f"  only in the table: {strange[0][:3]}\n  only in the twin: {strange[1][:3]}\n{self._seam()}"
            named = {int(row[1:].partition(",")[0]) for rows in strange for row in rows if row[1:2].isdigit()}
            raise Differs(message, named or change.ids)

    def _seam(self) -> str:
        """Where the line stands for this very transaction."""
        line = self._connection.execute("select tier_key_hi, lake_snapshot_id, revision from modak.cutline").fetchone()
        return f"  at {line}, {self._connection.isolation_level!r}"
