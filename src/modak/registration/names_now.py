"""What a mirrored table and its columns are called now. They are known by OID and by number; a registration only remembers names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import psycopg

from modak.catalog import ownership, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.columns import ColumnChanges
from modak.core.table import Name, Relation
from modak.errors import ModakError, NotFound, Problem, Refused, Retry
from modak.registration import rebuild
from modak.registration.surface import oid_of
from modak.source.relation import find_by_oid


class NameTaken(ModakError):
    """A mirrored table was renamed, and another registration has its new name. It is followed again when that is gone."""

    code = "name_taken"
    retry = Retry.LATER


def name_now(connection: Connection, table: Registered) -> Name:
    """Raises where the table is gone, or where more than its registration hangs on the name it had."""
    now = find_by_oid(connection, table.table_id)
    if now is None and oid_of(connection, table.heap):
        return table.heap  # another table under its name: whoever checks the owner says what that means
    if now is None:
        raise NotFound(f"{table.name} was dropped", hint=f"`modak unregister {table.name}` ends its registration; the lake keeps its rows")
    if now != table.heap and table.has_seam:
        hint = f"rename it back to {table.heap}, and `modak resync {table.name}` copies it anew if it was parked meanwhile"
        raise Refused(f"the heap of {table.name} was renamed to {now}, and its view and triggers name {table.heap}", hint=hint)
    return now


def follow_name(connection: Connection, table: Registered) -> Registered:
    """The registration under the name that the table has now, by RENAME TO or SET SCHEMA. Raises where it cannot have that."""
    now = name_now(connection, table)
    [found] = follow_names(connection, [table])
    if now != found.heap:
        hint = f"`modak unregister {now}` if that table is gone; the mirror goes on by itself"
        raise NameTaken(f"{table.name} was renamed to {now}, and another registered table is known by that name", hint=hint)
    return found


def follow_names(connection: Connection, listed: Sequence[Registered]) -> list[Registered]:
    """The same for many at once: two tables may have swapped their names. What cannot be followed stays as it is."""
    alone = [table for table in listed if table.mode == "mirrored" and not table.has_seam]
    there = {table.table_id: find_by_oid(connection, table.table_id) for table in alone}
    moved = {table.table_id: now for table in alone if (now := there[table.table_id]) is not None and now != table.heap}
    # In a database that was restored an OID is another table's.
    if not moved or not ownership.is_home(connection):
        return list(listed)
    try:
        with connection.transaction():
            tables.save_names(connection, moved)
    except psycopg.errors.UniqueViolation:
        return list(listed)
    return [_called(table, moved[table.table_id]) if table.table_id in moved else table for table in listed]


def _called(table: Registered, now: Name) -> Registered:
    return replace(table, schema_name=now.schema, table_name=now.name, heap_name=now.name, view_name=now.name)


def follow_columns(connection: Connection, table: Registered, relation: Relation, known: Mapping[int, str]) -> Registered:
    """The registration with the names that its key columns, and those kept as text, have now. ``known``: what they were called, by number.

    Raises Refused where a key column is not there any more, or where view and triggers would have to change with it.
    """
    names = {column.number: column.name for column in relation.columns}
    there = set(names.values())
    renamed = {old: names[number] for number, old in known.items() if number in names and names[number] != old}
    wanted = (*table.primary_key_cols, table.tier_key_col)
    missing = [name for name in dict.fromkeys(wanted) if name not in there and name not in renamed]
    if missing:
        hint = f"`modak unregister {table.name}`, then register it with the key that it has now"
        raise Refused(f"{table.name} cannot be copied anew", [Problem("dropped_key", f"key column {missing[0]} is gone", hint)])
    changed = {name: renamed[name] for name in dict.fromkeys((*wanted, *table.text_cols)) if name in renamed}
    if not changed:
        return table
    if table.has_seam and (back := {old: new for old, new in changed.items() if old in wanted}):
        old, new = next(iter(back.items()))
        hint = f"alter table {table.heap} rename column {new} to {old}; then run the command again"
        raise Refused(f"{table.name} cannot be copied anew", [Problem("key_column", f"key column {old} was renamed to {new}", hint)])
    return rebuild.follow_names(connection, table, ColumnChanges(renamed=tuple(changed.items())))
