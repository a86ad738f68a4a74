"""A gateway inside the test's own process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from modak.app import App
from modak.gateway.background import running
from modak.gateway.service import Gateway


class RunningGateway:
    """``stop`` and ``start`` again keep the port, as a restarted service does."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._stack = ExitStack()
        self.port = 0
        self.gateway: Gateway

    def start(self) -> None:
        settings = replace(self._app.settings, gateway=("127.0.0.1", self.port))
        self.gateway = self._stack.enter_context(running(App(settings).gateway()))
        self.port = self.gateway.port

    def stop(self) -> None:
        self._stack.close()
