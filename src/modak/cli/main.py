"""``modak``: the program's face. Commands only start things; ``--help`` starts nothing."""

from __future__ import annotations

import sys

import click

from modak import __version__
from modak.cli import catalog, demo, ingest, jobs, machine, maintenance, reading, recovery, registration, services, up, worker
from modak.cli.context import Context, global_options
from modak.errors import ModakError, UsageError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="modak")
@global_options
@click.pass_context
def modak(context: click.Context) -> None:
    """Old rows of Postgres tables move to Apache Iceberg; SQL keeps seeing one table."""
    context.ensure_object(Context)


for module in (machine, catalog, registration, jobs, maintenance, recovery, ingest, reading, services, worker, up, demo):
    module.add_commands(modak)


def main(arguments: list[str] | None = None) -> None:
    """Exit codes: 0 ok, 1 failed, 2 usage, 3 differences found."""
    context = Context()
    try:
        # A command that ends with a code of its own has it returned here; any other returns nothing.
        code = modak.main(arguments, prog_name="modak", standalone_mode=False, obj=context) or 0
    except ModakError as error:
        context.output.error(error)
        code = error.exit_code
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.exceptions.NoArgsIsHelpError as alone:
        click.echo(alone.format_message(), err=True)
        code = 2
    except click.ClickException as wrong:
        context.output.error(UsageError(wrong.format_message(), hint=_usage_hint(wrong)))
        code = 2
    except (KeyboardInterrupt, click.Abort):
        context.output.note("interrupted; nothing is left half done")
        code = 130
    except _postgres_error() as error:
        context.output.error(_unexpected(error))
        code = 1
    sys.exit(code)


def _usage_hint(wrong: click.ClickException) -> str:
    context = getattr(wrong, "ctx", None)
    return f"`{context.command_path} --help` shows what it takes" if context else "`modak --help` lists the commands"


def _postgres_error() -> type[Exception]:
    """psycopg's base error, but only if somebody imported psycopg: --help must not pay for it."""
    psycopg = sys.modules.get("psycopg")
    return psycopg.Error if psycopg else ModakError


def _unexpected(error: Exception) -> ModakError:
    diagnostics = getattr(error, "diag", None)
    found = ModakError(f"Postgres refused: {str(error).strip()}", hint=getattr(diagnostics, "message_hint", None))
    found.sqlstate = getattr(error, "sqlstate", None) or found.sqlstate
    return found


if __name__ == "__main__":
    main()
