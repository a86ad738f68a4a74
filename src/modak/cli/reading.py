"""Commands about reading: where a statement would go."""

from __future__ import annotations

import click

from modak.cli.context import Context, command


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.argument("sql")
    def explain(context: Context, sql: str) -> None:
        """Which tiers a statement would touch, by which engine, and what it would read there. Nothing is run."""
        from modak.catalog.explain import route

        with context.app.connection() as connection:
            found = route(connection, sql)
        tiers, lines = found.tiers, list(found.lines)
        context.output.result({"sql": sql, "tiers": tiers, "lines": lines}, f"touches: {', '.join(tiers) or 'no registered table'}")
        context.output.table(["route"], [[line] for line in lines])
