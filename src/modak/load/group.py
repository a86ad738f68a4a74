"""Loads of many clients at once. Small batches of one table share a transaction, each under a savepoint; large ones have their own.

A group is whatever gathered while the one before it was at work: nobody waits for company. Answers are given after COMMIT. Where a group as
a whole fails, or a batch of it meets somebody else's lock, the batches are tried again one by one, which their labels make safe.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import psycopg

from modak.core.table import Name
from modak.errors import ConnectionFailed, LockNotAvailable, UsageError
from modak.failpoints import failpoint
from modak.load.batch import Loader
from modak.load.errors import LabelInFlight
from modak.load.failures import RaceLost
from modak.load.request import LoadOptions, LoadResult, Rows
from modak.load.rows import Source
from modak.load.sessions import Sessions
from modak.source.relation import parse_name

_log = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.05
# A batch that meets somebody else's locks leaves the group soon, so that its neighbours need not wait.
_GROUP_LOCK_SECONDS = 1.0


@dataclass(frozen=True)
class GroupLimits:
    """``connections`` are halved between groups and large batches."""

    connections: int = 8
    committers: int = 2  # groups of one table at work at the same time
    group_batches: int = 64
    group_bytes: int = 8 * 1024 * 1024
    alone_bytes: int = 2 * 1024 * 1024
    alone_rows: int = 20_000
    attempts: int = 3  # of a batch by itself, after a connection broke


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch on its way. ``lines`` is how many rows it has, about, where that is known without reading them."""

    label: str
    rows: Rows
    size: int
    lines: int = 0
    answer: Future[LoadResult] = field(default_factory=Future)


@dataclass
class _Lane:
    """The small batches of one table."""

    waiting: deque[Batch] = field(default_factory=deque)
    at_work: int = 0


def table_named(text: str) -> Name:
    """A table as somebody outside names it."""
    if "\0" in text:
        raise UsageError("a table's name cannot hold the character NUL")
    return parse_name(text)


