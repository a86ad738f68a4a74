"""The body of a request, for as long as its client sends it: one that pauses for too long, or takes too long, is given up.

By ASGI alone, so that everything that is served reads its bodies here. What a client gets to hear of it is up to whoever reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


@dataclass(frozen=True)
class Patience:
    """``idle_seconds`` of a pause, ``seconds_max`` of everything: a byte now and then is no reason to wait for ever."""

    idle_seconds: float = 30.0
    seconds_max: float = 900.0


class Slow(Exception):
    """The body did not arrive in time."""


class TooLarge(Exception):
    """The body is larger than whoever reads it takes."""


class Gone(Exception):
    """The client left before the body was complete."""


async def pieces(receive: Receive, patience: Patience) -> AsyncIterator[bytes]:
    """As they arrive. Time that the reader takes for a piece counts for the whole, not for a pause."""
    loop = asyncio.get_running_loop()
    end, more = loop.time() + patience.seconds_max, True
    while more:
        try:
            async with asyncio.timeout_at(min(end, loop.time() + patience.idle_seconds)):
                message = await receive()
        except TimeoutError as cause:
            raise Slow("the body did not arrive in time") from cause
        if message["type"] == "http.disconnect":
            raise Gone("the client left before the body was complete")
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def whole(receive: Receive, patience: Patience, bytes_max: int) -> bytes:
    """A body that is small enough for memory."""
    parts, size = [], 0
    async for piece in pieces(receive, patience):
        size += len(piece)
        if size > bytes_max:
            raise TooLarge(f"a body has {bytes_max:,} bytes at most here")
        parts.append(piece)
    return b"".join(parts)
