"""Put what was collected for a table into the lake: one stamped commit, then one short transaction in which S and F move.

A transaction too large for memory goes in parts. The commits of the first ones carry the stamps of operations that are abandoned
before they begin: readers do not see them, the last one takes them along, and after a crash they are rolled back like any late commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from modak.catalog import mirrors, operations, tables
from modak.catalog.operations import Operation
from modak.core.operation import OperationKind, Phase
from modak.errors import CommitUnknown, ModakError
from modak.failpoints import failpoint
from modak.jobs import foreign, journal, resume
from modak.jobs.context import JobContext
from modak.jobs.mirroring.files import Made, make
from modak.jobs.mirroring.follower import Follower
from modak.jobs.mirroring.head import stand
from modak.jobs.publishing.mirror import publish_mirror
from modak.lake import commits
from modak.lake.storage import io_properties
from modak.scan.engine import Cursor
from modak.scan.snapshots import Snapshots

LSN = "modak.lsn"


@dataclass(frozen=True)
class Applied:
    rows_written: int = 0
    rows_deleted: int = 0
    commits: int = 0


def apply(context: JobContext, follower: Follower, to_lsn: int | None, snapshots: Snapshots, cursor: Cursor) -> Applied:
    """Take what was collected; ``to_lsn`` None: a part of a transaction that goes on."""
    connection, table_id = context.connection, context.table_id
    line = tables.cutline(connection, table_id)
    details = {
        "old_tier_key_hi": line.tier_key_hi,
        "old_snapshot": line.snapshot,
        "from_lsn": follower.mirror.applied_lsn,
        "to_lsn": to_lsn,
        "as_of": follower.as_of,
        "changes": follower.collapse.changes if follower.collapse else 0,
    }
    operation = operations.start(connection, table_id, OperationKind.MIRROR, details)
    if to_lsn is None:
        operation = operations.move(connection, operation, Phase.ABANDONED)
    failpoint("mirror.after_journal")
    try:
        made, commit = _commit(context, follower, operation, snapshots, cursor)
    except CommitUnknown:
        raise
    except ModakError:
        if to_lsn is not None:
            resume.abandon_plain(context, operation)
        raise
    failpoint("mirror.after_commit")
    follower.saw_truncate |= bool(follower.collapse and follower.collapse.truncated)
    if follower.shape:
        follower.fresh()
    if to_lsn is None:
        follower.part = commit.snapshot_id
        return Applied(made.rows_written, made.rows_deleted, 1)
    operation = journal.note_commit(context, operation, commit)
    publish_mirror(context, operation, commit)
    follower.part = None
    follower.mirror = mirrors.get(connection, table_id)
    failpoint("mirror.after_publish")
    return Applied(made.rows_written, made.rows_deleted, 1)


def _commit(
    context: JobContext, follower: Follower, operation: Operation, snapshots: Snapshots, cursor: Cursor
) -> tuple[Made, commits.Commit]:
    table = stand(context, follower)
    foreign.refuse_unknown(context, table, frozenset(), part=follower.part)
    current = table.current_snapshot()
    number = current.sequence_number if current else None
    head = snapshots.get(table.metadata_location, number, io_properties(context.lake.storage))
    made = make(context, follower, table, head, cursor, operation.op_id)
    failpoint("mirror.after_files")
    place = {LSN: str(operation.details["to_lsn"])} if operation.details["to_lsn"] is not None else {}
    commit = commits.change(table, journal.stamps(operation, **place), added=made.added, deletes=made.deletes, removed=made.removed)
    return made, commit
