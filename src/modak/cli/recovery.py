"""Commands for the day after: bring catalog, database and lake together again."""

from __future__ import annotations

import click

from modak.cli.context import Context, command


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.option("--apply", "apply_it", is_flag=True, help="Do what is proposed. Without it nothing is changed.")
    @click.option("--owner", type=click.Choice(["this", "other"]), default=None,
                  help="Whose the lake is, where this database was restored or copied from another one.")  # fmt: skip
    def reconcile(context: Context, apply_it: bool, owner: str | None) -> None:
        """After a restore, a recovery to a point in time or a copy: say what does not fit, and with --apply mend it.

        Exit 3 while something is left to do.
        """
        _reconcile(context, apply_it, owner)


def _reconcile(context: Context, apply_it: bool, owner: str | None) -> None:
    from modak.jobs import reconcile

    if owner is not None and not apply_it:
        raise click.UsageError("--owner decides what --apply does; give both")
    app = context.app
    with app.connection() as connection:
        given = (connection, app.lake, app.dsn)
        found = reconcile.apply(*given, whose=owner) if apply_it else reconcile.look(*given)
    data = {"findings": [one.as_dict() for one in found.findings], "needs_owner": found.needs_owner, "done": list(found.done)}
    fits = "catalog, database and lake fit each other"
    context.output.result(data, None if found.findings else fits)
    for line in found.done:
        context.output.note(line)
    if found.findings:
        rows = [(one.table, one.code, one.what, one.action or "a person has to") for one in found.findings]
        context.output.table(["table", "finding", "what", "--apply"], rows, title="left to do" if apply_it else None)
        click.get_current_context().exit(3)
