"""Capture: the trigger that records writes to a partition from its seal until it is gone.

Creating or dropping it takes a lock that waits for open writers and never for readers; the wait is bounded, so that writers which queue
behind it are held up for that long at most.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from modak.connection import Connection
from modak.core.lake_table import Shape
from modak.core.table import Name
from modak.errors import Refused
from modak.source import expressions
from modak.source.relation import SQL
from modak.source.routines import close, entrust
from modak.source.spill import identifier

TRIGGERS = ("modak_capture", "modak_capture_truncate")


def function_name(table_id: int) -> str:
    return f"capture_{table_id}"


def define(connection: Connection, shape: Shape) -> None:
    """(Re)create the table's capture function; it names the columns the heap has now."""
    parts = expressions.row_parts(shape) | {"tier_key": sql.Identifier(shape.tier_key), "tier_key_text": sql.Literal(shape.tier_key)}
    connection.execute(SQL.template("capture", function=sql.Identifier(function_name(shape.table_id)), **parts))
    close(connection, [function_name(shape.table_id)])
    entrust(connection, [function_name(shape.table_id)])


def attach(connection: Connection, table_id: int, partition: Name) -> None:
    """Put the triggers on a partition, or refuse: without them a write to it would be lost. Locks that are not free are the caller's."""
    try:
        _attach(connection, table_id, partition)
    except psycopg.OperationalError:
        raise
    except psycopg.DatabaseError as cause:
        raise Refused(
            f"the trigger that follows writes to partition {partition} cannot be installed: {cause.diag.message_primary}",
            hint="it needs the rights of the partition's owner; without it the partition stays hot",
            partition=str(partition),
        ) from cause


def _attach(connection: Connection, table_id: int, partition: Name) -> None:
    """ALWAYS: a replication role's writes must be seen too."""
    detach(connection, partition)
    function = sql.Identifier(function_name(table_id))
    target = identifier(partition)
    connection.execute(
        sql.SQL("create trigger modak_capture after insert or update or delete on {} for each row execute function modak.{}()").format(
            target, function
        )
    )
    connection.execute(
        sql.SQL("create trigger modak_capture_truncate before truncate on {} execute function modak.refuse_truncate()").format(target)
    )
    for trigger in TRIGGERS:
        connection.execute(sql.SQL("alter table {} enable always trigger {}").format(target, sql.Identifier(trigger)))


def detach(connection: Connection, partition: Name) -> None:
    """Take the triggers off. Dropping one shuts readers out for a moment, even one that is not there: so look first."""
    rows = connection.execute(SQL.query("list_capture_triggers"), {"schema": partition.schema, "name": partition.name}).fetchall()
    for trigger in [row["name"] for row in rows]:
        connection.execute(sql.SQL("drop trigger if exists {} on {}").format(sql.Identifier(trigger), identifier(partition)))


def remove(connection: Connection, table_id: int) -> None:
    """Forget the table's function, with every trigger that still uses it."""
    connection.execute(sql.SQL("drop function if exists modak.{}() cascade").format(sql.Identifier(function_name(table_id))))
