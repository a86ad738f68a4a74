"""A table that leaves a pass: parked for good, tried again by the next one, or, by a worker, a while later."""

from __future__ import annotations

from dataclasses import dataclass, field

from modak.catalog import mirrors, problems
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.changes import KeyMissing
from modak.errors import LeadershipLost, LockNotAvailable, ModakError, Retry, ValueRefused
from modak.jobs.mirroring.follower import CannotFollow
from modak.jobs.mirroring.heap_failures import HeapFailed
from modak.jobs.mirroring.outcome import MirrorOutcome

JOB = "mirror"
# A table that fails on Postgres holds the others up each time: a worker tries it again later and later.
BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 5.0, 300.0


@dataclass
class Leaving:
    """``waited``: tables that lost nothing but the lock of another job of ours."""

    connection: Connection
    outcome: MirrorOutcome
    epoch: int | None
    waited: set[int] = field(default_factory=set)

    def is_postponed(self, table: Registered) -> bool:
        """Whether it is too early for a worker to try again. Somebody who asks by hand has a reason to."""
        why = problems.postponed(self.connection, table.table_id, JOB) if self.epoch is not None else None
        if why is not None:
            self.outcome.failed[str(table.name)] = why
        return why is not None

    def leave(self, table: Registered, error: ModakError) -> None:
        if isinstance(error, LockNotAvailable | LeadershipLost):
            self.outcome.failed[str(table.name)] = str(error)
            self.waited.add(table.table_id)
            return
        problems.report(self.connection, table.table_id, JOB, error)
        if isinstance(error, CannotFollow | KeyMissing | ValueRefused) or error.retry is Retry.MANUAL:
            mirrors.park(self.connection, table.table_id)
            self.outcome.parked[str(table.name)] = str(error)
            return
        self.outcome.failed[str(table.name)] = str(error)
        if isinstance(error, HeapFailed) and self.epoch is not None:
            problems.back_off(self.connection, table.table_id, JOB, BACKOFF_SECONDS, BACKOFF_SECONDS_MAX)
