"""The spill: the heap's DEFAULT partition, where rows land that fit no other one.

A guard refuses what is not cold, and a mirror keeps the delta equal to what stands there.
A LIST over RANGE table has one spill per range level.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from modak.connection import Connection
from modak.core import bounds
from modak.core.lake_table import LakeColumn
from modak.core.registration import derived_name
from modak.core.table import Name, Relation
from modak.core.tier_key import TierKeyType
from modak.source import expressions
from modak.source.relation import SQL


def identifier(name: Name) -> sql.Identifier:
    return sql.Identifier(name.schema, name.name)


def spill_names(relation: Relation) -> list[tuple[Name, Name]]:
    """(range-partitioned table, its spill) for each level that gets one; names that are taken get a number."""
    taken = set(relation.siblings)
    names = []
    for oid in bounds.range_parents(relation):
        parent = next((leaf.name for leaf in relation.partitions if leaf.oid == oid), relation.name)
        base = derived_name(parent.name, "_spill")
        candidate, number = base, 1
        while candidate in taken:
            number += 1
            candidate = derived_name(parent.name, f"_spill{number}")
        taken.add(candidate)
        names.append((parent, Name(parent.schema, candidate)))
    return names


def create(
    connection: Connection,
    relation: Relation,
    parents: Sequence[tuple[Name, Name]],
    *,
    registered: Name,
    tier_key: str,
    key_type: TierKeyType,
    primary_key: Sequence[str],
    columns: Sequence[LakeColumn],
) -> None:
    """Add the spill partitions with their triggers. ``registered`` is the name users know; errors speak of that one."""
    guard, mirror = function_names(relation.oid)
    shared: dict[str, sql.Composable] = {
        "table_id": sql.Literal(relation.oid),
        "tier_key": sql.Identifier(tier_key),
        "tier_key_text": sql.Literal(tier_key),
        "table_text": sql.Literal(str(registered)),
        "is_finite": expressions.raw(expressions.is_finite(key_type, expressions.reference(tier_key, "new"))),
        "pk_old": expressions.raw(expressions.encoded_key(primary_key, "old")),
        "pk_new": expressions.raw(expressions.encoded_key(primary_key, "new")),
        "canonical_old": expressions.raw(expressions.canonical_key(key_type, expressions.reference(tier_key, "old"))),
        "canonical_new": expressions.raw(expressions.canonical_key(key_type, expressions.reference(tier_key, "new"))),
        "image_new": expressions.raw(expressions.row_image(columns, "new")),
    }
    connection.execute(SQL.template("spill_guard", function=sql.Identifier(guard), **shared))
    connection.execute(SQL.template("spill_mirror", function=sql.Identifier(mirror), **shared))
    for parent, spill in parents:
        connection.execute(sql.SQL("create table {} partition of {} default").format(identifier(spill), identifier(parent)))
        connection.execute(
            sql.SQL("create trigger modak_guard before insert or update on {} for each row execute function modak.{}()").format(
                identifier(spill), sql.Identifier(guard)
            )
        )
        connection.execute(
            sql.SQL("create trigger modak_mirror after insert or update or delete on {} for each row execute function modak.{}()").format(
                identifier(spill), sql.Identifier(mirror)
            )
        )


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
            for trigger in ("modak_guard", "modak_mirror"):
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
