"""What the worker is doing, for whoever shows it. Threads of the loop write it, others read it; every value is replaced whole.

In memory and of this process only. What lasts is in the catalog.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from modak.errors import LockNotAvailable

T = TypeVar("T")


@dataclass
class Tally:
    """Runs of one job of one table that ended the same way."""

    count: int = 0
    seconds: float = 0.0


@dataclass
class Moved:
    """What the pump did for one table."""

    changes: int = 0
    written: int = 0
    deleted: int = 0


@dataclass
class LoopState:
    """``running``: the job of each table at work. ``failures`` and ``next_attempt``: why a table's last round failed, until one succeeds.

    ``waits``: why a table's tiering is held back. ``ended``: the loop is over; unless the process is stopping, that is a failure.
    """

    is_leader: bool = False
    epoch: int | None = None
    since: datetime | None = None
    cycle_at: datetime | None = None
    cycles: int = 0
    running: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    next_attempt: dict[str, datetime] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    clock: Callable[[], float] = field(default=time.time, repr=False, compare=False)
    _began: dict[str, float] = field(default_factory=dict, repr=False, compare=False)
    _tallies: dict[tuple[str, str, str], Tally] = field(default_factory=dict, repr=False, compare=False)
    _moved: dict[str, Moved] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def runs(self, table: str, job: str | None) -> None:
        """``job`` begins; None: it has ended. Called in a ``finally``, it knows by the exception on its way how the job ended."""
        now, result = self.clock(), _result(sys.exc_info()[1])
        with self._lock:
            if job is None and table in self.running:
                self._count((table, self.running[table], result), now - self._began[table])
            self.running = _with(self.running, table, job)
            self._began = _with(self._began, table, now if job is not None else None)

    def fails(self, table: str, why: str | None, next_attempt: datetime | None = None) -> None:
        """None: it does not any more."""
        with self._lock:
            self.failures = _with(self.failures, table, why)
            self.next_attempt = _with(self.next_attempt, table, next_attempt)

    def holds_back(self, table: str, why: str | None) -> None:
        with self._lock:
            self.waits = _with(self.waits, table, why)

    def keeps(self, tables: Collection[str]) -> None:
        """Forget what is known of others: they were unregistered or disabled."""
        with self._lock:
            self.failures = {name: why for name, why in self.failures.items() if name in tables}
            self.next_attempt = {name: at for name, at in self.next_attempt.items() if name in tables}
            self.waits = {name: why for name, why in self.waits.items() if name in tables}

    @contextlib.contextmanager
    def job(self, table: str, job: str) -> Iterator[None]:
        """Around one run of a job; what it raises goes on."""
        self.runs(table, job)
        try:
            yield
        finally:
            self.runs(table, None)

    def tallies(self) -> dict[tuple[str, str, str], Tally]:
        """By table, job and result (done, waited, failed)."""
        with self._lock:
            return {key: replace(tally) for key, tally in self._tallies.items()}

    def moves(self, table: str, changes: int, written: int, deleted: int) -> None:
        """The pump made a commit."""
        with self._lock:
            moved = self._moved.setdefault(table, Moved())
            moved.changes += changes
            moved.written += written
            moved.deleted += deleted

    def moved(self) -> dict[str, Moved]:
        """By table, since this process began."""
        with self._lock:
            return {table: replace(moved) for table, moved in self._moved.items()}

    def began(self) -> dict[str, datetime]:
        """Since when each table's job has been at work."""
        return {name: datetime.fromtimestamp(at, UTC) for name, at in self._began.items()}

    def _count(self, key: tuple[str, str, str], seconds: float) -> None:
        tally = self._tallies.setdefault(key, Tally())
        tally.count += 1
        tally.seconds += seconds


def role(state: LoopState | None) -> str:
    """Leader or standby; a server without a loop runs no jobs at all."""
    if state is None:
        return "server"
    return "leader" if state.is_leader else "standby"


def _result(raised: BaseException | None) -> str:
    """A lock that somebody else holds is no failure: the next cycle tries again."""
    if raised is None:
        return "done"
    return "waited" if isinstance(raised, LockNotAvailable) else "failed"


def _with(known: dict[str, T], table: str, value: T | None) -> dict[str, T]:
    others = {name: one for name, one in known.items() if name != table}
    return others if value is None else {**others, table: value}
