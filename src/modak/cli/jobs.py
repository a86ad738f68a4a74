"""Commands that run one pass of a job now, in this process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from modak.cli.context import Context, command
from modak.cli.tables import each, has_seam, is_tiered, names

if TYPE_CHECKING:
    from collections.abc import Callable

    from modak.catalog.tables import Registered
    from modak.core.table import Name
    from modak.core.tier_key import TierKeyType
    from modak.jobs.context import JobContext
    from modak.jobs.initial_copy import CopyOutcome

T = TypeVar("T")


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.argument("table", required=False)
    @click.option("--upto", default=None, metavar="KEY", help="Tier every partition that ends at or below this key, whatever the lag says.")
    @click.option("--foreign", type=click.Choice(["refuse", "accept", "rollback"]), default="refuse", show_default=True,
                  help="What to do about lake snapshots that somebody else made.")  # fmt: skip
    @click.option("--keep", is_flag=True, help="Leave tiered partitions in the heap this time; a later pass drops them.")
    def tier(context: Context, table: str | None, upto: str | None, foreign: str, keep: bool) -> None:
        """Move due partitions to the lake, advance the cut-line and drop what is tiered. Without TABLE: every enabled table."""
        _tier(context, table, upto, foreign, keep)

    @command(group)
    @click.argument("table", required=False)
    @click.option("--batch", type=click.IntRange(1, 10_000_000), default=None, metavar="ROWS", help="Corrections per commit at most.")
    def fold(context: Context, table: str | None, batch: int | None) -> None:
        """Carry the corrections of cold rows into the lake. Without TABLE: every enabled table."""
        _fold(context, table, batch)

    @command(group)
    @click.argument("table", required=False)
    @click.option("--sweep", is_flag=True, help="Also remove files that loads of more than a day ago left behind when they died.")
    def adopt(context: Context, table: str | None, sweep: bool) -> None:
        """Take files that loads staged into the lake, where they are seen. Without TABLE: every enabled table."""
        _adopt(context, table, sweep)

    @command(group)
    @click.argument("table", required=False)
    def retain(context: Context, table: str | None) -> None:
        """Expire lake rows further behind the cut-line than the table's lake_retention. Without TABLE: every table that has one."""
        _retain(context, table)

    @command(group)
    @click.argument("table")
    @click.option("--from", "key", default=None, metavar="KEY", help="Rows from this key on; its partition comes back whole. Default: all.")
    def untier(context: Context, table: str, key: str | None) -> None:
        """Bring cold rows back into heap partitions, and the cut-line down to them."""
        _untier(context, table, key)

    @command(group)
    @click.argument("table", required=False)
    def mirror(context: Context, table: str | None) -> None:
        """Follow the stream of changes up to where it is now, for every mirrored table: they share one slot. TABLE must be one of them."""
        _mirror(context, table)

    @command(group)
    @click.argument("table")
    def resync(context: Context, table: str) -> None:
        """Copy a mirrored table to the lake anew, and follow it from there: the way out for one that is parked."""
        _resync(context, table)

    @command(group)
    @click.argument("table", required=False)
    @click.option(
        "--repair", is_flag=True, help="Where a heap copy stands, make the lake say the same through the delta; a mirror is copied anew."
    )
    def verify(context: Context, table: str | None, repair: bool) -> None:
        """Compare heap and lake by content; exit 3 on any difference. Without TABLE: every enabled table."""
        _verify(context, table, repair)


def _each(
    context: Context, table: str | None, work: Callable[[Name, JobContext], T], chosen: Callable[[Registered], bool] = is_tiered
) -> list[T]:
    """The job's result for each table; what failed is raised when the others are through."""
    done, failed = each(context, table, work, chosen)
    if failed is not None:
        raise failed
    return done


def _show(context: Context, done: list[dict[str, Any]], columns: tuple[str, ...], headings: list[str]) -> None:
    """What passes did, a line for each table, and what they wait for."""
    context.output.result(done)
    context.output.table(headings, [tuple(line[name] for name in columns) for line in done])
    for line in done:
        if line["waiting"]:
            context.output.note(f"{line['table']}: {line['waiting']}")


