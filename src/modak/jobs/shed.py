"""Shed: old partitions of a mirrored table leave its heap, once the lake has everything that was ever written to them.

What is due is sealed: every write to it is recorded from then on. The pump then comes past the seal's place in the stream, so that the
lake lacks nothing but what was recorded; and T moves over the partitions, with that as corrections. From there on they are like tiered
ones: the stream has no say about them any more, and reclaim drops them. Killed anywhere before T moved, the next pass takes the seals off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from modak.catalog import mirrors, operations, problems, tables
from modak.catalog.tables import Registered
from modak.core.lag import Lag
from modak.core.operation import Phase
from modak.core.table import Name
from modak.errors import LockNotAvailable, ModakError
from modak.failpoints import failpoint
from modak.jobs import fold, reclaim, resume
from modak.jobs.columns import surface_follows
from modak.jobs.context import JobContext
from modak.jobs.premake import premake
from modak.jobs.publishing.seam import Sealed
from modak.jobs.publishing.tier import publish_tiering
from modak.jobs.tier import discover, due_by, seal
from modak.source import replication

JOB = "shed"
Opener = Callable[[Name], AbstractContextManager[JobContext]]
# A snapshot that saw nobody: whatever was recorded since the seal becomes a correction, though the lake may have it already.
NOTHING_SEEN = "3:3:"
FLUSH_SECONDS_MAX = 10.0


@dataclass(frozen=True)
class Waiting:
    """Sealed partitions of a table: T may pass them when F has passed ``lsn``."""

    table: Registered
    op_id: str
    lsn: int


@dataclass(frozen=True)
class Settled:
    """What was done about a table's old rows besides following its stream."""

    dropped: tuple[str, ...] = ()
    folded: int = 0
    waiting: tuple[str, ...] = ()


def seal_due(opened: Opener, listed: Iterable[Registered], failed: Callable[[Registered, ModakError], None]) -> list[Waiting]:
    """Seal what is due in each table that sheds. The pump must come past what this returns, and then ``advance``."""
    found = []
    for table in listed:
        try:
            with opened(table.name) as job:
                waiting = _seal(job)
        except ModakError as error:
            failed(table, error)
            continue
        found += [waiting] if waiting is not None else []
    return found


def _seal(context: JobContext) -> Waiting | None:
    table, connection = context.table, context.connection
    with problems.reported(connection, table.table_id, JOB):
        resume.resume_all(context, sheds=True)
        relation = context.relation()
        surface_follows(context, relation)
        relation = context.relation() if premake(context, relation) else relation
        discover(context, relation)
        if table.heap_retention_lag is None:
            return None
        line = tables.cutline(connection, table.table_id)
        due = due_by(context, relation, line, Lag.parse(table.heap_retention_lag, table.key_type))
        if not due:
            return None
        operation, _ = seal(context, relation, due, line)
        # Nobody has written to the partitions since the seal without being recorded, and all others committed before here.
        lsn = replication.inserted_lsn(connection)
        operations.move(connection, operation, Phase.FLUSHING, details={"eligible_lsn": lsn, "flush_snapshot": NOTHING_SEEN})
        failpoint("shed.after_seal")
        _wait_for_flush(context, lsn)
        return Waiting(table, operation.op_id, lsn)


def _wait_for_flush(context: JobContext, lsn: int) -> None:
    """The stream tells what is on disk; an asynchronous commit comes there within a moment."""
    until = time.monotonic() + FLUSH_SECONDS_MAX
    while replication.flushed_lsn(context.connection) < lsn:
        if time.monotonic() > until:
            raise LockNotAvailable("the WAL is not on disk yet", hint="the next pass goes on")
        time.sleep(0.05)


def advance(opened: Opener, sealed: Iterable[Waiting], failed: Callable[[Registered, ModakError], None]) -> list[str]:
    """Move T over the partitions that the lake has by now; the others are unsealed, and tried again with the next pass."""
    done = []
    for waiting in sealed:
        try:
            with opened(waiting.table.name) as job, problems.reported(job.connection, job.table_id, JOB):
                done += _advance(job, waiting)
        except ModakError as error:
            failed(waiting.table, error)
    return done


def _advance(context: JobContext, waiting: Waiting) -> list[str]:
    connection = context.connection
    operation = operations.find(connection, waiting.op_id)
    state, line = mirrors.get(connection, context.table_id), tables.cutline(connection, context.table_id)
    if operation is None or operation.phase is not Phase.FLUSHING:
        return []
    if not state.is_followed or line.replicated_lsn is None or line.replicated_lsn < waiting.lsn:
        resume.abandon(context, operation)
        return []
    # S moved with the stream since the seal; T did not.
    operation = operations.move(connection, operation, Phase.FLUSHING, details={"old_snapshot": line.snapshot})
    failpoint("shed.before_advance")
    partitions = [Sealed.from_json(data) for data in operation.details["partitions"]]
    with resume.given_up_on_failure(context, operation, resume.abandon):
        publish_tiering(context, operation, partitions, None)
    failpoint("shed.after_advance")
    return [str(partition.name) for partition in partitions]


def settle(opened: Opener, listed: Iterable[Registered], failed: Callable[[Registered, ModakError], None]) -> dict[str, Settled]:
    """Drop what T has passed, and carry corrections of older rows into the lake."""
    found = {}
    for table in listed:
        try:
            with opened(table.name) as job:
                found[str(table.name)] = _settle(job)
        except ModakError as error:
            failed(table, error)
    return found


def _settle(context: JobContext) -> Settled:
    gone = reclaim.reclaim(context) if tables.has_tiered(context.connection, context.table_id) else reclaim.Reclaimed()
    folded = fold.fold(context) if tables.count(context.connection, "count_delta", context.table_id) else fold.FoldOutcome()
    waiting = (*gone.waiting, *([folded.waiting] if folded.waiting else []))
    return Settled(gone.dropped, folded.corrections, waiting)
