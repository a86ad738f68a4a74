"""Retain: cold rows that lie further behind the cut-line than the table's retention leave the lake, and R says so.

R stands where bands of the lake's layout meet, so whole data files go, by metadata alone; of a file that lies across R, somebody else's,
the rows below are deleted by position. One stamped commit, then one short transaction in which R and S move and the corrections below R
are purged. The older snapshots stay until maintenance expires them, and whoever pinned one still reads it.

A reader is misled only if it fetches corrections apart from its snapshot: it would find those of expired rows gone, and see the rows as
they were before. Such pins (``holds_delta``) defer the pass. Any other reader took S and its corrections in one snapshot of Postgres,
which shows it both for as long as it lives, however old its S is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from modak.catalog import migrate, operations, tables
from modak.catalog.operations import Operation
from modak.core import policy
from modak.core.cutline import Cutline
from modak.core.lag import Lag
from modak.core.operation import OperationKind
from modak.core.table import Relation
from modak.failpoints import failpoint
from modak.jobs import foreign, journal, resume
from modak.jobs.columns import surface_follows
from modak.jobs.context import JobContext, reported
from modak.jobs.fold_tasks import read_keys
from modak.jobs.publishing.retain import publish_retention
from modak.jobs.publishing.seam import Pinned, refuse_pinned
from modak.jobs.tasks import engine_cursor, write_found
from modak.lake import commits
from modak.lake.commits import Commit
from modak.lake.delete_files import Positions
from modak.scan.positions import key_number, positions_of_keys, positions_where
from modak.scan.snapshot import DataFile, Field, Snapshot
from modak.source import heap
from modak.source.expiring import Expiring
from modak.source.partitions import newest_key

JOB = "retain"
RETENTION_LINE = "modak.retention-line"
# Strayed corrections are looked up in this process, which no large lake may keep busy; beyond, tombstones stay for the fold to carry.
STRAYED_MAX = 100_000
STRAYED_ROWS_MAX = 100_000_000


@dataclass(frozen=True)
class RetainOutcome:
    """What a pass did. ``files`` went whole, ``rows`` are the lake's; ``waiting`` says why nothing was done."""

    retention_line: int | None = None
    files: int = 0
    rows: int = 0
    corrections: int = 0
    snapshot: int | None = None
    op_id: str | None = None
    waiting: str | None = None
    resumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expired:
    """What of a snapshot lies below R: files that go, and rows of files that stay."""

    files: tuple[DataFile, ...]
    kept: tuple[DataFile, ...]
    doomed: Mapping[str, Positions]

    def __bool__(self) -> bool:
        return bool(self.files or self.doomed)

    @property
    def rows(self) -> int:
        deleted = {file.path: sum(delete.rows for delete in file.deletes if delete.target is not None) for file in self.files}
        return sum(max(0, file.rows - deleted[file.path]) for file in self.files) + sum(map(len, self.doomed.values()))


def retain(context: JobContext) -> RetainOutcome:
    """Expire what is due now. A failure is written to modak.problems and raised."""
    with reported(context, JOB):
        return _retain(context)


def _retain(context: JobContext) -> RetainOutcome:
    finished = resume.resume_all(context)
    if context.table.lake_retention_lag is None:
        never = f"no retention: its rows are kept for ever; `modak policy {context.table.name} lake_retention=…` says for how long"
        return RetainOutcome(waiting=never, resumed=finished)
    foreign.settle(context, "refuse")
    relation = context.relation()
    surface_follows(context, relation)
    line = tables.cutline(context.connection, context.table_id)
    published = context.cold(context.lake_table(), line.snapshot)
    key = published.field(context.table.tier_key_col)
    wanted = _line(context, relation, line, published, key)
    if wanted is None:
        return RetainOutcome(resumed=finished)
    expired = _expired(context, published, key, wanted)
    if wanted == line.retention_line and not expired:
        context.connection.execute(migrate.SQL.query("forget_expired_partitions"), {"table_id": context.table_id, "retention_line": wanted})
        return RetainOutcome(wanted, resumed=finished)
    try:
        refuse_pinned(context)
        return replace(_expire(context, relation, line, published, expired, wanted), resumed=finished)
    except Pinned as pinned:
        return RetainOutcome(line.retention_line, waiting=str(pinned), resumed=finished)