def _mirror(context: Context, table: str | None) -> None:
    from modak.catalog import mirrors, tables
    from modak.errors import Refused
    from modak.jobs import mirror
    from modak.source.relation import parse_name
    from modak.source.replication import lsn_text

    app = context.app
    with app.connection(unhurried=True) as connection:
        if table is not None:
            known = tables.get(connection, parse_name(table))
            if known.mode != "mirrored":
                raise Refused(f"{table} is tiered", hint=f"`modak tier {table}` moves its rows")
            mirrors.check_registration(connection, known)
        done = mirror.mirror(connection, app.dsn, partial(app.job, in_a_row=True))
    at = lsn_text(done.lsn) if done.lsn is not None else None
    context.output.result({**vars(done), "lsn": at})
    row = (done.tables, done.transactions, done.changes, done.commits, done.rows_written, done.rows_deleted, at)
    context.output.table(["tables", "transactions", "changes", "commits", "rows written", "rows deleted", "F"], [row])
    if done.warning:
        context.output.note(done.warning)
    for name in done.shed:
        context.output.note(f"{name} is cold now: the lake has its rows")
    for name in done.dropped:
        context.output.note(f"{name} was dropped")
    for why in done.waiting:
        context.output.note(why)
    for name in done.copying:
        context.output.note(f"{name} is not copied yet: `modak register {name} …` again, with the same settings, goes on with it")
    for name, why in (done.parked | done.failed).items():
        context.output.note(f"{name}: {why}")
    if done.parked or done.failed:
        click.get_current_context().exit(1)


def _resync(context: Context, table: str) -> None:
    from modak.jobs import initial_copy
    from modak.source.relation import parse_name

    with context.app.job(parse_name(table)) as job:
        show_copy(context, str(job.table.name), initial_copy.copy(job, again=True))


def show_copy(context: Context, name: str, done: CopyOutcome) -> None:
    from modak.source.replication import lsn_text

    at = lsn_text(done.lsn) if done.lsn is not None else None
    went_on = f", {done.resumed} chunks were there already" if done.resumed else ""
    text = f"{name}: {done.rows:,} rows copied in {done.chunks} chunks{went_on}; the stream follows from {at}"
    context.output.result({"table": name, **vars(done), "lsn": at}, text)


def _fold(context: Context, table: str | None, batch: int | None) -> None:
    from modak.jobs import fold

    def work(name: Name, job: JobContext) -> dict[str, Any]:
        return {"table": str(name), **vars(fold.fold(job, batch_rows=batch or fold.BATCH_ROWS))}

    done = _each(context, table, work, has_seam)
    columns = ("table", "corrections", "commits", "rows_deleted", "rows_written", "snapshot")
    _show(context, done, columns, ["table", "corrections", "commits", "rows deleted", "rows written", "S"])
    for line in done:
        if line["kept"]:
            context.output.note(f"{line['table']}: {line['kept']} corrections hold values that the lake cannot, and stay where they are")


def _adopt(context: Context, table: str | None, sweep: bool) -> None:
    from modak.jobs import adopt
    from modak.jobs import sweep as sweeping

    def work(name: Name, job: JobContext) -> dict[str, Any]:
        return {"table": str(name), **vars(adopt.adopt(job)), "swept": sweeping.sweep(job) if sweep else None}

    done = _each(context, table, work, has_seam)
    columns = ("table", "labels", "files", "rows", "rows_replaced", "corrections", "snapshot")
    _show(context, done, columns, ["table", "labels", "files", "rows", "rows replaced", "corrections", "S"])
    for line in done:
        if line["swept"]:
            context.output.note(f"{line['table']}: {line['swept']} files of dead loads removed")


def _retain(context: Context, table: str | None) -> None:
    from modak.jobs import retain

    def work(name: Name, job: JobContext) -> dict[str, Any]:
        outcome = retain.retain(job)
        return {"table": str(name), **vars(outcome), "retention": _text(job.table.key_type, outcome.retention_line)}

    done = _each(context, table, work, lambda found: found.lake_retention_lag is not None)
    columns = ("table", "retention", "files", "rows", "corrections", "snapshot")
    _show(context, done, columns, ["table", "R", "files", "rows", "corrections", "S"])


