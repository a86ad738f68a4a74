"""The cold side of a view follows its table: it reaches further before T does, and is built anew when columns change."""

from __future__ import annotations

from psycopg import sql

from modak.catalog import tables
from modak.core.table import Relation
from modak.core.tier_key import KEY_MIN
from modak.failpoints import failpoint
from modak.jobs.context import JobContext
from modak.registration import surface
from modak.source import capture, cold, spill
from modak.source.locks import bounded, retried
from modak.source.sessions import lock_holders
from modak.source.spill import identifier


def reach(context: JobContext, upto: int) -> None:
    """Make the cold side cover every key below ``upto``. Two transactions: see ``modak.source.cold``."""
    table = tables.get(context.connection, context.table.name)
    parts = cold.part_count(context.connection, table.table_id, table.cold_build)
    if upto <= table.cold_bound and parts:
        return
    relation, lower = context.relation(), table.cold_bound if parts else KEY_MIN

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


def rebuild(context: JobContext, relation: Relation) -> None:
    """The view and everything behind it for the columns the heap has now, with one foreign table for all that is cold.

    Replacing a view waits for the statements that read it; the wait is bounded and given up in favour of them.
    """
    before = tables.get(context.connection, context.table.name)
    number = before.cold_build + 1

    def step() -> None:
        with bounded(context.connection):
            connection, shape = context.connection, context.shape(relation)
            connection.execute(sql.SQL("lock table {} in access exclusive mode").format(identifier(before.view)))
            parts = cold.part_count(connection, before.table_id, before.cold_build)
            surface.build(connection, surface.Plan(relation, shape, before.heap, before.view, before.text_cols), number)
            if parts:
                cold.attach(connection, relation, shape, before.text_cols, number, KEY_MIN, before.cold_bound)
            cold.drop(connection, before.table_id, before.cold_build)
            tables.save_cold_side(connection, before.table_id, build=number, bound=before.cold_bound)
            spill.define(connection, shape)
            capture.define(connection, shape)

    retried(
        step,
        f"view {before.view}",
        attempts=context.lock_attempts,
        holders=lambda: lock_holders(context.connection, [before.view]),
    )
