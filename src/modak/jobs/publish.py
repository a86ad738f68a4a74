"""Publish: the one short transaction in which the seam moves.

Writers of the partitions in question are kept out for its length, readers never. Whoever read T before, through a path that acts on it,
holds the shared seam lock and is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from modak.catalog import migrate, operations, tables
from modak.catalog.operations import Operation
from modak.core import bounds
from modak.core.cutline import Cutline, advance, bring_back, retire
from modak.core.operation import Phase
from modak.core.partition import PartitionState
from modak.core.table import Name
from modak.errors import CutlineMoved, ModakError, Refused, Retry
from modak.failpoints import failpoint
from modak.jobs.cold_side import reach
from modak.jobs.context import JobContext
from modak.lake.commits import Commit
from modak.registration import rebuild
from modak.source import capture
from modak.source.corrections import Corrections
from modak.source.expiring import Expiring
from modak.source.locks import bounded, retried
from modak.source.sessions import lock_holders
from modak.source.spill import identifier
from modak.source.untier import NewPartition, Staging

SEAM_LOCK = 0x6D64 << 32
# The round of corrections that an untier carries over in its publication; those before it count from 0.
LAST_ROUND = -1

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
    # A heap that is kept keeps its spilled rows as well.
    spills = [] if context.table.keep_heap else rebuild.spills(context.table, relation)
    if commit is not None:
        # Without one pass of tiering, or after an untier of everything, the cold side has no foreign table yet.
        reach(context, operation.details["old_tier_key_hi"])

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


def publish_retention(context: JobContext, operation: Operation, commit: Commit | None) -> Operation:
    """Move R, and S with it, and purge what lies below R. Raises Pinned where a reader, or a load that is staged, came between."""
    relation, line = context.relation(), int(operation.details["new_retention_line"])
    expiring = Expiring(context.shape(relation), relation, line)
    spills = rebuild.spills(context.table, relation)

    def step() -> Operation:
        with bounded(context.connection):
            execute = context.connection.execute
            execute("select pg_advisory_xact_lock(%s)", [SEAM_LOCK + context.table_id])
            row = _locked_line(context, operation)
            purged = expiring.expire(context.connection, operation.op_id, spills)
            execute(SQL.query("clear_fold"), {"op_id": operation.op_id})
            execute(SQL.query("forget_expired_partitions"), {"table_id": context.table_id, "retention_line": line})
            _publish(context, row, row["tier_key_hi"], commit, changed=commit is not None or purged > 0, retention_line=line)
            failpoint("retain.in_publish")
            _refuse_staged_below(context, line)
            # Last, because readers' pins wait here: one that is being made now is seen or sees the result.
            execute("lock table modak.read_pins in share mode")
            refuse_pinned(context)
            ready = operation if operation.phase is Phase.COMMITTED else operations.move(context.connection, operation, Phase.COMMITTED)
            return operations.move(context.connection, ready, Phase.ADVANCED, details={"purged": purged, **_transaction(context)})

    try:
        return retried(step, f"retention of {context.table.name}", attempts=context.lock_attempts)
    except psycopg.errors.ForeignKeyViolation as cause:
        raise Refused(
            f"expired rows of {context.table.name} are referenced: {cause.diag.message_detail or cause.diag.message_primary}",
            hint="remove the references; the next pass expires the rows",
            sqlstate="23503",
        ) from cause


def publish_untier(context: JobContext, operation: Operation, commit: Commit | None) -> Operation:
    """Attach the filled partitions and move T down to them, with S. Raises Pinned where a reader came between.

    Whoever reads the heap holds the spill: so no statement that was planned without the new partitions is still running.
    """
    relation, details = context.relation(), operation.details
    made = tuple(NewPartition.from_json(data) for data in details["partitions"])
    standing = [Sealed.from_json(data) for data in details["standing"]]
    staging = Staging(context.shape(relation), relation, operation.op_id, made)
    spills = rebuild.spills(context.table, relation)
    names = [*spills, *(partition.name for partition in standing)]

    def step() -> Operation:
        with bounded(context.connection):
            execute, line = context.connection.execute, int(details["new_tier_key_hi"])
            execute("select set_config('modak.untier', %s, true)", [operation.op_id])
            _lock(context, [])
            for name in names:
                execute(sql.SQL("lock table {} in access exclusive mode").format(identifier(name)))
            row = _locked_line(context, operation)
            _check_standing(context, operation, standing)
            staging.catch_up(context.connection, LAST_ROUND, [(low, high) for low, high in details["spans"]])
            staging.clear_spills(context.connection, spills, line)
            corrections = staging.settle(context.connection, line, cold_left=details["cold_left"])
            _untier_partitions(context, staging, standing, line)
            _publish(context, row, line, commit, changed=True, move=bring_back)
            failpoint("untier.in_publish")
            # Last, because readers' pins wait here: one that is being made now is seen or sees the result.
            execute("lock table modak.read_pins in share mode")
            refuse_pinned(context)
            execute(SQL.query("clear_untier"), {"table_id": context.table_id, "op_id": operation.op_id})
            ready = operation if operation.phase is Phase.COMMITTED else operations.move(context.connection, operation, Phase.COMMITTED)
            return operations.move(context.connection, ready, Phase.ADVANCED, details={"corrections": corrections, **_transaction(context)})

    try:
        return retried(
            step,
            f"untier of {context.table.name}",
            attempts=context.lock_attempts,
            holders=lambda: lock_holders(context.connection, [*names, context.table.heap], readers=True),
        )
    except (psycopg.IntegrityError, psycopg.DataError, psycopg.ProgrammingError, psycopg.NotSupportedError) as cause:
        hint = "a constraint of the heap does not hold for a row that was corrected meanwhile, or the heap was altered"
        raise Refused(f"{context.table.name} was not untiered: {cause.diag.message_primary}", hint=hint) from cause
    except psycopg.errors.OutOfMemory as cause:
        hint = "bring back fewer partitions at a time with --from, or raise max_locks_per_transaction"
        raise Refused(f"{context.table.name} was not untiered: {cause.diag.message_primary}", hint=hint) from cause


def _check_standing(context: JobContext, operation: Operation, standing: Sequence[Sealed]) -> None:
    """Between the new line and the old one the heap must have exactly the partitions that were compared."""
    old, new = operation.details["old_tier_key_hi"], operation.details["new_tier_key_hi"]
    expected = {partition.oid for partition in standing}
    for leaf in bounds.range_leaves(context.relation()):
        lower, upper = bounds.parse_range(leaf.bound, context.table.key_type)
        if leaf.oid not in expected and lower < old and upper > new and lower < upper:
            raise CutlineMoved("a partition appeared below the cut-line", table=str(context.table.name), partition=str(leaf.name))
        expected.discard(leaf.oid)
    if expected:
        raise CutlineMoved("a partition was detached meanwhile", table=str(context.table.name))


def _untier_partitions(context: JobContext, staging: Staging, standing: Sequence[Sealed], line: int) -> None:
    """The new partitions come in, those that stood there are hot again, and what was dropped is forgotten."""
    keys = {"table_id": context.table_id, "partition_ids": [partition.oid for partition in standing]}
    for partition in standing:
        capture.detach(context.connection, partition.name)
        tables.set_state(context.connection, context.table_id, partition.oid, PartitionState.HOT)
    context.connection.execute(SQL.query("clear_captured"), keys)
    context.connection.execute(
        SQL.query("forget_untiered"), {"table_id": context.table_id, "tier_key_hi": line, "standing": keys["partition_ids"]}
    )
    tables.record_partitions(context.connection, context.table_id, staging.hand_over(context.connection))


def _refuse_staged_below(context: JobContext, line: int) -> None:
    """Loads stage under the lock that this transaction has alone: what is not here yet will see the new R."""
    row = context.connection.execute(SQL.query("lowest_staged_key"), {"table_id": context.table_id}).fetchone()
    if row is not None and row["lowest"] is not None and row["lowest"] < line:
        raise Pinned(
            f"a staged load of {context.table.name} holds rows below the new retention line",
            hint="it waits until the load is adopted",
            lowest=row["lowest"],
        )


def _transaction(context: JobContext) -> dict[str, int]:
    """The publishing transaction: what it made unreachable waits for everybody who began before it."""
    row = context.connection.execute(SQL.query("current_transaction")).fetchone()
    return {"advance_xid": int(row["xid"]) if row else 0}


def _publish(
    context: JobContext,
    row: Mapping[str, Any],
    tier_key_hi: int,
    commit: Commit | None,
    *,
    changed: bool,
    retention_line: int | None = None,
    move: Callable[..., Cutline] = advance,
) -> None:
    """Write the cut-line's row. ``changed``: rows of the cold tier are others than before. Without a ``retention_line`` R stays."""
    before = Cutline(row["tier_key_hi"], row["lake_snapshot_id"], row["retention_line"], row["replicated_lsn"])
    after = move(before, tier_key_hi=tier_key_hi, snapshot=commit.sequence_number if commit else before.snapshot)
    after = after if retention_line is None else retire(after, retention_line)
    props = {"metadata_location": commit.metadata_location, "snapshot_id": str(commit.snapshot_id)} if commit else row["lake_props"]
    context.connection.execute(
        SQL.query("publish_cutline"),
        {
            "table_id": context.table_id,
            "tier_key_hi": after.tier_key_hi,
            "lake_snapshot_id": after.snapshot,
            "lake_props": Jsonb(props),
            "retention_line": after.retention_line,
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
