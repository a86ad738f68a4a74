"""Initial copy: the whole heap becomes the lake's first rows, and the stream takes over exactly where the copy looked.

Chunks are read by Spark tasks under the snapshot of a temporary slot, and committed a wave at a time; the journal says which ones are
done. A copy that was killed goes on with the rest under a new snapshot. Rows are of two moments then: the stream says which ones changed
between them, and those are taken anew from the second.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import adbc_driver_manager

from modak.catalog import mirrors, operations, problems, tables
from modak.connection import Connection
from modak.core.lake_table import LakeColumn
from modak.core.operation import OperationKind
from modak.core.table import Name
from modak.errors import CommitUnknown, LockNotAvailable, ModakError, Refused, Retry
from modak.failpoints import failpoint
from modak.jobs import evolve, foreign, journal, resume
from modak.jobs.context import JobContext, reported
from modak.jobs.flush import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, CHUNKS_PER_CORE, Flushed, flush_chunks
from modak.jobs.mirroring import leaves as leaf_files
from modak.jobs.mirroring import watch
from modak.jobs.mirroring.clearing import Cleared, clear, copied_leaves
from modak.jobs.mirroring.follower import first_shape
from modak.jobs.mirroring.heal import heal
from modak.jobs.mirroring.labels import LABELS
from modak.jobs.publishing.mirror import publish_copy
from modak.lake import commits
from modak.registration import mirroring, names_now
from modak.source import heap, replication
from modak.source.heap import Chunk, Snapshot

JOB = "copy"
log = logging.getLogger("modak.copy")
# A kill costs one wave at most.
WAVES_CHUNKS_PER_CORE = 4
# A table that is rewritten again and again cannot be copied.
ATTEMPTS_MAX = 5


@dataclass(frozen=True)
class CopyOutcome:
    """``resumed``: chunks that an earlier, killed copy had done already."""

    rows: int = 0
    chunks: int = 0
    commits: int = 0
    resumed: int = 0
    lsn: int | None = None


def copy(context: JobContext, *, again: bool = False, chunk_bytes: int | None = None) -> CopyOutcome:
    """Copy the table, or what is left to copy. ``again``: from the start, whatever the lake holds; the way out for a parked table."""
    if context.table.mode != "mirrored":
        raise Refused(f"{context.table.name} is tiered: its rows reach the lake by `modak tier`")
    with reported(context, JOB):
        outcome = _copy(context, again, chunk_bytes)
    problems.clear(context.connection, context.table_id, "mirror")
    return outcome


def is_pending(connection: Connection, table_id: int) -> bool:
    """Whether a copy was not begun, or not finished."""
    return mirrors.get(connection, table_id).copied_lsn is None


def _copy(context: JobContext, again: bool, chunk_bytes: int | None) -> CopyOutcome:
    resume.resume_all(context)
    # A copy from the start replaces whatever stands there, what a lost primary committed last included.
    foreign.settle(context, "rollback" if again else "refuse")
    context = _named(context)
    connection, table = context.connection, context.table
    if again:
        mirroring.mend(connection, table, context.relation())
        # A table that cannot be followed stays parked, and says so.
        watch.published(connection, table)
        # The slot keeps the stream from here on: nothing that the new copy needs can be forgotten meanwhile.
        mirrors.insert(connection, table.table_id)
        mirrors.end_copy(connection, table.table_id)
    elif not is_pending(connection, table.table_id):
        return CopyOutcome()
    with context.progress.task(f"Preparing slot {table.slot_name}"):
        replication.ensure_slot(connection, context.dsn, table.slot_name or "")
    failpoint("copy.after_slot")
    for _ in range(ATTEMPTS_MAX):
        # Before the snapshot: whatever is done to the publication from then on is noticed.
        published = watch.published(connection, table)
        files = leaf_files.read(connection, table.table_id)
        with replication.slot_snapshot(context.dsn) as (snapshot, lsn):
            try:
                with heap.within(context.dsn, snapshot) as session:
                    return _under_snapshot(context, session, _Look(snapshot, lsn, published, files), chunk_bytes, again)
            except _Rewritten as cause:
                # With another snapshot: what was done of files that are gone is forgotten there.
                log.info("%s", cause)
    raise LockNotAvailable(
        f"{table.name} was rewritten or altered {ATTEMPTS_MAX} times while it was being copied", hint="run the command again when it rests"
    )


def _named(context: JobContext) -> JobContext:
    """By the names that the table and its columns have now: they may have been renamed since it was parked."""
    context = replace(context, table=names_now.follow_name(context.connection, context.table))
    table = names_now.follow_columns(context.connection, context.table, context.relation(), _known_names(context))
    return replace(context, table=table)


def _known_names(context: JobContext) -> dict[int, str]:
    """What the columns were called, by number: when the stream told of them last, or else as the lake has them."""
    shapes = mirrors.get(context.connection, context.table_id).shapes
    if shapes:
        return {column["number"]: column["name"] for column in shapes[-1]["columns"]}
    fields = {field.field_id: field.name for field in context.lake_table().schema().fields}
    known = tables.lake_field_ids(context.connection, context.table_id)
    return {number: fields[field_id] for number, field_id in known.items() if field_id in fields}


class _Rewritten(ModakError):
    """The files that the copy was planned for are not there any more."""

    code = "rewritten"
    retry = Retry.NOW


@dataclass(frozen=True)
class _Look:
    """A snapshot, its place in the stream, and the entry of the publication that tells of everything after it. ``files``: those before."""

    snapshot: Snapshot
    lsn: int
    published: str
    files: leaf_files.Leaves


def _under_snapshot(context: JobContext, session: Connection, look: _Look, chunk_bytes: int | None, again: bool) -> CopyOutcome:
    """No lock is held: a session that waited for one that excludes us would make our own tasks wait behind it, for ever."""
    connection, table_id = context.connection, context.table_id
    columns = evolve.follow(context, context.relation(), replace=again)
    files = leaf_files.read(connection, table_id)
    if leaf_files.places(files) != leaf_files.places(look.files):
        # Of a file that was written since, the snapshot sees nothing, and what a partition brought is in neither.
        raise _Rewritten(f"{context.table.name} was rewritten, or its partitions changed, while the copy took its snapshot")
    shapes = first_shape(connection, table_id, replication.inserted_lsn(connection))
    shape = _shape_text(shapes)

    def begin() -> None:
        plan = _plan(context, files, shape, chunk_bytes)
        mirrors.start_copy(connection, table_id, look.lsn, plan, leaves=files, published=look.published)

    known = mirrors.find_copy(connection, table_id)
    resumed = 0
    if known is None or not _goes_on(connection, known, files, shape, look.published):
        begin()
    else:
        resumed = sum(bool(one["done"]) for one in known.ranges)
    failpoint("copy.after_journal")
    outcome = _waves(context, columns, look.snapshot, CopyOutcome(resumed=resumed))
    done = mirrors.find_copy(connection, table_id)
    if done is not None and done.consistent_lsn != look.lsn and not heal(context, session, done.consistent_lsn, look.lsn):
        begin()
        outcome = _waves(context, columns, look.snapshot, CopyOutcome())
    if _is_rewritten(context):
        # A TRUNCATE takes rows away from older snapshots too: what was read last may lack some.
        raise _Rewritten(f"{context.table.name} was rewritten or altered meanwhile: the copy starts over")
    with connection.transaction():
        context.fence()
        mirrors.start_following(connection, table_id, lsn=look.lsn, leaves=files, shapes=shapes, published=look.published)
        mirrors.end_copy(connection, table_id)
        failpoint("copy.before_end")
    return replace(outcome, lsn=look.lsn)


def _waves(context: JobContext, columns: Sequence[LakeColumn], snapshot: Snapshot, outcome: CopyOutcome) -> CopyOutcome:
    """Copy what is left, a wave at a time."""
    while (wave := _next_wave(context)) is not None:
        numbers, chunks, is_first = wave
        rows = _wave(context, numbers, chunks, columns, snapshot, clean=is_first)
        outcome = replace(outcome, rows=outcome.rows + rows, chunks=outcome.chunks + len(numbers), commits=outcome.commits + 1)
        failpoint("copy.after_publish")
    return outcome


def _plan(context: JobContext, files: leaf_files.Leaves, shape: str, chunk_bytes: int | None) -> list[dict[str, Any]]:
    """Page ranges of every partition. A wave that removes what stood in the lake before comes even if there is nothing to copy."""
    files = copied_leaves(context.connection, context.table, context.relation(), files)
    names = [Name(leaf["schema_name"], leaf["table_name"]) for leaf in files]
    low, high = (chunk_bytes, chunk_bytes) if chunk_bytes else (CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
    cut = heap.chunks(context.connection, names, bytes_min=low, bytes_max=high, wanted=context.cores * CHUNKS_PER_CORE)
    by_name = {Name(leaf["schema_name"], leaf["table_name"]): leaf for leaf in files}
    return [
        {
            "schema": chunk.partition.schema,
            "name": chunk.partition.name,
            "oid": by_name[chunk.partition]["oid"],
            "filenode": by_name[chunk.partition]["filenode"],
            "first": chunk.first_page,
            "last": chunk.last_page,
            "shape": _digest(shape),
            "done": False,
        }
        for chunk in cut
    ]


def _goes_on(connection: Connection, known: mirrors.Copy, files: leaf_files.Leaves, shape: str, published: str) -> bool:
    """Whether the stream has told of everything that happened to the table since that copy began."""
    there = {leaf["oid"]: leaf for leaf in files}
    before = {leaf["oid"]: leaf for leaf in known.leaves}
    # A journal without partitions is an older Modak's.
    if not before.keys() <= there.keys() or known.published != published or (known.ranges and not before):
        return False
    if not all(leaf_files.is_same_place(leaf, there[oid]) for oid, leaf in before.items()):
        return False
    if any(leaf_files.may_bring_rows(connection, known.leaves, leaf) for leaf in files if leaf["oid"] not in before):
        return False
    return _same_files(known.ranges, files, shape)


def _same_files(ranges: Sequence[Any], files: leaf_files.Leaves, shape: str) -> bool:
    """A table that was rewritten since has its rows on other pages, or with other columns, and the copy starts over."""
    there = {(leaf["oid"], leaf["filenode"], _digest(shape)) for leaf in files}
    return {(one["oid"], one["filenode"], one["shape"]) for one in ranges} <= there


def _is_rewritten(context: JobContext) -> bool:
    copy = mirrors.find_copy(context.connection, context.table_id)
    shape = _shape_text(first_shape(context.connection, context.table_id, 0))
    return copy is not None and not _same_files(copy.ranges, leaf_files.read(context.connection, context.table_id), shape)


def _shape_text(shapes: list[dict[str, object]]) -> str:
    """A label that is renamed meanwhile is an old one in some chunks and a new one in others."""
    return f"{shapes[0]['columns']} {shapes[0][LABELS]}" if shapes[0][LABELS] else str(shapes[0]["columns"])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _next_wave(context: JobContext) -> tuple[list[int], list[Chunk], bool] | None:
    """The chunks to copy next; the first wave of a copy also clears what the lake held."""
    copy = mirrors.find_copy(context.connection, context.table_id)
    assert copy is not None
    is_first = not any(one["done"] for one in copy.ranges)
    waiting = [number for number, one in enumerate(copy.ranges) if not one["done"]]
    numbers = waiting[: context.cores * WAVES_CHUNKS_PER_CORE]
    if not numbers:
        # An empty heap: whatever an earlier copy left in the lake has to go all the same.
        has_files = bool(context.cold(context.lake_table(), _head(context)).files)
        return ([], [], True) if is_first and has_files else None
    wanted = [copy.ranges[number] for number in numbers]
    chunks = [Chunk(Name(one["schema"], one["name"]), one["first"], one["last"], one["filenode"]) for one in wanted]
    return numbers, chunks, is_first


def _head(context: JobContext) -> int | None:
    return tables.cutline(context.connection, context.table_id).snapshot


def _wave(
    context: JobContext, numbers: list[int], chunks: list[Chunk], columns: Sequence[LakeColumn], snapshot: Snapshot, *, clean: bool
) -> int:
    """One commit of some chunks."""
    line = tables.cutline(context.connection, context.table_id)
    details = {"old_tier_key_hi": line.tier_key_hi, "old_snapshot": line.snapshot, "chunks": numbers}
    operation = operations.start(context.connection, context.table_id, OperationKind.COPY, details)
    failpoint("copy.before_files")
    try:
        flushed: Flushed = flush_chunks(context, operation.op_id, chunks, columns, snapshot)
        failpoint("copy.after_files")
        table = context.lake_table()
        foreign.refuse_unknown(context, table, frozenset())
        old = clear(context, table, line.snapshot, operation.op_id) if clean else Cleared()
        commit = commits.change(table, journal.stamps(operation), added=flushed.files, deletes=old.deletes, removed=old.removed)
    except CommitUnknown:
        raise
    except (ModakError, adbc_driver_manager.Error, OSError) as cause:
        resume.abandon_plain(context, operation)
        if _is_rewritten(context):
            raise _Rewritten(f"{context.table.name} was rewritten or altered meanwhile: the copy starts over") from cause
        raise
    failpoint("copy.after_commit")
    operation = journal.note_commit(context, operation, commit)
    publish_copy(context, operation, commit)
    return flushed.rows
