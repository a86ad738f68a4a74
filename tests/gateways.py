"""A gateway inside the test's own process, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

from modak.app import App
from modak.gateway.service import Gateway


class RunningGateway:
    """``stop`` and ``start`` again keep the port, as a restarted service does."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.port = 0
        self.gateway: Gateway

    def start(self) -> None:
        settings = replace(self._app.settings, gateway=("127.0.0.1", self.port))
        self.gateway = App(settings).gateway()
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="test-gateway", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.gateway.start(), loop).result(30)
        self.port = self.gateway.port

    def stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self.gateway.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(10)
        loop.close()
