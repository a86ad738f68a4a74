"""Commands that put tables under Modak and take them out again: plan, register, unregister, export, import."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from modak.cli.context import Context, command

if TYPE_CHECKING:
    from modak.core.registration import Options
    from modak.core.table import Name
    from modak.registration.unregister import Outcome


def _registration_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--tier-key", required=True, metavar="COLUMN", help="The column rows age by; the table is partitioned by it."),
        click.option("--primary-key", default="", metavar="A,B", help="Columns that identify a row. Default: the table's primary key."),
        click.option("--mode", type=click.Choice(["tiered", "mirrored"]), default="tiered", show_default=True),
        click.option("--surface", type=click.Choice(["view", "heap"]), default=None, help="Who keeps the table's name. Default: view."),
        click.option("--lag", default=None, metavar="L", help="How far behind the newest key rows stay hot: 1000, '30 days'."),
        click.option("--reclaim-lag", default=None, metavar="L", help="Keep tiered partitions in the heap this much longer."),
        click.option("--width", default=None, metavar="W", help="Lake layout: a width for integers; hour, day, month, year or none."),
        click.option("--keep-heap", is_flag=True, help="Copy to the lake, but never drop heap partitions."),
        click.option("--check-cold-keys", is_flag=True, help="Refuse an INSERT below the cut-line whose key a cold row has."),
        click.option("--lake-retention", default=None, metavar="L", help="Expire lake rows this far behind."),
        click.option("--heap-retention", default=None, metavar="L", help="Mirrored: drop heap partitions this far behind."),
        click.option("--hybrid", is_flag=True, help="Mirrored: the gateway's port answers from the lake, once it has come far enough."),
        click.option("--profile", default=None, help="Storage profile. Default: the default one."),
        click.option("--as-text", default="", metavar="A,B", help="Keep these columns as text in the lake."),
        click.option("--dependents", type=click.Choice(["refuse", "keep", "move"]), default="refuse", show_default=True,
                     help="Views, functions and foreign keys on the table: refuse, leave them on the heap, or let them follow the name."),
        click.option("--lake-table", default=None, metavar="NS.NAME", help="Name in the lake. Default: made from schema and table."),
        click.option("--premake", default=0, metavar="N", help="Keep N partitions ready ahead of the newest row."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def options_of(given: dict[str, Any]) -> Options:
    from modak.core.registration import Options

    return Options(
        tier_key=given["tier_key"],
        primary_key=_columns(given["primary_key"]),
        mode=given["mode"],
        surface=given["surface"] or ("heap" if given["mode"] == "mirrored" and given["heap_retention"] is None else "view"),
        lag=given["lag"],
        reclaim_lag=given["reclaim_lag"],
        width=given["width"],
        keep_heap=given["keep_heap"],
        check_cold_keys=given["check_cold_keys"],
        lake_retention=given["lake_retention"],
        heap_retention=given["heap_retention"],
        hybrid=given["hybrid"],
        profile=given["profile"],
        text_columns=_columns(given["as_text"]),
        dependents=given["dependents"],
        lake_table=given["lake_table"],
        premake=given["premake"],
    )


def _columns(text: str) -> tuple[str, ...]:
    """Column names separated by commas; one with a comma in it stands in double quotes."""
    import csv

    return tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip())


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.argument("table")
    @_registration_options
    def plan(context: Context, table: str, **given: Any) -> None:
        """What register would do, in figures, and what stands against it. Changes nothing."""
        _plan(context, table, given)

    @command(group)
    @click.argument("table")
    @_registration_options
    def register(context: Context, table: str, **given: Any) -> None:
        """Put a table under Modak. On a registered table: change its settings, and make its view anew if somebody dropped it."""
        _register(context, table, given)

    @command(group)
    @click.argument("table")
    @click.argument("action")
    def alter(context: Context, table: str, action: str) -> None:
        """Change columns or constraints. ACTION is what follows ALTER TABLE and its name: 'drop column note'."""
        _alter(context, table, action)

    @command(group)
    @click.argument("table")
    @click.option("--drop-lake", is_flag=True, help="Remove the lake table and its files too.")
    def unregister(context: Context, table: str, drop_lake: bool) -> None:
        """Give the table its name back and forget it. The lake stays unless --drop-lake."""
        _unregister(context, table, drop_lake)

    @command(group, "export")
    def export_tables(context: Context) -> None:
        """Write every registration as JSON, for `modak import`."""
        from modak.registration import transfer

        with context.app.connection() as connection:
            context.output.json = True
            context.output.result(transfer.export(connection))

    @command(group, "import")
    @click.argument("file", type=click.File("rb"))
    def import_tables(context: Context, file: Any) -> None:
        """Register the tables of an export that are not registered yet; set the policies of those that are."""
        from modak.registration import transfer

        entries = transfer.read(file.read())
        done = [_import_one(context, entry) for entry in entries]
        context.output.result(done)
        context.output.table(["table", "outcome"], [(line["table"], line["outcome"]) for line in done])


def _import_one(context: Context, entry: dict[str, Any]) -> dict[str, str]:
    from modak.registration import transfer

    app = context.app
    with app.connection() as connection:
        return {"table": entry["table"], "outcome": transfer.load(connection, app.lake, entry, app.progress)}


def _plan(context: Context, table: str, given: dict[str, Any]) -> None:
    from modak.cli import plan_text
    from modak.registration import report
    from modak.source.relation import parse_name

    with context.app.connection(migrated=False) as connection:
        found = report.report(connection, parse_name(table), options_of(given), surface_given=given["surface"] is not None)
    context.output.result(report.as_dict(found))
    plan_text.show(context.output, report.as_dict(found))


def _register(context: Context, table: str, given: dict[str, Any]) -> None:
    from modak.catalog import mirrors, profiles, tables
    from modak.catalog.overview import settings
    from modak.errors import Refused
    from modak.jobs import initial_copy
    from modak.registration import mirroring, missing_view, policy, register, report
    from modak.source import statements
    from modak.source.relation import parse_name

    name, options = parse_name(table), options_of(given)
    app = context.app
    with app.connection() as connection:
        known = tables.find(connection, name)
        if known is not None:
            options = options if given["surface"] else _with_surface(options, known.surface)
            found = policy.apply_options(connection, known, options, primary_key=options.primary_key)
            if found.mode == "mirrored" and initial_copy.is_pending(connection, found.table_id):
                # One that was parked has no stream to go on with: it starts over.
                _copy(context, name, again=mirrors.get(connection, found.table_id).is_parked)
                return
            text = f"{name} was registered already; settings are in place"
            if missing_view.find(connection, found) is not None:
                with app.job(name) as job:
                    missing_view.restore(job.connection, job.table, attempts=job.lock_attempts)
                text += f", and so is the view {found.view}, which was gone"
            context.output.result(settings(found) | {"policy": policy.show(found)}, text)
            return
        choice = (
            None
            if given["surface"] or not options.has_seam
            else report.surface_problem(statements.that_need_the_heap(connection, name), name)
        )
        if choice is not None:
            raise Refused(f"{name} needs a decision", [choice], hint="nothing was changed")
        profile = profiles.get(connection, options.profile)
        found = register.register(connection, app.lake(profile), name, options, profile=profile.name, progress=app.progress)
    if found.mode == "mirrored":
        for note in mirroring.changes(found):
            context.output.note(note)
        _copy(context, name)
        return
    text = f"{name} is registered: heap {found.heap}, two-tier view {found.view}, lake table {found.lake_table_ref}"
    context.output.result(settings(found) | {"policy": policy.show(found)}, text)


def _copy(context: Context, name: Name, *, again: bool = False) -> None:
    """The rows that are there already; a copy that was killed goes on, unless it is made ``again``."""
    from modak.cli.jobs import show_copy
    from modak.jobs import initial_copy

    with context.app.job(name) as job:
        show_copy(context, str(name), initial_copy.copy(job, again=again))


def _with_surface(options: Options, surface: str) -> Options:
    from dataclasses import replace

    return replace(options, surface=surface)


def _alter(context: Context, table: str, action: str) -> None:
    from dataclasses import replace

    from modak.errors import ModakError
    from modak.jobs import evolve
    from modak.registration import alter
    from modak.source.relation import parse_name

    name = parse_name(table)
    with context.app.job(name) as job:
        done = alter.alter(job.connection, job.lake, job.table, action)
        relation = job.relation()
        try:
            evolve.follow(replace(job, table=done.table), relation)
        except ModakError as error:
            context.output.note(f"the lake's columns follow with the next `modak tier`: {error}")
    for note in done.notes:
        context.output.note(note)
    columns = [column.name for column in relation.columns]
    data = {
        "table": str(name),
        "columns": columns,
        "added": [column.name for column in done.changes.added],
        "dropped": [column.name for column in done.changes.dropped],
        "renamed": dict(done.changes.renamed),
        "retyped": {now.name: now.type.display for _, now in done.changes.retyped},
        "notes": list(done.notes),
    }
    context.output.result(data, f"{name} was altered; its columns: {', '.join(columns)}")


def _unregister(context: Context, table: str, drop_lake: bool) -> None:
    from modak.catalog import profiles, tables
    from modak.registration import unregister
    from modak.source.relation import parse_name

    name = parse_name(table)
    app = context.app
    with app.connection() as connection:
        known = tables.find(connection, name)
        if known is not None:
            lake = app.lake(profiles.get(connection, known.storage_profile))
            outcome = unregister.unregister(connection, lake, known, drop_lake=drop_lake)
        elif drop_lake:
            outcomes = (unregister.drop_forgotten_lake(connection, app.lake(each), name) for each in profiles.listing(connection))
            outcome = next((each for each in outcomes if each.lake_dropped), unregister.Outcome(name, False))
        else:
            outcome = unregister.Outcome(name, False)
    lake_text = "dropped" if outcome.lake_dropped else "kept"
    first = f"{name} is an ordinary table again" if outcome.found else f"{name} is not registered"
    text = f"{first}; lake table {outcome.lake_table} {lake_text}" if outcome.lake_table else first
    if outcome.found and outcome.cold_rows:
        context.output.note(_left_behind(outcome))
    for spill in outcome.spills:
        context.output.note(f"{spill} holds late rows and stays as the table's DEFAULT partition")
    data = {"table": str(name), "found": outcome.found, "lake_table": outcome.lake_table, "lake_dropped": outcome.lake_dropped}
    left, lost = (0, outcome.cold_rows) if outcome.lake_dropped else (outcome.cold_rows, 0)
    spills = [str(spill) for spill in outcome.spills]
    context.output.result(data | {"rows_left_in_lake": left, "rows_dropped_with_lake": lost, "spills_kept": spills}, text)


def _left_behind(outcome: Outcome) -> str:
    """What became of rows that had left the heap. Of some a copy may still have stood there: the lake does not know of which."""
    if outcome.lake_dropped:
        return (
            f"the lake's {outcome.cold_rows} rows went with it; those that the heap did not have are gone "
            "(`modak untier` before brings them back)"
        )
    return (
        f"the lake keeps its {outcome.cold_rows} rows; those that the heap does not have are no longer seen through {outcome.table} "
        "(`modak untier` before brings them back)"
    )
