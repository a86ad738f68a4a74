"""``modak demo``: the story, told by the product itself."""

from __future__ import annotations

from pathlib import Path

import click

from modak.cli.context import Context, command


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path), default=None, help="Keep everything here.")
    @click.option("--rows", default=100_000, show_default=True, type=click.IntRange(1, 100_000_000), help="Rows of the example table.")
    @click.option("--keep", is_flag=True, help="Stay up until Ctrl-C, so that you can look around.")
    def demo(context: Context, folder: Path | None, rows: int, keep: bool) -> None:
        """Create a table of orders on an embedded Postgres, register it, and show what Modak makes of it."""
        from modak.demo import story

        story.tell(context.app.settings, context.output, folder=folder, rows=rows, keep=keep)
