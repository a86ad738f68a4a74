"""Commands that stay: the gateway."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import click

from modak.cli.context import Context, command
from modak.cli.parent import with_parent

if TYPE_CHECKING:
    from modak.gateway.service import Gateway


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.option("--listen", metavar="HOST:PORT", help="Where to listen (MODAK_GATEWAY).")
    @click.option("--new-password", is_flag=True,
                  help="Give Postgres another password to log in here with; the old one, which a dump may hold, is void.")  # fmt: skip
    @with_parent
    def gateway(context: Context, listen: str | None, new_password: bool) -> None:
        """Serve cold rows to Postgres, and whole queries to people. SIGTERM ends it cleanly.

        A catalog that is missing or older than this program is brought up to date first.
        """
        if listen:
            context.overrides = {**(context.overrides or {}), "gateway": listen}
        context.start_logging()
        context.app.prepare_catalog()
        served = context.app.gateway(new_password=new_password)
        asyncio.run(_serve(context, served))


async def _serve(context: Context, gateway: Gateway) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await gateway.start()
    host = context.app.settings.gateway[0]
    context.output.result({"host": host, "port": gateway.port}, f"gateway on {host}:{gateway.port}")
    sys.stdout.flush()
    try:
        await stop.wait()
    finally:
        await gateway.stop()
