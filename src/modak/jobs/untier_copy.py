"""The copying half of untier: the lake's rows into partitions beside the heap, the corrections after them, and the rows out of the lake.

Nothing here is visible to anybody before the publication: the partitions hang below a staging table, and S stays what it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from modak.catalog import operations
from modak.catalog.operations import Operation
from modak.connection import Connection, connect
from modak.core import bounds
from modak.core.cutline import Cutline
from modak.core.table import Name
from modak.core.tier_key import KEY_MAX, KEY_MIN
from modak.core.untier import UntierPlan
from modak.errors import Refused
from modak.failpoints import failpoint
from modak.jobs import foreign, journal
from modak.jobs.compare import Comparison
from modak.jobs.context import JobContext
from modak.jobs.pace import Pace
from modak.jobs.reclaim import ContentDiffers
from modak.jobs.restore import Restored
from modak.jobs.tasks import Spread
from modak.jobs.untier_tasks import Returned, UntierTask
from modak.lake import commits
from modak.lake.commits import Commit
from modak.registration.surface import copy_grants
from modak.scan.snapshot import DataFile, Snapshot
from modak.source.locks import bounded, retried
from modak.source.untier import NewPartition, Staging

# The publication carries the last corrections over while writers wait: no more than these, as far as rounds before it can help it.
CORRECTIONS_LEFT = 2_000
ROUNDS_MAX = 8
COPIES_PER_CORE = 4


@dataclass(frozen=True)
class Cold:
    """The lake's files at S behind the tier keys that each spans, both ends included."""

    snapshot: Snapshot
    tier_key: str
    files: tuple[tuple[int, int, DataFile], ...]

    @classmethod
    def at(cls, context: JobContext, line: Cutline) -> Cold:
        name, found = context.table.tier_key_col, context.cold(context.lake_table(), line.snapshot)
        # A bound that is not known says nothing, so that such a file is looked into.
        spans = found.ranges(found.field(name))
        ends = [(KEY_MIN if span.low is None else span.low, KEY_MAX if span.high is None else span.high) for span in spans]
        return cls(found, name, tuple((low, high, file) for (low, high), file in zip(ends, found.files, strict=True) if file.rows))

    @property
    def lowest(self) -> int | None:
        return min((low for low, _, _ in self.files if low != KEY_MIN), default=None)

    def whole_from(self, line: int) -> list[DataFile]:
        """Files with no row below ``line``."""
        return [file for low, _, file in self.files if low >= line]

    def across(self, line: int) -> list[DataFile]:
        return [file for low, high, file in self.files if low < line <= high]

    def is_left_below(self, line: int) -> bool:
        return any(low < line for low, _, _ in self.files)

    def groups(self, line: int, number: int) -> list[Snapshot]:
        """Files with rows from ``line`` on, in about so many groups of neighbouring keys."""
        files = [file for low, high, file in sorted(self.files, key=lambda one: one[:2]) if high >= line]
        share = sum(file.rows for file in files) / max(1, number)
        found: list[list[DataFile]] = []
        rows = share
        for file in files:
            if rows >= share:
                found.append([])
                rows = 0
            found[-1].append(file)
            rows += file.rows
        return [replace(self.snapshot, files=tuple(group)) for group in found]


def create_partitions(context: JobContext, staging: Staging) -> None:
    """Everything empty, with the grants of the nearest partition that stands."""

    def step() -> None:
        with bounded(context.connection):
            staging.create(context.connection)
            for partition in staging.partitions:
                neighbour = _neighbour(staging, partition)
                if neighbour is not None:
                    copy_grants(context.connection, neighbour, partition.name)

    retried(step, f"new partitions of {context.table.name}", attempts=context.lock_attempts)


def _neighbour(staging: Staging, partition: NewPartition) -> int | None:
    """The OID of the lowest partition that stands under the same parent."""
    relation, key_type = staging.relation, staging.shape.key_type
    names = {leaf.oid: leaf.name for leaf in relation.partitions} | {relation.oid: relation.name}
    found = [leaf for leaf in bounds.range_leaves(relation) if names[leaf.parent_oid] == partition.parent]
    return min(found, key=lambda leaf: bounds.parse_range(leaf.bound, key_type)).oid if found else None


