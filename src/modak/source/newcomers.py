"""Newcomers: partitions that somebody has made and no pass has looked at yet.

One that lies below the cut-line would take rows that the name does not show. So the heap has a trigger that refuses them; every partition
comes with it, and it is switched off where Modak knows the partition. There it costs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psycopg
from psycopg import sql

from modak.connection import Connection
from modak.core.lake_table import Shape
from modak.core.table import Name, Relation
from modak.source import expressions
from modak.source.relation import SQL
from modak.source.routines import entrust
from modak.source.spill import identifier

TRIGGER = "modak_newcomer"


def function_name(table_id: int) -> str:
    return f"newcomer_{table_id}"


def define(connection: Connection, shape: Shape) -> None:
    """(Re)create the table's function; it names the tier key as it is called now."""
    name = function_name(shape.table_id)
    connection.execute(SQL.template("newcomer", function=sql.Identifier(name), **expressions.row_parts(shape)))
    entrust(connection, [name])


def watch(connection: Connection, table_id: int, heap: Name, relation: Relation, spills: Iterable[Name]) -> None:
    """Put the trigger on a heap and all that is below it. ALWAYS: what a replication role writes would not be seen either.

    After the insert, not before it: COPY takes one row at a time wherever it finds a trigger of the other kind, though it is switched off.
    A heap with partitions of somebody else goes without: rows in a partition below the line then stop the next pass, and are not lost.
    """
    if connection.execute(SQL.query("find_trigger"), {"oid": relation.oid, "name": TRIGGER}).fetchone() is None:
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
            _create(connection, table_id, heap)
    watched = known(connection, table_id)
    for spill in spills:  # what is there is below the line, and seen
        if spill in watched:
            trust(connection, spill)


def _create(connection: Connection, table_id: int, heap: Name) -> None:
    trigger, function = sql.Identifier(TRIGGER), sql.Identifier(function_name(table_id))
    connection.execute(
        sql.SQL("create trigger {} after insert on {} for each row execute function modak.{}()").format(trigger, identifier(heap), function)
    )
    connection.execute(sql.SQL("alter table {} enable always trigger {}").format(identifier(heap), trigger))


def known(connection: Connection, table_id: int) -> list[Name]:
    """Partitions that need the trigger no more: Modak looks after them by others, or the line has yet to come to them."""
    rows = connection.execute(SQL.query("list_known_newcomers"), {"table_id": table_id, "trigger": TRIGGER}).fetchall()
    return [Name(row["schema_name"], row["name"]) for row in rows]


def trust(connection: Connection, partition: Name) -> None:
    """Not one of somebody else's: there the trigger goes on asking, which costs some speed and keeps out nothing that may come in."""
    with contextlib.suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
        connection.execute(sql.SQL("alter table {} disable trigger {}").format(identifier(partition), sql.Identifier(TRIGGER)))


def remove(connection: Connection, table_id: int) -> None:
    """Forget the table's function, with the triggers that use it."""
    connection.execute(sql.SQL("drop function if exists modak.{}() cascade").format(sql.Identifier(function_name(table_id))))
