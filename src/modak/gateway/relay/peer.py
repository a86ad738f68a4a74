"""One of the relay's two ends: messages in and bytes out, where waiting for more is a task that may be watched beside others."""

from __future__ import annotations

import asyncio

from modak.gateway.channel import Channel, Disconnected
from modak.gateway.wire.messages import Decoder, Message


class ClientGone(Disconnected):
    """Nobody is left to answer."""

    code = "client_gone"


class BackendGone(Disconnected):
    """The session's own Postgres process is gone, and with it the session."""

    code = "backend_gone"


class Peer:
    """``arrival`` is read ahead at most once, so whoever stops watching it loses nothing: what came is in the decoder."""

    def __init__(self, channel: Channel, gone: type[Disconnected]) -> None:
        self._channel = channel
        self._gone = gone
        self._filling: asyncio.Task[None] | None = None

    @property
    def decoder(self) -> Decoder:
        return self._channel.decoder

    def arrival(self) -> asyncio.Task[None]:
        """Done once something came in or the other side is gone; ``arrived`` says which."""
        if self._filling is None:
            self._filling = asyncio.create_task(self._channel.fill())
        return self._filling

    def arrived(self) -> bool:
        """Whether something came in since this was last asked; raises if the other side is gone."""
        task = self._filling
        if task is None or not task.done():
            return False
        self._filling = None
        try:
            task.result()
        except (Disconnected, OSError) as cause:
            raise self._gone(str(cause)) from cause
        return True

    async def receive(self) -> Message:
        while (message := self.decoder.next()) is None:
            await asyncio.wait([self.arrival()])
            self.arrived()
        return message

    async def send(self, *parts: bytes | memoryview) -> None:
        try:
            await self._channel.send(*parts)
        except (Disconnected, OSError) as cause:
            raise self._gone(str(cause)) from cause

    async def close(self) -> None:
        task, self._filling = self._filling, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # looked at, so that nobody complains that it never was
        await self._channel.close()
