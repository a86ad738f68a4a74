"""``modak worker``: the daemon that runs jobs and serves HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading

import click

from modak.cli.context import Context, command
from modak.cli.parent import with_parent
from modak.errors import ModakError

_SWITCH_SECONDS = 0.0005
_WATCH_SECONDS = 0.5


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.option("--listen", metavar="HOST:PORT", help="Where to serve HTTP (MODAK_HTTP).")
    @click.option("--jobs/--no-jobs", default=True, show_default=True, help="Also run every table's jobs, cycle after cycle.")
    @with_parent
    def worker(context: Context, listen: str | None, jobs: bool) -> None:
        """Run the jobs of every table, and serve Stream Load, metrics and health by HTTP. SIGTERM ends it cleanly.

        Start as many as you like: one of them runs the jobs, and another takes over when it ends or hangs. A catalog that is missing or
        older than this program is brought up to date first.
        """
        if listen:
            context.overrides = {**(context.overrides or {}), "http": listen}
        # A thread that reads rows holds the interpreter for as long as it may, and each piece of a body that arrives waits for it.
        sys.setswitchinterval(_SWITCH_SECONDS)
        context.start_logging()
        context.app.prepare_catalog()
        asyncio.run(_work(context, jobs=jobs))


async def _work(context: Context, *, jobs: bool) -> None:
    """Everything the worker does side by side; the loop that runs jobs stops when the server does."""
    from modak.web.server import HttpServer
    from modak.worker.loop import Loop, limits_of

    app = context.app
    stop = threading.Event()
    jobs_loop = Loop(app, stop, app.settings.cycle_seconds, limits_of(app.settings))
    server = HttpServer(app, state=jobs_loop.state if jobs else None)
    loop = asyncio.get_running_loop()

    def end() -> None:
        # Both at once: no further job begins while the last requests are answered.
        stop.set()
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)

    def started() -> None:
        host = app.settings.http[0]
        text = f"http on {host}:{server.port}" + ("" if app.settings.load_token else "; no Stream Load, since MODAK_LOAD_TOKEN is not set")
        context.output.result({"host": host, "port": server.port}, text)
        sys.stdout.flush()

    runner = threading.Thread(target=jobs_loop.run, name="modak-jobs", daemon=True)
    if jobs:
        runner.start()
    failed = asyncio.Event()

    async def watch() -> None:
        """A loop that ended though nobody asked it to: a worker that went on serving without it would be a standby that never leads."""
        while not jobs_loop.state.ended:
            await asyncio.sleep(_WATCH_SECONDS)
        if not stop.is_set():
            failed.set()
            end()

    watching = asyncio.create_task(watch())
    try:
        await server.serve(started)
    finally:
        watching.cancel()
        stop.set()
    if jobs:
        await asyncio.to_thread(runner.join, app.settings.drain_seconds)
        if runner.is_alive():
            # Whoever comes next finishes or undoes it, as after a crash.
            logging.getLogger("modak.worker").warning("jobs are still at work and are left to the next worker: %s", jobs_loop.state.running)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1 if failed.is_set() else 0)
    if failed.is_set():
        raise ModakError("the loop that runs the jobs failed again and again", hint="the log says how; start the worker again")