def copy_rows(context: JobContext, operation: Operation, staging: Staging, plan: UntierPlan, cold: Cold) -> list[Returned]:
    """The lake's rows of the new partitions, and the deletes of files that straddle the line."""
    line, cores = plan.tier_key_hi, context.cores * COPIES_PER_CORE
    across = cold.across(line)
    kept = {column.name: column for column in context.columns(staging.relation)}
    task = UntierTask(
        dsn=context.dsn,
        op_id=operation.op_id,
        staging=f'"{staging.name.schema}"."{staging.name.name}"',
        columns=tuple(Restored.of(column, kept[column.name]) for column in staging.relation.columns if not column.generated),
        key_field=cold.snapshot.field(cold.tier_key),
        low=line,
        without=tuple((part.lower, part.upper) for part in plan.standing),
        storage=context.lake.storage,
        target=context.target(context.lake_table()),
        copies=tuple(cold.groups(line, cores)) if staging.partitions else (),
        straddling=tuple(tuple(across[start::cores]) for start in range(min(cores, len(across)))),
    )
    return _spread(context, task) if task.count else []


def _spread(context: JobContext, task: UntierTask) -> list[Returned]:
    job = Spread(context.spark, task.run, task.count, "untier")
    with context.progress.task("Copying rows back") as bar, connect(context.dsn, autocommit=True, unhurried=True) as watcher:
        done, pace = 0, Pace(watcher, task.op_id, job.wait)
        while not pace.turn():
            now = operations.rows_done(watcher, task.op_id)
            bar.note(f"{now:,} rows")
            bar.advance(now - done)
            done = now
    found = list[Returned](job.result())
    refused = next((one.refused for one in found if one.refused is not None), None)
    if refused is not None:
        raise _refusal(context, refused)
    return found


def _refusal(context: JobContext, reason: str) -> Refused:
    return Refused(
        f"the heap of {context.table.name} does not take a cold row: {reason}",
        hint="a constraint came after the row had gone, or no index ever spanned both tiers; correct the row through the table's name, "
        "or the constraint; nothing was changed",
    )


def finish_partitions(context: JobContext, staging: Staging, spans: Sequence[tuple[int, int]]) -> None:
    """Corrections made meanwhile, foreign keys, statistics: what the publication should not have to wait for."""
    rounds(context, staging, spans)
    for partition in staging.partitions:

        def step(partition: NewPartition = partition) -> None:
            with bounded(context.connection):
                staging.add_foreign_keys(context.connection, partition)

        retried(step, f"foreign keys of {partition.name}", attempts=context.lock_attempts)
        staging.validate(context.connection, partition)


def rounds(context: JobContext, staging: Staging, spans: Sequence[tuple[int, int]]) -> None:
    """Until few corrections are left for the publication; on a busy table, a fixed number of times."""
    for number in range(ROUNDS_MAX):
        with _steady(context.dsn) as session:
            carried = staging.catch_up(session, number, spans)
        if carried <= CORRECTIONS_LEFT:
            return


@contextlib.contextmanager
def _steady(dsn: str) -> Iterator[Connection]:
    """One snapshot for the whole round: what it notes is what it carries over."""
    with connect(dsn, application="modak-flush", unhurried=True) as session:
        session.execute("set transaction isolation level repeatable read")
        yield session


def compare(context: JobContext, partitions: Sequence[Name], spans: Sequence[tuple[int, int]], *, copied: bool = False) -> None:
    """Contents, not counts: what the heap will speak for alone must be what the lake has now, as a second reader sees it."""
    columns = context.columns(context.relation())
    for lower, upper in spans if partitions else ():
        with context.progress.task("Comparing the heap with the lake"):
            comparison = _CopyComparison if copied else Comparison
            compared = comparison(context, partitions, columns).run(lower, upper)
        if compared.differences:
            first, which = compared.differences[0], "the copy" if copied else "a tiered partition that still stands"
            raise ContentDiffers(
                f"{which} and the lake differ in {len(compared.differences)} rows; nothing was brought back",
                hint="run it again, and report it if it differs again"
                if copied
                else f"`modak verify {context.table.name}` lists them, `--repair` mends the lake",
                key=first.key,
                heap=first.heap,
                lake=first.lake,
            )


class _CopyComparison(Comparison):
    """Rows that the delta speaks for are compared with nothing: the publication replaces them by what it says then."""

    def _corrected(self, *_: Any) -> None:
        pass

    def _only_corrected(self, *_: Any) -> None:
        pass


def commit_removal(
    context: JobContext, operation: Operation, cold: Cold, line: int, returned: Sequence[Returned]
) -> tuple[Operation, Commit | None]:
    """One stamped commit without the rows from ``line`` on; none where the lake has no such row."""
    deletes = [written for one in returned for written in one.deletes]
    removed = [file.location for file in cold.whole_from(line)]
    if not deletes and not removed:
        return operation, None
    stamps = journal.stamps(operation, **{commits.TIER_KEY_HI: str(line)})
    with context.progress.task("Committing to the lake"):
        table = context.lake_table()
        foreign.refuse_unknown(context, table, frozenset())
        commit = commits.change(table, stamps, deletes=deletes, removed=removed)
    failpoint("untier.after_commit")
    return journal.note_commit(context, operation, commit), commit
