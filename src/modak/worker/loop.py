"""The loop: every table's jobs, one after the other, cycle after cycle. What fails is tried again later, and never stops another table.

One worker of a database runs jobs; others stand by, and the next one takes over when its session ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg

from modak.app import App
from modak.catalog import tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import LockNotAvailable, ModakError
from modak.jobs import adopt, fold, mirror, reclaim, retain, tier
from modak.jobs.context import JobContext

LEADER_LOCK = 0x6D67 << 40
BACKOFF_SECONDS_MAX = 300.0
# A commit for every few corrections would leave the lake in splinters: so many of them, or so long since the last fold.
FOLD_ROWS = 10_000
FOLD_SECONDS = 300.0
log = logging.getLogger("modak.worker")


@dataclass
class _Backoff:
    failures: int = 0
    until: float = 0.0


@dataclass
class Loop:
    """Runs in a thread of its own until ``stop`` is set; a job that is at work then is finished first."""

    app: App
    stop: threading.Event
    seconds: float
    _backoffs: dict[Name, _Backoff] = field(default_factory=dict)
    _folded: dict[Name, float] = field(default_factory=dict)

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with self.app.connection() as connection:
                    self._lead(connection)
            except (psycopg.Error, ModakError) as cause:
                log.warning("no cycle: %s", cause)
            self.stop.wait(self.seconds)

    def _lead(self, connection: Connection) -> None:
        """As long as the session lives, which holds the lock."""
        connection.autocommit = True
        row = connection.execute("select pg_try_advisory_lock(%s) as mine", [LEADER_LOCK]).fetchone()
        if row is None or not row["mine"]:
            return
        log.info("this worker runs the jobs")
        while not self.stop.is_set():
            # Fails where the session is gone, and with it the lock.
            listed = [found for found in tables.listing(connection) if found.enabled and found.mode == "tiered"]
            for table in listed:
                if self.stop.is_set():
                    return
                self._table(connection, table)
            self._mirror(connection)
            self.stop.wait(self.seconds)

    def _table(self, connection: Connection, table: Registered) -> None:
        backoff = self._backoffs.setdefault(table.name, _Backoff())
        if time.monotonic() < backoff.until:
            return
        failed = False
        for name, work in self._due(connection, table):
            if self.stop.is_set():
                return
            try:
                with self.app.job(table.name) as job:
                    work(job)
            except LockNotAvailable as busy:
                log.info("%s of %s waits: %s", name, table.name, busy)
            except (psycopg.Error, ModakError) as cause:
                failed = True
                log.warning("%s of %s failed: %s", name, table.name, cause)
        backoff.failures = backoff.failures + 1 if failed else 0
        backoff.until = time.monotonic() + min(BACKOFF_SECONDS_MAX, self.seconds * 2**backoff.failures) if failed else 0.0

    def _mirror(self, connection: Connection) -> None:
        """All mirrored tables at once, since they share a slot; what stops one of them is in modak.problems."""
        if self.stop.is_set():
            return
        try:
            done = mirror.mirror(connection, self.app.dsn, self.app.job)
        except (psycopg.OperationalError, psycopg.InterfaceError):
            raise
        except (psycopg.Error, ModakError) as cause:
            log.warning("mirror failed: %s", cause)
            return
        for name, why in (done.parked | done.failed).items():
            if why != mirror.PARKED_BEFORE:
                log.warning("mirror of %s stopped: %s", name, why)

    def _due(self, connection: Connection, table: Registered) -> Iterator[tuple[str, Callable[[JobContext], object]]]:
        """Staged rows first: a fold leaves what is newer than they are, and tiering may have to wait for them."""
        if tables.count(connection, "count_staged", table.table_id):
            yield "adoption", adopt.adopt
        if table.tier_lag is not None:
            yield "tiering", tier.tier
        if tables.has_tiered(connection, table.table_id):
            yield "reclaim", reclaim.reclaim
        if self._folds(connection, table):
            yield "fold", fold.fold
        if table.lake_retention_lag is not None:
            yield "retention", retain.retain

    def _folds(self, connection: Connection, table: Registered) -> bool:
        waiting, now = tables.count(connection, "count_delta", table.table_id), time.monotonic()
        last = self._folded.setdefault(table.name, now)
        if not waiting or (waiting < FOLD_ROWS and now - last < FOLD_SECONDS):
            return False
        self._folded[table.name] = now
        return True
