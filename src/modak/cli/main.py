"""``modak``: the program's face. Commands only start things; ``--help`` starts nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

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
    # A service manager may start us with closed streams. What is said then is said to nobody.
    sys.stdout, sys.stderr = (stream or Path(os.devnull).open("w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
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
        _missing_command(context, alone)
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
    except OSError as error:
        code = _unwritten(context, error)
    sys.exit(code if _flushed(context) else 1)


def _missing_command(context: Context, alone: click.exceptions.NoArgsIsHelpError) -> None:
    if context.json:
        context.output.error(UsageError("Missing command.", hint=_usage_hint(alone)))
    else:
        click.echo(alone.format_message(), err=True)


def _flushed(context: Context) -> bool:
    """Whether all that was said has left: a full disk behind `modak export > file` is noticed only now."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _unwritten(context, error)
        return False
    return True


def _unwritten(context: Context, error: OSError) -> int:
    """A result that nobody took, or a file that cannot be had. What stdout still holds is let go, or Python would stumble over it."""
    if not isinstance(error, BrokenPipeError):
        context.output.error(ModakError(f"the machine refused: {error}"))
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


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
