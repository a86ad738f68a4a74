"""A client's or a server's end of a socket: whole messages in, bytes out, with bounds on both."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from modak.errors import ModakError
from modak.gateway.wire.messages import Decoder, Message

READ_BYTES = 256 * 1024
# Up to here parts are copied into one: a write is a packet, and a packet costs more than the copy.
_SMALL_BYTES = 16 * 1024


class Disconnected(ModakError):
    """The other side is gone."""

    code = "disconnected"
    sqlstate = "08006"


class Channel:
    """One connection. Reading waits for a whole message; ``send`` waits while the other side does not take what it was given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int, *, startup: bool = False) -> None:
        self._reader = reader
        self._writer = writer
        self.decoder = Decoder(limit, startup=startup)

    async def receive(self) -> Message:
        while (message := self.decoder.next()) is None:
            await self.fill()
        return message

    async def fill(self) -> None:
        """Take in what has arrived, waiting for at least something."""
        try:
            data = await self._reader.read(READ_BYTES)
        except (ConnectionError, ssl.SSLError) as cause:
            raise Disconnected("the connection broke") from cause
        if not data:
            raise Disconnected("the connection was closed")
        self.decoder.feed(data)

    async def send(self, *parts: bytes | memoryview) -> None:
        try:
            for part in _together(parts):
                self._writer.write(part)
            await self._writer.drain()
        except (ConnectionError, ssl.SSLError) as cause:
            raise Disconnected("the connection broke") from cause

    async def encrypt(self, context: ssl.SSLContext) -> None:
        """The server's side of TLS from here on."""
        await self._writer.start_tls(context)

    @property
    def peer(self) -> str:
        address = self._writer.get_extra_info("peername")
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "local"

    @property
    def host(self) -> str:
        """The other side's address; empty on a Unix socket."""
        address = self._writer.get_extra_info("peername")
        return str(address[0]) if isinstance(address, tuple) else ""

    @property
    def is_encrypted(self) -> bool:
        return self._writer.get_extra_info("ssl_object") is not None

    async def close(self) -> None:
        self._writer.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), 1)
        except (OSError, ssl.SSLError, TimeoutError):
            self._writer.transport.abort()


def _together(parts: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
    if len(parts) < 2 or sum(map(len, parts)) > _SMALL_BYTES:
        return parts
    return [b"".join(parts)]
