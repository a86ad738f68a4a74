"""Where a statement would go, by ``modak_explain``. Nothing is run."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from modak.connection import Connection
from modak.errors import Refused

ROUTE = "modak: route: "
TIERS = "modak: tiers: "


@dataclass(frozen=True)
class Route:
    lines: tuple[str, ...]

    @property
    def tiers(self) -> list[str]:
        """What modak_explain found in the plan. An INSERT's plan names the heap alone; for its rows there is a route."""
        found = self._told(TIERS)
        if found is not None:
            return found.split(", ")
        route = self._told(ROUTE)
        if route is None:
            return []
        return ["cold", "hot"] if route in ("both", "row by row") else [route]

    def _told(self, kind: str) -> str | None:
        return next((line.removeprefix(kind) for line in self.lines if line.startswith(kind)), None)


def route(connection: Connection, statement: str) -> Route:
    connection.execute("set search_path = public, pg_catalog")
    try:
        rows = connection.execute("select line from public.modak_explain(%s) line", [statement]).fetchall()
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError) as cause:
        # Without where in our own function it happened.
        hint = cause.diag.message_hint or "one SELECT, INSERT, UPDATE, DELETE or MERGE can be explained, with names that exist"
        raise Refused(f"Postgres cannot plan the statement: {cause.diag.message_primary}", hint=hint) from cause
    return Route(tuple(row["line"] for row in rows))
