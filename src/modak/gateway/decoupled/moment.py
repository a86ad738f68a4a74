"""One moment of all decoupled tables in the embedded catalog: where each of them was, and which commits were in doubt.

A transaction that changes two tables moves two pointers, one after the other, and is in doubt until Postgres has committed it. Read in one
snapshot of Postgres's, pointers and doubts tell the same story: a transaction is in all of its tables or in none.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from modak.catalog import decoupled
from modak.catalog.migrate import SQL
from modak.core.decoupled import Definition
from modak.errors import LakeError, ModakError
from modak.gateway.decoupled.base import Base
from modak.gateway.decoupled.settled import COMMIT_ID, newest_settled
from modak.lake import commits
from modak.lake.history import known_heads, remembered
from modak.lake.storage import catalog_name

if TYPE_CHECKING:
    from modak.gateway.decoupled.world import World

log = logging.getLogger("modak.gateway")
# Younger ones will have ended before anything they need is gone.
_LEARN_SECONDS = 0.5


@dataclass(frozen=True, eq=False)
class Moment:
    """``pointers`` by catalog and name; ``doubtful`` are the commits that Postgres had not committed.

    ``heads`` are the newest snapshots by pointer, as far as they are known. A hundred commits later a metadata file is gone, and the
    snapshot is in the newer ones: it does not expire before the transactions that may read it have ended.
    """

    world: World
    pointers: Mapping[str, str]
    doubtful: frozenset[str]
    heads: dict[str, IcebergSnapshot | None] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)

    @classmethod
    def now(cls, world: World) -> Moment:
        with world.connection() as connection:
            row = connection.execute(SQL.query("lake_moment")).fetchone()
        assert row is not None
        made = cls(world, row["pointers"], frozenset(row["doubtful"]), known_heads(row["pointers"].values()))
        world.moments.add(made)
        return made

    def base(self, definition: Definition) -> Base:
        """The table as it was then; one that was not there yet, as it is now."""
        location = self.pointers.get(_key(definition))
        if location is None:
            return self.world.base(definition)
        try:
            return self.world.base_at(definition, location, self._visible)
        except LakeError as cause:
            if location not in self.heads:
                raise
            head, failure = self.heads[location], cause
        return self.world.base_as_of(definition, lambda table: self._found(table, head, failure))

    def _visible(self, table: Table) -> IcebergSnapshot | None:
        return newest_settled(table, self._is_settled, table.current_snapshot())

    def _is_settled(self, commit_id: str) -> bool:
        return commit_id not in self.doubtful

    def _found(self, table: Table, head: IcebergSnapshot | None, failure: LakeError) -> IcebergSnapshot | None:
        """In metadata that are newer than the moment."""
        if head is None:
            return None
        found = table.snapshot_by_id(head.snapshot_id)
        if found is None and head.parent_snapshot_id is not None and commits.stamps_of(head).get(COMMIT_ID) in self.doubtful:
            # It was taken back since.
            found = table.snapshot_by_id(head.parent_snapshot_id)
        if found is None:
            raise failure
        return newest_settled(table, self._is_settled, found)


class Moments:
    """Those of transactions that are under way; thread-safe."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._live: weakref.WeakSet[Moment] = weakref.WeakSet()
        self._tried: weakref.WeakKeyDictionary[Moment, set[str]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def add(self, moment: Moment) -> None:
        with self._lock:
            self._live.add(moment)

    def learn(self) -> None:
        """What a transaction that lasts may have to know of tables that it has not looked at: while their metadata files are there."""
        with self._lock:
            live = [moment for moment in self._live if time.monotonic() - moment.since > _LEARN_SECONDS]
        wanted = {moment: self._unknown(moment) for moment in live}
        if any(wanted.values()):
            with self._world.connection() as connection:
                definitions = {_key(definition): definition for definition in decoupled.listing(connection)}
            for moment, keys in wanted.items():
                for key in sorted(keys & definitions.keys()):
                    self._read(definitions[key], moment.pointers[key])
                moment.heads.update(known_heads(moment.pointers[key] for key in keys))

    def _unknown(self, moment: Moment) -> set[str]:
        """Each is tried once: a lake that does not answer is not asked every second for a guess about what may be needed."""
        tried = self._tried.setdefault(moment, set())
        found = {key for key, location in moment.pointers.items() if location not in moment.heads} - tried
        tried |= found
        return found

    def _read(self, definition: Definition, location: str) -> None:
        try:
            with remembered():
                self._world.lake(definition.profile).load_at(definition.ref, location)
        except ModakError as cause:
            log.info("%s as it was a moment ago cannot be read: %s", definition.name, cause)


def _key(definition: Definition) -> str:
    return f"{catalog_name(definition.profile)} {definition.ref}"
