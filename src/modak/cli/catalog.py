"""Commands on the catalog: migrate, status, policy, profile."""

from __future__ import annotations

import click

from modak.cli.context import Context, command, global_options


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.option("--print", "print_only", is_flag=True, help="Write the SQL to stdout and change nothing.")
    def migrate(context: Context, print_only: bool) -> None:
        """Install the catalog modak.*, or bring it to this version. Safe to repeat."""
        from modak.catalog import migrate as migration

        if print_only:
            click.echo(migration.script(), nl=False)
            return
        with context.app.connection(migrated=False) as connection:
            outcome = migration.migrate(connection)
        text = f"catalog version {outcome.version}: " + (", ".join(outcome.applied) + " applied" if outcome.applied else "nothing to do")
        context.output.result(
            {
                "version": outcome.version,
                "applied": list(outcome.applied),
                "routines_replaced": outcome.routines_replaced,
                "roles_missing": list(outcome.roles_missing),
            },
            text,
        )
        if outcome.roles_missing:
            statements = " ".join(f"create role {name} nologin;" for name in outcome.roles_missing)
            context.output.note(
                f"this role may not create roles; everything works without, and to have them an administrator runs: {statements}"
            )
            context.output.note("then run `modak migrate` again, which gives them their rights")

    @command(group)
    @click.argument("table", required=False)
    def status(context: Context, table: str | None) -> None:
        """What each registered table is doing: cut-line, partitions, backlog, problems."""
        _status(context, table)

    @command(group)
    @click.argument("table")
    @click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
    def policy(context: Context, table: str, pairs: tuple[str, ...]) -> None:
        """Show a table's policy, or change it. KEY= resets a key.

        Keys: lag, reclaim_lag, lake_retention, heap_retention, premake, enabled, hybrid, wal_limit, maintenance.NAME
        (docs/guides/maintenance.md lists those). A decoupled table has maintenance.NAME only.
        """
        _policy(context, table, pairs)

    @group.group()
    @global_options
    def profile() -> None:
        """Storage profiles: named warehouses that tables are registered against."""

    _add_profile_commands(profile)


def _status(context: Context, table: str | None) -> None:
    from modak.cli import status
    from modak.source.relation import parse_name

    with context.app.connection() as connection:
        status.show(connection, context.output, parse_name(table) if table is not None else None, context.app.lake)


def _policy(context: Context, table: str, pairs: tuple[str, ...]) -> None:
    from modak.catalog import decoupled, profiles, tables
    from modak.registration import lake_policy, policy
    from modak.source.relation import parse_name

    wanted, name = dict(_pair(pair) for pair in pairs), parse_name(table)
    with context.app.connection() as connection:
        alone = decoupled.find(connection, name)
        if alone is not None:
            lake = context.app.lake(profiles.get(connection, alone.profile))
            shown = lake_policy.show(lake_policy.change(lake, alone, wanted) if wanted else lake.load(alone.ref).properties)
        else:
            found = tables.get(connection, name)
            shown = policy.show(policy.change(connection, found, wanted) if wanted else found)
    context.output.result(shown)
    context.output.table(["policy", "value"], list(shown.items()), title=str(name))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def _add_profile_commands(group: click.Group) -> None:
    @command(group, "list")
    def list_profiles(context: Context) -> None:
        """List the storage profiles."""
        from modak.catalog import profiles

        with context.app.connection() as connection:
            found = profiles.listing(connection)
        context.output.result([vars(profile) for profile in found])
        rows = [
            (profile.name, "*" if profile.is_default else "", profile.warehouse or "(environment)", profile.credential_ref, profile.tables)
            for profile in found
        ]
        context.output.table(["profile", "default", "warehouse", "credentials", "tables"], rows)

    @command(group, "set")
    @click.argument("name")
    @click.option("--warehouse", default=None, help="Folder or s3:// URI; blank takes the environment's.")
    @click.option("--credentials", "credential_ref", default=None, metavar="REF", help="Use MODAK_CREDENTIALS_<REF>.")
    @click.option(
        "--config",
        multiple=True,
        metavar="KEY=VALUE",
        help="Non-secret setting of the lake, for example s3.endpoint=…. KEY= takes it away.",
    )
    @click.option("--default", "is_default", is_flag=True, help="New registrations use this profile.")
    def set_profile(
        context: Context, name: str, warehouse: str | None, credential_ref: str | None, config: tuple[str, ...], is_default: bool
    ) -> None:
        """Make a storage profile, or change one. What is not given keeps its value."""
        from modak.catalog import profiles
        from modak.core.profile import Profile

        with context.app.connection() as connection:
            known = next((profile for profile in profiles.listing(connection) if profile.name == name), Profile(name))
            changed = Profile(
                name,
                known.warehouse if warehouse is None else warehouse,
                {key: value for key, value in {**known.lake_config, **dict(_pair(pair) for pair in config)}.items() if value},
                known.credential_ref if credential_ref is None else credential_ref or None,
                is_default or known.is_default,
                known.tables,
            )
            if known.tables and changed.warehouse != known.warehouse:
                raise click.UsageError(f"profile {name} holds {known.tables} tables; its warehouse cannot move under them")
            if known.tables and changed.lake_config.get("catalog") != known.lake_config.get("catalog"):
                raise click.UsageError(f"profile {name} holds {known.tables} tables; another catalog would not know them")
            profiles.save(connection, changed)
        context.output.result(vars(changed), f"profile {name} saved")

    @command(group, "drop")
    @click.argument("name")
    def drop_profile(context: Context, name: str) -> None:
        """Remove a profile that no table uses."""
        from modak.catalog import profiles

        with context.app.connection() as connection:
            there = profiles.drop(connection, name)
        context.output.result({"dropped": name if there else None}, f"profile {name} " + ("dropped" if there else "is not there"))
