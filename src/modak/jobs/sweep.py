"""Sweep: files in the lake's folders that nothing refers to. Nobody reads them; they only take room.

What operations of ours left when they were given up is known by its name and goes by itself. Of everything else only the lake's owner can
say that it is nobody's work, so that is for whoever asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta

from pyiceberg.table import Table

from modak.catalog import migrate, operations
from modak.catalog.operations import Operation
from modak.core.operation import Phase
from modak.jobs.context import JobContext
from modak.jobs.publishing.seam import SEAM_LOCK
from modak.lake import reachable
from modak.lake.failures import failures
from modak.lake.listing import Listed, files_below
from modak.lake.storage import io_properties
from modak.load.spool import PREFIX
from modak.scan.paths import readable

# Files that a load has written lately may be asked for again by whoever sends it; see also _loads_are_over.
AGE = timedelta(hours=24)
LOADS_SECONDS_MAX = 5.0
# Tasks that outlive their driver may write for so long.
TASK_AGE = timedelta(hours=1)


def sweep(context: JobContext, *, older_than: timedelta = AGE) -> int:
    """Remove spool files of this age that no label names, staged or committed; returns how many."""
    with failures(f"the files of {context.table.lake_table_ref}", context.lake.storage):
        table = context.lake_table()
        old = [one.location for one in _old(context, table, "data", older_than) if _is_spooled(one)]
        return reachable.remove(table.io, _unknown(old, _spooled(context))) if _loads_are_over(context) else 0


def sweep_abandoned(context: JobContext, *, older_than: timedelta = TASK_AGE) -> int:
    """Remove what operations wrote that were given up since the last time; returns how many files."""
    seconds = older_than.total_seconds()
    rows = context.connection.execute(migrate.SQL.query("list_unswept"), {"table_id": context.table_id, "seconds": seconds}).fetchall()
    given_up = [operations.from_row(row) for row in rows]
    if not given_up:
        return 0
    ids = tuple(operation.op_id for operation in given_up)
    with failures(f"the files of {context.table.lake_table_ref}", context.lake.storage):
        table = context.lake_table()
        left = [one.location for one in _old(context, table, "data", timedelta(0)) if _name(one).startswith(ids)]
        # Its commit may have come late, and stand in a snapshot that has not expired yet.
        removed = reachable.remove(table.io, _unknown(left, reachable.referred(table.refresh()))) if left else 0
    for operation in given_up:
        _mark(context, operation)
    return removed


def orphans(context: JobContext, *, older_than: timedelta, dry_run: bool = False) -> int:
    """Remove every file of this age that neither the table nor a label nor an open operation knows; returns how many.

    A load's files are there before its label, for as long as the load takes: those wait for whoever may be writing some.
    """
    with failures(f"the files of {context.table.lake_table_ref}", context.lake.storage):
        # What is referred to is read after the listing: a commit that came meanwhile is known.
        table = context.lake_table()
        found = [one for folder in ("data", "metadata") for one in _old(context, table, folder, older_than)]
        if any(_is_spooled(one) for one in found):
            limit, are_over = datetime.now(UTC) - max(older_than, AGE), _loads_are_over(context)
            found = [one for one in found if not _is_spooled(one) or (are_over and _is_older(one, limit))]
        open_ids = tuple(operation.op_id for operation in operations.open_operations(context.connection, context.table_id))
        ours = [one.location for one in found if not (open_ids and _name(one).startswith(open_ids))]
        unknown = _unknown(ours, reachable.referred(table.refresh()) | _spooled(context) | _published(context))
        return len(unknown) if dry_run else reachable.remove(table.io, unknown)


def _old(context: JobContext, table: Table, folder: str, older_than: timedelta) -> Iterator[Listed]:
    limit = datetime.now(UTC) - older_than
    place = f"{table.location().rstrip('/')}/{folder}"
    for file in files_below(place, io_properties(context.lake.storage)):
        if _is_older(file, limit):
            yield file


def _is_older(file: Listed, limit: datetime) -> bool:
    return file.modified is None or file.modified <= limit


def _is_spooled(file: Listed) -> bool:
    return _name(file).startswith(PREFIX)


def _loads_are_over(context: JobContext) -> bool:
    """Whether everybody who may have been writing files when they were listed has committed or given up; waits a little for it."""
    until = time.monotonic() + LOADS_SECONDS_MAX
    before = _writers(context)
    while before & _writers(context):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _writers(context: JobContext) -> set[str]:
    keys = {"space": SEAM_LOCK >> 32, "table_id": context.table_id}
    return {str(row["transaction"]) for row in context.connection.execute(migrate.SQL.query("list_seam_holders"), keys).fetchall()}


def _name(file: Listed) -> str:
    return file.location.rsplit("/", 1)[-1]


def _spooled(context: JobContext) -> set[str]:
    """Asked after the listing: a label that came meanwhile is known."""
    rows = context.connection.execute(migrate.SQL.query("list_spooled"), {"table_id": context.table_id}).fetchall()
    return {row["file"] for row in rows}


def _published(context: JobContext) -> set[str]:
    """Metadata files that readers of a published S may open."""
    queries = [migrate.SQL.query(name) for name in ("list_published", "list_named_metadata")]
    rows = [row for query in queries for row in context.connection.execute(query, {"table_id": context.table_id}).fetchall()]
    return {row["metadata_location"] for row in rows if row["metadata_location"] is not None}


def _unknown(locations: Collection[str], known: Collection[str]) -> list[str]:
    named = {readable(path) for path in known}
    return [location for location in locations if readable(location) not in named]


def _mark(context: JobContext, operation: Operation) -> None:
    operations.move(context.connection, operation, Phase.ABANDONED, details={"swept": True})
