"""Reconcile: catalog, database and lake fit each other again after a restore, a recovery to a point in time, or a copy.

A look first, which changes nothing. What is applied is done in an order in which a kill leaves less to do, never something wrong: the
numbers of tables, then each lake, then the claim, so that no job runs before everything else is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from modak.catalog import migrate, mirrors, operations, ownership, profiles, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.profile import Profile
from modak.core.recovery import Finding
from modak.core.table import Name
from modak.errors import LakeError, Refused, UsageError
from modak.failpoints import failpoint
from modak.jobs import foreign, lake_state, resume
from modak.jobs.context import JobContext, alone_on
from modak.lake import owner
from modak.lake.failures import failures
from modak.lake.iceberg import IcebergLake
from modak.lake.storage import io_properties
from modak.registration import mirroring, rekey, surface
from modak.registration.rekey import Move
from modak.source import replication
from modak.source.relation import describe

OWNERS = ("this", "other")
Lakes = Callable[[Profile], IcebergLake]


@dataclass(frozen=True)
class Report:
    """``needs_owner``: nothing is applied before somebody has said whose the lake is."""

    findings: tuple[Finding, ...]
    needs_owner: bool
    done: tuple[str, ...] = ()


def look(connection: Connection, lakes: Lakes, dsn: str) -> Report:
    """What does not fit. Changes nothing."""
    mine = ownership.find(connection)
    found: list[Finding] = []
    moved = mine is not None and not mine.home.is_same(ownership.here(connection))
    if mine is not None and moved:
        what = f"this catalog was at work in database {mine.home}; this one is {ownership.here(connection)}"
        action = "with --owner this: the lake is this database's from now on; with --owner other: nothing is written there from here"
        found.append(Finding("moved", what, action))
        found += _left_behind(connection)
    listed = tables.listing(connection)
    for table in listed:
        found += _look_at(_context(connection, lakes, dsn, table), mine)
    needs_owner = any(one.code in ("moved", "owner") for one in found)
    return Report(tuple(found), needs_owner)


def _left_behind(connection: Connection) -> list[Finding]:
    """What the other database's readers and its gateway left in the catalog."""
    found = []
    pins = connection.execute(migrate.SQL.query("count_all_pins")).fetchone()
    if pins and pins["n"]:
        found.append(Finding("pins", f"{pins['n']} pins of readers of the other database", "drop them"))
    gateway = connection.execute(migrate.SQL.query("has_gateway_password")).fetchone()
    if gateway and gateway["found"]:
        action = "forget its address and password; the next gateway that starts here makes a new one"
        found.append(Finding("gateway", "cold reads go to the other database's gateway", action))
    return found


def _look_at(context: JobContext, mine: ownership.Ownership | None) -> list[Finding]:
    table, name = context.table, str(context.table.name)
    if not surface.oid_of(context.connection, table.heap):
        return [Finding("heap_gone", f"there is no table {table.heap}; `modak unregister {name}` forgets its registration", None, name)]
    found, oid = [], rekey.moved_to(context.connection, table)
    if oid is not None:
        what = f"{table.heap} has OID {oid} here, and the catalog knows it as {table.table_id}"
        found.append(Finding("numbers", what, "renumber its rows in the catalog, its functions and its partitions", name))
    if mine is not None and mine.claim is None:
        return found  # the lake, and what was under way there, are the other database's
    found += lake_state.look(context)
    for operation in operations.open_operations(context.connection, context.table_id):
        what = f"{operation.kind.value} {operation.op_id} was under way"
        found.append(Finding("operation", what, "finish it or undo it, as its commit in the lake says", name))
    found += _look_at_slot(context)
    theirs = _owner(context)
    if mine is not None and mine.claim is not None and theirs is not None and theirs.claim != mine.claim:
        what = f"lake table {table.lake_table_ref} belongs to database {theirs.database}"
        found.append(Finding("owner", what, "with --owner this: take it over; with --owner other: leave it", name))
    return found


def _look_at_slot(context: JobContext) -> list[Finding]:
    table = context.table
    if table.mode != "mirrored":
        return []
    state, slot = mirrors.get(context.connection, table.table_id), replication.find_slot(context.connection, table.slot_name or "")
    if not state.is_followed or (slot is not None and not slot.is_lost and slot.confirmed <= state.applied_lsn):
        return []
    why = "is not there" if slot is None else "does not reach back to where the table stands"
    action = f"start over; then `modak resync {table.name}` copies the table anew"
    return [Finding("slot", f"replication slot {table.slot_name} {why}", action, str(table.name))]


def _owner(context: JobContext) -> owner.Owner | None:
    try:
        pointer = context.lake.find(context.table.lake_table_ref)
        with failures(context.table.lake_table_ref, context.lake.storage):
            return owner.read(pointer.location, io_properties(context.lake.storage)) if pointer else None
    except LakeError:
        return None  # a lake that cannot be read has a finding of its own


