"""Evolve: the lake's schema follows the heap's before rows go there.

Columns are matched by what they are (pg_attribute.attnum and Iceberg field id), not by name, so a rename is a rename. Only changes
that keep every old value are made; anything else stops the table with the difference named.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table
from pyiceberg.types import NestedField

from modak.catalog import tables
from modak.core.columns import widens
from modak.core.lake_table import LakeColumn, lake_columns
from modak.core.table import Column, Relation
from modak.errors import Problem, Refused
from modak.jobs.context import JobContext
from modak.lake.iceberg import iceberg_type


def follow(context: JobContext, relation: Relation, *, replace: bool = False) -> tuple[LakeColumn, ...]:
    """Bring the lake table to the heap's columns; returns them. ``replace``: rows are copied anew, so any type may change."""
    table = context.table
    required = (*table.primary_key_cols, table.tier_key_col)
    columns, problems = lake_columns(relation.columns, required, table.text_cols)
    if problems:
        raise Refused(f"{table.name} has columns that the lake cannot take", problems, hint="its partitions stay hot")
    lake = context.lake.load(table.lake_table_ref)
    known = tables.lake_field_ids(context.connection, context.table_id) or _by_name(lake, relation)
    changes = _changes(lake, relation, columns, known, replace=replace)
    if changes.problems:
        raise Refused(
            f"the columns of {table.name} changed in a way the lake cannot follow", changes.problems, hint="its partitions stay hot"
        )
    if changes:
        _apply(lake, changes)
        lake = context.lake.load(table.lake_table_ref)
    found = _by_name(lake, relation)
    if found != known:
        tables.save_lake_columns(context.connection, context.table_id, found)
    return columns


def _by_name(lake: Table, relation: Relation) -> dict[int, int]:
    ids = {field.name: field.field_id for field in lake.schema().fields}
    return {column.number: ids[column.name] for column in relation.columns if column.name in ids}


class Changes:
    """What must happen to the lake's schema."""

    def __init__(self) -> None:
        self.added: list[LakeColumn] = []
        self.renamed: list[tuple[str, str]] = []
        self.widened: list[tuple[str, str]] = []
        self.dropped: list[str] = []
        self.problems: list[Problem] = []

    def __bool__(self) -> bool:
        return bool(self.added or self.renamed or self.widened or self.dropped)


def _changes(lake: Table, relation: Relation, columns: tuple[LakeColumn, ...], known: Mapping[int, int], *, replace: bool) -> Changes:
    changes = Changes()
    fields = {field.field_id: field for field in lake.schema().fields}
    # Added by a pass that was killed before it wrote that down.
    unclaimed = {field.name: field for field in fields.values() if field.field_id not in known.values()}
    kept: set[int] = set()
    for heap_column, column in zip(relation.columns, columns, strict=True):
        field = fields.get(known.get(heap_column.number, -1)) or unclaimed.get(column.name)
        if field is None:
            changes.added.append(column)
            continue
        kept.add(field.field_id)
        _compare(changes, field, heap_column, column, is_empty=replace or not lake.metadata.snapshots)
    identifiers = set(lake.schema().identifier_field_ids)
    for field_id, field in fields.items():
        if field_id not in kept and field_id in identifiers:
            changes.problems.append(Problem("dropped_key", f"key column {field.name} is gone from the heap"))
        elif field_id not in kept:
            changes.dropped.append(field.name)
    return changes


def _compare(changes: Changes, field: NestedField, heap_column: Column, column: LakeColumn, is_empty: bool) -> None:
    """A column of a table that never had a row may become anything: as another column of the same name."""
    wanted, found = column.type.iceberg, str(field.field_type)
    same = str(iceberg_type(wanted)) == found
    if not same and is_empty and not field.required and not widens(found, str(iceberg_type(wanted))):
        changes.dropped.append(field.name)
        changes.added.append(column)
        return
    if field.name != column.name:
        changes.renamed.append((field.name, column.name))
    if same:
        return
    if widens(found, str(iceberg_type(wanted))):
        changes.widened.append((field.name, wanted))
        return
    changes.problems.append(
        Problem(
            "column_type",
            f"column {column.name} is {heap_column.type.display} now, which the lake would keep as {wanted}; it has {found}",
            "change it back, or unregister and register again",
        )
    )


def _apply(lake: Table, changes: Changes) -> None:
    """Additions on their own and last, so that a name may pass from one column to another."""
    if changes.dropped or changes.widened or changes.renamed:
        with lake.update_schema(allow_incompatible_changes=False) as update:
            for name in changes.dropped:
                update.delete_column((name,))
            for name, wanted in changes.widened:
                update.update_column((name,), field_type=iceberg_type(wanted))
            for old, new in changes.renamed:
                update.rename_column((old,), new)
    if changes.added:
        with lake.update_schema(allow_incompatible_changes=False) as update:
            for column in changes.added:
                update.add_column((column.name,), iceberg_type(column.type.iceberg), doc=column.comment)
