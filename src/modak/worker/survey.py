"""The survey: what every table has to do, in one statement, and in one more for each table whose corrections changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from modak.connection import Connection
from modak.core.maintenance import Upkeep
from modak.core.schedule import Limits, Sight
from modak.core.table import Name
from modak.errors import UsageError
from modak.sqlfiles import SqlFiles

SQL = SqlFiles("modak.worker")


@dataclass
class Survey:
    """Remembers what it counted, so that a table at rest costs a row of an answer and nothing else."""

    limits: Limits
    mirrored: int = 0
    _counted: dict[int, tuple[str, int]] = field(default_factory=dict)

    @staticmethod
    def begin(connection: Connection) -> None:
        """Once per session: to compile the survey takes Postgres a second, to run it some milliseconds."""
        connection.execute("select set_config('jit', 'off', false)")

    def look(self, connection: Connection) -> list[Sight]:
        rows = connection.execute(SQL.query("survey")).fetchall()
        # One that is disabled keeps WAL all the same, and the pump has an eye on that.
        found = connection.execute("select count(*) as n from modak.tables where mode = 'mirrored'").fetchone()
        self.mirrored = int(found["n"]) if found else 0
        counted = {row["table_id"]: (row["delta"], self._corrections(connection, row)) for row in rows if row["has_seam"]}
        self._counted = counted
        return [_sight(row, counted[row["table_id"]][1] if row["has_seam"] else 0) for row in rows]

    def _corrections(self, connection: Connection, row: Mapping[str, Any]) -> int:
        """As far as a limit needs to know. The id stands in the text: with a parameter Postgres would plan for every table's partition."""
        before = self._counted.get(row["table_id"])
        if before is not None and before[0] == row["delta"]:
            return before[1]
        most = max(self.limits.fold_rows, self.limits.backlog_rows) + 1
        found = connection.execute(
            sql.SQL("select count(*) as n from (select from modak.delta where table_id = {} limit {}) found").format(
                sql.Literal(row["table_id"]), sql.Literal(most)
            ),
            prepare=False,
        ).fetchone()
        return int(found["n"]) if found else 0


_TAKEN = ("table_id", "activity", "has_seam", "tiers", "keeps_heap", "retains", "staged", "tiered", "open_operations", "requested")


def _sight(row: Mapping[str, Any], corrections: int) -> Sight:
    taken = {name: row[name] for name in (*_TAKEN, "is_published", "maintained_seconds")}
    name = Name(row["schema_name"], row["table_name"])
    return Sight(name=name, corrections=corrections, lake_changed=bool(row["lake_changed"]), **taken, **_upkeep(row["maintenance_policy"]))


def _upkeep(policy: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the table's own policy says of when it is maintained; one that has no meaning is the job's to refuse."""
    if not policy:
        return {}
    try:
        upkeep = Upkeep.of(policy)
    except UsageError:
        return {}
    return {"maintains": upkeep.enabled, "maintain_seconds": float(upkeep.interval) if "interval" in policy else None}
