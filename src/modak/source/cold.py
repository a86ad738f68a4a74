"""The cold side of a table inside Postgres: a partitioned relation whose partitions are foreign tables on the gateway.

Each foreign table covers a range of tier keys below the bound, and together they cover everything below it; above it there is nothing,
so that a query for recent keys is planned without the gateway. The bound is published before T may reach it, in a transaction of its
own after the one that attached the foreign table: a statement that sees the bound has then been told to look at the partitions again.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from modak.connection import Connection
from modak.core.lake_table import Shape
from modak.core.table import Column, Name, Relation
from modak.core.tier_key import TierKeyType
from modak.core.type_map import LakeType, PgType, is_plain, lake_type
from modak.errors import Problem
from modak.source.relation import SQL
from modak.source.routines import entrust_relation
from modak.source.spill import identifier

SERVER = "modak_gateway"
PIN = "_modak_pin"
# Each foreign table is a remote query of its own; past this many they are made one.
PARTS_MAX = 4

# Types that mean the same in the lake's engine; values of every other type travel as text and are cast in the view, and as that cast
# cannot be shipped, conditions on them are Postgres's own.
_SHIPPED = frozenset({"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar", "date", "uuid", "bytea"})
_SHIPPED |= {"timestamp", "timestamptz"}


def ships(pg: PgType, kept: LakeType | Problem) -> bool:
    """Whether conditions on a column of this type may be evaluated in the lake."""
    return isinstance(kept, LakeType) and not kept.as_text and is_plain(pg) and pg.base in _SHIPPED


def column_ships(column: Column, text_columns: Sequence[str]) -> bool:
    return ships(column.type, lake_type(column.type, force_text=column.name in text_columns))


def parent_name(table_id: int, build: int) -> Name:
    return Name("modak", f"cold_{table_id}_{build}")


def create(connection: Connection, relation: Relation, tier_key: str, text_columns: Sequence[str], build: int) -> Name:
    """A new, empty build of the cold relation."""
    parent = parent_name(relation.oid, build)
    columns: list[sql.Composable] = [sql.SQL("{} bigint").format(sql.Identifier(PIN))]
    columns += [_definition(column, text_columns) for column in relation.columns]
    connection.execute(
        sql.SQL("create table {} ({}) partition by range ({})").format(
            identifier(parent), sql.SQL(", ").join(columns), sql.Identifier(tier_key)
        )
    )
    connection.execute(sql.SQL("grant select on {} to {}").format(identifier(parent), sql.Identifier(relation.owner)))
    entrust_relation(connection, "table", parent)
    return parent


def _definition(column: Column, text_columns: Sequence[str], options: bool = False) -> sql.Composable:
    shipped = column_ships(column, text_columns)
    parts: list[sql.Composable] = [sql.Identifier(column.name), sql.SQL(column.type.display if shipped else "text")]
    if options:
        # By number: a column that is renamed stays the same column for the gateway.
        parts.append(sql.SQL("options (column_name {})").format(sql.Literal(f"a{column.number}")))
    if shipped and column.collation is not None:
        parts.append(sql.SQL("collate {}").format(sql.Identifier(*column.collation)))
    return sql.SQL(" ").join(parts)


def attach(
    connection: Connection, relation: Relation, shape: Shape, text_columns: Sequence[str], build: int, lower: int, upper: int
) -> None:
    """One more foreign table, for [lower, upper). Attaching locks out neither readers nor writers."""
    parent = parent_name(relation.oid, build)
    part = Name("modak", f"{parent.name}_{len(_ranges(connection, parent)) + 1}")
    columns: list[sql.Composable] = [sql.SQL("{} bigint options (column_name 'pin')").format(sql.Identifier(PIN))]
    columns += [_definition(column, text_columns, options=True) for column in relation.columns]
    connection.execute(
        sql.SQL("create foreign table {} ({}) server {} options (schema_name {}, table_name {})").format(
            identifier(part),
            sql.SQL(", ").join(columns),
            sql.Identifier(SERVER),
            sql.Literal(str(relation.oid)),
            sql.Literal(f"{build}:{lower}:{upper}"),
        )
    )
    connection.execute(
        sql.SQL("alter table {} attach partition {} for values from ({}) to ({})").format(
            identifier(parent), identifier(part), _bound(shape.key_type, lower), _bound(shape.key_type, upper)
        )
    )
    entrust_relation(connection, "foreign table", part)


def _bound(key_type: TierKeyType, key: int) -> sql.Composable:
    text = key_type.encode_bound(key)
    return sql.SQL(text) if text in ("MINVALUE", "MAXVALUE") else sql.Literal(text)


def _ranges(connection: Connection, parent: Name) -> list[str]:
    """What each foreign table of a build stands for, as its remote name says it."""
    rows = connection.execute(SQL.query("list_cold_ranges"), {"schema": parent.schema, "name": parent.name}).fetchall()
    return [row["range"] for row in rows]


def part_count(connection: Connection, table_id: int, build: int) -> int:
    return len(_ranges(connection, parent_name(table_id, build)))


def reached(connection: Connection, table_id: int, build: int) -> int | None:
    """The key up to which the attached foreign tables reach; None without any. A crash may have left the published bound behind it."""
    ranges = _ranges(connection, parent_name(table_id, build))
    return max((int(one.rpartition(":")[2]) for one in ranges), default=None)


def drop(connection: Connection, table_id: int, build: int) -> None:
    connection.execute(sql.SQL("drop table if exists {}").format(identifier(parent_name(table_id, build))))
