"""The supervisor: child processes that are started again when they end, later and later while they keep ending.

Each child says on its first line of output where it listens, and keeps that address when it is started again. Its standard input is a pipe
that nobody writes to: when this process dies, however, the pipe closes and the child ends by itself.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from modak.errors import ModakError

_SAID = re.compile(r"^(?:gateway|http) on (?P<host>\S+):(?P<port>[0-9]+)")
_BACKOFF_SECONDS = 0.5
_BACKOFF_SECONDS_MAX = 30.0
# Whoever ran for so long begins anew with the shortest wait.
_STEADY_SECONDS = 60.0
_SERVER_SECONDS = 5.0
_POLL_SECONDS = 0.1


class Server(Protocol):
    """The database below the children. ``keep`` starts it again if it is gone and returns its DSN."""

    def keep(self) -> str: ...
    def stop(self) -> None: ...


@dataclass
class Child:
    """One program. ``command`` gets the address it shall listen on."""

    name: str
    host: str
    port: int
    command: Callable[[str], Sequence[str]]
    process: subprocess.Popen[str] | None = None
    is_ready: threading.Event = field(default_factory=threading.Event)
    failures: int = 0
    started: float = 0.0
    not_before: float = 0.0

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass
class Supervisor:
    """Runs until ``stop`` is set, then ends the children in their order, and the database after them."""

    server: Server
    children: Sequence[Child]
    environment: Mapping[str, str]
    stop: threading.Event
    say: Callable[[str], None]
    end_seconds: float
    _dsn: str = ""
    _server_not_before: float = 0.0

    def run(self, ready: Callable[[], None]) -> None:
        told = False
        try:
            while not self.stop.is_set():
                self._keep_server()
                for child in self.children:
                    self._keep(child)
                if not told and all(child.is_ready.is_set() for child in self.children):
                    told = True
                    ready()
                self.stop.wait(_POLL_SECONDS)
        finally:
            for child in self.children:
                self._end(child)
            self.server.stop()

    def _keep_server(self) -> None:
        if time.monotonic() < self._server_not_before:
            return
        try:
            dsn = self.server.keep()
        except ModakError as error:
            if not self._dsn:
                raise
            self.say(f"Postgres cannot be started: {error}; tried again in {_SERVER_SECONDS:g} s")
            self._server_not_before = time.monotonic() + _SERVER_SECONDS
            return
        if self._dsn and dsn != self._dsn:
            self.say("Postgres has another address now; everything is started again")
            for child in self.children:
                self._end(child)
        self._dsn = dsn

    def _keep(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is not None:
            code = child.process.poll()
            if code is None:
                return
            child.process = None
            child.failures = 1 if now - child.started > _STEADY_SECONDS else child.failures + 1
            seconds = min(_BACKOFF_SECONDS_MAX, _BACKOFF_SECONDS * 2.0 ** (child.failures - 1))
            child.not_before = now + seconds
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            self.say(f"{child.name} {how}; it is started again in {seconds:g} s")
        if now >= child.not_before:
            self._start(child)

    def _start(self, child: Child) -> None:
        child.started = time.monotonic()
        child.process = subprocess.Popen(
            child.command(child.address),
            env={**self.environment, "MODAK_DSN": self._dsn},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C is for this process; it ends the others in their order.
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(child, child.process), name=f"modak-{child.name}", daemon=True).start()

    def _listen(self, child: Child, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = _SAID.match(line)
            if said is not None:
                child.port = int(said["port"])
                child.is_ready.set()
            self.say(f"{child.name} | {line.rstrip()}")

    def _end(self, child: Child) -> None:
        process, child.process = child.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(self.end_seconds)
        except subprocess.TimeoutExpired:
            self.say(f"{child.name} does not end and is killed; what it was doing is finished or undone by the next one")
            process.kill()
            process.wait()