def _untier(context: Context, table: str, key: str | None) -> None:
    from modak.jobs import untier

    def work(name: Name, job: JobContext) -> dict[str, Any]:
        kind = job.table.key_type
        outcome = untier.untier(job, key=_key(kind, "--from", key))
        return {"table": str(name), **vars(outcome), "cutline": _text(kind, outcome.tier_key_hi)}

    [line] = done = _each(context, table, work)
    context.output.result(done)
    values = (line["table"], len(line["made"]), len(line["kept"]), line["rows"], line["corrections"], line["cutline"], line["snapshot"])
    context.output.table(["table", "made", "stood", "rows copied", "corrections", "T", "S"], [values])
    for made in line["made"]:
        context.output.note(made)
    if line["due_again"]:
        context.output.note(f"due again by the lag: {', '.join(line['due_again'])}; change it with modak policy {line['table']} lag=…")
    if line["waiting"]:
        context.output.note(f"queries of these rows ask the gateway until the next pass: {line['waiting']}")


def _tier(context: Context, table: str | None, upto: str | None, foreign: str, keep: bool) -> None:
    from modak.jobs import reclaim, tier

    if upto is not None and table is None:
        raise click.UsageError("--upto needs a TABLE")

    def work(name: Name, job: JobContext) -> dict[str, Any]:
        outcome = tier.tier(job, upto=_key(job.table.key_type, "--upto", upto), foreign_snapshots=foreign)
        reclaimed = reclaim.Reclaimed() if keep else reclaim.reclaim(job)
        line = {"table": str(name), **vars(outcome), "cutline": _text(job.table.key_type, outcome.tier_key_hi)}
        return line | {"dropped": reclaimed.dropped, "waiting": reclaimed.waiting}

    done, failed = each(context, table, work)
    context.output.result(done)
    rows = [
        (
            line["table"],
            len(line["partitions"]),
            line["rows"],
            line["corrected_rows"],
            line["cutline"] or "nothing due",
            line["snapshot"],
            len(line["dropped"]),
        )
        for line in done
    ]
    context.output.table(["table", "tiered", "rows", "corrected meanwhile", "T", "S", "dropped"], rows)
    for line in done:
        if line["note"]:
            context.output.note(f"{line['table']}: {line['note']}")
        for reason in line["waiting"]:
            context.output.note(f"not dropped yet: {reason}")
    if failed is not None:
        raise failed


def _key(key_type: TierKeyType, option: str, text: str | None) -> int | None:
    from modak.errors import ModakError, UsageError

    try:
        return None if text is None else key_type.decode(text)
    except ModakError as wrong:
        raise UsageError(f"{option}: {wrong}", hint=wrong.hint) from wrong


def _text(key_type: TierKeyType, key: int | None) -> str | None:
    return None if key is None else str(key_type.encode_bound(key))


def _verify(context: Context, table: str | None, repair: bool) -> None:
    from modak.errors import ModakError
    from modak.jobs.verify_mirror import verify_table

    app, done, failed = context.app, [], None
    for name in names(context, table, lambda _: True):
        try:
            with app.connection(unhurried=True) as connection:
                done.append((str(name), verify_table(connection, app.dsn, app.job, name, repair=repair)))
        except ModakError as error:
            # One table's failure is that table's: the others are looked at.
            if table is not None:
                raise
            failed = error
            context.output.note(f"{name}: {error}")
    data = [{"table": label, **vars(found), "differences": [vars(difference) for difference in found.differences]} for label, found in done]
    context.output.result(data)
    rows = [(label, found.partitions, found.rows, len(found.differences), found.repaired) for label, found in done]
    context.output.table(["table", "heap copies", "rows compared", "differences", "repaired"], rows)
    for label, found in done:
        for difference in found.differences:
            context.output.note(f"{label} {difference.partition} key {difference.key!r}: heap {difference.heap}, lake {difference.lake}")
        if found.truncated:
            context.output.note(f"{label}: there are more differences than are listed")
        if found.drift_bytes is not None:
            context.output.note(f"{label}: the lake was {found.drift_bytes:,} bytes of WAL behind, and was verified at one moment")
    if any(found.differences for _, found in done):
        click.get_current_context().exit(3)
    if failed is not None:
        raise failed
