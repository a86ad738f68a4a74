"""Commands that stay: the gateway."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

import click

from modak.cli.context import Context, command

if TYPE_CHECKING:
    from modak.gateway.service import Gateway


def add_commands(group: click.Group) -> None:
    @command(group)
    @click.option("--listen", metavar="HOST:PORT", help="Where to listen (MODAK_GATEWAY).")
    def gateway(context: Context, listen: str | None) -> None:
        """Serve cold rows to Postgres, and whole queries to people. SIGTERM ends it cleanly."""
        if listen:
            context.overrides = {**(context.overrides or {}), "gateway": listen}
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        served = context.app.gateway()
        asyncio.run(_serve(context, served))


async def _serve(context: Context, gateway: Gateway) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await gateway.start()
    host = context.app.settings.gateway[0]
    context.output.result({"host": host, "port": gateway.port}, f"gateway on {host}:{gateway.port}")
    try:
        await stop.wait()
    finally:
        await gateway.stop()
