"""Before anything is written to a lake table: is this the database that may?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from modak.catalog import ownership
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.errors import DatabaseMoved, LakeError, LakeTaken
from modak.lake import owner
from modak.lake.failures import failures
from modak.lake.iceberg import IcebergLake
from modak.lake.owner import Owner
from modak.lake.port import LakePointer
from modak.lake.storage import io_properties
from modak.registration.surface import oid_of
from modak.source.relation import find_by_oid

HINT = "`modak reconcile` says what to do (docs/guides/backup.md)"
# A job that had begun when another database took the table over is not stopped either, and most take longer than this.
KNOWN_SECONDS = 10.0


@dataclass
class Known:
    """Lake tables that were seen to be this database's a moment ago: a worker that follows a stream begins several jobs a second."""

    seconds: float = KNOWN_SECONDS
    clock: Callable[[], float] = time.monotonic
    _seen: dict[tuple[int, str, str], float] = field(default_factory=dict)

    def is_fresh(self, table: Registered, claim: str) -> bool:
        seen = self._seen.get(self._key(table, claim))
        return seen is not None and self.clock() - seen < self.seconds

    def note(self, table: Registered, claim: str) -> None:
        self._seen[self._key(table, claim)] = self.clock()

    @staticmethod
    def _key(table: Registered, claim: str) -> tuple[int, str, str]:
        """With the claim: where this database's own has changed, nothing is known."""
        return table.table_id, f"{table.storage_profile} {table.lake_table_ref}", claim


def check(connection: Connection, lake: IcebergLake, table: Registered, *, claim: bool = True, known: Known | None = None) -> None:
    """Refuse where another database owns the lake table. ``claim``: one that nobody has is this database's from now on.

    ``known``: what was seen there a moment ago is believed. This database's own side of it is looked at each time.
    """
    found = oid_of(connection, table.heap)
    if found and found != table.table_id and not _is_renamed(connection, table):
        raise DatabaseMoved(f"{table.heap} is another table than the one that was registered: this database was restored", hint=HINT)
    mine = ownership.claim(connection) if claim else ownership.find(connection)
    if mine is None:
        return
    if mine.claim is None:
        hint = "`modak reconcile --apply --owner this` takes it over"
        raise DatabaseMoved("this database is a copy that leaves the lake to another one", hint=hint)
    if not mine.home.is_same(ownership.here(connection)):
        raise DatabaseMoved("this database was restored or copied from another one", hint=HINT, came_from=mine.home.database_name)
    if known is not None and known.is_fresh(table, mine.claim):
        return
    theirs = _owner(lake, table, Owner(mine.claim, str(mine.home)) if claim else None)
    if theirs is None:
        return
    if theirs.claim != mine.claim:
        raise LakeTaken(f"lake table {table.lake_table_ref} belongs to another database by now", hint=HINT, owner=theirs.database)
    if known is not None:
        known.note(table, mine.claim)


def _is_renamed(connection: Connection, table: Registered) -> bool:
    """The old name of a mirrored table that was renamed may be another's by now; its jobs go by the OID."""
    return table.mode == "mirrored" and ownership.is_home(connection) and find_by_oid(connection, table.table_id) is not None


def _owner(lake: IcebergLake, table: Registered, new: Owner | None) -> Owner | None:
    """Who has the lake table; ``new`` from now on, if nobody. A job reports a lake that cannot be read itself; a purge must know."""
    properties = io_properties(lake.storage)
    try:
        pointer = lake.find(table.lake_table_ref)
        if pointer is None:
            return None
        with failures(f"the owner of {table.lake_table_ref}", lake.storage):
            found = owner.read(pointer.location, properties)
            if found is None and new is not None:
                owner.write(pointer.location, properties, new)
            return found
    except LakeError:
        if new is None:
            raise
        return None


def check_forgotten(connection: Connection, lake: IcebergLake, pointer: LakePointer) -> None:
    """Before a lake table is purged that no registration here has any more: in a copy it may be the other database's."""
    mine = ownership.find(connection)
    if mine is None:
        return
    if mine.claim is None or not mine.home.is_same(ownership.here(connection)):
        raise DatabaseMoved(f"lake table {pointer.ref} may be another database's", hint=HINT, came_from=mine.home.database_name)
    with failures(f"the owner of {pointer.ref}", lake.storage):
        theirs = owner.read(pointer.location, io_properties(lake.storage))
    if theirs is not None and theirs.claim != mine.claim:
        raise LakeTaken(f"lake table {pointer.ref} belongs to another database by now", hint=HINT, owner=theirs.database)
