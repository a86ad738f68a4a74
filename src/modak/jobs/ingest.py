"""Ingest: history in files becomes part of the lake, all of it in one commit, without passing by the heap or the driver.

Rows replace those with the same key. They are checked as the heap would check them, by Postgres, in tasks side by side; a row at or above
T, one below R, or one that a constraint refuses, refuses everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import load_file_io

from modak.catalog import migrate, operations, tables
from modak.catalog.operations import Operation
from modak.core.cutline import Cutline
from modak.core.operation import OperationKind
from modak.core.partition import PartitionState
from modak.core.table import Relation
from modak.errors import Problem, Refused
from modak.failpoints import failpoint
from modak.jobs import evolve, foreign, resume
from modak.jobs.columns import surface_follows
from modak.jobs.context import JobContext, reported
from modak.jobs.incoming import NewFile, commit_files, find_replaced
from modak.jobs.ingest_tasks import Ingested, IngestTask, Piece
from modak.jobs.publishing.incoming import publish_incoming
from modak.jobs.tasks import Spread
from modak.lake.failures import failures
from modak.lake.listing import Listed, find_files
from modak.lake.storage import io_properties
from modak.registration import rebuild
from modak.source import spilled
from modak.source.incoming import Incoming

JOB = "ingest"
PIECE_BYTES = 64 * 1024 * 1024
PIECE_ROWS = 1_000_000
SUFFIXES = {"parquet": ".parquet", "jsonl": ".jsonl"}


@dataclass(frozen=True)
class IngestOutcome:
    sources: int = 0
    files: int = 0
    rows: int = 0
    rows_replaced: int = 0
    corrections: int = 0
    snapshot: int | None = None
    resumed: tuple[str, ...] = ()
    op_id: str | None = None


def ingest(context: JobContext, places: Sequence[str], kind: str, *, split: bool = False) -> IngestOutcome:
    """Take these files in, or nothing. ``split``: a file may hold rows of several partitions of the lake."""
    with reported(context, JOB):
        return _ingest(context, places, kind, split=split)


def _ingest(context: JobContext, places: Sequence[str], kind: str, *, split: bool) -> IngestOutcome:
    properties = io_properties(context.lake.storage)
    sources = list({one.location: one for place in places for one in find_files(place, properties, SUFFIXES[kind])}.values())
    finished = resume.resume_all(context)
    foreign.settle(context, "refuse")
    relation = context.relation()
    _refuse_kind(context, relation)
    surface_follows(context, relation)
    evolve.follow(context, relation)
    line = tables.cutline(context.connection, context.table_id)
    row = context.connection.execute(migrate.SQL.query("next_version")).fetchone()
    assert row is not None
    details = {
        "old_tier_key_hi": line.tier_key_hi,
        "old_snapshot": line.snapshot,
        "version": row["version"],
        "sources": len(sources),
    }
    operation = operations.start(context.connection, context.table_id, OperationKind.INGEST, details)
    failpoint("ingest.after_journal")
    with resume.given_up_on_failure(context, operation, resume.abandon_incoming):
        made = _take_in(context, operation, sources, kind, line, split=split)
        files = [NewFile(file, row["version"]) for one in made for file in one.files]
        failpoint("ingest.after_files")
        if not files:
            resume.abandon_incoming(context, operation)
            return IngestOutcome(sources=len(sources), resumed=finished)
        deletes = find_replaced(context, operation, files, line, checks_repeats=True)
        _refuse_copies(context, operation, made)
        operation, commit = commit_files(context, operation, files, deletes, {})
    failpoint("ingest.after_commit")
    with resume.given_up_on_failure(context, operation, resume.abandon_incoming):
        operation = publish_incoming(context, operation, commit)
    failpoint("ingest.after_publish")
    return IngestOutcome(
        sources=len(sources),
        files=len(files),
        rows=sum(one.rows for one in made),
        rows_replaced=sum(one.file.record_count for one in deletes),
        corrections=int(operation.details["corrections"]),
        snapshot=commit.sequence_number,
        resumed=finished,
        op_id=operation.op_id,
    )


def _refuse_kind(context: JobContext, relation: Relation) -> None:
    """Tables whose rows have to pass by the heap."""
    table, found = context.table, list[Problem]()
    stream = "load them with Stream Load, which goes by the heap"
    if not table.has_seam:
        found.append(Problem("mode", f"{table.name} is mirrored: its heap is the truth", "write to it with plain SQL"))
    if table.keep_heap:
        found.append(Problem("keep_heap", f"{table.name} keeps its heap, and rows of the lake alone would be missing there", stream))
    made = [column.name for column in relation.columns if column.generated or column.identity == "a"]
    if made:
        found.append(Problem("generated", f"only the heap makes the values of {', '.join(made)}", stream))
    if found:
        raise Refused(f"{table.name} takes no files", found, hint="nothing was changed")


def _take_in(
    context: JobContext, operation: Operation, sources: Sequence[Listed], kind: str, line: Cutline, *, split: bool
) -> list[Ingested]:
    with failures("the files to ingest", context.lake.storage):
        pieces = [piece for source in sources for piece in _pieces(source, kind, context)]
    relation = context.relation()
    named = {column.name: column for column in context.columns(relation)}
    lake = context.lake_table()
    task = IngestTask(
        dsn=context.dsn,
        op_id=operation.op_id,
        name=context.table.name,
        target=context.target(lake),
        storage=context.lake.storage,
        columns=tuple(named[field.name] for field in lake.schema().fields),
        line=line.tier_key_hi,
        floor=line.retention_line,
        pieces=tuple(pieces),
    )
    made = _run(context, task)
    refused = next(((piece, one) for piece, one in zip(pieces, made, strict=True) if one.refused is not None), None)
    if refused is not None:
        piece, one = refused
        raise Refused(f"{piece.location}: {one.refused}", hint=one.hint or "nothing was taken in", file=piece.location)
    _refuse_bands(context, pieces, made, split=split)
    _refuse_standing(context, made)
    return made


def _pieces(source: Listed, kind: str, context: JobContext) -> Iterator[Piece]:
    """A file in parts that a task can hold in Postgres's temporary space."""
    if kind == "jsonl":
        for start in range(0, max(source.bytes, 1), PIECE_BYTES):
            yield Piece(source.location, kind, start, min(start + PIECE_BYTES, source.bytes))
        return
    properties = io_properties(context.lake.storage)
    with load_file_io(properties, source.location).new_input(source.location).open() as file:
        try:
            footer = pq.read_metadata(file)
        except pa.ArrowInvalid as cause:
            said = str(cause).splitlines()[0]
            hint = "nothing was taken in; files of JSON lines are given with --jsonl"
            raise Refused(f"{source.location} is no Parquet file that can be read: {said}", hint=hint) from cause
    start = rows = size = 0
    for group in range(footer.num_row_groups):
        found = footer.row_group(group)
        if group > start and (rows + found.num_rows > PIECE_ROWS or size + found.total_byte_size > 4 * PIECE_BYTES):
            yield Piece(source.location, kind, start, group)
            start, rows, size = group, 0, 0
        rows, size = rows + found.num_rows, size + found.total_byte_size
    yield Piece(source.location, kind, start, footer.num_row_groups)


