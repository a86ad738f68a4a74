"""Tier: due partitions leave the heap for the lake.

hot → sealing → tiering → tiered → dropped. A pass seals (every write is recorded from then on), copies the partitions under one snapshot,
commits once to the lake, and then moves (T, S) in one short transaction. Killed anywhere, the next pass finishes or undoes it by the
journal and the lake's stamps: see ``modak.jobs.resume``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from modak.catalog import loads, migrate, operations, tables
from modak.catalog.operations import Operation
from modak.core import bounds, policy
from modak.core.cutline import Cutline
from modak.core.lag import Lag
from modak.core.lake_table import LakeColumn
from modak.core.operation import OperationKind, Phase
from modak.core.partition import Partition, PartitionState
from modak.core.table import Relation
from modak.errors import KeyShared, Refused
from modak.failpoints import failpoint
from modak.jobs import evolve, foreign, journal, resume
from modak.jobs.columns import surface_follows
from modak.jobs.context import JobContext, reported
from modak.jobs.flush import Flushed, flush
from modak.jobs.premake import premake
from modak.jobs.publishing.seam import Sealed
from modak.jobs.publishing.tier import publish_tiering, refuse_shared
from modak.lake import commits
from modak.lake.commits import Commit
from modak.registration import rebuild
from modak.source import capture, heap, newcomers
from modak.source.locks import bounded, retried
from modak.source.partitions import newest_key
from modak.source.sessions import lock_holders

JOB = "tier"


@dataclass(frozen=True)
class TierOutcome:
    """What a pass did. ``partitions`` is empty when nothing was due; ``note`` says why nothing ever is."""

    partitions: tuple[str, ...] = ()
    rows: int = 0
    corrected_rows: int = 0
    tier_key_hi: int | None = None
    snapshot: int | None = None
    op_id: str | None = None
    resumed: tuple[str, ...] = ()
    premade: tuple[str, ...] = ()
    note: str | None = None


def tier(context: JobContext, *, upto: int | None = None, foreign_snapshots: str = "refuse") -> TierOutcome:
    """One pass. A failure is written to modak.problems, so that ``status`` shows it, and raised."""
    with reported(context, JOB):
        return _pass(context, upto, foreign_snapshots)


def _pass(context: JobContext, upto: int | None, foreign_snapshots: str) -> TierOutcome:
    finished = resume.resume_all(context)
    accepted = foreign.settle(context, foreign_snapshots)
    relation = context.relation()
    surface_follows(context, relation)
    made = premake(context, relation)
    relation = context.relation() if made else relation
    discover(context, relation)
    line = tables.cutline(context.connection, context.table_id)
    due = _due(context, relation, line, upto)
    if not due:
        return TierOutcome(resumed=finished, premade=made, note=_why_never(context) if upto is None else None)
    _refuse_staged(context)
    columns = evolve.follow(context, relation)
    operation, sealed = seal(context, relation, due, line)
    with resume.given_up_on_failure(context, operation, resume.abandon):
        operation, commit, flushed = _copy(context, operation, sealed, columns, accepted)
    with resume.given_up_on_failure(context, operation, resume.abandon, KeyShared):
        operation = publish_tiering(context, operation, sealed, commit)
    failpoint("tier.after_advance")
    return TierOutcome(
        partitions=tuple(str(partition.name) for partition in sealed),
        rows=flushed.rows,
        corrected_rows=int(operation.details["corrected_rows"]),
        tier_key_hi=int(operation.details["new_tier_key_hi"]),
        snapshot=commit.sequence_number if commit else None,
        op_id=operation.op_id,
        resumed=finished,
        premade=made,
    )


def discover(context: JobContext, relation: Relation) -> None:
    """Learn about new partitions and renames; refuse to go on over rows that no tier would show."""
    key_type, line = context.table.key_type, tables.cutline(context.connection, context.table_id)
    found = [(leaf.oid, leaf.name, *bounds.parse_range(leaf.bound, key_type)) for leaf in bounds.range_leaves(relation)]
    known = tables.states(context.connection, context.table_id)
    for oid, name, _lower, upper in found:
        stale = oid not in known and upper <= line.tier_key_hi
        if stale and heap.has_rows(context.connection, name):
            raise Refused(
                f"partition {name} lies below the cut-line and holds rows that nobody sees: they are the only copy",
                hint=f"it was attached with them: detach it, and insert them through {context.table.name}",
                partition=str(name),
            )
    tables.record_partitions(context.connection, context.table_id, [entry for entry in found if entry[3] > line.tier_key_hi])
    for oid, name, _, _ in found:
        keys = {"table_id": context.table_id, "partition_id": oid, "schema_name": name.schema, "partition_name": name.name}
        context.connection.execute(migrate.SQL.query("rename_partition"), keys)
    present = {oid for oid, *_ in found}
    for oid, state in known.items():
        if oid not in present and state is PartitionState.HOT:
            # Dropped or detached by its owner before we touched it: that was the owner's to do.
            context.connection.execute(migrate.SQL.query("forget_partition"), {"table_id": context.table_id, "partition_id": oid})
    for partition in newcomers.known(context.connection, context.table_id):
        # Not worth a wait: until the next pass it costs some speed.
        with contextlib.suppress(psycopg.OperationalError, psycopg.errors.UndefinedTable), bounded(context.connection):
            newcomers.trust(context.connection, partition)


def _due(context: JobContext, relation: Relation, line: Cutline, upto: int | None) -> list[Partition]:
    table = context.table
    if upto is None and table.tier_lag is None:
        return []
    return due_by(context, relation, line, Lag.parse(table.tier_lag, table.key_type) if table.tier_lag is not None else Lag(), upto)


def _why_never(context: JobContext) -> str | None:
    name = context.table.name
    return None if context.table.tier_lag is not None else f"no lag: nothing is due by itself; use --upto or `modak policy {name} lag=…`"


def due_by(context: JobContext, relation: Relation, line: Cutline, lag: Lag, upto: int | None = None) -> list[Partition]:
    """Partitions further behind the newest row than the lag, or up to a key, from T on."""
    table = context.table
    partitions = tables.partitions(context.connection, table.table_id)
    newest = newest_key(context.connection, relation, table.tier_key_col, table.key_type)
    due = policy.partitions_due(partitions, line, newest, lag, table.key_type, upto)
    policy.check_contiguous(due, line, partitions, table.key_type)
    return due


def seal(context: JobContext, relation: Relation, due: Sequence[Partition], line: Cutline) -> tuple[Operation, list[Sealed]]:
    """Journal the intention, then put the capture trigger on each partition; the trigger waits for open writers, boundedly."""
    names = {(leaf.name.schema, leaf.name.name): leaf for leaf in bounds.range_leaves(relation)}
    sealed = [Sealed(names[part.schema, part.name].oid, names[part.schema, part.name].name, part.lower, part.upper) for part in due]
    details = {
        "partitions": [partition.as_json() for partition in sealed],
        "old_tier_key_hi": line.tier_key_hi,
        "old_snapshot": line.snapshot,
        "new_tier_key_hi": max(partition.upper for partition in sealed),
    }
    operation = operations.start(context.connection, context.table_id, OperationKind.TIERING, details)
    failpoint("tier.after_journal")
    with resume.given_up_on_failure(context, operation, resume.abandon):
        capture.define(context.connection, context.shape(relation))
        for partition in sealed:
            _seal_one(context, partition)
    failpoint("tier.after_seal")
    return operation, sealed


def _seal_one(context: JobContext, partition: Sealed) -> None:
    def step() -> None:
        with bounded(context.connection):
            tables.set_state(context.connection, context.table_id, partition.oid, PartitionState.SEALING)
            capture.attach(context.connection, context.table_id, partition.name)
            rebuild.watch_keys_of_partition(context.connection, context.table, partition.name)
            tables.set_state(context.connection, context.table_id, partition.oid, PartitionState.TIERING)

    retried(
        step,
        f"seal of {partition.name}",
        attempts=context.lock_attempts,
        holders=lambda: lock_holders(context.connection, [partition.name]),
    )


def _copy(
    context: JobContext, operation: Operation, sealed: Sequence[Sealed], columns: Sequence[LakeColumn], accepted: frozenset[int]
) -> tuple[Operation, Commit | None, Flushed]:
    """Flush under one snapshot, then one stamped commit. Empty partitions need neither files nor a commit."""
    with heap.exported_snapshot(context.dsn) as snapshot:
        _refuse_staged(context)
        operation = operations.move(context.connection, operation, Phase.FLUSHING, details={"flush_snapshot": snapshot.text})
        _keep_corrected(context, sealed, snapshot)
        flushed = flush(context, operation.op_id, [partition.name for partition in sealed], columns, snapshot)
    failpoint("tier.after_files")
    if not flushed.files:
        return operation, None, flushed
    stamps = journal.stamps(operation, **{commits.TIER_KEY_HI: str(operation.details["new_tier_key_hi"])})
    with context.progress.task("Committing to the lake"):
        table = context.lake_table()
        foreign.refuse_unknown(context, table, accepted)
        commit = commits.append(table, flushed.files, stamps)
    failpoint("tier.after_commit")
    operation = journal.note_commit(context, operation, commit, rows=flushed.rows)
    failpoint("tier.before_advance")
    return operation, commit, flushed


def _refuse_staged(context: JobContext) -> None:
    """Where a key does not say its place, a staged row may be older than a hot one with its key, and would come in over it later.

    Loads that stage after the snapshot see these partitions, and leave out what has a row there.
    """
    if context.table.tier_key_col not in context.table.primary_key_cols and loads.oldest_version(context.connection, context.table_id):
        raise Refused(f"staged loads of {context.table.name} come first", hint="run `modak adopt`, then tier again")


def _keep_corrected(context: JobContext, sealed: Sequence[Sealed], snapshot: heap.Snapshot) -> None:
    """Rows whose key has a correction already do not go to files (see flush); record them as what stood there before any later write."""
    if context.table.tier_key_col in context.table.primary_key_cols:
        return
    copies = [(partition.oid, partition.name) for partition in sealed]
    refuse_shared(context, heap.record_corrected(context.dsn, snapshot, copies, context.shape(context.relation())))
