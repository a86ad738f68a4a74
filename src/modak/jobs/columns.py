"""Columns: what Modak put around the heap follows columns that were added to it or renamed by hand.

Until then writes to cold rows are refused, because their corrections would lack the new column or name it wrongly; hot rows in the heap
never wait for this. Columns that are dropped or change their type go through ``modak.registration.alter``: Postgres refuses them while
the view stands on them.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from modak.catalog import mirrors, tables
from modak.catalog.tables import Registered
from modak.core.columns import ColumnChanges, renamed
from modak.core.partition import PartitionState
from modak.core.registration import Options, column_problems
from modak.core.table import Column, Name, Relation
from modak.errors import LockNotAvailable, Problem, Refused
from modak.jobs import evolve
from modak.jobs.cold_side import has_many_parts, in_place
from modak.jobs.context import JobContext
from modak.jobs.mirroring.follower import catalog_shape
from modak.registration import missing_view, rebuild
from modak.source import writes
from modak.source.relation import describe


def surface_follows(context: JobContext, relation: Relation) -> bool:
    """Bring view, triggers, corrections and the lake's schema to the heap's columns; True if view or triggers had to change."""
    table = tables.get(context.connection, context.table.name)
    missing_view.refuse(context.connection, table)
    if table.mode == "mirrored":
        _refuse_untold(context)
    built = rebuild.built_columns(context.connection, table)
    shown = [column.name for column in describe(context.connection, table.view).columns]
    changes = _changes(shown if built is None else [column.name for column in built], relation)
    there = [column.name for column in relation.columns]
    if not changes and shown == there and table.cold_build and not has_many_parts(context):
        _renew(context, table, relation)
        evolve.follow(context, relation)
        return False
    _refuse_strange(table, relation, changes, shown)
    new = changes.new_names
    options = Options(
        tier_key=new.get(table.tier_key_col, table.tier_key_col),
        primary_key=renamed(table.primary_key_cols, new),
        text_columns=renamed(table.text_cols, new),
    )
    problems = column_problems(relation, options)
    if problems:
        raise Refused(f"{table.name} has columns that the lake cannot take", problems, hint="its partitions stay hot")
    in_place(context, lambda: _change(context, table, relation, changes, shown))
    now = tables.get(context.connection, context.table.name)
    evolve.follow(replace(context, table=now), relation)
    if (now.primary_key_cols, now.tier_key_col) != (context.table.primary_key_cols, context.table.tier_key_col):
        # The rest of this pass would go on with the names it began with.
        raise LockNotAvailable(f"key columns of {table.name} were renamed; Modak knows their new names now", hint="run the command again")
    return True


def _renew(context: JobContext, table: Registered, relation: Relation) -> None:
    """After an upgrade of Modak. Nothing depends on it at once: where the view is in use, the next pass does it."""
    if not writes.is_current(context.connection, table.table_id):
        with contextlib.suppress(LockNotAvailable):
            in_place(context, lambda: rebuild.rebuild(context.connection, table, relation))


def _refuse_untold(context: JobContext) -> None:
    """A mirror's lake gets columns in the order of its stream, with the rows; until that has told of them, they are as before."""
    shapes = mirrors.get(context.connection, context.table_id).shapes
    if shapes and shapes[-1]["columns"] != [column.as_json() for column in catalog_shape(context.connection, context.table_id)]:
        raise LockNotAvailable(
            f"the columns of {context.table.name} changed, and its stream has not told yet", hint="it does with the next row that changes"
        )


def _changes(known: list[str], relation: Relation) -> ColumnChanges:
    """A view's columns cannot be dropped under it, so what it was made for are the heap's first columns, in their order."""
    columns = relation.columns
    pairs = zip(known, columns, strict=False)
    return ColumnChanges(
        renamed=tuple((old, column.name) for old, column in pairs if old != column.name),
        added=tuple[Column, ...](columns[len(known) :]),
    )


def _refuse_strange(table: Registered, relation: Relation, changes: ColumnChanges, shown: list[str]) -> None:
    """Names that the view has and the heap never had: somebody renamed the view's own column."""
    there = [column.name for column in relation.columns]
    back = {new: old for old, new in changes.renamed}
    strange = [(name, now) for name, now in zip(shown, there, strict=False) if name not in (now, back.get(now))]
    if strange or len(shown) > len(there):
        name, now = strange[0] if strange else (shown[-1], "…")
        problem = Problem("columns", f"the view {table.view} shows {', '.join(shown)}; the heap has {', '.join(there)}")
        hint = f'alter view {table.view} rename column {name} to {now}; then modak alter {table.name} "rename column {now} to {name}"'
        raise Refused(f"the columns of {table.name} changed in a way its view cannot follow", [problem], hint=hint)


def _change(context: JobContext, table: Registered, relation: Relation, changes: ColumnChanges, shown: list[str]) -> None:
    connection = context.connection
    now = rebuild.follow_names(connection, table, changes)
    rebuild.rename_view_columns(connection, table.view, shown, [column.name for column in relation.columns])
    rebuild.rebuild(connection, now, relation)
    copies = [part for part in tables.partitions(connection, table.table_id) if part.state is PartitionState.TIERED]
    standing = [*rebuild.spills(now, relation), *(Name(part.schema, part.name) for part in copies)]
    rebuild.follow_images(connection, now, relation, changes, standing)
