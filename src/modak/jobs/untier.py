"""Untier: cold rows come back into heap partitions, and T moves down.

Corrections are folded first. New partitions are filled beside the heap from the files of S, and follow what is corrected meanwhile; the
copy is compared with the lake, then one stamped commit takes the rows out of it, and one transaction attaches them and moves T and S.
Killed anywhere, the next pass of any job publishes or drops what it finds: see ``modak.jobs.resume``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import psycopg

from modak.catalog import migrate, operations, tables
from modak.catalog.operations import Operation
from modak.core import bounds, policy
from modak.core import untier as core
from modak.core.cutline import Cutline
from modak.core.lag import Lag
from modak.core.operation import OperationKind, Phase
from modak.core.partition import Partition, PartitionState
from modak.core.registration import derived_name
from modak.core.table import Name, Relation
from modak.core.tier_key import TierKeyType
from modak.core.untier import Band, UntierPlan
from modak.errors import Problem, Refused
from modak.failpoints import failpoint
from modak.jobs import fold, resume
from modak.jobs.cold_side import finish_untier
from modak.jobs.context import JobContext, reported
from modak.jobs.publishing.seam import Pinned, Sealed
from modak.jobs.publishing.untier import publish_untier
from modak.jobs.untier_copy import Cold, commit_removal, compare, copy_rows, create_partitions, finish_partitions
from modak.lake.commits import Commit
from modak.source.partitions import newest_key
from modak.source.relation import names_in
from modak.source.untier import NewPartition, Staging

JOB = "untier"


@dataclass(frozen=True)
class UntierOutcome:
    """What a pass did. ``made`` says of each new partition why it has its bounds, ``kept`` names those that stood there still;
    ``cold_left``: older rows stay in the lake; ``due_again`` is what the lag would tier at once; ``waiting`` says why queries of this
    range still ask the gateway."""

    made: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    rows: int = 0
    corrections: int = 0
    tier_key_hi: int | None = None
    snapshot: int | None = None
    cold_left: bool = False
    due_again: tuple[str, ...] = ()
    waiting: str | None = None
    op_id: str | None = None
    resumed: tuple[str, ...] = ()


def untier(context: JobContext, *, key: int | None = None) -> UntierOutcome:
    """Bring back every cold row, or those from ``key`` on. A failure is written to modak.problems and raised."""
    with reported(context, JOB):
        return _untier(context, key)


def _untier(context: JobContext, key: int | None) -> UntierOutcome:
    folded = fold.fold(context)
    if folded.waiting is not None:
        raise Pinned(folded.waiting, hint="run it again when the pin is gone")
    context = replace(context, table=tables.get(context.connection, context.table.name))
    _refuse_staged(context)
    relation = context.relation()
    line = tables.cutline(context.connection, context.table_id)
    cold = Cold.at(context, line)
    plan = core.plan(_known(context, relation), line, context.table.key_type, wanted=key, lowest=_lowest(context, cold))
    outcome = UntierOutcome(tier_key_hi=line.tier_key_hi, snapshot=line.snapshot)
    if plan.tier_key_hi < line.tier_key_hi:
        _refuse_strangers(context, relation, plan, line)
        standing = [Name(part.schema, part.name) for part in plan.standing]
        compare(context, standing, core.merged((part.lower, part.upper) for part in plan.standing))
        outcome = replace(_bring_back(context, relation, plan, line, cold), due_again=_due_again(context))
    cold_left = cold.is_left_below(plan.tier_key_hi)
    return replace(outcome, resumed=folded.resumed, cold_left=cold_left, waiting=finish_untier(context))


def _known(context: JobContext, relation: Relation) -> list[Partition]:
    """The catalog's partitions; one that its owner dropped after it was tiered is gone."""
    there = {leaf.name for leaf in bounds.range_leaves(relation)}
    return [
        replace(part, state=PartitionState.DROPPED)
        if part.state is PartitionState.TIERED and Name(part.schema, part.name) not in there
        else part
        for part in tables.partitions(context.connection, context.table_id)
    ]


def _lowest(context: JobContext, cold: Cold) -> int | None:
    """The lowest cold key: by the lake's statistics, and by the corrections that wait."""
    row = context.connection.execute(migrate.SQL.query("lowest_correction"), {"table_id": context.table_id}).fetchone()
    return min((key for key in (row["key"] if row else None, cold.lowest) if key is not None), default=None)


def _refuse_staged(context: JobContext) -> None:
    number = tables.count(context.connection, "count_staged", context.table_id)
    if number:
        problem = Problem("staged", f"{number} staged loads hold rows for the lake", "run `modak adopt` first")
        raise Refused(f"{context.table.name} was not untiered", [problem], hint="nothing was changed")


def _refuse_strangers(context: JobContext, relation: Relation, plan: UntierPlan, line: Cutline) -> None:
    """A partition below T that Modak did not tier: its rows are in no tier, and would show all at once."""
    standing = {Name(part.schema, part.name) for part in plan.standing}
    strange = []
    for leaf in bounds.range_leaves(relation):
        lower, upper = bounds.parse_range(leaf.bound, context.table.key_type)
        if leaf.name not in standing and lower < line.tier_key_hi and upper > plan.tier_key_hi and lower < upper:
            strange.append(Problem("stranger", f"partition {leaf.name} stands below the cut-line", "drop or detach it"))
    if strange:
        raise Refused(f"{context.table.name} was not untiered", strange, hint="nothing was changed")


