"""Give registered tables the numbers that their heaps have in this database.

A table's number is its heap's OID, and a restore gives every heap another one. Rows of the catalog and the names of everything behind a
view carry it. All tables change in one transaction: what is old for one may be new for another, so all let go of theirs first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from modak.catalog import migrate, operations, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.operation import OperationKind
from modak.core.partition import PartitionState
from modak.core.recovery import match_columns
from modak.core.table import Name, Relation
from modak.errors import LockNotAvailable, Refused
from modak.failpoints import failpoint
from modak.registration import mirroring, rebuild
from modak.source.expressions import raw
from modak.source.relation import SQL, describe

LOCK_TIMEOUT_MS = 10_000


@dataclass(frozen=True)
class Move:
    """A registered table whose heap has another OID than the catalog says. ``fields`` are the lake's columns by name."""

    table: Registered
    oid: int
    fields: Mapping[str, int]


def moved_to(connection: Connection, table: Registered) -> int | None:
    """The OID that a registered table's heap has now, if it is not the one it was registered by."""
    keys = {"schema": table.heap.schema, "name": table.heap.name, "has_guard": table.has_seam, "table_id": str(table.table_id)}
    row = connection.execute(SQL.query("find_guarded_heap"), keys).fetchone()
    return int(row["oid"]) if row and row["oid"] != table.table_id else None


def rekey(connection: Connection, moves: Sequence[Move]) -> None:
    """All of them, or none."""
    try:
        _rekey(connection, moves)
    except psycopg.errors.InsufficientPrivilege as cause:
        raise Refused(
            f"this role may not renumber the tables: {cause.diag.message_primary}; nothing was changed",
            hint="connect as the role that owns the catalog and is a member of the tables' owners, or as a superuser",
        ) from cause
    except psycopg.errors.LockNotAvailable as cause:
        raise LockNotAvailable(
            f"the tables are in use, and a lock was not free within {LOCK_TIMEOUT_MS} ms; nothing was changed",
            hint="let no application in before the database is reconciled, or try again",
        ) from cause


def _rekey(connection: Connection, moves: Sequence[Move]) -> None:
    with connection.transaction():
        connection.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT_MS)))
        references = _loosen(connection)
        for move in moves:
            _detach_delta(connection, move.table)
            _rename(connection, str(move.table.table_id), f"moving{move.table.table_id}")
            _renumber(connection, references, move.table.table_id, -move.table.table_id)
        for move in moves:
            _rename(connection, f"moving{move.table.table_id}", str(move.oid))
            _renumber(connection, references, -move.table.table_id, move.oid)
            _attach_delta(connection, move)
        _tighten(connection, references)
        failpoint("reconcile.in_numbers")
        for move in moves:
            _settle(connection, move)
        failpoint("reconcile.before_numbers")


def _loosen(connection: Connection) -> list[dict[str, Any]]:
    """Foreign keys to a registration's number would forbid to change it."""
    found = connection.execute(SQL.query("list_references")).fetchall()
    for one in found:
        connection.execute(sql.SQL("alter table {} drop constraint {}").format(raw(one["relation"]), sql.Identifier(one["name"])))
    return found


def _tighten(connection: Connection, references: Sequence[Mapping[str, Any]]) -> None:
    for one in references:
        connection.execute(
            sql.SQL("alter table {} add constraint {} {}").format(raw(one["relation"]), sql.Identifier(one["name"]), raw(one["definition"]))
        )


def _delta(number: int | str) -> sql.Identifier:
    return sql.Identifier("modak", f"delta_{number}")


def _detach_delta(connection: Connection, table: Registered) -> None:
    if table.has_seam:
        connection.execute(sql.SQL("alter table modak.delta detach partition {}").format(_delta(table.table_id)))


def _attach_delta(connection: Connection, move: Move) -> None:
    if not move.table.has_seam:
        return
    connection.execute(sql.SQL("update {} set table_id = {}").format(_delta(move.oid), sql.Literal(move.oid)))
    connection.execute(
        sql.SQL("alter table modak.delta attach partition {} for values in ({})").format(_delta(move.oid), sql.Literal(move.oid))
    )


def _rename(connection: Connection, old: str, new: str) -> None:
    keys = {"old": old, "new": new}
    for row in connection.execute(SQL.query("list_named_relations"), keys).fetchall():
        connection.execute(sql.SQL("alter table {} rename to {}").format(raw(row["relation"]), sql.Identifier(row["new_name"])))
    for row in connection.execute(SQL.query("list_named_functions"), keys).fetchall():
        connection.execute(sql.SQL("alter function {} rename to {}").format(raw(row["routine"]), sql.Identifier(row["new_name"])))