def _line(context: JobContext, relation: Relation, line: Cutline, published: Snapshot, key: Field) -> int | None:
    """The newest row decides, in whichever tier it stands: everything may be cold by now."""
    table, connection = context.table, context.connection
    assert table.lake_retention_lag is not None
    hot = newest_key(connection, relation, table.tier_key_col, table.key_type)
    known = [found for found in (hot, *(values.high for values in published.ranges(key))) if found is not None]
    staged = connection.execute(migrate.SQL.query("lowest_staged_key"), {"table_id": table.table_id}).fetchone()
    return policy.retention_line(
        line,
        max(known) if known else None,
        Lag.parse(table.lake_retention_lag, table.key_type),
        layout=table.layout,
        lowest_staged=staged["lowest"] if staged else None,
        key_type=table.key_type,
        partitions=tables.partitions(connection, table.table_id),
    )


def _expired(context: JobContext, published: Snapshot, key: Field, line: int) -> Expired:
    whole, across, above = list[DataFile](), list[DataFile](), list[DataFile]()
    for file, values in zip(published.files, published.ranges(key), strict=True):
        if values.high is not None and values.high < line:
            whole.append(file)
        elif values.low is not None and values.low >= line:
            above.append(file)
        else:
            across.append(file)
    doomed: dict[str, Positions] = {}
    if across:
        condition = f"{key_number(key)} < {int(line)}"
        with engine_cursor(context.lake.storage) as cursor:
            for file in across:
                doomed |= positions_where(cursor, [file], key, condition)
    return Expired(tuple(whole), (*across, *above), doomed)


def _expire(context: JobContext, relation: Relation, before: Cutline, published: Snapshot, expired: Expired, line: int) -> RetainOutcome:
    details = {
        "old_tier_key_hi": before.tier_key_hi,
        "old_snapshot": before.snapshot,
        "old_retention_line": before.retention_line,
        "new_retention_line": line,
        "files": len(expired.files),
        "rows": expired.rows,
    }
    operation = operations.start(context.connection, context.table_id, OperationKind.RETENTION, details)
    failpoint("retain.after_journal")
    with resume.given_up_on_failure(context, operation, resume.abandon_fold):
        strayed = _strayed(context, Expiring(context.shape(relation), relation, line), published, expired.kept, operation.op_id)
        operation, commit = _commit(context, operation, expired, _joined(expired.doomed, strayed))
    operation = publish_retention(context, operation, commit)
    failpoint("retain.after_publish")
    return RetainOutcome(
        retention_line=line,
        files=len(expired.files),
        rows=expired.rows,
        corrections=int(operation.details["purged"]),
        snapshot=commit.sequence_number if commit else None,
        op_id=operation.op_id,
    )


def _strayed(context: JobContext, expiring: Expiring, published: Snapshot, kept: Iterable[DataFile], op_id: str) -> dict[str, Positions]:
    """Lake rows at or above R whose corrected image lies below it: they expired with that image."""
    files = [file for file in kept if file.rows]
    count = expiring.strayed(context.connection)
    if not count or count > STRAYED_MAX or sum(file.rows for file in files) > STRAYED_ROWS_MAX:
        return {}
    fields = [published.field(name) for name in context.table.primary_key_cols]
    with heap.exported_snapshot(context.dsn) as snapshot:
        with heap.within(context.dsn, snapshot) as session:
            expiring.record_strayed(session, op_id)
        keys = read_keys(context.dsn, snapshot.name, expiring.strayed_keys_sql(), context.target(context.lake_table()), fields)
    if not files or not keys.num_rows:
        return {}
    with engine_cursor(context.lake.storage) as cursor:
        return positions_of_keys(cursor, files, fields, keys)


def _joined(one: Mapping[str, Positions], more: Mapping[str, Positions]) -> dict[str, Positions]:
    """One delete file for each data file, whatever its rows go for."""
    empty = np.array([], dtype=np.int64)
    return {path: np.union1d(one.get(path, empty), more.get(path, empty)) for path in {**one, **more}}


def _commit(
    context: JobContext, operation: Operation, expired: Expired, doomed: Mapping[str, Positions]
) -> tuple[Operation, Commit | None]:
    """One stamped commit; none where the lake holds nothing that goes."""
    if not expired.files and not doomed:
        return operation, None
    stamps = journal.stamps(operation, **{RETENTION_LINE: str(operation.details["new_retention_line"])})
    with context.progress.task("Committing to the lake"):
        table = context.lake_table()
        deletes = write_found(context.target(table), operation.op_id, expired.kept, doomed) if doomed else ()
        foreign.refuse_unknown(context, table, frozenset())
        commit = commits.change(table, stamps, deletes=deletes, removed=[file.location for file in expired.files])
    failpoint("retain.after_commit")
    return journal.note_commit(context, operation, commit), commit
