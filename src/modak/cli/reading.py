"""Commands about reading: where a statement would go."""

from __future__ import annotations

import click

from modak.cli.context import Context, command


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.argument("sql")
    def explain(context: Context, sql: str) -> None:
        """Which tiers a statement would touch, by which engine, and what it would read there. Nothing is run."""
        with context.app.connection() as connection:
            connection.execute("set search_path = public, pg_catalog")
            rows = connection.execute("select line from public.modak_explain(%s) line", [sql]).fetchall()
        lines = [row["line"] for row in rows]
        context.output.result(
            {"sql": sql, "tiers": tiers(lines), "lines": lines}, f"touches: {', '.join(tiers(lines)) or 'no registered table'}"
        )
        context.output.table(["route"], [[line] for line in lines])


def tiers(lines: list[str]) -> list[str]:
    """Hot and cold as Postgres's plan has them: relations of a registered table have names of their own."""
    found = []
    plan = [line for line in lines if line.startswith("postgres: ")]
    if any("Foreign Scan on modak.cold_" in line for line in plan):
        found.append("cold")
    if any(" h" in line and ("Scan" in line) for line in plan):
        found.append("hot")
    if any("modak.delta_" in line and " d" in line for line in plan):
        found.append("corrections")
    return found
