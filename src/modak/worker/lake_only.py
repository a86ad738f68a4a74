"""Decoupled tables in the worker's cycle: nothing but their maintenance is the worker's business, and that not often.

One after the other, in a thread of their own. What fails is in modak.lake_problems until it succeeds, and is tried again later and later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import psycopg

from modak.app import App
from modak.catalog import decoupled, leadership, problems
from modak.connection import Connection
from modak.core import schedule
from modak.core.maintenance import decoupled_upkeep
from modak.core.table import Name
from modak.errors import LeadershipLost, LockNotAvailable, ModakError
from modak.jobs.maintain import MaintainOutcome
from modak.jobs.maintain_decoupled import JOB, SNAPSHOTS_MAX, maintain_decoupled
from modak.worker.state import LoopState

log = logging.getLogger("modak.worker")
_LIST_SECONDS = 60.0
# Each transaction leaves a snapshot, which every later one carries along.
_EVERY_SECONDS_MAX = 600.0


@dataclass
class _Known:
    """What this worker remembers of a table: when its next pass is due, and how many have failed in a row."""

    table_id: int
    next: float
    failures: int = 0


@dataclass
class LakeOnly:
    """``every_seconds``: None leaves them alone. Those that were attached are somebody else's to maintain.

    ``epoch`` and ``is_over`` are of the leadership that it belongs to: no further pass begins once that is over.
    """

    app: App
    state: LoopState
    every_seconds: float | None
    cycle_seconds: float = 10.0
    epoch: int | None = None
    is_over: Callable[[], bool] = lambda: False
    _listed: float | None = None
    _known: dict[Name, _Known] = field(default_factory=dict)

    @property
    def names(self) -> list[Name]:
        return list(self._known)

    def due(self, connection: Connection, now: float) -> list[Name]:
        """Whoever waited longest comes first. Not while passes are at work: they change what is due."""
        if self._listed is None or now - self._listed >= min(_LIST_SECONDS, self.every_seconds or _LIST_SECONDS):
            self._listed = now
            self._list(connection, now)
        found = sorted((name for name, known in self._known.items() if known.next <= now), key=lambda name: self._known[name].next)
        for name in found:
            self._known[name].next = now + min(self.every_seconds or _EVERY_SECONDS_MAX, _EVERY_SECONDS_MAX)
        return found

    def _list(self, connection: Connection, now: float) -> None:
        listed = decoupled.listing(connection) if self.every_seconds is not None else []
        ids = {one.name: one.table_id for one in listed if not one.is_attached}
        before = {name: known for name, known in self._known.items() if ids.get(name) == known.table_id}
        self._known = {name: before.get(name) or _Known(table_id, now) for name, table_id in ids.items()}
        decoupled.clear_others(connection, ids.values(), JOB)

    def maintain_all(self, names: Sequence[Name]) -> None:
        """In a thread of its own, while the tables that have other jobs go on."""
        for name in names:
            if self.is_over():
                return
            self.maintain(name)

    def maintain(self, name: Name) -> None:
        """One pass; a failure is this table's alone."""
        known, began = self._known[name], time.monotonic()
        try:
            done = self._pass(name)
        except LockNotAvailable as busy:
            log.info("%s of %s waits: %s", JOB, name, busy)
            return
        except Exception as cause:  # whatever it is, it is this table's, and the others go on
            expected = isinstance(cause, psycopg.Error | ModakError)
            log.warning("%s of %s failed: %s", JOB, name, cause, exc_info=None if expected else cause)
            self._failed(name, known, cause)
            return
        known.failures = 0
        self.state.fails(str(name), None)
        if done is not None:
            self._tell(name, known, done, time.monotonic() - began)

    def _pass(self, name: Name) -> MaintainOutcome | None:
        """None: nobody wants it, or the table is gone."""
        with self.app.decoupled_job(name, epoch=self.epoch) as context:
            if context is None:
                return None
            if not decoupled_upkeep(context.table().properties).enabled:
                decoupled.clear(context.connection, context.definition.table_id, JOB)
                return None
            with self.state.job(str(name), JOB):
                return maintain_decoupled(context)

    def _failed(self, name: Name, known: _Known, cause: Exception) -> None:
        """Back off, and say so where `modak status` looks. What fails as a worker that was just replaced is nobody's problem."""
        known.failures += 1
        seconds = schedule.backoff_seconds(known.failures, self.cycle_seconds, schedule.BACKOFF_SECONDS_MAX)
        known.next = time.monotonic() + seconds
        self.state.fails(str(name), f"{JOB}: {cause}", datetime.now(UTC) + timedelta(seconds=seconds))
        try:
            with self.app.connection() as connection, connection.transaction():
                leadership.check_epoch(connection, self.epoch)
                decoupled.report(connection, known.table_id, JOB, problems.as_ours(cause), seconds)
        except LeadershipLost:
            self.state.fails(str(name), None)
        except (psycopg.Error, ModakError) as away:
            log.warning("why %s failed could not be written down: %s", name, away)

    @staticmethod
    def _tell(name: Name, known: _Known, done: MaintainOutcome, seconds: float) -> None:
        if done.snapshots_expired >= SNAPSHOTS_MAX:
            known.next = min(known.next, time.monotonic() + _LIST_SECONDS)
        if done.commits or done.snapshots_expired or done.files_removed:
            log.info(
                "%s of %s: %s files became %s, %s snapshots and %s files went, %.1f s",
                *(JOB, name, done.files_rewritten, done.files_written, done.snapshots_expired, done.files_removed),
                seconds,
            )
