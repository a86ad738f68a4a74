"""The guard: what a slot keeps fills everybody's disk, so a table that does not get on may keep so much WAL and no more.

At half of its limit it is warned about, in modak.problems and wherever those are shown. Beyond the limit, and not before the warning has
stood for a while, it is parked: nothing is lost, `modak resync` copies it anew. Whatever holds it up counts the same: failures, a policy
that disabled it, a copy that nobody finishes, somebody who keeps it locked. Only a table that another job of ours has is left alone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import psycopg

from modak.catalog import leadership, migrate, mirrors, problems, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.errors import LockNotAvailable, ModakError, Retry
from modak.jobs.context import alone_on
from modak.jobs.mirroring.follower import cannot_follow
from modak.jobs.mirroring.outcome import Limits, MirrorOutcome
from modak.source import replication

JOB = "wal"
MIRROR = "mirror"
SLOT_SECONDS_MAX = 5.0
log = logging.getLogger("modak.mirror")


class WalKept(ModakError):
    """A mirrored table that does not get on makes the slot keep WAL. Beyond its limit it is parked."""

    code = "wal_kept"
    retry = Retry.LATER


@dataclass
class Guard:
    connection: Connection
    slot: str
    limits: Limits
    outcome: MirrorOutcome
    epoch: int | None = None

    def look(self, followed: Collection[int], waited: Collection[int], why: str = "") -> None:
        """After a pass. ``followed`` got on, ``waited`` for a job of ours; ``why`` nobody got on, if so."""
        self.connection.execute(migrate.SQL.query("clear_job_of"), {"ids": list(followed), "job": JOB})
        kept = {row["table_id"]: row["lag_bytes"] for row in mirrors.lags(self.connection) if not row["is_parked"]}
        mirrored = [table for table in tables.listing(self.connection) if table.slot_name == self.slot and table.table_id in kept]
        warnings, parked = [], len(self.outcome.parked)
        for table in mirrored:
            if table.table_id not in followed:
                warning = self._see_to(table, kept[table.table_id], why, may_park=table.table_id not in waited)
                warnings += [warning] if warning else []
        # What was parked just now is let go of by the next pass.
        self.outcome.warning = "; ".join(warnings) or (self._behind() if len(self.outcome.parked) == parked else None)
        if not followed:
            self._let_go()

    def _see_to(self, table: Registered, kept: int, why: str, *, may_park: bool) -> str | None:
        limit = mirrors.wal_limit(table.wal_limit, self.limits.wal_bytes_max)
        if kept <= (limit or self.limits.wal_bytes_max) // 2:
            problems.clear(self.connection, table.table_id, JOB)
            return None
        reason = self._reason(table) or why or "it does not get on"
        if limit and kept > limit and may_park and self._was_warned(table) and self._parked(table, kept, limit, reason):
            return None
        then = f"beyond {limit:,} it is parked" if limit else "and its policy never parks it"
        what = f"{table.name} keeps {kept:,} bytes of WAL, {then}: {reason}"
        problems.report(self.connection, table.table_id, JOB, WalKept(what, hint="`modak policy TABLE wal_limit=SIZE` is the limit"))
        log.warning("%s", what)
        return what

    def _reason(self, table: Registered) -> str | None:
        if not table.enabled:
            return "its policy says enabled=false"
        if str(table.name) in self.outcome.copying:
            return "its copy is not finished"
        return self.outcome.failed.get(str(table.name))

    def _was_warned(self, table: Registered) -> bool:
        wanted = {"table_id": table.table_id, "job": JOB, "code": WalKept.code, "seconds": self.limits.wal_warned_seconds}
        row = self.connection.execute(migrate.SQL.query("problem_stands"), wanted).fetchone()
        return bool(row and row["found"])

    def _parked(self, table: Registered, kept: int, limit: int, reason: str) -> bool:
        """False if somebody works on it just now: a copy, above all, that takes its time."""
        what = f"it kept {kept:,} bytes of WAL, more than {limit:,}: {reason}"
        try:
            with alone_on(self.connection, table), self.connection.transaction():
                leadership.check_epoch(self.connection, self.epoch)
                problems.report(self.connection, table.table_id, MIRROR, cannot_follow(table, what, code="wal"))
                problems.clear(self.connection, table.table_id, JOB)
                mirrors.park(self.connection, table.table_id)
        except LockNotAvailable:
            return False
        self.outcome.failed.pop(str(table.name), None)
        self.outcome.parked[str(table.name)] = what
        return True

    def _behind(self) -> str | None:
        slot = replication.find_slot(self.connection, self.slot)
        if slot is None or slot.retained_bytes <= self.limits.wal_bytes_warned:
            return None
        return f"slot {slot.name} keeps {slot.retained_bytes:,} bytes of WAL: the pump is behind, or a transaction has been open for long"

    def _let_go(self) -> None:
        """Nobody reads the stream, so nobody confirms: WAL that only parked tables would need is let go here."""
        slot = replication.free_slot(self.connection, self.slot, SLOT_SECONDS_MAX)
        if slot is None or slot.is_lost or slot.active:
            return
        # Somebody may be copying a table anew just now, or read the stream for that: then the next pass sees to it.
        with contextlib.suppress(psycopg.errors.LockNotAvailable, psycopg.errors.ObjectInUse):
            with self.connection.transaction():
                # Whoever begins a copy after this needs what comes after this.
                self.connection.execute("lock table modak.mirrors in share mode nowait")
                lowest = mirrors.lowest_applied(self.connection, self.slot)
                target = lowest if lowest is not None else replication.flushed_lsn(self.connection)
            if target > slot.confirmed:
                self.connection.execute("select pg_replication_slot_advance(%s, %s::pg_lsn)", [self.slot, replication.lsn_text(target)])


@contextlib.contextmanager
def reported(guard: Guard, waited: Collection[int]) -> Iterator[None]:
    """A pass that fails as a whole is looked at too: nobody gets on then."""
    try:
        yield
    except LockNotAvailable:
        raise
    except (ModakError, psycopg.Error) as error:
        if not guard.connection.closed:
            guard.look((), waited, str(error).strip())
        raise
