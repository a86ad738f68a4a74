"""Reclaim: tiered partitions leave the heap, once nobody can need them and the lake is known to hold the same.

Only lag hangs on it, never an answer: the view ignores a tiered partition from the advance on. So every condition may say "not yet".
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

from modak.catalog import migrate, mirrors, problems, tables
from modak.core import policy
from modak.core.lag import Lag
from modak.core.partition import Partition, PartitionState
from modak.core.policy import Period
from modak.core.table import Name
from modak.errors import ModakError, Refused
from modak.failpoints import failpoint
from modak.jobs.compare import Comparison
from modak.jobs.context import JobContext
from modak.source.locks import bounded, retried
from modak.source.partitions import newest_key
from modak.source.sessions import horizon_holders, lock_holders, sees_other_sessions
from modak.source.spill import identifier

JOB = "reclaim"


@dataclass(frozen=True)
class Reclaimed:
    """What was dropped, and why the rest was not."""

    dropped: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class ContentDiffers(ModakError):
    """The lake does not hold what the partition holds; the partition stays."""

    code = "content_differs"
    exit_code = 3


def reclaim(context: JobContext) -> Reclaimed:
    """Drop what may be dropped now. A partition that cannot go yet is a reason, not a failure."""
    dropped, waiting = list[str](), list[str]()
    for period in policy.periods(_candidates(context)):
        names = _names(period)
        reason = _wait_reason(context, period)
        if reason is not None:
            waiting += [f"{name}: {reason}" for name in names]
            continue
        try:
            _check_content(context, period)
            _drop(context, period)
        except ModakError as error:
            problems.report(context.connection, context.table_id, JOB, error)
            raise
        dropped += [str(name) for name in names]
        failpoint("reclaim.after_drop")
    problems.clear(context.connection, context.table_id, JOB)
    return Reclaimed(tuple(dropped), tuple(waiting))


def _candidates(context: JobContext) -> list[Partition]:
    """Tiered partitions whose own lag has passed, oldest first."""
    table, connection = context.table, context.connection
    partitions = tables.partitions(connection, context.table_id)
    if not any(partition.state is PartitionState.TIERED for partition in partitions):
        return []
    lag = Lag.parse(table.reclaim_lag, table.key_type) if table.reclaim_lag is not None else None
    newest = newest_key(connection, context.relation(), table.tier_key_col, table.key_type) if lag is not None else None
    line = tables.cutline(connection, context.table_id)
    return policy.reclaimable(partitions, line, max_key=newest, lag=lag, key_type=table.key_type, keep_heap=table.keep_heap)


def _wait_reason(context: JobContext, period: Period) -> str | None:
    """The horizon first, then pins: a reader that is about to pin an older line is in a transaction, and once it is not, its pin is there
    to be seen. The other way round one that commits in between would be missed by both."""
    keys = {"table_id": context.table_id, "tier_key_hi": period.upper}
    if not sees_other_sessions(context.connection):
        return "this role cannot see other sessions; grant it pg_read_all_stats"
    row = context.connection.execute(migrate.SQL.query("find_advance_xid"), keys).fetchone()
    holders = horizon_holders(context.connection, int(row["xid"])) if row and row["xid"] is not None else []
    pin = context.connection.execute(migrate.SQL.query("find_pin_below"), keys).fetchone()
    if pin is not None:
        return f"pinned by {pin['holder']} until {pin['expires_at']}"
    return f"held by {'; '.join(holders[:3])}" if holders else None


def _names(period: Period) -> list[Name]:
    return [Name(partition.schema, partition.name) for partition in period.partitions]


def _check_content(context: JobContext, period: Period) -> None:
    names = _names(period)
    columns = context.columns(context.relation())
    with context.progress.task(f"Comparing {', '.join(map(str, names))} with the lake"):
        compared = Comparison(context, names, columns).run(period.lower, period.upper)
    if compared.differences:
        first = compared.differences[0]
        raise ContentDiffers(
            f"partition {names[0]} and the lake differ in {len(compared.differences)} rows; it is not dropped",
            hint=f"`modak verify {context.table.name}` lists them, `--repair` mends the lake",
            key=first.key,
            heap=first.heap,
            lake=first.lake,
        )


def _drop(context: JobContext, period: Period) -> None:
    """All partitions of a period in one transaction: what was compared as one goes as one."""
    names = _names(period)

    def step() -> None:
        with bounded(context.connection):
            context.fence()
            for partition in period.partitions:
                _drop_one(context, partition)
            failpoint("reclaim.in_drop")

    label = ", ".join(map(str, names))
    holders = [*names, context.table.heap]
    try:
        retried(step, f"drop of {label}", attempts=context.lock_attempts, holders=lambda: lock_holders(context.connection, holders))
    except psycopg.errors.ForeignKeyViolation as cause:
        raise Refused(
            f"partition {label} cannot be dropped: {cause.diag.message_detail or cause.diag.message_primary}",
            hint="remove the references; the next pass drops it",
            sqlstate="23503",
        ) from cause
    except psycopg.errors.DependentObjectsStillExist as cause:
        raise Refused(
            f"partition {label} cannot be dropped: {cause.diag.message_detail or cause.diag.message_primary}",
            hint="drop what depends on it, or bind that to the table",
        ) from cause


def _drop_one(context: JobContext, partition: Partition) -> None:
    name, oid = Name(partition.schema, partition.name), _oid(context, partition)
    parent = context.connection.execute(migrate.SQL.query("find_parent"), {"oid": oid}).fetchone()
    if parent is not None:
        whole = sql.Identifier(parent["schema_name"], parent["table_name"])
        context.connection.execute(sql.SQL("alter table {} detach partition {}").format(whole, identifier(name)))
        context.connection.execute(sql.SQL("drop table {}").format(identifier(name)))
    if context.table.mode == "mirrored":
        mirrors.forget_leaf(context.connection, context.table_id, oid)
    tables.set_state(context.connection, context.table_id, oid, PartitionState.DROPPED)


def _oid(context: JobContext, partition: Partition) -> int:
    keys = {"table_id": context.table_id, "schema_name": partition.schema, "partition_name": partition.name}
    row = context.connection.execute(migrate.SQL.query("find_partition_id"), keys).fetchone()
    assert row is not None
    return int(row["partition_id"])
