"""Unregister: the heap gets its name back, and everything Modak put beside it goes. The lake stays unless asked otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from psycopg import sql

from modak.catalog import tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.table import Dependent, Name
from modak.errors import LockNotAvailable, Problem, Refused
from modak.failpoints import failpoint
from modak.lake.iceberg import IcebergLake
from modak.registration import mirroring, ownership, surface
from modak.registration.register import CATALOG_STAMP, LOCK_TIMEOUT_MS, TABLE_STAMP, read_catalog_id
from modak.source import capture, newcomers, spill, writes
from modak.source.relation import SQL, dependents, describe, find_by_oid
from modak.source.spill import identifier


@dataclass(frozen=True)
class Outcome:
    """What unregistering did. ``cold_rows`` were in the lake, 0 for a kept heap; ``spills`` had rows and stay as DEFAULT partitions."""

    table: Name
    found: bool
    lake_dropped: bool = False
    lake_table: str | None = None
    cold_rows: int = 0
    spills: tuple[Name, ...] = ()


def unregister(connection: Connection, lake: IcebergLake, table: Registered, *, drop_lake: bool) -> Outcome:
    """The catalog goes first and the lake after it: a crash in between leaves files, never a table without its lake."""
    if drop_lake:
        ownership.check(connection, lake, table, claim=False)
    pointer = lake.find(table.lake_table_ref)
    try:
        with connection.transaction():
            connection.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT_MS)))
            # By its OID: the user may have renamed the heap, or dropped it, which must not keep its registration for ever.
            heap = find_by_oid(connection, table.table_id)
            if heap is not None:
                connection.execute(sql.SQL("lock table {} in access exclusive mode").format(identifier(heap)))
            _refuse_if_busy(connection, table, drop_lake)
            kept: list[Name] = []
            if table.mode == "mirrored":
                mirroring.restore(connection, table, heap)
            if table.has_seam:
                newcomers.remove(connection, table.table_id)
                kept = _restore(connection, table, heap) if heap is not None else spill.remove(connection, table.table_id, ())
                surface.remove(connection, table.table_id, table.cold_build)
            tables.delete(connection, table.table_id)
            failpoint("unregister.before_commit")
    except psycopg.errors.LockNotAvailable as cause:
        raise LockNotAvailable(
            f"{table.name} is in use; nothing was changed", hint="try again when long transactions on it have ended"
        ) from cause
    except psycopg.errors.InsufficientPrivilege as cause:
        raise Refused(
            f"this role may not unregister {table.name}: {cause.diag.message_primary}", hint="connect as its owner or as a superuser"
        ) from cause
    failpoint("unregister.after_commit")
    if table.mode == "mirrored":
        mirroring.clean_up(connection, table)
    if drop_lake:
        lake.drop(table.lake_table_ref, purge=True)
    cold_rows = (pointer.total_rows or 0) if pointer and table.has_seam and not table.keep_heap else 0
    return Outcome(table.name, True, drop_lake, table.lake_table_ref, cold_rows, tuple(kept))


def drop_forgotten_lake(connection: Connection, lake: IcebergLake, name: Name) -> Outcome:
    """``unregister --drop-lake`` of a table that is gone from the catalog: the lake table it left behind, if it is ours."""
    owned = {table.lake_table_ref for table in tables.listing(connection)}
    for pointer in lake.search({TABLE_STAMP: str(name), CATALOG_STAMP: read_catalog_id(connection)}):
        if pointer.ref not in owned:
            ownership.check_forgotten(connection, lake, pointer)
            lake.drop(pointer.ref, purge=True)
            return Outcome(name, False, True, pointer.ref, pointer.total_rows or 0)
    return Outcome(name, False)


def _refuse_if_busy(connection: Connection, table: Registered, drop_lake: bool) -> None:
    problems = []
    line = tables.cutline(connection, table.table_id)
    if tables.count(connection, "count_open_operations", table.table_id):
        problems.append(Problem("busy", "an operation is under way", "wait for it, or let the worker finish it"))
    # Before the first commit to the lake the heap and its spill are the whole truth, and the delta says nothing more.
    if not drop_lake and line.snapshot is not None:
        for what, query in (("corrections that the lake does not have yet", "count_delta"), ("staged loads", "count_staged")):
            number = tables.count(connection, query, table.table_id)
            if number:
                problems.append(Problem("unfolded", f"{number} {what}", "run `modak fold` and `modak adopt` first"))
    if problems:
        raise Refused(f"{table.name} was not unregistered", problems, hint="nothing was changed")


def _restore(connection: Connection, table: Registered, heap: Name) -> list[Name]:
    view_oid = _view(connection, table)
    users = dependents(connection, view_oid) if view_oid else ()
    _refuse_stuck(table, users)
    definitions = surface.definitions(connection, users)
    aside = table.view
    writes.let_go(connection, table.table_id)
    if table.surface == "view":
        if view_oid:
            surface.copy_grants(connection, view_oid, heap)
            # The view steps aside under another name, so that its users can be bound to the heap before it goes.
            aside = surface.rename(connection, "view", table.view, f"modak_going_{table.table_id}")
        heap = surface.rename(connection, "table", heap, table.table_name)
        surface.redefine(connection, definitions)
    if view_oid:
        connection.execute(sql.SQL("drop view {}").format(identifier(aside)))
    _remove_capture(connection, table, heap)
    _allow_nulls(connection, heap, table.original.get("set_not_null", ()))
    spills = [Name(schema, name) for schema, name in table.original.get("spills", ())]
    return spill.remove(connection, table.table_id, spills)


def _remove_capture(connection: Connection, table: Registered, heap: Name) -> None:
    """Partitions that were tiered and still stand become ordinary ones."""
    for leaf in describe(connection, heap).leaves:
        capture.detach(connection, leaf.name)
    capture.remove(connection, table.table_id)


def _view(connection: Connection, table: Registered) -> int:
    """The OID of the two-tier view, 0 if somebody dropped it; something else under a name that the heap needs is refused."""
    row = connection.execute(SQL.query("find_view"), {"schema": table.view.schema, "name": table.view.name}).fetchone()
    if row is None or (table.surface == "heap" and not row["is_view"]):
        return 0
    if not row["is_view"]:
        problem = Problem("name_taken", f"{table.view} is not the view that Modak made", "rename it: the heap takes this name back")
        raise Refused(f"{table.name} was not unregistered", [problem], hint="nothing was changed")
    return int(row["oid"])


def _allow_nulls(connection: Connection, heap: Name, columns: Iterable[str]) -> None:
    """Take back what registration set, except where the table needs it by now."""
    relation = describe(connection, heap)
    for name in columns:
        column = relation.column(name)
        if column is not None and column.not_null and not column.identity and name not in relation.primary_key:
            connection.execute(sql.SQL("alter table {} alter column {} drop not null").format(identifier(heap), sql.Identifier(name)))


def _refuse_stuck(table: Registered, users: tuple[Dependent, ...]) -> None:
    movable = ("view", "function") if table.surface == "view" else ()
    problems = [
        Problem("dependent", f"{user.kind} {user.name} depends on {user.on}", "drop it, or bind it to another relation")
        for user in users
        if user.kind not in movable
    ]
    if problems:
        raise Refused(f"{table.name} was not unregistered", problems, hint="nothing was changed")
