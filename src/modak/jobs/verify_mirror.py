"""Verify a mirror: the heap as of a place in the WAL and the lake at that F must be the same, row by row.

A temporary slot gives a snapshot of the heap with its exact place; the pump goes there and stops. Nothing is compared that belongs to
two moments, so writers may go on. Of a table that shed partitions this is the part from T on; what stands below is verified as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from modak.catalog import mirrors, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.table import Name
from modak.core.tier_key import KEY_MAX, KEY_MIN
from modak.errors import LockNotAvailable, Refused
from modak.jobs import initial_copy, mirror
from modak.jobs.compare import At, Comparison
from modak.jobs.context import JobContext
from modak.jobs.mirroring import leaves
from modak.jobs.mirroring.alone import alone
from modak.jobs.mirroring.clearing import copied_leaves
from modak.jobs.spark import spark_failures
from modak.jobs.verify import Verified, verify
from modak.source import replication

Opener = Callable[[Name], AbstractContextManager[JobContext]]


def verify_table(connection: Connection, dsn: str, opened: Opener, name: Name, *, repair: bool = False) -> Verified:
    """A registered table, whatever its mode."""
    table = tables.get(connection, name)
    if table.mode == "mirrored":
        return verify_mirror(connection, dsn, opened, table, repair=repair)
    with opened(name) as job:
        return verify(job, repair=repair)


def verify_mirror(connection: Connection, dsn: str, opened: Opener, table: Registered, *, repair: bool = False) -> Verified:
    """``drift_bytes`` of the result: how far the lake was behind when this began. ``repair`` copies a table that differs anew."""
    state = mirrors.get(connection, table.table_id)
    if not state.is_followed:
        what = "parked" if state.is_parked else "not copied yet"
        raise Refused(f"{table.name} is {what}: there is no F to verify it at", hint=f"`modak status {table.name}` says what to do")
    drift = max(0, replication.inserted_lsn(connection) - state.applied_lsn)
    with alone(connection), replication.slot_snapshot(dsn) as (snapshot, lsn):
        done = mirror.mirror(connection, dsn, opened, upto=lsn)
        stopped = (done.parked | done.failed).get(str(table.name))
        if stopped is not None:
            raise Refused(f"{table.name} could not be followed to where it was to be verified", hint=stopped)
        with opened(table.name) as job:
            reached, snapshot_id = mirrors.at_rest(connection, table.table_id)
            if reached != lsn:
                raise LockNotAvailable(f"{table.name} went on while it was being verified", hint="run the command again")
            found = replace(_compare(job, At(snapshot.name, snapshot_id)), drift_bytes=drift)
    if table.has_seam:
        with opened(table.name) as job:
            below = verify(job, repair=repair)
        found = replace(
            found,
            partitions=found.partitions + below.partitions,
            rows=found.rows + below.rows,
            differences=(*found.differences, *below.differences),
            truncated=found.truncated or below.truncated,
            repaired=below.repaired,
        )
    if repair and found.differences:
        with opened(table.name) as job:
            initial_copy.copy(job, again=True)
        found = replace(found, repaired=len(found.differences))
    return found


def _compare(context: JobContext, at: At) -> Verified:
    relation = context.relation()
    files = copied_leaves(context.connection, context.table, relation, leaves.read(context.connection, context.table_id))
    names = [Name(leaf["schema_name"], leaf["table_name"]) for leaf in files]
    lower = tables.cutline(context.connection, context.table_id).tier_key_hi if context.table.has_seam else KEY_MIN
    if not names:
        return Verified()
    with context.progress.task(f"Comparing {context.table.name} with the lake"), spark_failures("the comparison"):
        compared = Comparison(context, names, context.columns(relation)).run(lower, KEY_MAX, at)
    return Verified(len(names), compared.rows, compared.differences, compared.truncated)
