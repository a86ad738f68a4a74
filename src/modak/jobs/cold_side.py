"""The cold side of a view follows its table: it reaches further before T does, and is built anew when columns change."""

from __future__ import annotations

from collections.abc import Callable

from psycopg import sql

from modak.catalog import tables
from modak.core.tier_key import KEY_MIN
from modak.failpoints import failpoint
from modak.jobs.context import JobContext
from modak.source import cold
from modak.source.locks import bounded, retried
from modak.source.sessions import lock_holders
from modak.source.spill import identifier


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
            # LOCK TABLE on a view locks everything it reads as well; an ALTER that changes nothing locks the view alone.
            context.connection.execute(sql.SQL("alter view {} set schema {}").format(identifier(view), sql.Identifier(view.schema)))
            change()

    retried(
        step,
        f"view {view}",
        attempts=context.lock_attempts,
        holders=lambda: lock_holders(context.connection, [view], readers=True),
    )
