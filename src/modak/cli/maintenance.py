"""``modak maintain``: the lake's upkeep, now or by the worker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from modak.cli.context import Context, command
from modak.cli.tables import each, names

if TYPE_CHECKING:
    from datetime import datetime

    from modak.catalog.tables import Registered
    from modak.core.table import Name
    from modak.errors import ModakError
    from modak.jobs.context import JobContext

_POLL_SECONDS = 0.5
# Two who pack the same table's files take turns; the second finds little left to do.
_LOCK_SECONDS = 60


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.argument("table", required=False)
    @click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
    @click.option("--orphans", is_flag=True, help="Also remove old files that nothing refers to, whatever the policy says.")
    @click.option("--request", is_flag=True, help="Leave it to the worker, which does it whether it is due or not.")
    @click.option("--wait", type=click.IntRange(0, 86_400), metavar="SECONDS",
                  help="With --request: wait so long for the worker, by default not at all. "
                       f"Else: so long for a job that is at work on the table, by default {_LOCK_SECONDS}.")  # fmt: skip
    def maintain(context: Context, table: str | None, dry_run: bool, orphans: bool, request: bool, wait: int | None) -> None:
        """Pack small files, write worn ones anew, merge manifests and let old snapshots go. Without TABLE: every enabled table.

        A decoupled table that was attached is maintained only when it is named: somebody else may do it.
        """
        if request and (dry_run or orphans):
            raise click.UsageError("--request runs by the table's policy, without --dry-run and --orphans")
        if request:
            _request(context, table, wait or 0)
        else:
            _maintain(context, table, dry_run=dry_run, orphans=orphans, wait=_LOCK_SECONDS if wait is None else wait)


def _every(_: Registered) -> bool:
    return True


def _refuse_decoupled(context: Context, table: str | None, what: str, hint: str) -> None:
    """``what`` cannot be done with the table that is named, if it is a decoupled one."""
    from modak.catalog import decoupled
    from modak.errors import Refused
    from modak.source.relation import parse_name

    if table is None:
        return
    with context.app.connection() as connection:
        if decoupled.find(connection, parse_name(table)) is not None:
            raise Refused(f"{table} is a decoupled table: {what}", hint=hint)


def _decoupled(context: Context, table: str | None, *, dry_run: bool, wait: int) -> tuple[list[dict[str, Any]], ModakError | None]:
    """Of the decoupled table that is named, or of all that this database made. Nothing if it is another kind of table."""
    from modak.catalog import decoupled
    from modak.errors import ModakError
    from modak.jobs.maintain_decoupled import maintain_decoupled
    from modak.source.relation import parse_name

    wanted = parse_name(table) if table is not None else None
    with context.app.connection() as connection:
        listed = decoupled.listing(connection)
    done, failed = list[dict[str, Any]](), None
    for definition in listed:
        if definition.name != wanted if wanted is not None else definition.is_attached:
            continue
        try:
            with context.app.decoupled_job(definition.name, wait) as job:
                if job is not None:
                    done.append({"table": str(definition.name), **vars(maintain_decoupled(job, dry_run=dry_run))})
        except ModakError as error:
            if wanted is not None:
                raise
            failed = error
            context.output.note(f"{definition.name}: {error}")
    return done, failed


def _maintain(context: Context, table: str | None, *, dry_run: bool, orphans: bool, wait: int) -> None:
    from modak.jobs import maintain

    if orphans:
        hint = "files of other engines are theirs to remove, for example by Spark's remove_orphan_files"
        _refuse_decoupled(context, table, "the gateway removes what transactions left behind, after a day", hint)

    def work(name: Name, job: JobContext) -> dict[str, Any]:
        return {"table": str(name), **vars(maintain.maintain(job, orphans=orphans, dry_run=dry_run))}

    done, failed = _decoupled(context, table, dry_run=dry_run, wait=wait)
    if table is None or not done:
        registered, last = each(context, table, work, _every, wait)
        done, failed = [*registered, *done], last or failed
    context.output.result(done)
    columns = ("table", "files_rewritten", "files_written", "deletes_joined", "manifests_merged", "snapshots_expired", "files_removed")
    headings = ["table", "files", "became", "deletes joined", "manifests merged", "snapshots expired", "files removed"]
    context.output.table(headings, [tuple(line[column] for column in columns) for line in done])
    for line in done:
        if line["orphans_removed"]:
            context.output.note(f"{line['table']}: {line['orphans_removed']} orphans {'to remove' if dry_run else 'removed'}")
        if line["held_by"]:
            context.output.note(f"{line['table']}: older snapshots are held by {line['held_by']}")
        for warning in line["warnings"]:
            context.output.note(f"{line['table']}: {warning}")
    if dry_run:
        context.output.note("nothing was changed")
    if failed is not None:
        raise failed


def _request(context: Context, table: str | None, wait: int) -> None:
    from modak.catalog import migrate, overview, tables

    _refuse_decoupled(context, table, "the worker maintains it every ten minutes", f"`modak maintain {table}` does it now")
    asked: list[tuple[str, int, datetime]] = []
    with context.app.connection() as connection:
        for name in names(context, table, _every):
            found = tables.get(connection, name)
            asked.append((str(name), found.table_id, overview.request_maintenance(connection, found.table_id)))
        until, waiting = time.monotonic() + wait, list(asked)
        while waiting and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            query = migrate.SQL.query("maintenance_is_done")
            for one in list(waiting):
                state = connection.execute(query, {"table_id": one[1], "since": one[2]}).fetchone()
                if state is not None and state["done"]:
                    waiting.remove(one)
    unfinished = {name for name, _, _ in waiting} if wait else set[str]()
    done = [{"table": name, "requested_at": str(at), "done": bool(wait) and name not in unfinished} for name, _, at in asked]
    context.output.result(done)
    context.output.table(["table", "requested", "done"], [(line["table"], line["requested_at"], line["done"]) for line in done])
    if unfinished:
        context.output.note("the worker has not come to it yet; `modak status` shows whether one runs")
        click.get_current_context().exit(1)