class Loads:
    """The loads of one server. ``options`` says how a table is loaded, for a batch that is alone."""

    def __init__(self, options: Callable[[Name], LoadOptions], limits: GroupLimits | None = None) -> None:
        self.limits = limits or GroupLimits()
        self._options = functools.lru_cache(maxsize=1024)(options)
        half = max(1, self.limits.connections // 2)
        self._sessions = Sessions(2 * half)
        self._groups = ThreadPoolExecutor(half, "load-group")
        self._alone = ThreadPoolExecutor(half, "load-alone")
        self._lock = threading.Lock()
        self._lanes: dict[Name, _Lane] = {}
        self._labels: set[tuple[Name, str]] = set()
        self._stopped = threading.Event()

    def submit(self, table: Name, batch: Batch) -> Future[LoadResult]:
        """The answer comes when the batch is durable or refused."""
        # Nobody may cancel it from outside: the rows are applied or not, whoever has gone meanwhile.
        batch.answer.set_running_or_notify_cancel()
        large = batch.size > self.limits.alone_bytes or batch.lines > self.limits.alone_rows
        with self._lock:
            if self._stopped.is_set():
                raise _stopping()
            if (table, batch.label) in self._labels:
                raise LabelInFlight(
                    f"label {batch.label!r} of {table} is being applied by another request",
                    hint="load it again in a moment; the answer will be the recorded one",
                )
            self._labels.add((table, batch.label))
            if large:
                self._alone.submit(self._run_alone, table, batch)
            else:
                self._enqueue(table, batch)
        return batch.answer

    def find(self, table: Name, label: str) -> Future[LoadResult | None]:
        """What is recorded of a label."""

        def look() -> LoadResult | None:
            try:
                with self._sessions.borrow(self._quick(table)) as session:
                    return session.loader.find(label)
            except psycopg.Error as cause:
                self._sessions.forget()
                raise ConnectionFailed(f"the connection broke: {cause}", hint="ask again") from cause

        return self._groups.submit(look)

    def close(self, seconds: float = 20.0) -> None:
        """What waits is told to come back; what is at work finishes within the time, or is rolled back."""
        with self._lock:
            self._stopped.set()
            waiting = [(table, batch) for table, lane in self._lanes.items() for batch in lane.waiting]
            for lane in self._lanes.values():
                lane.waiting.clear()
        for table, batch in waiting:
            self._finish(table, batch, _stopping())
        done = threading.Event()
        threading.Thread(target=self._cancel_late, args=(seconds, done), daemon=True).start()
        self._groups.shutdown(wait=True)
        self._alone.shutdown(wait=True)
        done.set()
        self._sessions.forget()

    def _cancel_late(self, seconds: float, done: threading.Event) -> None:
        while not done.wait(seconds):
            self._sessions.cancel()
            # A batch that was between two statements is met at the next one.
            seconds = 0.5

    # Groups

    def _enqueue(self, table: Name, batch: Batch) -> None:
        lane = self._lanes.setdefault(table, _Lane())
        lane.waiting.append(batch)
        if lane.at_work < self.limits.committers:
            lane.at_work += 1
            self._groups.submit(self._run_lane, table, lane)

    def _run_lane(self, table: Name, lane: _Lane) -> None:
        group = self._take(lane)
        if group:
            self._run_group(table, group)
        with self._lock:
            # Behind whoever waits by now: no table keeps the others out.
            if lane.waiting and not self._stopped.is_set():
                self._groups.submit(self._run_lane, table, lane)
                return
            lane.at_work -= 1
            if not lane.at_work and not lane.waiting:
                self._lanes.pop(table, None)

    def _take(self, lane: _Lane) -> list[Batch]:
        group: list[Batch] = []
        size = 0
        with self._lock:
            while lane.waiting and len(group) < self.limits.group_batches and size <= self.limits.group_bytes:
                group.append(lane.waiting.popleft())
                size += group[-1].size
        return group

    def _run_group(self, table: Name, group: Sequence[Batch]) -> None:
        try:
            outcomes = self._commit(table, group)
        except (psycopg.Error, ConnectionFailed) as cause:
            _log.warning("a group of %d loads of %s failed as a whole: %s", len(group), table, cause)
            self._sessions.forget()
            outcomes = [cause] * len(group)
        except Exception as cause:  # noqa: BLE001 - each of them gets it
            _log.exception("a group of loads of %s failed", table)
            outcomes = [cause] * len(group)
        for batch, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, psycopg.Error | ConnectionFailed | RaceLost | LockNotAvailable):
                self._again(table, batch, outcome)
            else:
                self._finish(table, batch, outcome)

    def _commit(self, table: Name, group: Sequence[Batch]) -> list[LoadResult | Exception]:
        """The group in one transaction; one batch alone needs none around its own."""
        options = self._quick(table)
        with self._sessions.borrow(options) as session:
            if len(group) == 1:
                return [_outcome(session.loader, group[0], options)]
            with session.connection.transaction():
                done = session.loader.apply_together([(batch.label, Source(batch.rows, options.rows_max)) for batch in group])
                outcomes = [found or _outcome(session.loader, batch, options) for batch, found in zip(group, done, strict=True)]
                failpoint("load.before_group_commit")
            failpoint("load.after_group_commit")
            return outcomes

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - as old as the server
    def _quick(self, table: Name) -> LoadOptions:
        options = self._options(table)
        return dataclasses.replace(options, attempts=1, lock_seconds=min(options.lock_seconds, _GROUP_LOCK_SECONDS))

    # Batches by themselves

    def _again(self, table: Name, batch: Batch, cause: Exception) -> None:
        try:
            self._alone.submit(self._run_alone, table, batch)
        except RuntimeError:
            self._finish(table, batch, cause if isinstance(cause, ConnectionFailed) else _stopping())

    def _run_alone(self, table: Name, batch: Batch) -> None:
        broke = False
        for attempt in range(1, self.limits.attempts + 1):
            outcome, breaks = self._try_alone(table, batch)
            # After a break the old transaction may not have noticed yet, and hold the label.
            if not breaks and not (broke and isinstance(outcome, LabelInFlight)):
                break
            broke = True
            if self._stopped.wait(_PAUSE_SECONDS * 2**attempt):
                break
        self._finish(table, batch, outcome)

    def _try_alone(self, table: Name, batch: Batch) -> tuple[LoadResult | Exception, bool]:
        """What became of it, and whether the connection broke under it. One that cannot be opened did not: the client is told to wait."""
        options = self._options(table)
        try:
            with self._sessions.borrow(options) as session:
                try:
                    return _outcome(session.loader, batch, options), False
                except ConnectionFailed as cause:
                    self._sessions.forget()
                    return cause, True
        except Exception as cause:  # noqa: BLE001 - whoever asked gets it
            return cause, False

    def _finish(self, table: Name, batch: Batch, outcome: LoadResult | Exception) -> None:
        with self._lock:
            self._labels.discard((table, batch.label))
        if isinstance(outcome, LoadResult):
            batch.answer.set_result(outcome)
        else:
            batch.answer.set_exception(outcome)


def _outcome(loader: Loader, batch: Batch, options: LoadOptions) -> LoadResult | Exception:
    """What became of a batch. An error of the connection is not the batch's own, and goes on."""
    try:
        return loader.apply_source(batch.label, Source(batch.rows, options.rows_max))
    except (ConnectionFailed, psycopg.OperationalError):
        raise
    except Exception as cause:  # noqa: BLE001 - its own fate, and not that of its neighbours
        return cause


def _stopping() -> ConnectionFailed:
    return ConnectionFailed("the server is stopping; the batch was not applied", hint="load the same label again")
