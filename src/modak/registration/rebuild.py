"""The two-tier view and everything behind it, for the columns the heap has now. All of this runs inside the caller's transaction.

A view can be given further columns and other names for those it has: then it is changed in place, and what depends on it notices nothing.
For anything else a new view takes the name, and what depended on the old one is bound to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from modak.catalog import tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.columns import ColumnChanges, renamed
from modak.core.lake_table import Shape, lake_columns
from modak.core.partition import PartitionState
from modak.core.table import Column, Dependent, Name, Relation
from modak.core.tier_key import KEY_MIN
from modak.errors import Problem, Refused
from modak.registration import surface
from modak.source import capture, cold, images, keys, newcomers, spill, writes
from modak.source.expressions import raw
from modak.source.relation import SQL, columns_of, dependents, describe
from modak.source.spill import identifier


def shape_of(table: Registered, relation: Relation) -> Shape:
    columns, _ = lake_columns(relation.columns, (*table.primary_key_cols, table.tier_key_col), table.text_cols)
    return Shape(table.table_id, table.name, table.tier_key_col, table.key_type, table.primary_key_cols, columns)


def built_columns(connection: Connection, table: Registered) -> tuple[Column, ...] | None:
    """The columns that view and functions were made for, in the order of the heap's; None for a view from before the gateway."""
    oid = surface.oid_of(connection, cold.parent_name(table.table_id, table.cold_build))
    return columns_of(connection, oid)[1:] if oid else None


def rebuild(connection: Connection, table: Registered, relation: Relation, *, foreign: bool = True) -> None:
    """A new build of the cold side with one foreign table for all that is cold, and everything else over it. ``foreign``: whether there
    is anything cold that the foreign tables of the last build stood for."""
    number, shape = table.cold_build + 1, shape_of(table, relation)
    options = _read(connection, surface.oid_of(connection, table.view)).options
    parts = cold.part_count(connection, table.table_id, table.cold_build)
    surface.build(connection, surface.Plan(relation, shape, table.heap, table.view, table.text_cols), number)
    _set_options(connection, table.view, options)
    if parts and foreign:
        cold.attach(connection, relation, shape, table.text_cols, number, KEY_MIN, table.cold_bound)
    cold.drop(connection, table.table_id, table.cold_build)
    tables.save_cold_side(connection, table.table_id, build=number, bound=table.cold_bound)
    spill.define(connection, shape)
    capture.define(connection, shape)
    newcomers.define(connection, shape)
    _attach(connection, table, relation)


def watch_keys(connection: Connection, table: Registered, spill: Name) -> None:
    replaces = _leaves_copies(connection, table)
    keys.attach(connection, table.table_id, spill, keys.ON_SPILL, replaces=replaces, checks=table.check_cold_keys)


def watch_keys_of_partition(connection: Connection, table: Registered, partition: Name) -> None:
    """A partition that is about to be cold. Its own unique index sees to a key that holds the tier key, unless the lake is to be asked."""
    checks, replaces = table.check_cold_keys, _leaves_copies(connection, table)
    if checks or replaces:
        keys.attach(connection, table.table_id, partition, keys.ON_PARTITION, replaces=replaces, checks=checks)


def _leaves_copies(connection: Connection, table: Registered) -> bool:
    """Whether a cold row may come in while the one that it replaces stands in the heap: no unique index refuses it there."""
    found = connection.execute(SQL.query("list_unique_keys"), {"oid": table.table_id}).fetchall()
    return not any(set(row["columns"]) <= set(table.primary_key_cols) for row in found)


def _attach(connection: Connection, table: Registered, relation: Relation) -> None:
    """Triggers as this release has them, where an earlier one put its own."""
    standing_spills = spills(table, relation)
    for name in standing_spills:
        spill.attach(connection, table.table_id, name)
        watch_keys(connection, table, name)
    newcomers.watch(connection, table.table_id, table.heap, relation, standing_spills)
    standing = {leaf.name for leaf in relation.leaves}
    copies = (Name(part.schema, part.name) for part in tables.partitions(connection, table.table_id) if part.state is PartitionState.TIERED)
    for name in copies:
        if name in standing:
            watch_keys_of_partition(connection, table, name)


def follow_names(connection: Connection, table: Registered, changes: ColumnChanges) -> Registered:
    """The registration with the names its columns have now."""
    new, gone = changes.new_names, {column.name for column in changes.dropped}
    originally = {**table.original, "set_not_null": list(renamed(table.original.get("set_not_null", ()), new))}
    found = replace(
        table,
        primary_key_cols=renamed(table.primary_key_cols, new),
        tier_key_col=new.get(table.tier_key_col, table.tier_key_col),
        text_cols=renamed([name for name in table.text_cols if name not in gone], new),
        original=originally if table.original else table.original,
    )
    if found != table:
        tables.save_columns(connection, found)
    return found


def follow_images(connection: Connection, table: Registered, relation: Relation, changes: ColumnChanges, standing: Iterable[Name]) -> None:
    """Corrections speak of the columns as they are now; of new ones they say what the rows that stand in the heap do."""
    shape = shape_of(table, relation)
    images.follow(connection, shape, changes)
    if changes.added:
        images.copy_from_heap(connection, shape, changes.added, standing)


