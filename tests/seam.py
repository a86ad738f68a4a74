"""Reading the seam as a third party would, to check what the product says: heap above T, lake at S, delta on top."""

from __future__ import annotations

from typing import Any

from psycopg import sql

from modak.app import App
from modak.catalog import profiles, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.table import Name
from modak.lake.commits import commits_after

Row = tuple[Any, ...]


def columns_of(connection: Connection, table: Registered) -> list[str]:
    rows = connection.execute(
        "select attname from pg_attribute where attrelid = %s::oid and attnum > 0 and not attisdropped order by attnum", [table.table_id]
    ).fetchall()
    return [row["attname"] for row in rows]


def read(app: App, name: Name) -> dict[str, Row]:
    """Every row of the table by its encoded key, from both tiers at one catalog snapshot; a key that shows twice is an error."""
    with app.connection() as connection, connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        table = tables.get(connection, name)
        line = connection.execute("select * from modak.cutline where table_id = %s", [table.table_id]).fetchone()
        assert line is not None
        found: dict[str, Row] = {}
        columns = columns_of(connection, table)
        for key, row in [*_hot(connection, table, columns, line["tier_key_hi"]), *_cold(app, connection, table, columns, line)]:
            assert key not in found, f"{key} stands in both tiers, or twice in one: {row} and {found[key]}"
            found[key] = row
        return found


def _key(table: Registered, columns: list[str], row: Row) -> str:
    parts = [str(row[columns.index(column)]) for column in table.primary_key_cols]
    return parts[0] if len(parts) == 1 else "\x1f".join(parts)


def _hot(connection: Connection, table: Registered, columns: list[str], line: int) -> list[tuple[str, Row]]:
    names = sql.SQL(", ").join(sql.Identifier(column) for column in columns)
    rows = connection.execute(
        sql.SQL("select {} from {} where {} >= {}").format(
            names, sql.Identifier(table.schema_name, table.heap_name), sql.Identifier(table.tier_key_col), sql.Literal(line)
        )
    ).fetchall()
    return [(_key(table, columns, tuple(row.values())), tuple(row.values())) for row in rows]


def _cold(app: App, connection: Connection, table: Registered, columns: list[str], line: dict[str, Any]) -> list[tuple[str, Row]]:
    delta = {row["pk"]: row for row in connection.execute("select * from modak.delta where table_id = %s", [table.table_id]).fetchall()}
    rows: list[tuple[str, Row]] = []
    if line["lake_props"].get("snapshot_id"):
        lake = app.lake(profiles.get(connection, table.storage_profile)).load(table.lake_table_ref)
        for record in lake.scan(snapshot_id=int(line["lake_props"]["snapshot_id"])).to_arrow().to_pylist():
            row = tuple(record.get(column) for column in columns)
            key = _key(table, columns, row)
            if key not in delta:
                rows.append((key, row))
    for key, correction in delta.items():
        assert correction["tier_key"] < line["tier_key_hi"], f"the delta targets a hot row: {correction}"
        if correction["op"] == 0:
            rows.append((key, tuple(correction["payload"].get(column) for column in columns)))
    return rows


def data_commits(app: App, name: Name) -> list[dict[str, str]]:
    """Stamps of the commits on the lake table, oldest first."""
    with app.connection() as connection:
        table = tables.get(connection, name)
        lake = app.lake(profiles.get(connection, table.storage_profile)).load(table.lake_table_ref)
        return [dict(commit.stamps) for commit in commits_after(lake, None)]


def states(connection: Connection, name: Name) -> dict[str, str]:
    table = tables.get(connection, name)
    return {partition.name: partition.state.value for partition in tables.partitions(connection, table.table_id)}
