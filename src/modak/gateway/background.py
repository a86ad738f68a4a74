"""A gateway on a thread of the caller's process: for the demo, for tests, for whoever wants one for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from modak.gateway.service import Gateway

_SECONDS = 60


@contextmanager
def running(gateway: Gateway) -> Iterator[Gateway]:
    """Started when the block begins, stopped when it ends."""
    gateway.watched = False
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="modak-gateway", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(gateway.start(), loop).result(_SECONDS)
        try:
            yield gateway
        finally:
            asyncio.run_coroutine_threadsafe(gateway.stop(), loop).result(_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_SECONDS)
        loop.close()
