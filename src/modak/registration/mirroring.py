"""What mirroring a table asks of Postgres: a publication, a slot, and a stream that says whose every change is.

One publication and one slot serve all mirrored tables of a database. The table keeps its name, its OID and everything on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from modak.catalog import tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.table import Name, Relation
from modak.errors import Problem, Refused
from modak.source import published, replication
from modak.source.relation import SQL, find_by_oid
from modak.source.spill import identifier

PUBLICATION = "modak"
# The stream's own slot, and a temporary one for the snapshot of a copy.
SLOTS_NEEDED = 2
_IDENTITIES = {"d": "default", "n": "nothing", "f": "full"}


def slot_name(database_id: int) -> str:
    """Slots are the whole server's, so the name says whose it is."""
    return f"modak_{database_id}"


def refuse_if_impossible(connection: Connection, relation: Relation, key: Sequence[str]) -> None:
    problems = [
        *_server_problems(connection),
        *_publication_problems(connection, relation, key),
        *_identity_problems(connection, relation, key),
    ]
    if problems:
        raise Refused(f"{relation.name} cannot be mirrored", problems, hint="nothing was changed")


def _server_problems(connection: Connection) -> list[Problem]:
    row = connection.execute(SQL.query("read_replication")).fetchone()
    assert row is not None
    there = replication.find_slot(connection, slot_name(row["database_id"])) is not None
    needed = SLOTS_NEEDED - int(there)
    found = []
    if row["wal_level"] != "logical":
        hint = "alter system set wal_level = logical, then restart the server (on a managed one: its parameter group)"
        found.append(Problem("wal_level", f"wal_level is {row['wal_level']}, and the stream needs logical", hint))
    if not row["may_replicate"]:
        found.append(Problem("replication", "this role may not replicate", "alter role … replication, as a superuser"))
    if not row["may_publish"]:
        found.append(Problem("publication", "this role may not create a publication", "grant create on database … to it"))
    if row["free_slots"] < needed:
        what = f"{row['free_slots']} replication slots are free, and mirroring needs {needed}"
        found.append(Problem("slots", what, "raise max_replication_slots, or drop slots that nobody uses"))
    return found


def _publication_problems(connection: Connection, relation: Relation, key: Sequence[str]) -> list[Problem]:
    """A publication of that name which is there already must tell of everything."""
    found = published.read(connection, PUBLICATION, relation.oid, key)
    problems = found.option_problems()
    if found.has_filter or found.has_columns:
        what = f"publication {PUBLICATION} has the table with a row filter or a list of columns"
        problems.append(Problem("publication", what, f"alter publication {PUBLICATION} drop table {relation.name}"))
    return problems


def _identity_problems(connection: Connection, relation: Relation, key: Sequence[str]) -> list[Problem]:
    index = _identity_index(connection, relation, key)
    if index is None:
        hint = "add a primary key or a unique index of exactly these columns, NOT NULL and not deferrable"
        return [Problem("identity", f"no index proves that ({', '.join(key)}) identifies a row in the stream", hint)]
    if relation.strategy is not None and not index["is_primary"]:
        hint = "partitions that come later would lack it, and updates of them would fail: leave --primary-key out"
        return [Problem("identity", f"({', '.join(key)}) is not the primary key of a partitioned table", hint)]
    return []


def _identity_index(connection: Connection, relation: Relation, key: Sequence[str]) -> dict[str, Any] | None:
    rows = connection.execute(SQL.query("list_identity_indexes"), {"oid": relation.oid}).fetchall()
    return next((row for row in rows if set(row["columns"]) == set(key)), None)


def publish(connection: Connection, relation: Relation) -> tuple[str, str]:
    """Put the table into the publication, made if it is the first; returns its name and the slot's."""
    row = connection.execute(SQL.query("read_replication")).fetchone()
    assert row is not None
    there = connection.execute(SQL.query("find_publication"), {"name": PUBLICATION, "oid": relation.oid}).fetchone()
    assert there is not None
    name, table = sql.Identifier(PUBLICATION), identifier(relation.name)
    if not there["found"]:
        # Through the root a row keeps its table, whatever partition it stands in, and columns come in the root's order.
        connection.execute(sql.SQL("create publication {} for table {} with (publish_via_partition_root = true)").format(name, table))
    elif not there["has_table"]:
        connection.execute(sql.SQL("alter publication {} add table {}").format(name, table))
    return PUBLICATION, slot_name(row["database_id"])


