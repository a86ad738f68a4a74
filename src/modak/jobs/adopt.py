"""Adopt: files that loads staged become part of the lake, every waiting label of a table in one commit.

Within a pass the newest label wins, and a label wins over corrections that are older than it. S moves, T does not.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from modak.catalog import loads, operations, tables
from modak.catalog.loads import Staged
from modak.core.cutline import Cutline
from modak.core.operation import OperationKind
from modak.failpoints import failpoint
from modak.jobs import evolve, foreign, resume
from modak.jobs.columns import surface_follows
from modak.jobs.context import JobContext, reported
from modak.jobs.incoming import NewFile, commit_files, find_replaced
from modak.jobs.publishing.incoming import publish_incoming
from modak.jobs.publishing.seam import Pinned
from modak.lake.data_files import written_file
from modak.lake.failures import failures

JOB = "adopt"
LABELS_MAX = 10_000
_READERS = 8


@dataclass(frozen=True)
class AdoptOutcome:
    """What a pass did. ``waiting`` says why it adopted nothing."""

    labels: int = 0
    files: int = 0
    rows: int = 0
    rows_replaced: int = 0
    corrections: int = 0
    snapshot: int | None = None
    waiting: str | None = None
    resumed: tuple[str, ...] = ()
    op_id: str | None = None


def adopt(context: JobContext) -> AdoptOutcome:
    """Adopt what is staged now. A failure is written to modak.problems and raised."""
    with reported(context, JOB):
        return _adopt(context)


def _adopt(context: JobContext) -> AdoptOutcome:
    finished = resume.resume_all(context)
    staged = loads.staged(context.connection, context.table_id, LABELS_MAX)
    if not staged:
        return AdoptOutcome(resumed=finished)
    foreign.settle(context, "refuse")
    relation = context.relation()
    surface_follows(context, relation)
    evolve.follow(context, relation)
    line = tables.cutline(context.connection, context.table_id)
    try:
        return replace(_take_in(context, staged, line), resumed=finished)
    except Pinned as pinned:
        return AdoptOutcome(waiting=str(pinned), resumed=finished)


def _take_in(context: JobContext, staged: list[Staged], line: Cutline) -> AdoptOutcome:
    rows = sum(label.rows for label in staged)
    details = {
        "old_tier_key_hi": line.tier_key_hi,
        "old_snapshot": line.snapshot,
        "versions": [label.version for label in staged],
        "files": sum(len(label.files) for label in staged),
        "rows": rows,
    }
    operation = operations.start(context.connection, context.table_id, OperationKind.LOAD, details)
    failpoint("adopt.after_journal")
    with resume.given_up_on_failure(context, operation, resume.abandon_incoming):
        files = _files(context, staged)
        deletes = find_replaced(context, operation, files, line)
        failpoint("adopt.after_files")
        operation, commit = commit_files(context, operation, files, deletes, {})
    failpoint("adopt.after_commit")
    try:
        operation = publish_incoming(context, operation, commit)
    except Pinned:
        resume.abandon_incoming(context, operation)
        raise
    failpoint("adopt.after_publish")
    return AdoptOutcome(
        labels=len(staged),
        files=len(files),
        rows=rows,
        rows_replaced=sum(one.file.record_count for one in deletes),
        corrections=int(operation.details["corrections"]),
        snapshot=commit.sequence_number,
        op_id=operation.op_id,
    )


def _files(context: JobContext, staged: list[Staged]) -> list[NewFile]:
    """By their footers, which say what a commit has to know."""
    target = context.target(context.lake_table())
    listed = [(path, label.version) for label in staged for path in label.files]

    def read(one: tuple[str, int]) -> NewFile:
        path, version = one
        with failures(f"staged file {path}", context.lake.storage):
            return NewFile(written_file(target, path), version)

    with ThreadPoolExecutor(_READERS, thread_name_prefix="modak-footers") as readers:
        return list(readers.map(read, listed))
