"""Publish: the one short transaction in which the seam moves.

Writers of the partitions in question are kept out for its length, readers never. Whoever read T before, through a path that acts on it,
holds the shared seam lock and is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from modak.catalog import migrate, operations, tables
from modak.catalog.operations import Operation
from modak.core import bounds
from modak.core.cutline import Cutline, advance
from modak.core.operation import Phase
from modak.core.partition import PartitionState
from modak.core.table import Name
from modak.errors import CutlineMoved, ModakError, Retry
from modak.failpoints import failpoint
from modak.jobs.cold_side import reach
from modak.jobs.context import JobContext
from modak.lake.commits import Commit
from modak.registration import rebuild
from modak.source.corrections import Corrections
from modak.source.locks import bounded, retried
from modak.source.sessions import lock_holders
from modak.source.spill import identifier

SEAM_LOCK = 0x6D64 << 32

SQL = migrate.SQL


@dataclass(frozen=True)
class Sealed:
    """A partition of a tiering operation."""

    oid: int
    name: Name
    lower: int
    upper: int

    def as_json(self) -> dict[str, Any]:
        return {"oid": self.oid, "schema": self.name.schema, "name": self.name.name, "lower": self.lower, "upper": self.upper}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sealed:
        return cls(data["oid"], Name(data["schema"], data["name"]), data["lower"], data["upper"])


def publish_tiering(context: JobContext, operation: Operation, partitions: Sequence[Sealed], commit: Commit | None) -> Operation:
    """Move T and S together, hand what the copy missed to the delta, and call the partitions tiered."""
    names = [partition.name for partition in partitions]
    # The cold side reaches the new line first: it may lie above T, T never above it.
    reach(context, operation.details["new_tier_key_hi"])

    def step() -> Operation:
        with bounded(context.connection):
            _lock(context, names)
            line = _locked_line(context, operation)
            _check_partitions(context, operation, partitions)
            moved = _move_line(context, operation, partitions, commit, line)
            failpoint("tier.in_advance")
            return moved

    return retried(
        step, f"advance of {context.table.name}", attempts=context.lock_attempts, holders=lambda: lock_holders(context.connection, names)
    )


class Pinned(ModakError):
    """A reader holds the corrections as they are; folding waits for it."""

    code = "pinned"
    retry = Retry.LATER


def refuse_pinned(context: JobContext) -> None:
    """A pinned reader fetches the corrections apart from the snapshot it pinned: clearing them would show it older rows."""
    pin = context.connection.execute(SQL.query("find_pin_on_delta"), {"table_id": context.table_id}).fetchone()
    if pin is not None:
        raise Pinned(
            f"a pin of {pin['holder']} holds the corrections of {context.table.name}",
            hint="it waits until the pin is released or expires",
            expires=str(pin["expires_at"]),
        )


def publish_fold(context: JobContext, operation: Operation, commit: Commit | None) -> Operation:
    """Move S and clear the folded corrections, with the spill's rows that stood for them. Raises Pinned where a reader came between."""
    relation = context.relation()
    corrections = Corrections(context.shape(relation), relation)
    spills = rebuild.spills(context.table, relation)

    def step() -> Operation:
        with bounded(context.connection):
            execute = context.connection.execute
            execute("select pg_advisory_xact_lock(%s)", [SEAM_LOCK + context.table_id])
            line = _locked_line(context, operation)
            cleared = corrections.clear(context.connection, operation.op_id, spills)
            execute(SQL.query("clear_fold"), {"op_id": operation.op_id})
            _publish(context, line, line["tier_key_hi"], commit, changed=True)
            failpoint("fold.in_publish")
            # Last, because readers' pins wait here: one that is being made now is seen or sees the result.
            execute("lock table modak.read_pins in share mode")
            refuse_pinned(context)
            ready = operation if operation.phase is Phase.COMMITTED else operations.move(context.connection, operation, Phase.COMMITTED)
            return operations.move(context.connection, ready, Phase.ADVANCED, details={"cleared": cleared, **_transaction(context)})

    return retried(step, f"fold of {context.table.name}", attempts=context.lock_attempts)


def _transaction(context: JobContext) -> dict[str, int]:
    """The publishing transaction: what it made unreachable waits for everybody who began before it."""
    row = context.connection.execute(SQL.query("current_transaction")).fetchone()
    return {"advance_xid": int(row["xid"]) if row else 0}


def _publish(context: JobContext, row: Mapping[str, Any], tier_key_hi: int, commit: Commit | None, *, changed: bool) -> None:
    """Write the cut-line's row. ``changed``: rows of the cold tier are others than before."""
    before = Cutline(row["tier_key_hi"], row["lake_snapshot_id"], row["retention_line"], row["replicated_lsn"])
    after = advance(before, tier_key_hi=tier_key_hi, snapshot=commit.sequence_number if commit else before.snapshot)
    props = {"metadata_location": commit.metadata_location, "snapshot_id": str(commit.snapshot_id)} if commit else row["lake_props"]
    context.connection.execute(
        SQL.query("publish_cutline"),
        {
            "table_id": context.table_id,
            "tier_key_hi": after.tier_key_hi,
            "lake_snapshot_id": after.snapshot,
            "lake_props": Jsonb(props),
            "changed": int(changed),
        },
    )


def _lock(context: JobContext, names: Sequence[Name]) -> None:
    execute = context.connection.execute
    execute("select pg_advisory_xact_lock(%s)", [SEAM_LOCK + context.table_id])
    # Nobody may attach a partition below the new line meanwhile; rows in it would be in neither tier.
    execute(sql.SQL("lock table only {} in share update exclusive mode").format(identifier(context.table.heap)))
    for name in names:
        execute(sql.SQL("lock table {} in share row exclusive mode").format(identifier(name)))


def _locked_line(context: JobContext, operation: Operation) -> dict[str, Any]:
    """The cut-line's row, ours until the end of the transaction, and still where the operation found it."""
    row = context.connection.execute(SQL.query("lock_cutline"), {"table_id": context.table_id}).fetchone()
    expected = (operation.details["old_tier_key_hi"], operation.details["old_snapshot"])
    found = (row["tier_key_hi"], row["lake_snapshot_id"]) if row else None
    if row is None or found != expected:
        raise CutlineMoved("the cut-line moved during the operation", table=str(context.table.name), expected=expected, found=found)
    return row


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
    _publish(context, row, operation.details["new_tier_key_hi"], commit, changed=False)
    execute(SQL.query("clear_captured"), keys)
    for partition in partitions:
        tables.set_state(context.connection, context.table_id, partition.oid, PartitionState.TIERED)
    details = {**_transaction(context), "corrected_rows": corrected["n"] if corrected else 0}
    ready = operation if operation.phase is Phase.COMMITTED else operations.move(context.connection, operation, Phase.COMMITTED)
    return operations.move(context.connection, ready, Phase.ADVANCED, details=details)
