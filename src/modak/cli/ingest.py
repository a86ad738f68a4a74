"""Bulk history from files."""

from __future__ import annotations

import click

from modak.cli.context import Context, command


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.argument("table")
    @click.argument("more", nargs=-1, metavar="[F]...")
    @click.option("--file", "files", multiple=True, metavar="F", help="A Parquet file, a folder of them, or a pattern in quotes.")
    @click.option("--jsonl", "lines", multiple=True, metavar="F", help="The same for files of JSON lines, one object for each row.")
    @click.option("--split", is_flag=True, help="Cut files apart that hold rows of several partitions of the lake.")
    def ingest(context: Context, table: str, more: tuple[str, ...], files: tuple[str, ...], lines: tuple[str, ...], split: bool) -> None:
        """Take files of old rows straight into the lake, all or nothing; rows with the same key are replaced.

        Files behind the first are of its kind, as a shell writes a pattern out: --file history/*.parquet.
        """
        if bool(files) == bool(lines):
            raise click.UsageError("give files either with --file or with --jsonl")
        # JSON lines come from anywhere in time, so they are always cut along the lake's partitions.
        _ingest(context, table, (*files, *lines, *more), "parquet" if files else "jsonl", split=split or bool(lines))


def _ingest(context: Context, table: str, places: tuple[str, ...], kind: str, *, split: bool) -> None:
    from modak.jobs import ingest
    from modak.source.relation import parse_name

    name = parse_name(table)
    with context.app.job(name) as job:
        outcome = ingest.ingest(job, places, kind, split=split)
    done = {"table": str(name), **vars(outcome)}
    context.output.result([done])
    columns = ("table", "sources", "rows", "rows_replaced", "corrections", "files", "snapshot")
    headings = ["table", "files read", "rows", "rows replaced", "corrections", "files written", "S"]
    context.output.table(headings, [tuple(done[one] for one in columns)])
