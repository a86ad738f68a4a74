"""``modak up``: everything on one machine, in the foreground."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modak.cli.context import Context, command

if TYPE_CHECKING:
    from modak.app import App
    from modak.embedded.postgres import Cluster
    from modak.worker.supervisor import Child

_LOCK = "up.lock"
# Beyond what a worker gives its jobs: to answer the last requests, and to end.
_END_SECONDS = 20.0


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.option(
        "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), default=None, help="Keep everything here (MODAK_DATA)."
    )
    def up(context: Context, folder: Path | None) -> None:
        """Run everything on this machine until Ctrl-C: Postgres (an embedded one unless --dsn is given), gateway, worker, HTTP.

        What dies is started again. Killed itself, the next start goes on with the same data.
        """
        from modak.embedded.files import locked

        if folder is not None:
            context.overrides = {**(context.overrides or {}), "data": str(folder.absolute())}
        data = context.app.settings.data.absolute()
        data.mkdir(parents=True, exist_ok=True)
        note = partial(context.output.note, "another `modak up` works in this folder; waiting for it to end")
        with locked(data / _LOCK, wait_seconds_max=_END_SECONDS, waiting=note):
            _run(context, context.app, data)


def _run(context: Context, app: App, data: Path) -> None:
    from modak.settings import unknown
    from modak.worker.supervisor import Supervisor

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = _Given(app.settings.dsn) if app.settings.dsn else _Embedded(app)
    _migrate(context, server.keep())
    settings = app.settings
    # The worker first: it ends first, while the gateway still answers.
    children = (_child("worker", settings.http), _child("gateway", settings.gateway))
    # What is no setting was told once, here.
    strangers = unknown(os.environ)
    given = {name: text for name, text in os.environ.items() if name not in strangers}
    environment = {**given, "MODAK_DATA": str(data), "PYTHONUNBUFFERED": "1"}
    if not settings.dsn and not settings.console_dsn:
        environment["MODAK_CONSOLE_DSN"] = _console_login(server.keep(), settings.console_password)
    supervisor = Supervisor(server, children, environment, stop, _speaker(context), settings.drain_seconds + _END_SECONDS)
    supervisor.run(lambda: _ready(context, app, server, children, data))


def _speaker(context: Context) -> Callable[[str], None]:
    """What the children say, for people and for whoever keeps logs; with --json, too, since it goes to stderr."""
    return (lambda _: None) if context.quiet else (lambda text: print(text, file=sys.stderr, flush=True))


def _child(name: str, address: tuple[str, int]) -> Child:
    from modak.worker.supervisor import Child

    return Child(name, *address, lambda where: [sys.executable, "-m", "modak.cli.main", name, "--with-parent", "--listen", where])


def _migrate(context: Context, dsn: str) -> None:
    from modak.catalog.migrate import migrate
    from modak.connection import connect

    with connect(dsn, autocommit=True) as connection:
        outcome = migrate(connection)
    if outcome.applied:
        context.output.note(f"the catalog is there (version {outcome.version})")


def _console_login(dsn: str, secret: str | None) -> str:
    """On a server of our own, where nobody else would make one."""
    from modak.catalog.console_login import make
    from modak.connection import connect

    with connect(dsn) as connection:
        return make(connection, secret)


@dataclass
class _Given:
    """Somebody else's database: nothing to start, and nothing to stop."""

    dsn: str = field(repr=False)

    def keep(self) -> str:
        return self.dsn

    def stop(self) -> None:
        return None


class _Embedded:
    """The cluster in the data folder. It outlives a killed `modak up`, and the next one finds it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._cluster: Cluster | None = None

    def keep(self) -> str:
        if self._cluster is None or not self._cluster.is_running():
            self._cluster = self._app.start_cluster()
        return self._cluster.dsn()

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()


def _ready(context: Context, app: App, server: _Given | _Embedded, children: tuple[Child, ...], data: Path) -> None:
    settings, (worker, gateway) = app.settings, children
    address = app.shown_addresses(server.keep(), whole=context.json)
    found = {
        **address,
        "gateway": gateway.address,
        "http": f"http://{worker.address}",
        "data": str(data),
        "warehouse": settings.warehouse_root,
        "stream_load": settings.load_token is not None,
        "console_password": settings.console_password is not None,
    }
    lines = [
        f"Postgres   {address['postgres']}",
        *([f"           with its password in {address['postgres_file']}"] if "postgres_file" in address else []),
        f"gateway    {gateway.address}",
        f"HTTP       http://{worker.address}",
        f"data       {data}",
        *([] if settings.load_token else ["Stream Load is off: start with MODAK_LOAD_TOKEN set to a secret of yours"]),
        *([] if settings.console_password else ["no console password: start with MODAK_CONSOLE_PASSWORD set to a secret of yours"]),
        "everything is up; Ctrl-C ends it",
    ]
    context.output.result(found, "\n".join(lines))
    sys.stdout.flush()