def spills(table: Registered, relation: Relation) -> list[Name]:
    known = {Name(schema, name) for schema, name in table.original.get("spills", ())}
    return [leaf.name for leaf in relation.leaves if leaf.name in known]


def rename_view_columns(connection: Connection, view: Name, shown: Sequence[str], wanted: Sequence[str]) -> None:
    """Column by column; where names change places, by way of names that nobody has."""
    pairs = [(old, new) for old, new in zip(shown, wanted, strict=False) if old != new]
    if {old for old, _ in pairs} & {new for _, new in pairs}:
        between = [f"_modak_{number}" for number in range(len(pairs))]
        _rename(connection, view, [(old, name) for (old, _), name in zip(pairs, between, strict=True)])
        pairs = [(name, new) for (_, new), name in zip(pairs, between, strict=True)]
    _rename(connection, view, pairs)


def _rename(connection: Connection, view: Name, pairs: Iterable[tuple[str, str]]) -> None:
    for old, new in pairs:
        connection.execute(
            sql.SQL("alter view {} rename column {} to {}").format(identifier(view), sql.Identifier(old), sql.Identifier(new))
        )


@dataclass(frozen=True)
class _View:
    owner: str
    options: str | None


@dataclass(frozen=True)
class Aside:
    """The old view, out of the way: it shows nothing any more, and keeps what depends on it until that has been bound to the new one."""

    name: Name
    oid: int
    facts: _View
    comment: str | None
    columns: tuple[Column, ...]
    users: tuple[tuple[Dependent, str], ...]


def step_aside(connection: Connection, table: Registered) -> Aside:
    """Free the heap's columns of the view. Refused where a dependent could not be bound to a new one."""
    old = describe(connection, table.view)
    users = dependents(connection, old.oid)
    _refuse_stuck(connection, table, old.oid, users)
    # Their texts name the view by the name it has now; run again after the change, they find the new one under it.
    bound = tuple((user, text) for user in users for text in surface.definitions(connection, [user]))
    facts = _read(connection, old.oid)
    writes.let_go(connection, table.table_id)
    aside = surface.rename(connection, "view", table.view, f"modak_going_{table.table_id}")
    connection.execute(sql.SQL("drop rule if exists modak_insert on {}").format(identifier(aside)))
    for column in old.columns:
        connection.execute(sql.SQL("alter view {} alter column {} drop default").format(identifier(aside), sql.Identifier(column.name)))
    empty = raw(", ".join(_empty(column) for column in old.columns))
    connection.execute(sql.SQL("create or replace view {} as select {}").format(identifier(aside), empty))
    return Aside(aside, old.oid, facts, old.comment, old.columns, bound)


def take_place(connection: Connection, table: Registered, relation: Relation, aside: Aside, changes: ColumnChanges) -> None:
    """A new view under the name, with everything the old one had; then the old one goes."""
    gone = [column.name for column in changes.dropped]
    rebuild(connection, table, relation)
    connection.execute(sql.SQL("alter view {} owner to {}").format(identifier(table.view), sql.Identifier(aside.facts.owner)))
    surface.copy_grants(connection, aside.oid, table.view, gone)
    kept = tuple(column for column in aside.columns if column.name not in gone)
    surface.copy_comments(connection, replace(relation, comment=aside.comment, columns=kept), table.view)
    _set_options(connection, table.view, aside.facts.options)
    for user, text in aside.users:
        try:
            surface.redefine(connection, [text])
        except (psycopg.ProgrammingError, psycopg.NotSupportedError) as cause:
            problem = Problem("dependent", f"{user.kind} {user.name} would not fit any more: {cause.diag.message_primary}", "drop it first")
            raise Refused(f"the columns of {table.name} were not changed", [problem], hint="nothing was changed") from cause
    connection.execute(sql.SQL("drop view {}").format(identifier(aside.name)))


def _refuse_stuck(connection: Connection, table: Registered, oid: int, users: Sequence[Dependent]) -> None:
    stuck = [(user.kind, user.name) for user in users if user.kind not in ("view", "function")]
    stuck += [(row["kind"], row["name"]) for row in connection.execute(SQL.query("list_view_extras"), {"oid": oid}).fetchall()]
    hint = "drop it, and make it again afterwards"
    problems = [Problem("dependent", f"{kind} {name} depends on {table.view}", hint) for kind, name in stuck]
    if problems:
        raise Refused(f"the columns of {table.name} were not changed", problems, hint="nothing was changed")


def _empty(column: Column) -> str:
    collate = f" collate {sql.Identifier(*column.collation).as_string()}" if column.collation else ""
    return f"null::{column.type.display}{collate} as {sql.Identifier(column.name).as_string()}"


def _read(connection: Connection, oid: int) -> _View:
    row = connection.execute(SQL.query("read_view_options"), {"oid": oid}).fetchone()
    return _View(row["owner"], row["options"] or None) if row else _View("", None)


def _set_options(connection: Connection, view: Name, options: str | None) -> None:
    """CREATE OR REPLACE VIEW forgets what the view was told before, security_barrier for one."""
    if options:
        connection.execute(sql.SQL("alter view {} set ({})").format(identifier(view), raw(options)))