def apply(connection: Connection, lakes: Lakes, dsn: str, *, whose: str | None = None) -> Report:
    """Do what the look proposes, and look again: what is left needs a person."""
    before = look(connection, lakes, dsn)
    if whose is not None and whose not in OWNERS:
        raise UsageError(f"--owner {whose!r} is none of {', '.join(OWNERS)}")
    if before.needs_owner and whose is None:
        raise Refused(
            "two databases may have this lake, and only one can",
            hint="nothing was changed. --owner this: the other database is gone, or gives the lake up; --owner other: this one is a copy",
        )
    done = _renumber(connection, lakes, dsn, before)
    failpoint("reconcile.after_numbers")
    for table in tables.listing(connection) if _may_write(connection, whose) else ():
        if surface.oid_of(connection, table.heap) == table.table_id:
            with alone_on(connection, table):
                done += _mend(_context(connection, lakes, dsn, table))
            failpoint("reconcile.after_table")
    if any(one.code in ("pins", "gateway") for one in before.findings):
        done += _leave_behind(connection)
        failpoint("reconcile.after_leaving")
    if whose is not None:
        done += _settle_owner(connection, lakes, dsn, whose)
    after = look(connection, lakes, dsn)
    return replace(after, done=tuple(done))


def _renumber(connection: Connection, lakes: Lakes, dsn: str, before: Report) -> list[str]:
    numbered = {one.table for one in before.findings if one.code == "numbers"}
    moves = []
    for table in tables.listing(connection):
        oid = rekey.moved_to(connection, table) if str(table.name) in numbered else None
        if oid is not None:
            moves.append(Move(table, oid, _fields(_context(connection, lakes, dsn, table))))
    if moves:
        rekey.rekey(connection, moves)
    return [f"{move.table.name}: number {move.table.table_id} became {move.oid}" for move in moves]


def _fields(context: JobContext) -> dict[str, int]:
    """The lake's columns, by which the heap's are recognised."""
    pointer = context.lake.find(context.table.lake_table_ref)
    if pointer is None and not context.table.has_seam:
        return {}
    if pointer is None:
        raise LakeError(
            f"lake table {context.table.lake_table_ref} is gone, and nothing was changed",
            hint=f"restore the lake's catalog first, or `modak unregister {context.table.name}`",
        )
    return dict(zip(pointer.columns, pointer.field_ids, strict=True))


def _may_write(connection: Connection, whose: str | None) -> bool:
    """A copy leaves the lake alone, and operations too: to finish one may mean to remove files."""
    mine = ownership.find(connection)
    return whose == "this" or (whose is None and (mine is None or mine.claim is not None))


def _mend(context: JobContext) -> list[str]:
    """One table's lake, operations and slot."""
    name: Name = context.table.name
    done: list[str] = []
    findings = lake_state.look(context)
    if any(one.action is None for one in findings):
        return []
    mended = lake_state.mend(context)
    done += [f"{name}: {mended}"] if mended else []
    failpoint("reconcile.after_lake")
    done += [f"{name}: {settled}" for settled in _settle_operations(context)]
    if context.table.has_seam:
        foreign.settle(context, "accept")
    if _look_at_slot(context):
        mirroring.publish(context.connection, describe(context.connection, context.table.heap))
        mirrors.insert(context.connection, context.table_id)
        mirrors.end_copy(context.connection, context.table_id)
        done.append(f"{name}: starts over; run `modak resync {name}`")
    return done


def _settle_operations(context: JobContext) -> tuple[str, ...]:
    if not operations.open_operations(context.connection, context.table_id):
        return ()
    return resume.resume_all(context)


def _leave_behind(connection: Connection) -> list[str]:
    with connection.transaction():
        connection.execute(migrate.SQL.query("drop_pins"))
        connection.execute(migrate.SQL.query("forget_gateway"))
    return ["pins and gateway of the other database are forgotten; start a gateway here"]


def _settle_owner(connection: Connection, lakes: Lakes, dsn: str, whose: str) -> list[str]:
    """The files first: killed in between, neither database writes until one of them is told again."""
    if whose == "other":
        ownership.change(connection, None)
        return ["the lake stays with the other database; jobs here will refuse to write to it"]
    claim, home = ownership.new_claim(), ownership.here(connection)
    for table in tables.listing(connection):
        context = _context(connection, lakes, dsn, table)
        pointer = context.lake.find(table.lake_table_ref)
        if pointer is not None:
            with failures(table.lake_table_ref, context.lake.storage):
                owner.write(pointer.location, io_properties(context.lake.storage), owner.Owner(claim, str(home)))
    failpoint("reconcile.before_claim")
    ownership.change(connection, claim)
    return ["the lake is this database's; the other one will refuse to write to it"]


def _context(connection: Connection, lakes: Lakes, dsn: str, table: Registered) -> JobContext:
    return JobContext(
        connection=connection,
        dsn=dsn,
        table=table,
        lake=lakes(profiles.get(connection, table.storage_profile)),
        spark=_no_spark,
    )


def _no_spark() -> NoReturn:
    raise AssertionError("reconcile moves no rows")
