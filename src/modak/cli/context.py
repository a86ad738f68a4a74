"""What every command shares: the global options, wherever on the line they stand, and the application made from them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from modak.app import App
    from modak.cli.output import Output

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Context:
    """One run of the CLI. Heavy imports happen in ``app`` and ``output``, so that --help stays quick."""

    dsn: str | None = field(default=None, repr=False)
    json: bool = False
    quiet: bool = False
    overrides: dict[str, str] | None = None

    @functools.cached_property
    def output(self) -> Output:
        from modak.cli.output import Output

        return Output(json=self.json, quiet=self.quiet)

    @functools.cached_property
    def app(self) -> App:
        from modak.app import App
        from modak.settings import load, unknown

        settings = load(os.environ, dsn=self.dsn, **(self.overrides or {}))
        strangers = unknown(os.environ)
        if strangers:
            self.output.note(f"warning: no setting of Modak, and ignored: {', '.join(strangers)}")
        return App(settings, self.output.progress)

    def start_logging(self) -> None:
        """For daemons: from now on all that is said while they work goes to the log, in its form."""
        from modak import logs
        from modak.progress import SILENT

        logs.set_up(self.app.settings.log)
        if self.app.progress is not SILENT:
            self.app.progress = logs.Steps()


def _remember(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value == "":
            # Most likely a shell's variable that is not set. Another database than the one that was meant must not do instead.
            raise click.BadParameter("it is empty", context, parameter)
        if value not in (None, False):
            setattr(context.ensure_object(Context), name, value)
        return value

    return callback


def global_options(function: F) -> F:
    """--dsn, --json and --quiet: before or after the command's name."""
    options = [
        click.option("--dsn", metavar="DSN", expose_value=False, callback=_remember("dsn"), help="Postgres to work on (MODAK_DSN)."),
        click.option("--json", is_flag=True, expose_value=False, callback=_remember("json"), help="Print JSON for scripts."),
        click.option("--quiet", is_flag=True, expose_value=False, callback=_remember("quiet"), help="No progress, results only."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def command(group: click.Group, name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """A command of a group with the global options; its function gets the Context first."""

    def wrap(function: Callable[..., Any]) -> click.Command:
        return group.command(name)(global_options(click.pass_obj(function)))

    return wrap
