"""``modak worker``: the daemon that serves HTTP."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import click

from modak.cli.context import Context, command


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.option("--listen", metavar="HOST:PORT", help="Where to serve HTTP (MODAK_HTTP).")
    def worker(context: Context, listen: str | None) -> None:
        """Serve Stream Load, metrics and health by HTTP. SIGTERM ends it cleanly."""
        if listen:
            context.overrides = {**(context.overrides or {}), "http": listen}
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        asyncio.run(_work(context))


async def _work(context: Context) -> None:
    """Everything the worker does side by side. The loop that runs jobs belongs here, beside ``serve``, and stops with it."""
    from modak.web.server import HttpServer

    app = context.app
    with app.connection():
        # A catalog that this program cannot work with is said now, and not by every request.
        pass
    server = HttpServer(app)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)

    def started() -> None:
        host = app.settings.http[0]
        text = f"http on {host}:{server.port}" + ("" if app.settings.load_token else "; no Stream Load, since MODAK_LOAD_TOKEN is not set")
        context.output.result({"host": host, "port": server.port}, text)
        sys.stdout.flush()

    await server.serve(started)
