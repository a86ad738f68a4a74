"""One moment of all decoupled tables in the embedded catalog: where each of them was, and which commits were in doubt.

A transaction that changes two tables moves two pointers, one after the other, and is in doubt until Postgres has committed it. Read in one
snapshot of Postgres's, pointers and doubts tell the same story: a transaction is in all of its tables or in none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from modak.catalog.migrate import SQL
from modak.core.decoupled import Definition
from modak.gateway.decoupled.base import Base
from modak.gateway.decoupled.settled import newest_settled

if TYPE_CHECKING:
    from modak.gateway.decoupled.world import World


@dataclass(frozen=True)
class Moment:
    """``pointers`` by catalog and name; ``doubtful`` are the commits that Postgres had not committed."""

    world: World
    pointers: Mapping[str, str]
    doubtful: frozenset[str]

    @classmethod
    def now(cls, world: World) -> Moment:
        with world.connection() as connection:
            row = connection.execute(SQL.query("lake_moment")).fetchone()
        assert row is not None
        return cls(world, row["pointers"], frozenset(row["doubtful"]))

    def base(self, definition: Definition) -> Base:
        """The table as it was then; one that was not there yet, as it is now."""
        location = self.pointers.get(f"{self.world.lake(definition.profile).storage.catalog_name} {definition.ref}")
        return self.world.base(definition) if location is None else self.world.base_at(definition, location, self._visible)

    def _visible(self, table: Table) -> IcebergSnapshot | None:
        return newest_settled(table, lambda commit_id: commit_id not in self.doubtful)
