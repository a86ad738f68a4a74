"""Move T and S over partitions that were copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modak.catalog import tables
from modak.catalog.operations import Operation
from modak.core import bounds
from modak.core.partition import PartitionState
from modak.errors import CutlineMoved
from modak.failpoints import failpoint
from modak.jobs.cold_side import reach
from modak.jobs.context import JobContext
from modak.jobs.publishing.seam import SQL, Sealed, lock_seam, locked_line, published, write_line
from modak.lake.commits import Commit
from modak.source.locks import bounded, retried
from modak.source.sessions import lock_holders


def publish_tiering(context: JobContext, operation: Operation, partitions: Sequence[Sealed], commit: Commit | None) -> Operation:
    """Move T and S together, hand what the copy missed to the delta, and call the partitions tiered."""
    names = [partition.name for partition in partitions]
    # The cold side reaches the new line first: it may lie above T, T never above it.
    reach(context, operation.details["new_tier_key_hi"])

    def step() -> Operation:
        with bounded(context.connection):
            lock_seam(context, names)
            line = locked_line(context, operation)
            _check_partitions(context, operation, partitions)
            moved = _move_line(context, operation, partitions, commit, line)
            failpoint("tier.in_advance")
            return moved

    return retried(
        step, f"advance of {context.table.name}", attempts=context.lock_attempts, holders=lambda: lock_holders(context.connection, names)
    )


def _check_partitions(context: JobContext, operation: Operation, partitions: Sequence[Sealed]) -> None:
    """The heap must still have exactly the sealed partitions between the old line and the new one."""
    relation, key_type = context.relation(), context.table.key_type
    old, new = operation.details["old_tier_key_hi"], operation.details["new_tier_key_hi"]
    sealed = {partition.oid for partition in partitions}
    for leaf in bounds.range_leaves(relation):
        lower, upper = bounds.parse_range(leaf.bound, key_type)
        if leaf.oid not in sealed and lower < new and upper > old and lower < upper:
            raise CutlineMoved("a partition appeared below the new cut-line", table=str(context.table.name), partition=str(leaf.name))
        sealed.discard(leaf.oid)
    if sealed:
        raise CutlineMoved("a partition was detached while it was being copied", table=str(context.table.name))


def _move_line(
    context: JobContext, operation: Operation, partitions: Sequence[Sealed], commit: Commit | None, row: Mapping[str, Any]
) -> Operation:
    execute = context.connection.execute
    keys = {"table_id": context.table_id, "partition_ids": [partition.oid for partition in partitions]}
    corrected = execute(SQL.query("captured_to_delta"), keys | {"snapshot": operation.details["flush_snapshot"]}).fetchone()
    execute(SQL.query("tidy_moves"), keys)
    write_line(context, row, operation.details["new_tier_key_hi"], commit, changed=False)
    execute(SQL.query("clear_captured"), keys)
    for partition in partitions:
        tables.set_state(context.connection, context.table_id, partition.oid, PartitionState.TIERED)
    return published(context, operation, {"corrected_rows": corrected["n"] if corrected else 0})