def mend(connection: Connection, table: Registered, relation: Relation) -> None:
    """Before a new copy: put right what keeps changes out of the stream, or their keys."""
    found = published.read(connection, table.publication_name or PUBLICATION, table.table_id, table.primary_key_cols)
    name, heap = sql.Identifier(found.publication), identifier(relation.name)
    try:
        with connection.transaction():
            if found.option_problems():
                options = sql.SQL("publish = {}, publish_via_partition_root = true").format(sql.Literal(published.EVERYTHING))
                connection.execute(sql.SQL("alter publication {} set ({})").format(name, options))
            if found.has_filter or found.has_columns:
                connection.execute(sql.SQL("alter publication {} drop table {}").format(name, heap))
            publish(connection, relation)
            if found.other_identity is not None:
                identify(connection, relation, table.primary_key_cols)
    except psycopg.errors.InsufficientPrivilege as cause:
        raise Refused(
            f"{table.name} cannot be followed from a copy on",
            found.problems(table.primary_key_cols),
            hint="the owner of the publication and of the table can put that right; then run the command again",
        ) from cause


def identify(connection: Connection, relation: Relation, key: Sequence[str]) -> list[dict[str, Any]]:
    """See to it that updates and deletes name their row; returns what was there before, for unregister."""
    index = _identity_index(connection, relation, key)
    assert index is not None
    changed = []
    for row in connection.execute(SQL.query("list_identities"), {"oid": relation.oid}).fetchall():
        if row["identity"] == "f" or (row["identity"] == "d" and index["is_primary"]):
            continue
        if row["identity"] == "i" and not index["is_primary"] and row["index_name"] == index["index_name"]:
            continue
        name = Name(row["schema_name"], row["table_name"])
        _set_identity(connection, name, "d" if index["is_primary"] else "i", index["index_name"])
        changed.append({"oid": row["oid"], "identity": row["identity"], "index": row["index_name"]})
    return changed


def _set_identity(connection: Connection, name: Name, identity: str, index: str | None) -> None:
    how = sql.SQL("using index {}").format(sql.Identifier(index or "")) if identity == "i" else sql.SQL(_IDENTITIES[identity])
    connection.execute(sql.SQL("alter table {} replica identity {}").format(identifier(name), how))


def changes(table: Registered) -> list[str]:
    """What registration changed, for people."""
    found = [f"publication {table.publication_name} has the table, slot {table.slot_name} keeps its changes"]
    number = len(table.original.get("identities", ()))
    if number:
        found.append(f"the replica identity of {number} tables is the key now; unregister gives back what it was")
    return found


def restore(connection: Connection, table: Registered, heap: Name | None) -> None:
    """Take the table out of the publication, and give it the replica identity back that it had."""
    there = connection.execute(SQL.query("find_publication"), {"name": table.publication_name, "oid": table.table_id}).fetchone()
    if heap is not None and there is not None and there["has_table"]:
        name = sql.Identifier(table.publication_name or PUBLICATION)
        connection.execute(sql.SQL("alter publication {} drop table {}").format(name, identifier(heap)))
    for before in table.original.get("identities", ()):
        name_now = find_by_oid(connection, before["oid"])
        if name_now is not None:
            _set_identity(connection, name_now, before["identity"], before["index"])


def clean_up(connection: Connection, table: Registered) -> None:
    """The last mirrored table takes slot and publication with it: a slot that nobody reads keeps WAL for ever."""
    if any(other.slot_name == table.slot_name for other in tables.listing(connection)):
        return
    try:
        replication.drop_slot(connection, table.slot_name or "")
    except psycopg.errors.ObjectInUse as cause:
        raise Refused(
            f"{table.name} is unregistered, but slot {table.slot_name} is being read and stays",
            hint=f"stop the worker and run: select pg_drop_replication_slot('{table.slot_name}'); drop publication {PUBLICATION}",
        ) from cause
    there = connection.execute(SQL.query("find_publication"), {"name": table.publication_name, "oid": table.table_id}).fetchone()
    # Somebody may have put a table of his own into it.
    if there is not None and there["found"] and not there["has_tables"]:
        connection.execute(sql.SQL("drop publication {}").format(sql.Identifier(table.publication_name or PUBLICATION)))