def _renumber(connection: Connection, references: Sequence[Mapping[str, Any]], old: int, new: int) -> None:
    places = [(str(one["relation"]), str(one["column_name"])) for one in references]
    places += [("modak.folded", "table_id"), ("modak.tables", "table_id")]
    for relation, column in places:
        connection.execute(
            sql.SQL("update {} set {} = {} where {} = {}").format(
                raw(relation), sql.Identifier(column), sql.Literal(new), sql.Identifier(column), sql.Literal(old)
            )
        )


def _settle(connection: Connection, move: Move) -> None:
    """Everything else that speaks of numbers: partitions, columns, transactions, and what the view is made of."""
    table = replace(move.table, table_id=move.oid)
    for query in ("renumber_transactions", "mark_restored"):
        connection.execute(migrate.SQL.query(query), {"table_id": move.oid})
    relation = describe(connection, table.heap)
    tables.save_lake_columns(connection, table.table_id, _columns(table, relation, move.fields))
    if table.has_seam:
        _seat_partitions(connection, table)
        rebuild.rebuild(connection, table, relation)
    if table.mode == "mirrored":
        _settle_mirror(connection, table)


def _columns(table: Registered, relation: Relation, fields: Mapping[str, int]) -> dict[int, int]:
    """Which field of the lake each column is; a dump forgets columns that were dropped, so those after them have other numbers."""
    numbered = [(column.number, column.name) for column in relation.columns]
    columns = match_columns(numbered, fields)
    if columns is None and not table.has_seam:
        # All of its rows are copied anew, so none can come under a name that is not its own.
        return {number: fields[name] for number, name in numbered if name in fields}
    if columns is None:
        raise Refused(
            f"columns of {table.name} were renamed after the lake last followed, and a restore does not tell which is which",
            hint="give the columns their old names back (`alter table … rename column`), reconcile, and rename them with `modak alter`",
            heap=", ".join(column.name for column in relation.columns),
            lake=", ".join(fields),
        )
    return columns


def _settle_mirror(connection: Connection, table: Registered) -> None:
    """A slot is never in a dump. What identified the rows of a partition before cannot be told from its old number."""
    row = connection.execute(SQL.query("read_replication")).fetchone()
    assert row is not None
    connection.execute(migrate.SQL.query("write_slot"), {"table_id": table.table_id, "slot_name": mirroring.slot_name(row["database_id"])})
    connection.execute(migrate.SQL.query("forget_moments"), {"table_id": table.table_id})
    original = {**table.original, "identities": []}
    connection.execute(migrate.SQL.query("write_original"), {"table_id": table.table_id, "original": Jsonb(original)})


def _seat_partitions(connection: Connection, table: Registered) -> None:
    """Those that stand get the number they have here, by their name; the numbers of those that are gone stay below zero."""
    keys = {"table_id": table.table_id}
    connection.execute(migrate.SQL.query("lift_partitions"), keys)
    connection.execute(migrate.SQL.query("forget_captured"), keys)
    numbers: dict[Name, int] = {}
    for row in connection.execute(migrate.SQL.query("list_lifted"), keys).fetchall():
        if row["state"] == PartitionState.DROPPED.value:
            continue
        name = Name(row["schema_name"], row["partition_name"])
        found = connection.execute(SQL.query("find_oid"), {"schema": name.schema, "name": name.name}).fetchone()
        if found is None or found["oid"] is None:
            continue
        numbers[name] = int(found["oid"])
        connection.execute(migrate.SQL.query("seat_partition"), {**keys, "lifted": row["partition_id"], "new": numbers[name]})
    _rewrite_journal(connection, table, numbers)


def _rewrite_journal(connection: Connection, table: Registered, numbers: Mapping[Name, int]) -> None:
    """An open pass names its partitions by number, and whoever undoes it goes by that."""
    for operation in operations.open_operations(connection, table.table_id):
        if operation.kind is not OperationKind.TIERING:
            continue
        parts = [
            {**part, "oid": numbers.get(Name(part["schema"], part["name"]), -abs(int(part["oid"])))}
            for part in operation.details["partitions"]
        ]
        details = {**operation.details, "partitions": parts}
        connection.execute(migrate.SQL.query("rewrite_operation"), {"op_id": operation.op_id, "details": Jsonb(details)})
