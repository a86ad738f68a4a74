"""Partitions: what happens to one as a whole is not in the stream, so the catalog is asked about it.

A partition that is detached, dropped or truncated by itself takes rows away without a word, and one that is attached may bring some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.table import Name
from modak.source.relation import SQL
from modak.source.spill import identifier

Leaves = list[dict[str, Any]]


def read(connection: Connection, table_id: int) -> Leaves:
    rows = connection.execute(SQL.query("list_leaves"), {"oid": table_id}).fetchall()
    return [dict(row) for row in rows]


@dataclass(frozen=True)
class Difference:
    """What happened to partitions, in words. ``is_told``: a TRUNCATE of the whole table, which the stream has, would explain it."""

    what: str
    is_told: bool = False


def difference(connection: Connection, table: Registered, known: Sequence[Mapping[str, Any]], now: Leaves) -> Difference | None:
    """What the stream may not have told; None if nothing happened."""
    there = {leaf["oid"]: leaf for leaf in now}
    if list(there) == [table.table_id]:
        return None  # not partitioned: everything that happens to its rows is in the stream
    before = {leaf["oid"]: leaf for leaf in known}
    rewritten: Difference | None = None
    for oid, leaf in before.items():
        name = Name(leaf["schema_name"], leaf["table_name"])
        if oid not in there:
            return Difference(f"partition {name} was detached or dropped")
        if there[oid]["filenode"] != leaf["filenode"]:
            rewritten = Difference(f"partition {name} was truncated or rewritten by itself", is_told=True)
        if there[oid]["attached"] != leaf["attached"]:
            return Difference(f"partition {name} was detached and attached again")
    for leaf in now:
        if leaf["oid"] not in before and _brought_rows(connection, leaf):
            return Difference(f"partition {Name(leaf['schema_name'], leaf['table_name'])} was attached with rows in it")
    return rewritten


def _brought_rows(connection: Connection, leaf: Mapping[str, Any]) -> bool:
    """Rows at least as old as the partition's place in its table were not written through it."""
    name = identifier(Name(leaf["schema_name"], leaf["table_name"]))
    query = sql.SQL("select exists (select from only {} r where age(r.xmin) >= age(%s::xid)) as found").format(name)
    row = connection.execute(query, [leaf["attached"]]).fetchone()
    return bool(row and row["found"])
