"""Expiry: snapshots that nobody can read any more leave the lake, and with them the files that only they had.

The table's metadata forgets them first, in one commit; then the files go. A crash in between is finished from the journal, which names the
metadata file that still knew them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table

from modak.catalog import migrate, operations, tables
from modak.catalog.operations import Operation
from modak.core.maintenance import KnownSnapshot, Upkeep, expired
from modak.core.operation import OperationKind, Phase
from modak.failpoints import failpoint
from modak.jobs.context import JobContext
from modak.lake import reachable
from modak.lake.change import LakeMoved
from modak.lake.failures import failures
from modak.lake.listing import files_below
from modak.lake.storage import io_properties
from modak.scan.paths import readable
from modak.source.sessions import horizon_holders, sees_other_sessions

STEP = "expire"


@dataclass(frozen=True)
class Horizon:
    """The oldest S that somebody may still read (None: nothing is published), who holds it back, and the metadata files still needed."""

    floor: int | None
    held_by: str | None = None
    metadata_files: frozenset[str] = frozenset()


def horizon(context: JobContext) -> Horizon:
    """Running transactions first, then pins: whoever is about to pin an S is in a transaction, and once it is not, its pin is there."""
    keys = {"table_id": context.table_id}
    rows = context.connection.execute(migrate.SQL.query("list_published"), keys).fetchall()
    visible, holder = _visible(context, [(int(row["snapshot"]), int(row["xid"])) for row in rows])
    pinned = context.connection.execute(migrate.SQL.query("oldest_pinned_snapshot"), keys).fetchone()
    line = tables.cutline(context.connection, context.table_id)
    if line.snapshot is None:
        return Horizon(None)
    floor = min(line.snapshot, line.snapshot if visible is None else visible)
    if pinned is not None and pinned["snapshot"] is not None and pinned["snapshot"] < floor:
        floor, holder = int(pinned["snapshot"]), "a pin"
    needed = {row["metadata_location"] for row in rows if row["metadata_location"] and row["snapshot"] >= floor}
    named = context.connection.execute(migrate.SQL.query("list_named_metadata"), keys).fetchall()
    needed |= {row["metadata_location"] for row in named if row["metadata_location"]}
    return Horizon(floor, holder, frozenset(readable(path) for path in needed))


def _visible(context: JobContext, publications: list[tuple[int, int]]) -> tuple[int | None, str | None]:
    """The oldest S that a running transaction may have seen as the published one; None if all see the newest.

    A transaction that may not see one publication may not see any later one, so the first of those is looked for by halves.
    """
    if not sees_other_sessions(context.connection):
        return 0, "sessions that this role cannot see: grant it pg_read_all_stats"
    low, high, holder = 0, len(publications), None
    while low < high:
        middle = (low + high) // 2
        held = horizon_holders(context.connection, publications[middle][1])
        if held:
            high, holder = middle, held[0]
        else:
            low = middle + 1
    if holder is None:
        return None, None
    return (publications[low - 1][0] if low else 0), holder


def due(table: Table, where: Horizon, upkeep: Upkeep, now_seconds: float) -> list[int]:
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    known = [
        KnownSnapshot(
            snapshot.snapshot_id, snapshot.sequence_number or 0, now_seconds - snapshot.timestamp_ms / 1000, snapshot.snapshot_id in named
        )
        for snapshot in table.metadata.snapshots
    ]
    return expired(known, where.floor, upkeep)


def expire(context: JobContext, where: Horizon, upkeep: Upkeep) -> tuple[int, int]:
    """Let due snapshots go. Returns how many, and how many files went with them."""
    table = context.lake_table()
    ids = due(table, where, upkeep, time.time())
    files = 0
    if ids:
        details = {"step": STEP, "snapshots": len(ids), "metadata_before": table.metadata_location, "floor": where.floor}
        operation = operations.start(context.connection, context.table_id, OperationKind.MAINTENANCE, details)
        failpoint("maintain.before_expiry")
        with failures(context.table.lake_table_ref, context.lake.storage):
            try:
                table.maintenance.expire_snapshots().by_ids(ids).commit()
            except CommitFailedException as cause:
                operations.move(context.connection, operation, Phase.ABANDONED)
                raise LakeMoved("the lake table moved while snapshots expired", hint="the next pass looks again") from cause
        failpoint("maintain.after_expiry")
        files = finish(context, operation)
    return len(ids), files + _old_metadata(context, where, upkeep)


def finish(context: JobContext, operation: Operation) -> int:
    """Remove the files of expired snapshots, also those of an expiry that died: what the metadata does not know is not there any more."""
    table = context.lake_table()
    io = table.io
    with failures(context.table.lake_table_ref, context.lake.storage):
        before = FromInputFile.table_metadata(io.new_input(operation.details["metadata_before"]))
        removed = reachable.remove_all(io, reachable.left_behind(io, before, table.metadata, readable))
    failpoint("maintain.after_removal")
    committed = operation if operation.phase is Phase.COMMITTED else operations.move(context.connection, operation, Phase.COMMITTED)
    operations.move(context.connection, committed, Phase.ADVANCED, details={"files_removed": removed})
    return removed


def _old_metadata(context: JobContext, where: Horizon, upkeep: Upkeep) -> int:
    """Metadata files that the table has forgotten and no reader of a published S needs; every commit leaves one."""
    table = context.lake_table()
    needed = {readable(entry.metadata_file) for entry in table.metadata.metadata_log} | {readable(table.metadata_location)}
    needed |= where.metadata_files
    limit = datetime.now(UTC) - timedelta(seconds=upkeep.snapshot_age)
    with failures(context.table.lake_table_ref, context.lake.storage):
        old = [
            file.location
            for file in files_below(table.location().rstrip("/") + "/metadata", io_properties(context.lake.storage))
            if file.location.endswith(".metadata.json")
            and file.modified is not None
            and file.modified < limit
            and readable(file.location) not in needed
        ]
        return reachable.remove(table.io, old)
