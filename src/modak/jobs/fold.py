"""Fold: corrections of cold rows become part of the lake.

A batch of the oldest corrections is read under one snapshot: the rows they speak of are deleted by position, in the files that may hold
them and no others, and new images are written beside. One stamped commit, then one short transaction in which S moves and exactly the
folded versions are cleared; a row that was corrected again meanwhile keeps its newer correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modak.catalog import loads, operations, tables
from modak.catalog.operations import Operation
from modak.connection import Connection
from modak.core.cutline import Cutline
from modak.core.operation import OperationKind
from modak.core.tier_key import KEY_MAX, KEY_MIN
from modak.failpoints import failpoint
from modak.jobs import evolve, foreign, journal, resume
from modak.jobs.columns import surface_follows
from modak.jobs.context import JobContext, reported
from modak.jobs.fold_tasks import Folded, FoldTask, Search
from modak.jobs.publishing.fold import publish_fold
from modak.jobs.publishing.seam import Pinned, refuse_pinned
from modak.jobs.tasks import TASKS_PER_CORE, Spread, grouped
from modak.lake import commits
from modak.lake.commits import Commit
from modak.source import heap, spill
from modak.source.corrections import Batch, Corrections

JOB = "fold"
# A publication clears so many corrections at most, and cold writers wait for its length. But every batch reads the keys of all files that
# it touches, and where corrections lie everywhere that is the whole table.
BATCH_ROWS = 1_000_000
# A task of fewer rows is not worth its start.
ROWS_PER_WRITING = 50_000


@dataclass(frozen=True)
class FoldOutcome:
    """What a pass did. ``waiting`` says why it stopped early; ``kept`` corrections hold values that the lake cannot."""

    corrections: int = 0
    commits: int = 0
    rows_deleted: int = 0
    rows_written: int = 0
    snapshot: int | None = None
    kept: int = 0
    waiting: str | None = None
    resumed: tuple[str, ...] = ()


def fold(context: JobContext, *, batch_rows: int = BATCH_ROWS) -> FoldOutcome:
    """Fold what the delta holds now, in as many commits as it takes. A failure is written to modak.problems and raised."""
    with reported(context, JOB):
        return _fold(context, batch_rows)


def _fold(context: JobContext, batch_rows: int) -> FoldOutcome:
    finished = resume.resume_all(context)
    foreign.settle(context, "refuse")
    relation = context.relation()
    surface_follows(context, relation)
    evolve.follow(context, relation)
    shape = context.shape(relation)
    spill.define(context.connection, shape)
    corrections = Corrections(shape, relation)
    # What comes in meanwhile is for the next pass: else a busy table would keep this one for ever.
    newest = corrections.newest(context.connection)
    outcome = FoldOutcome(resumed=finished)
    # A staged row would come in over a newer correction of the same key that is in the lake by then.
    oldest = loads.oldest_version(context.connection, context.table_id)
    if oldest is not None and oldest <= newest:
        newest = oldest
        outcome = FoldOutcome(waiting="corrections newer than a staged load wait for its adoption: modak adopt", resumed=finished)
    try:
        while (done := _batch(context, corrections, newest, batch_rows)) is not None:
            outcome = _sum(outcome, done)
    except Pinned as pinned:
        outcome = _sum(outcome, FoldOutcome(waiting=str(pinned)))
    return _sum(outcome, FoldOutcome(kept=corrections.unfit(context.connection)))


def _sum(one: FoldOutcome, more: FoldOutcome) -> FoldOutcome:
    return FoldOutcome(
        corrections=one.corrections + more.corrections,
        commits=one.commits + more.commits,
        rows_deleted=one.rows_deleted + more.rows_deleted,
        rows_written=one.rows_written + more.rows_written,
        snapshot=more.snapshot if more.snapshot is not None else one.snapshot,
        kept=one.kept + more.kept,
        waiting=more.waiting or one.waiting,
        resumed=one.resumed,
    )


def _batch(context: JobContext, corrections: Corrections, newest: int, batch_rows: int) -> FoldOutcome | None:
    """One commit; None when there is nothing left to fold. Raises Pinned before anything is begun, or before it is published."""
    with heap.exported_snapshot(context.dsn) as snapshot:
        with heap.within(context.dsn, snapshot) as session:
            batch = corrections.batch(session, upto=newest, rows_max=batch_rows)
            if batch is None:
                return None
            refuse_pinned(context)
            line = tables.cutline(session, context.table_id)
            operation = _start(context, line, batch)
            corrections.record(session, operation.op_id, batch.upto)
            task = _plan(context, corrections, session, batch, line, operation.op_id, snapshot)
        failpoint("fold.after_journal")
        with resume.given_up_on_failure(context, operation, resume.abandon_fold):
            made = _run(context, task, batch)
            failpoint("fold.after_files")
            operation, commit = _commit(context, operation, made)
    operation = publish_fold(context, operation, commit)
    failpoint("fold.after_publish")
    return FoldOutcome(
        corrections=int(operation.details["cleared"]),
        commits=1 if commit else 0,
        rows_deleted=sum(deletes.file.record_count for one in made for deletes in one.deletes),
        rows_written=sum(file.record_count for one in made for file in one.data),
        snapshot=commit.sequence_number if commit else None,
    )


def _start(context: JobContext, line: Cutline, batch: Batch) -> Operation:
    details = {
        "old_tier_key_hi": line.tier_key_hi,
        "old_snapshot": line.snapshot,
        "upto_version": batch.upto,
        "corrections": batch.rows,
    }
    return operations.start(context.connection, context.table_id, OperationKind.COMPACTION, details)


def _plan(
    context: JobContext,
    corrections: Corrections,
    session: Connection,
    batch: Batch,
    line: Cutline,
    op_id: str,
    snapshot: heap.Snapshot,
) -> FoldTask:
    table, storage = context.lake_table(), context.lake.storage
    foreign.refuse_unknown(context, table, frozenset())
    published = context.cold(table, line.snapshot)
    key = published.field(context.table.tier_key_col)
    ranges = [(KEY_MIN if r.low is None else r.low, KEY_MAX if r.high is None else r.high) for r in published.ranges(key)]
    unplaced = batch.unplaced > 0
    places = list(range(len(ranges))) if unplaced else corrections.touched(session, batch.upto, ranges)
    parts = max(1, min(context.cores * TASKS_PER_CORE, batch.upserts // ROWS_PER_WRITING))
    return FoldTask(
        dsn=context.dsn,
        snapshot=snapshot.name,
        op_id=op_id,
        target=context.target(table),
        storage=storage,
        key_fields=tuple(published.field(name) for name in context.table.primary_key_cols),
        searches=tuple(
            Search(files, corrections.keys_sql(batch.upto, low, high, unplaced=unplaced))
            for files, low, high in grouped(published.files, ranges, places, context.cores * TASKS_PER_CORE)
        ),
        writings=tuple(
            corrections.images_sql(batch.upto, low, high) for low, high in corrections.upsert_ranges(session, batch.upto, parts)
        ),
    )


def _run(context: JobContext, task: FoldTask, batch: Batch) -> list[Folded]:
    if not task.count:
        return []
    job = Spread(context.spark, task.run, task.count, "fold")
    with context.progress.task(f"Folding {batch.rows:,} corrections", total=task.count) as bar:
        while not job.wait(0.2):
            bar.note(f"{operations.rows_done(context.connection, task.op_id):,} rows")
    return job.result()


def _commit(context: JobContext, operation: Operation, made: Sequence[Folded]) -> tuple[Operation, Commit | None]:
    """One stamped commit; none where the lake holds nothing of these keys and gets nothing new."""
    data = [file for one in made for file in one.data]
    deletes = [written for one in made for written in one.deletes]
    if not data and not deletes:
        return operation, None
    stamps = journal.stamps(operation)
    with context.progress.task("Committing to the lake"):
        table = context.lake_table()
        foreign.refuse_unknown(context, table, frozenset())
        commit = commits.change(table, stamps, added=data, deletes=deletes)
    failpoint("fold.after_commit")
    return journal.note_commit(context, operation, commit), commit
