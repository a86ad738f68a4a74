"""The spill: the heap's DEFAULT partition, where rows land that fit no other one.

A guard refuses what is not cold, and a mirror keeps the delta equal to what stands there.
A LIST over RANGE table has one spill per range level.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from modak.connection import Connection
from modak.core import bounds
from modak.core.lake_table import Shape
from modak.core.registration import derived_name
from modak.core.table import Name, Relation
from modak.source import expressions
from modak.source.relation import SQL, names_in
from modak.source.routines import close, entrust

TRIGGERS = ("modak_guard", "modak_guard_update", "modak_keys", "modak_mirror", "modak_older", "modak_truncate")


def identifier(name: Name) -> sql.Identifier:
    return sql.Identifier(name.schema, name.name)


def spill_names(connection: Connection, relation: Relation) -> list[tuple[Name, Name]]:
    """(range-partitioned table, its spill) for each level that gets one; names that are taken get a number."""
    taken: dict[str, set[str]] = {}
    names = []
    for oid in bounds.range_parents(relation):
        parent = next((leaf.name for leaf in relation.partitions if leaf.oid == oid), relation.name)
        if parent.schema not in taken:  # a partition may stand in another schema than its parent
            taken[parent.schema] = set(names_in(connection, parent.schema))
        candidate, number = derived_name(parent.name, "_spill"), 1
        while candidate in taken[parent.schema]:
            number += 1
            candidate = derived_name(parent.name, f"_spill{number}")
        taken[parent.schema].add(candidate)
        names.append((parent, Name(parent.schema, candidate)))
    return names


def create(connection: Connection, relation: Relation, parents: Sequence[tuple[Name, Name]], shape: Shape) -> None:
    """Add the spill partitions with their triggers."""
    define(connection, shape)
    for parent, spill in parents:
        connection.execute(sql.SQL("create table {} partition of {} default").format(identifier(spill), identifier(parent)))
        # Whoever registers, the spill is its table's owner's: ALTER TABLE on the parent asks for that of every partition.
        connection.execute(sql.SQL("alter table {} owner to {}").format(identifier(spill), sql.Identifier(relation.owner)))
        attach(connection, shape.table_id, spill)


def attach(connection: Connection, table_id: int, spill: Name) -> None:
    """Put the triggers on a spill, or make those that stand there what they are to be. ALWAYS: a replication role's writes must be seen
    too, or their rows would stand there unseen by everybody."""
    guard, mirror = function_names(table_id)
    # After an update, not before it: an update that takes the row to another partition ends as a delete here, and is welcome.
    triggers = {
        "modak_guard": ("before insert", "for each row", guard),
        "modak_guard_update": ("after update or delete", "for each row", guard),
        "modak_mirror": ("after insert or update or delete", "for each row", mirror),
        "modak_truncate": ("before truncate", "for each statement", "refuse_truncate"),
    }
    for name, (when, each, function) in triggers.items():
        connection.execute(
            sql.SQL("create or replace trigger {} {} on {} {} execute function modak.{}()").format(
                sql.Identifier(name), sql.SQL(when), identifier(spill), sql.SQL(each), sql.Identifier(function)
            )
        )
        connection.execute(sql.SQL("alter table {} enable always trigger {}").format(identifier(spill), sql.Identifier(name)))


def define(connection: Connection, shape: Shape) -> None:
    """(Re)create the spill's functions; they name the columns the heap has now."""
    guard, mirror = function_names(shape.table_id)
    shared: dict[str, sql.Composable] = expressions.row_parts(shape) | {
        "tier_key": sql.Identifier(shape.tier_key),
        "tier_key_text": sql.Literal(shape.tier_key),
        "is_finite": expressions.raw(expressions.is_finite(shape.key_type, expressions.reference(shape.tier_key, "new"))),
    }
    connection.execute(SQL.template("spill_guard", function=sql.Identifier(guard), **shared))
    connection.execute(SQL.template("spill_mirror", function=sql.Identifier(mirror), **shared))
    close(connection, (guard, mirror))
    entrust(connection, (guard, mirror))


def function_names(table_id: int) -> tuple[str, str]:
    return f"spill_guard_{table_id}", f"spill_mirror_{table_id}"


def remove(connection: Connection, table_id: int, spills: Sequence[Name]) -> list[Name]:
    """Take the spills away again. One that holds rows stays as an ordinary DEFAULT partition, and is returned."""
    kept = []
    for spill in spills:
        if not _exists(connection, spill):
            continue
        row = connection.execute(sql.SQL("select exists (select from {}) as holds").format(identifier(spill))).fetchone()
        if row and row["holds"]:
            kept.append(spill)
            for trigger in TRIGGERS:
                connection.execute(sql.SQL("drop trigger if exists {} on {}").format(sql.Identifier(trigger), identifier(spill)))
        else:
            connection.execute(sql.SQL("drop table {}").format(identifier(spill)))
    for function in function_names(table_id):
        connection.execute(sql.SQL("drop function if exists modak.{}()").format(sql.Identifier(function)))
    return kept


def _exists(connection: Connection, name: Name) -> bool:
    row = connection.execute(
        "select to_regclass(format('%%I.%%I', %s::text, %s::text)) is not null as there", [name.schema, name.name]
    ).fetchone()
    return bool(row and row["there"])
