"""The cold side of a view follows its table: it reaches further before T does, and is built anew when columns change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from modak.catalog import migrate, tables
from modak.core.tier_key import KEY_MIN
from modak.errors import LockNotAvailable
from modak.failpoints import failpoint
from modak.jobs.context import JobContext
from modak.registration import rebuild
from modak.source import cold
from modak.source.locks import bounded, lock_view, retried
from modak.source.sessions import horizon_holders, lock_holders, sees_other_sessions


def reach(context: JobContext, upto: int) -> None:
    """Make the cold side cover every key below ``upto``. Two transactions: see ``modak.source.cold``."""
    table = tables.get(context.connection, context.table.name)
    relation, reached = context.relation(), cold.reached(context.connection, table.table_id, table.cold_build)
    lower = KEY_MIN if reached is None else reached
    if reached is not None and upto <= reached:
        if table.cold_bound < reached:
            tables.save_cold_side(context.connection, table.table_id, build=table.cold_build, bound=reached)
        return

    def step() -> None:
        with bounded(context.connection):
            shape = context.shape(relation)
            cold.attach(context.connection, relation, shape, table.text_cols, table.cold_build, lower, upto)

    retried(step, f"cold side of {table.name}", attempts=context.lock_attempts)
    failpoint("tier.after_attach")
    tables.save_cold_side(context.connection, table.table_id, build=table.cold_build, bound=upto)


def finish_untier(context: JobContext) -> str | None:
    """Let the cold side end at T again after T came down, so that queries above it need no gateway; returns why it must wait.

    An older snapshot still looks for its cold rows up to where T was, in whatever relation the view reads by now: so not before all of
    those are gone. A new build, since foreign tables cannot be taken out under a plan that has them.
    """
    keys = {"table_id": context.table_id}
    row = context.connection.execute(migrate.SQL.query("find_unfinished_untier"), keys).fetchone()
    if row is None:
        return None
    if not sees_other_sessions(context.connection):
        return "this role cannot see other sessions; grant it pg_read_all_stats"
    holders = horizon_holders(context.connection, int(row["xid"]))
    if holders:
        return f"held by {'; '.join(holders[:3])}"
    table, line = tables.get(context.connection, context.table.name), tables.cutline(context.connection, context.table_id)
    relation, foreign = context.relation(), not _lake_is_empty(context)
    built = rebuild.built_columns(context.connection, table)
    if built is None or [column.name for column in built] != [column.name for column in relation.columns]:
        return "the columns changed, and the view follows first"
    if table.cold_bound > line.tier_key_hi or not foreign:
        wanted = replace(table, cold_bound=line.tier_key_hi)
        try:
            in_place(context, lambda: rebuild.rebuild(context.connection, wanted, relation, foreign=foreign))
        except LockNotAvailable as error:
            return str(error)
    context.connection.execute(migrate.SQL.query("finish_untiers"), keys)
    return None


def _lake_is_empty(context: JobContext) -> bool:
    """By the count that each snapshot carries; rows that are deleted by position still count."""
    published = tables.published_snapshot(context.connection, context.table_id)
    if published is None:
        return True
    snapshot = context.lake_table().snapshot_by_id(published)
    counted = snapshot.summary.additional_properties.get("total-records") if snapshot and snapshot.summary else None
    return counted is not None and int(counted) == 0


def has_many_parts(context: JobContext) -> bool:
    table = tables.get(context.connection, context.table.name)
    return cold.part_count(context.connection, table.table_id, table.cold_build) > cold.PARTS_MAX


def in_place(context: JobContext, change: Callable[[], None]) -> None:
    """Run a change of the view in a transaction that has it alone.

    That waits for the statements that read it; the wait is bounded and given up in favour of them.
    """
    view = context.table.view

    def step() -> None:
        with bounded(context.connection):
            lock_view(context.connection, view)
            change()

    retried(
        step,
        f"view {view}",
        attempts=context.lock_attempts,
        holders=lambda: lock_holders(context.connection, [view], readers=True),
    )
