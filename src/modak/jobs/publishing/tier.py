"""Move T and S over partitions that were copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modak.catalog import tables
from modak.catalog.operations import Operation
from modak.core import bounds
from modak.core.partition import PartitionState
from modak.core.table import Name
from modak.errors import CutlineMoved, KeyShared
from modak.failpoints import failpoint
from modak.jobs.cold_side import reach
from modak.jobs.context import JobContext
from modak.jobs.publishing.seam import SQL, Sealed, lock_seam, locked_line, published, write_line
from modak.lake.commits import Commit
from modak.source import heap
from modak.source.heap import SharedKey
from modak.source.locks import bounded, retried
from modak.source.sessions import lock_holders


def publish_tiering(context: JobContext, operation: Operation, partitions: Sequence[Sealed], commit: Commit | None) -> Operation:
    """Move T and S together, hand what the copy missed to the delta, and call the partitions tiered."""
    names = [partition.name for partition in partitions]
    # The cold side reaches the new line first: it may lie above T, T never above it.
    reach(context, operation.details["new_tier_key_hi"])
    # Most of what there is to look at while nobody waits, and the rest under the lock.
    looked = _refuse_shared_keys(context, names, operation.details["flush_snapshot"])

    def step() -> Operation:
        with bounded(context.connection):
            lock_seam(context, names)
            line = locked_line(context, operation)
            _check_partitions(context, operation, partitions)
            _refuse_shared_keys(context, names, looked)
            moved = _move_line(context, operation, partitions, commit, line)
            failpoint("tier.in_advance")
            return moved

    return retried(
        step, f"advance of {context.table.name}", attempts=context.lock_attempts, holders=lambda: lock_holders(context.connection, names)
    )


def refuse_shared(context: JobContext, found: SharedKey | None) -> None:
    """The delta has one place for a key: one of two rows would be gone, whichever came first."""
    if found is None:
        return
    table = context.table
    columns = ", ".join(table.primary_key_cols)
    raise KeyShared(
        f"a row of partition {found.partition} and a cold row of {table.name} share the key ({columns}): both are kept, and the partition "
        "stays hot",
        hint=f"delete one of the two or give it another key, through {table.name} and by its {table.tier_key_col} as well",
        key=found.pk,
        hot=table.key_type.encode(found.hot),
        cold=table.key_type.encode(found.cold),
    )


def _refuse_shared_keys(context: JobContext, names: Sequence[Name], since: str) -> str:
    """Rows of these partitions must not share a key with a row that became cold after a snapshot; what it saw has been looked at.
    Returns the snapshot that this look is of."""
    now = context.connection.execute("select pg_current_snapshot()::text as text").fetchone()
    assert now is not None
    if context.table.tier_key_col not in context.table.primary_key_cols:
        oldest = context.connection.execute("select pg_snapshot_xmin(%s::pg_snapshot)::text::bigint as xid", [since]).fetchone()
        assert oldest is not None
        relation = context.relation()
        refuse_shared(context, heap.shared_key(context.connection, names, context.shape(relation), relation, oldest["xid"]))
    return str(now["text"])


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
    since = keys | {"snapshot": operation.details["flush_snapshot"]}
    met = execute(SQL.query("find_shared_key"), since).fetchone()
    if met is not None:
        names = {partition.oid: partition.name for partition in partitions}
        refuse_shared(context, SharedKey(met["pk"], names[met["partition_id"]], met["hot"], met["cold"]))
    corrected = execute(SQL.query("captured_to_delta"), since).fetchone()
    execute(SQL.query("tidy_moves"), keys)
    write_line(context, row, operation.details["new_tier_key_hi"], commit, changed=False)
    execute(SQL.query("clear_captured"), keys)
    for partition in partitions:
        tables.set_state(context.connection, context.table_id, partition.oid, PartitionState.TIERED)
    return published(context, operation, {"corrected_rows": corrected["n"] if corrected else 0})
