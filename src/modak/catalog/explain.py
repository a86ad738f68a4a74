"""Where a statement would go, by ``modak_explain``. Nothing is run."""

from __future__ import annotations

from dataclasses import dataclass

from modak.connection import Connection

ROUTE = "modak: route: "


@dataclass(frozen=True)
class Route:
    lines: tuple[str, ...]

    @property
    def tiers(self) -> list[str]:
        """Hot and cold as Postgres's plan has them: relations of a registered table have names of their own. An INSERT's plan names none;
        for its rows there is a route."""
        route = next((line.removeprefix(ROUTE) for line in self.lines if line.startswith(ROUTE)), None)
        if route is not None:
            return ["cold", "hot"] if route in ("both", "row by row") else [route]
        found = []
        plan = [line for line in self.lines if line.startswith("postgres: ")]
        if any("Foreign Scan on modak.cold_" in line for line in plan):
            found.append("cold")
        if any(" h" in line and "Scan" in line for line in plan):
            found.append("hot")
        if any("modak.delta_" in line and " d" in line for line in plan):
            found.append("corrections")
        return found


def route(connection: Connection, statement: str) -> Route:
    connection.execute("set search_path = public, pg_catalog")
    rows = connection.execute("select line from public.modak_explain(%s) line", [statement]).fetchall()
    return Route(tuple(row["line"] for row in rows))
