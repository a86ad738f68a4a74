"""A commit that Postgres rolled back comes out of the lake again, whole; or it stays, whole, where later commits rest on it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.failpoints import failpoint
from modak.lake import commits
from modak.lake.change import LakeMoved
from modak.lake.failures import lake_failures
from modak.lake.iceberg import IcebergLake
from modak.lake.listing import files_below
from modak.lake.storage import io_properties
from modak.lake.undo import Found, find, undo

if TYPE_CHECKING:
    from modak.gateway.decoupled.arrivals import Awaited
    from modak.gateway.decoupled.world import World

log = logging.getLogger("modak.gateway")

COMMIT_ID = "modak.commit-id"
_RETRIES = 20
_EXPIRED = "its snapshot has expired, and later ones have its files"
_WRITTEN_TO = "others have written to the table that it created"
_FORGOTTEN = "Postgres does not remember what became of its transaction"
_WITH_THE_REST = "another table of the same transaction cannot go back"
Change = dict[str, Any]


@dataclass(frozen=True)
class Journaled:
    """One intention. ``changes`` are its tables: changes and creations that Postgres's commit confirms, drops that come after it."""

    commit_id: str
    xid: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Kept:
    """One table's part of a commit that stays though Postgres did not confirm it."""

    profile: str
    ref: str
    snapshot_id: int | None
    reason: str


@dataclass(frozen=True)
class _Look:
    """``is_there``: the commit is part of the table. ``obstacle``: why it cannot be taken out. ``number``: the table's last one, if it is
    there still."""

    is_there: bool
    found: Found | None = None
    obstacle: str | None = None
    number: int | None = None

    def kept(self, change: Change) -> Kept:
        snapshot_id = self.found.snapshot.snapshot_id if self.found is not None else None
        return Kept(change["profile"], change["ref"], snapshot_id, self.obstacle or _WITH_THE_REST)


def take_back(world: World, intention: Journaled, awaited: Awaited | None = None) -> list[Kept] | None:
    """What had to stay: nothing, as a rule. All tables are looked at before one is touched.

    None where some of it is ``awaited``: it is not there and may be yet, so its files stay.
    """
    looks = [(change, _look(world, intention, change)) for change in intention.changes if change["kind"] != "drop"]
    if any(look.obstacle for _, look in looks):
        return [look.kept(change) for change, look in looks if look.is_there]
    failpoint("decoupled.before_undo")
    absent = [(change, look) for change, look in looks if not look.is_there] if awaited is not None else []
    # Of each of them, so that each is known by what it was like at the first look.
    if awaited is not None and sum(awaited.may_come(change, look.number) for change, look in absent):
        for change, look in reversed(looks):
            if look.is_there:
                _take_out(world, intention, change)
        return None
    taken = [(change, _take_out(world, intention, change)) for change, _ in reversed(looks)]
    # Only where somebody who takes no turns came between the look and this.
    return [look.kept(change) for change, look in taken if look.obstacle]


def leave(world: World, intention: Journaled) -> list[Kept]:
    """All of it that is there, where nobody can tell what became of its transaction."""
    looks = [(change, _look(world, intention, change)) for change in intention.changes if change["kind"] != "drop"]
    return [replace(look.kept(change), reason=_FORGOTTEN) for change, look in looks if look.is_there]


def _look(world: World, intention: Journaled, change: Change) -> _Look:
    lake = world.lake(change["profile"])
    table = lake.find_table(change["ref"])
    if table is None:
        return _Look(is_there=False)
    if change["kind"] == "create":
        is_there = table.properties.get(COMMIT_ID) == intention.commit_id
        is_alone = all(commits.stamps_of(one).get(COMMIT_ID) == intention.commit_id for one in table.snapshots())
        return _Look(is_there, obstacle=_WRITTEN_TO if is_there and not is_alone else None)
    with lake_failures(change["ref"], lake.storage):
        look = _look_at(world, lake, table, intention, change)
    is_same = str(table.metadata.table_uuid) == change.get("uuid")
    return replace(look, number=getattr(table.metadata, "last_sequence_number", None) if is_same else None)


def _look_at(world: World, lake: IcebergLake, table: Table, intention: Journaled, change: Change) -> _Look:
    found = find(table, COMMIT_ID, intention.commit_id)
    if found is not None:
        return _Look(True, found, found.obstacle)
    current = table.current_snapshot()
    if current is None:
        return _Look(is_there=False)
    now = world.tables.snapshot(table.metadata_location, current.sequence_number, io_properties(lake.storage))
    names = _prefixes(intention, change)
    live = any(path.rpartition("/")[2].startswith(names) for file in now.files for path in (file.path, *(one.path for one in file.deletes)))
    return _Look(live, obstacle=_EXPIRED if live else None)


def _take_out(world: World, intention: Journaled, change: Change) -> _Look:
    lake = world.lake(change["profile"])
    if change["kind"] == "create":
        look = _look(world, intention, change)
        if look.is_there and not look.obstacle:
            lake.drop(change["ref"], purge=True)
        return look
    for _ in range(_RETRIES):
        table = lake.find_table(change["ref"])
        if table is None:
            return _Look(is_there=False)
        with lake_failures(change["ref"], lake.storage):
            look = _look_at(world, lake, table, intention, change)
            if look.obstacle:
                return look
            try:
                is_referred = undo(table, COMMIT_ID, intention.commit_id, look.found)
            except LakeMoved:
                continue
            if look.is_there:
                log.warning("commit %s was taken out of %s: Postgres rolled its transaction back", intention.commit_id, change["ref"])
            if not is_referred:
                _remove_files(lake, table, _prefixes(intention, change))
            return _Look(is_there=False)
    raise LakeMoved(
        f"others commit to {change['ref']} faster than a commit can be taken out of it",
        hint="nothing to do: it is tried again by itself",
        commit_id=intention.commit_id,
    )


def _prefixes(intention: Journaled, change: Change) -> tuple[str, ...]:
    """What names of files begin with that were written for this commit alone."""
    return (intention.commit_id, *change.get("parcels", ()))


def _remove_files(lake: IcebergLake, table: Table, names: tuple[str, ...]) -> None:
    for file in files_below(f"{table.location().rstrip('/')}/data", io_properties(lake.storage)):
        if file.location.rpartition("/")[2].startswith(names):
            table.io.delete(file.location)


def tell(connection: Connection, intention: Journaled, kept: list[Kept]) -> None:
    """In the log, and where `modak status` and the console find it."""
    for one in kept:
        log.error(
            "commit %s STAYS in %s though Postgres did not confirm its transaction %s: %s",
            *(intention.commit_id, one.ref, intention.xid, one.reason),
        )
        given = {"commit_id": intention.commit_id, "xid": intention.xid, "profile": one.profile, "ref": one.ref}
        connection.execute(SQL.query("keep_lake_commit"), given | {"snapshot_id": one.snapshot_id, "reason": one.reason})