def _run(context: JobContext, task: IngestTask) -> list[Ingested]:
    job = Spread(context.spark, task.run, len(task.pieces), "ingest")
    with context.progress.task(f"Reading {len(task.pieces)} pieces of files", total=len(task.pieces)) as bar:
        while not job.wait(0.2):
            bar.note(f"{operations.rows_done(context.connection, task.op_id):,} rows")
    return job.result()


def _refuse_bands(context: JobContext, pieces: Sequence[Piece], made: Sequence[Ingested], *, split: bool) -> None:
    if split or context.table.layout == "none":
        return
    bands: dict[str, set[object]] = {}
    for piece, one in zip(pieces, made, strict=True):
        bands.setdefault(piece.location, set()).update(file.partition[0] for file in one.files)
    for location, found in bands.items():
        if len(found) > 1:
            raise Refused(
                f"{location} holds rows of {len(found)} partitions of the lake ({context.table.layout})",
                hint="give one file for each, or let them be cut apart with --split; nothing was taken in",
                file=location,
            )


def _refuse_standing(context: JobContext, made: Sequence[Ingested]) -> None:
    """A tiered partition that still stands in the heap is compared with the lake before it goes: no rows may come beside it."""
    spans = [(one.low, one.high) for one in made if one.low is not None and one.high is not None]
    for part in tables.partitions(context.connection, context.table_id):
        if part.state is PartitionState.TIERED and any(low < part.upper and high >= part.lower for low, high in spans):
            raise Refused(
                f"partition {part.schema}.{part.name} is tiered and not dropped yet, and rows would come beside it",
                hint="run `modak tier` until it is dropped (`modak status` says what it waits for), then ingest again",
            )


def _refuse_copies(context: JobContext, operation: Operation, made: Sequence[Ingested]) -> None:
    """A late row that is folded may have to stay in the heap, and must be what the lake says. Whatever comes after this look is newer."""
    spans = [(one.low, one.high) for one in made if one.low is not None and one.high is not None]
    relation = context.relation()
    incoming = Incoming(context.shape(relation), relation, operation.op_id)
    with context.connection.transaction():
        _, stay = spilled.leaving(context.connection, rebuild.spills(context.table, relation))
        for spill in stay:
            if incoming.meets(context.connection, spill, spans):
                raise Refused(
                    f"late rows stay in {spill} because of foreign keys or triggers, and rows of the same keys would come beside them",
                    hint="load them with Stream Load, which goes by the heap; nothing was taken in",
                )
