"""Move T down over partitions that were filled from the lake."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from modak.catalog import tables
from modak.catalog.operations import Operation
from modak.core import bounds
from modak.core.cutline import bring_back
from modak.core.partition import PartitionState
from modak.errors import CutlineMoved, Refused
from modak.failpoints import failpoint
from modak.jobs.context import JobContext
from modak.jobs.publishing.seam import SQL, Pinned, Sealed, let_pins_pass, lock_seam, locked_line, published, write_line
from modak.lake.commits import Commit
from modak.registration import rebuild
from modak.source import capture
from modak.source.locks import bounded, retried
from modak.source.sessions import lock_holders
from modak.source.spill import identifier
from modak.source.untier import NewPartition, Staging

# The round of corrections that an untier carries over in its publication; those before it count from 0.
LAST_ROUND = -1


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
            lock_seam(context, [])
            for name in names:
                execute(sql.SQL("lock table {} in access exclusive mode").format(identifier(name)))
            row = locked_line(context, operation)
            _check_standing(context, operation, standing)
            _refuse_staged(context)
            staging.catch_up(context.connection, LAST_ROUND, [(low, high) for low, high in details["spans"]])
            staging.clear_spills(context.connection, spills, line)
            corrections = staging.settle(context.connection, line, cold_left=details["cold_left"])
            _untier_partitions(context, staging, standing, line)
            write_line(context, row, line, commit, changed=True, move=bring_back)
            failpoint("untier.in_publish")
            let_pins_pass(context)
            execute(SQL.query("clear_untier"), {"table_id": context.table_id, "op_id": operation.op_id})
            return published(context, operation, {"corrections": corrections})

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


def _refuse_staged(context: JobContext) -> None:
    """A load that staged meanwhile took its rows for cold ones; they would come into the lake above T."""
    if tables.count(context.connection, "count_staged", context.table_id):
        raise Pinned(f"a load of {context.table.name} was staged meanwhile", hint="it waits until the load is adopted")


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
