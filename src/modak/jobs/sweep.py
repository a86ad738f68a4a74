"""Sweep: files that a load wrote before it died, which no label names. Nobody reads them; they only take room."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyiceberg.io import load_file_io

from modak.catalog import migrate
from modak.jobs.context import JobContext
from modak.lake.iceberg import failures
from modak.lake.listing import files_below
from modak.lake.storage import pyiceberg_properties
from modak.load.spool import PREFIX
from modak.scan.paths import readable

# A load that is under way has written files and no label yet.
AGE = timedelta(hours=24)


def sweep(context: JobContext, *, older_than: timedelta = AGE) -> int:
    """Remove spool files of this age that no label names, staged or committed; returns how many."""
    storage = context.lake.storage
    properties = pyiceberg_properties(storage)
    with failures(f"the files of {context.table.lake_table_ref}", storage):
        folder = context.lake_table().location().rstrip("/") + "/data"
        limit = datetime.now(UTC) - older_than
        old = [
            file.location
            for file in files_below(folder, properties)
            if file.location.rsplit("/", 1)[-1].startswith(PREFIX) and (file.modified is None or file.modified < limit)
        ]
        # Asked after the listing: a label that came meanwhile is known.
        rows = context.connection.execute(migrate.SQL.query("list_spooled"), {"table_id": context.table_id}).fetchall()
        named = {readable(row["file"]) for row in rows}
        orphans = [location for location in old if readable(location) not in named]
        io = load_file_io(properties, folder)
        for location in orphans:
            io.delete(location)
    return len(orphans)