def _bring_back(context: JobContext, relation: Relation, plan: UntierPlan, line: Cutline, cold: Cold) -> UntierOutcome:
    operation = _start(context, relation, plan, line)
    failpoint("untier.after_journal")
    with resume.given_up_on_failure(context, operation, resume.abandon_untier), _refusals(context):
        operation, commit, rows, made = _fill(context, operation, relation, plan, cold)
    try:
        operation = publish_untier(context, operation, commit)
    except Refused:
        resume.abandon_untier(context, operation)
        raise
    failpoint("untier.after_publish")
    return UntierOutcome(
        made=made,
        kept=tuple(str(Name(part.schema, part.name)) for part in plan.standing),
        rows=rows,
        corrections=int(operation.details["corrections"]),
        tier_key_hi=plan.tier_key_hi,
        snapshot=commit.sequence_number if commit else line.snapshot,
        op_id=operation.op_id,
    )


def _start(context: JobContext, relation: Relation, plan: UntierPlan, line: Cutline) -> Operation:
    oids = {leaf.name: leaf.oid for leaf in relation.leaves}
    names = [(Name(part.schema, part.name), part) for part in plan.standing]
    details = {
        "old_tier_key_hi": line.tier_key_hi,
        "old_snapshot": line.snapshot,
        "new_tier_key_hi": plan.tier_key_hi,
        "standing": [Sealed(oids[name], name, part.lower, part.upper).as_json() for name, part in names],
    }
    return operations.start(context.connection, context.table_id, OperationKind.UNTIER, details)


def _fill(
    context: JobContext, operation: Operation, relation: Relation, plan: UntierPlan, cold: Cold
) -> tuple[Operation, Commit | None, int, tuple[str, ...]]:
    """New partitions with everything in them, and the lake without it."""
    made = list(_named(context, relation, plan))
    staging = Staging(context.shape(relation), relation, operation.op_id, tuple(partition for partition, _ in made))
    operation = operations.move(
        context.connection,
        operation,
        Phase.FLUSHING,
        details={
            "partitions": [partition.as_json() for partition in staging.partitions],
            "spans": plan.spans,
            "cold_left": cold.is_left_below(plan.tier_key_hi),
        },
    )
    create_partitions(context, staging)
    returned = copy_rows(context, operation, staging, plan, cold)
    finish_partitions(context, staging, plan.spans)
    compare(context, [partition.name for partition in staging.partitions], plan.spans, copied=True)
    failpoint("untier.after_copy")
    operation, commit = commit_removal(context, operation, cold, plan.tier_key_hi, returned)
    rows = sum(one.rows for one in returned)
    return operation, commit, rows, tuple(f"{partition.name}: {band.origin}" for partition, band in made)


def _named(context: JobContext, relation: Relation, plan: UntierPlan) -> Iterator[tuple[NewPartition, Band]]:
    """A partition for each band under each parent: by its old name where that is known and free, after its lower bound otherwise."""
    parents = [relation.name] if relation.strategy == "r" else _regions(relation)
    taken: dict[str, set[str]] = {}
    for parent in parents:
        base = context.table.table_name if parent == relation.name else parent.name
        for band in plan.bands:
            known = Name(*band.name) if band.name is not None and len(parents) == 1 else None
            schema = known.schema if known else parent.schema
            names = taken.setdefault(schema, set(names_in(context.connection, schema)))
            wanted = known.name if known else derived_name(base, _suffix(context.table.key_type, band.lower))
            name, number = wanted, 1
            while name in names:
                number += 1
                name = derived_name(wanted, f"_{number}")
            names.add(name)
            yield NewPartition(parent, Name(schema, name), band.lower, band.upper), band


def _regions(relation: Relation) -> list[Name]:
    parents = bounds.range_parents(relation)
    return [leaf.name for leaf in relation.partitions if leaf.oid in parents]


def _suffix(key_type: TierKeyType, lower: int) -> str:
    """_20251101 or _20251101t060000 for times, the key itself for integers."""
    text = key_type.encode_bound(lower).lower()
    if not key_type.is_time or text == "minvalue":
        return "_" + text.replace("-", "minus_")
    day, _, clock = text.removesuffix("+00").partition(" ")
    shown, moment = ("".join(re.findall(r"[0-9a-z]+", part)) for part in (day, clock))
    return f"_{shown}" if moment in ("", "000000") else f"_{shown}t{moment}"


def _due_again(context: JobContext) -> tuple[str, ...]:
    """What the next pass of tiering would move to the lake again."""
    table = context.table
    if table.tier_lag is None or not table.enabled:
        return ()
    newest = newest_key(context.connection, context.relation(), table.tier_key_col, table.key_type)
    line = tables.cutline(context.connection, context.table_id)
    partitions = tables.partitions(context.connection, context.table_id)
    due = policy.partitions_due(partitions, line, newest, Lag.parse(table.tier_lag, table.key_type), table.key_type)
    return tuple(str(Name(part.schema, part.name)) for part in due)


@contextlib.contextmanager
def _refusals(context: JobContext) -> Iterator[None]:
    """What Postgres does not take is the user's to settle; a connection that breaks is not."""
    try:
        yield
    except (psycopg.IntegrityError, psycopg.DataError, psycopg.ProgrammingError, psycopg.NotSupportedError) as cause:
        raise Refused(
            f"{context.table.name} was not untiered: {cause.diag.message_primary or cause}",
            hint="a constraint of the heap does not hold for a cold row, or something of this name is in the way; nothing was changed",
            detail=cause.diag.message_detail,
        ) from cause
