"""Columns: what Modak put around the heap follows a column that was added to it.

Until then writes to cold rows are refused, because their corrections would lack the new column; hot rows never wait for this.
"""

from __future__ import annotations

from modak.core.lake_table import lake_columns
from modak.core.table import Relation
from modak.errors import Problem, Refused
from modak.jobs.cold_side import has_many_parts, rebuild
from modak.jobs.context import JobContext
from modak.source.relation import describe


def surface_follows(context: JobContext, relation: Relation) -> bool:
    """Bring view and triggers to the heap's columns; True if there was something to do."""
    table = context.table
    view = describe(context.connection, table.view)
    shown, there = [column.name for column in view.columns], [column.name for column in relation.columns]
    if shown == there and table.cold_build and not has_many_parts(context):
        return False
    if there[: len(shown)] != shown:
        problem = Problem("columns", f"the view {table.view} shows {', '.join(shown)}; the heap has {', '.join(there)}")
        hint = "rename the column in the view too (alter view … rename column), or unregister and register again"
        raise Refused(f"the columns of {table.name} changed in a way its view cannot follow", [problem], hint=hint)
    _, problems = lake_columns(relation.columns, (), table.text_cols)
    if problems:
        raise Refused(f"{table.name} has columns that the lake cannot take", problems, hint="its partitions stay hot")
    rebuild(context, relation)
    return True
