"""New files on their way into the lake: from staged loads, or from a bulk ingest. Rows with the same key give way to them.

A row of the lake is deleted by its position, in the files that may hold it and no others; among the new files themselves the newest
wins; corrections that are older are cleared, and newer ones stay on top. All of it in one stamped commit and one publication.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.manifest import DataFile as IcebergFile

from modak.catalog import operations
from modak.catalog.operations import Operation
from modak.core.cutline import Cutline
from modak.core.tier_key import KEY_MAX, KEY_MIN
from modak.errors import Refused
from modak.jobs import foreign, journal
from modak.jobs.context import JobContext
from modak.jobs.incoming_tasks import Competing, IncomingTask, Part, Replacing, Settled, Telling
from modak.jobs.restore import Restored
from modak.jobs.tasks import TASKS_PER_CORE, Spread, grouped
from modak.lake import commits
from modak.lake.change import PositionDeletes
from modak.lake.commits import Commit
from modak.scan.manifests import uncommitted
from modak.scan.snapshot import DataFile, Snapshot
from modak.source.corrections import Corrections
from modak.source.incoming import Incoming, keys_name

Span = tuple[int, int]


@dataclass(frozen=True)
class NewFile:
    """A finished file that nobody sees yet. ``version`` says how it stands to corrections and to other new files."""

    file: IcebergFile
    version: int


@dataclass(frozen=True)
class _Known:
    """A new file as readers know files, and the tier keys it spans, both ends included."""

    file: DataFile
    version: int
    span: Span


def find_replaced(
    context: JobContext, operation: Operation, files: Sequence[NewFile], line: Cutline, *, checks_repeats: bool = False
) -> list[PositionDeletes]:
    """Delete files for every row that gives way; corrections that do are noted for the publication."""
    table = context.lake_table()
    published = context.cold(table, line.snapshot)
    relation = context.relation()
    incoming = Incoming(context.shape(relation), relation, operation.op_id)
    known = _known(context, published, files)
    parts = [*_replacing(context, published, known, incoming), *_competing(known, incoming, checks_repeats=checks_repeats)]
    telling = _telling(context, known, incoming)
    if telling:
        incoming.create_keys(context.connection)
    columns = {column.name: column for column in context.columns(relation)}
    task = IncomingTask(
        dsn=context.dsn,
        op_id=operation.op_id,
        target=context.target(table),
        storage=context.lake.storage,
        key_fields=tuple(published.field(name) for name in context.table.primary_key_cols),
        columns=tuple(Restored.of(column, columns[column.name]) for column in incoming.columns),
        column_fields=tuple(published.field(column.name) for column in incoming.columns),
        keys_table='"{0.schema}"."{0.name}"'.format(keys_name(context.table_id, operation.op_id)),
        checks_repeats=checks_repeats,
        parts=(*parts, *telling),
    )
    settled = _run(context, task)
    repeated = next((one.repeated for one in settled if one.repeated is not None), None)
    if repeated is not None:
        columns_text = ", ".join(context.table.primary_key_cols)
        raise Refused(f"two rows have the key ({columns_text}) = ({repeated})", hint="a key may appear once only; nothing was taken in")
    if telling:
        incoming.record_replaced(context.connection)
    return [written for one in settled for written in one.deletes]


def commit_files(
    context: JobContext, operation: Operation, files: Sequence[NewFile], deletes: Sequence[PositionDeletes], stamps: Mapping[str, str]
) -> tuple[Operation, Commit]:
    with context.progress.task("Committing to the lake"):
        table = context.lake_table()
        foreign.refuse_unknown(context, table, frozenset())
        commit = commits.change(table, journal.stamps(operation, **stamps), added=[one.file for one in files], deletes=deletes)
    return journal.note_commit(context, operation, commit), commit


def _known(context: JobContext, published: Snapshot, files: Sequence[NewFile]) -> list[_Known]:
    plain = [uncommitted(one.file, published.spec_id) for one in files]
    spans = _spans(replace(published, files=tuple(plain)), context.table.tier_key_col)
    return [_Known(file, one.version, span) for file, one, span in zip(plain, files, spans, strict=True)]


def _spans(snapshot: Snapshot, tier_key: str) -> list[Span]:
    """A bound that is not known says nothing, so that such a file is looked into."""
    ranges = snapshot.ranges(snapshot.field(tier_key))
    return [(KEY_MIN if one.low is None else one.low, KEY_MAX if one.high is None else one.high) for one in ranges]


def _replacing(context: JobContext, published: Snapshot, known: Sequence[_Known], incoming: Incoming) -> Iterator[Part]:
    spans = _spans(published, context.table.tier_key_col)
    places = [
        place
        for place, file in enumerate(published.files)
        if file.rows and (not incoming.key_says_place or any(_meet(spans[place], one.span) for one in known))
    ]
    for files, low, high in grouped(published.files, spans, places, context.cores * TASKS_PER_CORE):
        near = [one.file for one in known if not incoming.key_says_place or _meet((low, high), one.span)]
        yield Replacing(files, tuple(near))


def _competing(known: Sequence[_Known], incoming: Incoming, *, checks_repeats: bool) -> Iterator[Part]:
    """Files whose keys may meet, as far as that is known from the tier keys they span."""
    group: list[_Known] = []
    for one in sorted(known, key=lambda one: one.span):
        if group and incoming.key_says_place and one.span[0] > max(other.span[1] for other in group):
            yield from _contest(group, checks_repeats=checks_repeats)
            group = []
        group.append(one)
    yield from _contest(group, checks_repeats=checks_repeats)


def _contest(group: Sequence[_Known], *, checks_repeats: bool) -> Iterator[Part]:
    if group and (checks_repeats or len({one.version for one in group}) > 1):
        yield Competing(tuple(one.file for one in group), tuple(one.version for one in group))


def _telling(context: JobContext, known: Sequence[_Known], incoming: Incoming) -> list[Part]:
    """Postgres has to know keys where it may have corrections of them; where a key does not say its place, all of them."""
    told = known
    if incoming.key_says_place:
        newest = max((one.version for one in known), default=0)
        corrections = Corrections(incoming.shape, incoming.relation)
        told = [known[place] for place in corrections.touched(context.connection, newest, [one.span for one in known])]
    return [Telling(one.file, one.version) for one in told]


def _meet(one: Span, other: Span) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _run(context: JobContext, task: IncomingTask) -> list[Settled]:
    if not task.parts:
        return []
    job = Spread(context.spark, task.run, len(task.parts), "incoming")
    with context.progress.task("Looking for rows to replace", total=len(task.parts)) as bar:
        while not job.wait(0.2):
            bar.note(f"{operations.rows_done(context.connection, task.op_id):,} rows")
    return job.result()
