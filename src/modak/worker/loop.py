"""The loop: cycle after cycle one look at every table, and what is due is run, several tables side by side.

One worker of a database leads and runs jobs; others stand by. What fails is tried again later, with the reason in modak.problems, and
never stops another table.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg

from modak.app import App
from modak.catalog import leadership, problems
from modak.catalog.migrate import SQL as CATALOG_SQL
from modak.connection import Connection
from modak.core import schedule
from modak.core.schedule import Job, Limits, Memory, Past, Sight
from modak.errors import LeadershipLost, LockNotAvailable, ModakError, Retry
from modak.jobs import mirror
from modak.settings import Settings
from modak.worker import work
from modak.worker.lake_only import LakeOnly
from modak.worker.lease import Lease, leading
from modak.worker.state import LoopState
from modak.worker.survey import Survey

MIRROR = "mirror"
LAKE_ONLY = "decoupled tables"
BACKLOG = "backlog"
PUMP_SECONDS_MAX = 30.0
_LOOK_SECONDS = 0.2
# So many failures in a row that nothing here knows: after that a new process may do better than this one.
STUMBLES_MAX = 8
_STUMBLE_SECONDS_MAX = 30.0
log = logging.getLogger("modak.worker")


class Backlogged(ModakError):
    """Corrections or staged loads wait; no further partition of the table is tiered until fewer do."""

    code = "backlog"
    retry = Retry.LATER


@dataclass
class _Known:
    """What this worker remembers of a table."""

    folded: float
    passes: dict[Job, tuple[str, float, bool]] = field(default_factory=dict)
    failures: int = 0
    until: float = 0.0
    failed: frozenset[Job] = frozenset()

    def memory(self, now: float, spread: float) -> Memory:
        passes = {job: Past(activity, now - at + spread, settled) for job, (activity, at, settled) in self.passes.items()}
        return Memory(passes, now - self.folded)


@dataclass
class Loop:
    """Runs in a thread of its own until ``stop`` is set; jobs that are at work then are finished first."""

    app: App
    stop: threading.Event
    seconds: float
    limits: Limits = field(default_factory=Limits)
    state: LoopState = field(default_factory=LoopState)
    _known: dict[int, _Known] = field(default_factory=dict)
    _served: dict[int, float] = field(default_factory=dict)
    _running: dict[int | str, Future[None]] = field(default_factory=dict)
    _stumbles: int = 0

    def run(self) -> None:
        """Until ``stop`` is set. It raises only what came again and again, and then this process should end: see ``modak worker``."""
        try:
            self._run_until_stopped()
        finally:
            self.state.ended = True

    def _run_until_stopped(self) -> None:
        settings = self.app.settings
        connect = partial(self.app.connection, application=leadership.lease_name())
        with (
            ThreadPoolExecutor(settings.worker_tables, "modak-table") as self._tables,
            ThreadPoolExecutor(1, "modak-mirror") as self._pump,
            ThreadPoolExecutor(1, "modak-decoupled") as self._upkeep,
        ):
            while not self.stop.is_set():
                try:
                    with leading(connect, settings.lease_seconds, self.stop) as lease:
                        if lease is not None:
                            self._lead(lease)
                except (psycopg.Error, ModakError) as cause:
                    log.warning("no lease: %s", cause)
                except Exception as cause:  # noqa: BLE001 - no thread left, a mistake of ours: without the loop nothing runs at all
                    self._stumble("no lease", cause)
                finally:
                    self.state.is_leader, self.state.epoch = False, None
                self.stop.wait(schedule.backoff_seconds(self._stumbles, min(1.0, self.seconds), _STUMBLE_SECONDS_MAX))

    def _lead(self, lease: Lease) -> None:
        self.state.epoch, self.state.since, self.state.is_leader = lease.epoch, lease.since, True
        survey, is_over = Survey(self.limits), partial(self._is_over, lease)
        lake_only = LakeOnly(self.app, self.state, self.limits.maintain_seconds, self.seconds, lease.epoch, is_over)
        while not self._is_over(lease):
            try:
                with self.app.connection(application=leadership.session_name(lease.epoch)) as connection:
                    survey.begin(connection)
                    connection.execute(CATALOG_SQL.query("clear_job"), {"job": BACKLOG})
                    self.state.waits = {}
                    while not self._is_over(lease):
                        self._cycle(connection, lease, survey, lake_only)
                        self._stumbles = 0
                        self._pause(lease)
            except (psycopg.Error, ModakError) as cause:
                log.warning("no cycle: %s", cause)
                self._pause(lease)
            except Exception as cause:  # noqa: BLE001 - and it leads on: to lead anew would end the sessions of its own jobs
                self._stumble("no cycle", cause)
                self._pause(lease)
        if not lease.lost.is_set():
            # Draining: it leads until its jobs are through, so that nobody takes them for left behind.
            wait(list(self._running.values()))

    def _stumble(self, what: str, cause: Exception) -> None:
        """Said, and survived; not for ever."""
        if self.state.ended:
            raise cause
        self._stumbles += 1
        log.error("%s, for the %s. time in a row: %s", what, self._stumbles, cause, exc_info=cause)
        if self._stumbles >= STUMBLES_MAX:
            # At once, and not when the jobs at work are through: one of them may be what hangs.
            self.state.ended = True
            raise cause

    def _is_over(self, lease: Lease) -> bool:
        return self.stop.is_set() or lease.lost.is_set()

    def _pause(self, lease: Lease) -> None:
        until = time.monotonic() + self.seconds
        while not self._is_over(lease) and (left := until - time.monotonic()) > 0:
            self.stop.wait(min(_LOOK_SECONDS, left))

    def _cycle(self, connection: Connection, lease: Lease, survey: Survey, lake_only: LakeOnly) -> None:
        self._clear_away()
        now = time.monotonic()
        sights = {sight.table_id: sight for sight in survey.look(connection)}
        self._forget_others(set(sights))
        alone = lake_only.due(connection, now) if LAKE_ONLY not in self._running else []
        self.state.keeps({MIRROR, *(str(sight.name) for sight in sights.values()), *map(str, lake_only.names)})
        for sight in schedule.in_turn(sights.values(), self._served):
            known = self._known.setdefault(sight.table_id, _Known(now))
            self._hold_back(connection, sight)
            if sight.table_id in self._running or now < known.until:
                continue
            due = schedule.due(sight, known.memory(now, self._spread(sight)), self.limits)
            for job in known.failed.difference(due):
                # Somebody did it by hand, or the policy does not want it any more.
                problems.clear(connection, sight.table_id, job.value)
            known.failed = known.failed.intersection(due)
            if due:
                self._served[sight.table_id] = now
                self._running[sight.table_id] = self._tables.submit(self._table, lease, sight, due)
        if alone:
            # One after the other, in a thread of their own: a hundred that are due at once would keep the tables above waiting.
            self._running[LAKE_ONLY] = self._upkeep.submit(lake_only.maintain_all, alone)
        if survey.mirrored and MIRROR not in self._running:
            self._running[MIRROR] = self._pump.submit(self._mirror, lease)
        self.state.cycle_at = datetime.now(UTC)
        self.state.cycles += 1

    def _clear_away(self) -> None:
        for key, future in list(self._running.items()):
            if future.done():
                del self._running[key]
                if (cause := future.exception()) is not None:
                    log.error("what ran for %s did not end as it should: %s", key, cause, exc_info=cause)

    def _spread(self, sight: Sight) -> float:
        """Tables that were looked at together when the worker began are looked at again one after the other."""
        return sight.table_id % 1000 / 1000 * self.limits.recheck_seconds / 2

    def _forget_others(self, present: set[int]) -> None:
        """Unregistered or disabled: what was remembered of it must not be taken for another table's."""
        for table_id in set(self._known) - present - set(self._running):
            del self._known[table_id]
            self._served.pop(table_id, None)

    def _hold_back(self, connection: Connection, sight: Sight) -> None:
        reason, name = schedule.backpressure(sight, self.limits) if sight.tiers else None, str(sight.name)
        if reason == self.state.waits.get(name):
            return
        self.state.holds_back(name, reason)
        if reason is None:
            problems.clear(connection, sight.table_id, BACKLOG)
            return
        hint = "tiering waits for them; `modak fold` and `modak adopt` say what keeps them"
        problems.report(connection, sight.table_id, BACKLOG, Backlogged(reason, hint=hint))

    def _table(self, lease: Lease, sight: Sight, jobs: list[Job]) -> None:
        """One table's round, in a thread of its own."""
        known, name = self._known[sight.table_id], str(sight.name)
        failed: dict[Job, Exception] = {}
        for job in jobs:
            if self._is_over(lease):
                break
            try:
                self._run(lease, sight, known, job)
            except LockNotAvailable as busy:
                log.info("%s of %s waits: %s", job, name, busy)
            except LeadershipLost as lost:
                log.warning("%s of %s was not published: %s", job, name, lost)
                break
            except Exception as cause:  # whatever it is, it is this table's, and the others go on
                failed[job] = cause
                expected = isinstance(cause, psycopg.Error | ModakError)
                log.warning("%s of %s failed: %s", job, name, cause, exc_info=None if expected else cause)
        self._remember(lease, sight, known, failed)

    def _run(self, lease: Lease, sight: Sight, known: _Known, job: Job) -> None:
        now = time.monotonic()
        with self.state.job(str(sight.name), job.value):
            # The pump has a mirrored table for a moment with every batch; somebody waits for it then.
            waits = 0.0 if sight.has_seam else PUMP_SECONDS_MAX
            with self.app.job(sight.name, epoch=lease.epoch, wait_seconds=waits) as context:
                settled = work.run(job, context)
        known.passes[job] = (sight.activity, now, settled)
        if job is Job.FOLD:
            known.folded = now

    def _remember(self, lease: Lease, sight: Sight, known: _Known, failed: dict[Job, Exception]) -> None:
        """Back off, and say so where `modak status` looks."""
        name = str(sight.name)
        known.failures, known.failed = known.failures + 1 if failed else 0, frozenset(failed)
        seconds = schedule.backoff_seconds(known.failures, self.seconds, schedule.BACKOFF_SECONDS_MAX) if failed else 0.0
        known.until = time.monotonic() + seconds
        if not failed or lease.lost.is_set():
            self.state.fails(name, None)
            return
        why = "; ".join(f"{job}: {cause}" for job, cause in failed.items())
        self.state.fails(name, why, datetime.now(UTC) + timedelta(seconds=seconds))
        self._postpone(lease, sight, failed, seconds)

    def _postpone(self, lease: Lease, sight: Sight, failed: dict[Job, Exception], seconds: float) -> None:
        """Not as a worker that was just replaced: what failed then is nobody's problem."""
        try:
            with self.app.connection() as connection, connection.transaction():
                leadership.check_epoch(connection, lease.epoch)
                for job, cause in failed.items():
                    problems.postpone(connection, sight.table_id, job.value, problems.as_ours(cause), seconds)
        except (psycopg.Error, ModakError) as away:
            log.warning("why %s failed could not be written down: %s", sight.name, away)

    def _mirror(self, lease: Lease) -> None:
        """All mirrored tables at once, since they share a slot; what stops one of them is in modak.problems."""
        opened = partial(self.app.job, epoch=lease.epoch)
        try:
            with self.app.connection(application=leadership.session_name(lease.epoch), unhurried=True) as connection:
                done = mirror.mirror(connection, self.app.dsn, opened, settles=False, epoch=lease.epoch, told=self.state.moves)
        except Exception as cause:  # the next cycle tries again
            expected = isinstance(cause, psycopg.Error | ModakError)
            log.warning("mirror failed: %s", cause, exc_info=None if expected else cause)
            self.state.fails(MIRROR, str(cause))
            return
        self.state.fails(MIRROR, None)
        for name, why in (done.parked | done.failed).items():
            if why != mirror.PARKED_BEFORE:
                log.warning("mirror of %s stopped: %s", name, why)


def limits_of(settings: Settings) -> Limits:
    """What the settings say of the loop's limits."""
    return Limits(
        fold_rows=settings.fold_rows,
        fold_seconds=settings.fold_seconds,
        backlog_rows=settings.backlog_rows,
        backlog_labels=settings.backlog_labels,
        maintain_seconds=settings.maintain_seconds,
    )
