"""Files of decoupled tables that no snapshot has: what a gateway had written when it died, before anybody could know of it.

Only names of our own making are looked at, since other engines write to these folders too, and only old ones: a transaction that has
written and not committed yet is known to its own gateway alone.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from modak.catalog import ownership
from modak.catalog.migrate import SQL
from modak.core.decoupled import Definition
from modak.lake import reachable
from modak.lake.failures import lake_failures
from modak.lake.listing import Listed, files_below
from modak.lake.storage import io_properties
from modak.scan.paths import readable

if TYPE_CHECKING:
    from modak.gateway.decoupled.world import World

log = logging.getLogger("modak.gateway")

# Above what parcels may be old when they are committed.
AGE = timedelta(hours=24)
_EVERY_SECONDS = 24 * 3600.0
# Maintenance has a number for each of its tasks.
_OURS = re.compile(r"([0-9a-f]{32})(?:-[0-9]+)?-[0-9a-f]{12}(-deletes)?\.parquet")


def sweep_next(world: World) -> int:
    """One table whose turn it is; how many files went. Gateways share the work, and a standby has none."""
    with world.connection() as connection:
        row = connection.execute(SQL.query("next_to_sweep"), {"seconds": _EVERY_SECONDS}).fetchone()
        if row is None:
            return 0
        # A copy of a database must not tidy up in the lake of the original.
        ownership.check_lake(connection)
        if connection.execute(SQL.query("note_sweep"), row | {"seconds": _EVERY_SECONDS}).fetchone() is None:
            return 0
    return sweep(world, world.definition(row["table_id"]))


def sweep(world: World, definition: Definition, *, older_than: timedelta = AGE) -> int:
    """Remove files of this age that neither a snapshot nor the journal knows; returns how many."""
    lake = world.lake(definition.profile)
    table = lake.find_table(definition.ref)
    if table is None:
        return 0
    limit = datetime.now(UTC) - older_than
    with lake_failures(f"the files of {definition.ref}", lake.storage):
        listed = files_below(f"{table.location().rstrip('/')}/data", io_properties(lake.storage))
        old = [file.location for file in listed if _is_old(file, limit)]
        journaled = {intention.commit_id for intention in world.settled.open_intentions()}
        old = [location for location in old if _writer_of(location) not in journaled]
        if not old:
            return 0
        # Read after the listing: a commit that came meanwhile is known.
        known = {readable(path) for path in reachable.referred(table.refresh())}
        left = [location for location in old if readable(location) not in known]
        if left:
            log.info("%s files of %s belong to no snapshot and are removed", len(left), definition.ref)
        return reachable.remove(table.io, left)


def _is_old(file: Listed, limit: datetime) -> bool:
    return file.modified is not None and file.modified <= limit and _writer_of(file.location) is not None


def _writer_of(location: str) -> str | None:
    """The commit or the parcel that the file was written for."""
    found = _OURS.fullmatch(location.rpartition("/")[2])
    return found[1] if found else None
