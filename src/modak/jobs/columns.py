"""Columns: what Modak put around the heap follows a column that was added to it.

Until then writes to cold rows are refused, because their corrections would lack the new column; hot rows never wait for this.
"""

from __future__ import annotations

from psycopg import sql

from modak.core.lake_table import lake_columns
from modak.core.table import Relation
from modak.errors import Problem, Refused
from modak.jobs.context import JobContext
from modak.registration import surface
from modak.source import capture, spill
from modak.source.locks import bounded, retried
from modak.source.relation import describe
from modak.source.spill import identifier


def surface_follows(context: JobContext, relation: Relation) -> bool:
    """Bring view and triggers to the heap's columns; True if there was something to do."""
    table = context.table
    view = describe(context.connection, table.view)
    shown, there = [column.name for column in view.columns], [column.name for column in relation.columns]
    if shown == there:
        return False
    if there[: len(shown)] != shown:
        problem = Problem("columns", f"the view {table.view} shows {', '.join(shown)}; the heap has {', '.join(there)}")
        hint = "rename the column in the view too (alter view … rename column), or unregister and register again"
        raise Refused(f"the columns of {table.name} changed in a way its view cannot follow", [problem], hint=hint)
    _, problems = lake_columns(relation.columns, (), table.text_cols)
    if problems:
        raise Refused(f"{table.name} has columns that the lake cannot take", problems, hint="its partitions stay hot")
    retried(lambda: _follow(context, relation), f"new columns of {table.name}", attempts=context.lock_attempts)
    return True


def _follow(context: JobContext, relation: Relation) -> None:
    table, connection = context.table, context.connection
    shape = context.shape(relation)
    with bounded(connection):
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns)
        connection.execute(
            sql.SQL("create or replace view {} as select {} from {}").format(identifier(table.view), names, identifier(table.heap))
        )
        surface.copy_defaults(connection, relation, table.view)
        surface.copy_comments(connection, relation, table.view)
        spill.define(connection, shape)
        capture.define(connection, shape)
