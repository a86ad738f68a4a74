"""A worker's HTTP server inside the test's own process, and a client that sends exactly what a test wants sent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection
from modak.embedded.postgres import Cluster
from modak.load import group
from modak.load.group import Batch
from modak.settings import load as settings_of
from modak.web.server import HttpServer
from tests.support import options, register_table

TOKEN = "a token"
PATH = "/api/load/public.events"
TABLE = """
    create table public.events (id bigint, event_time bigint, val text check (val <> 'forbidden'), n int default 7, doc jsonb,
                                amount numeric, tags text[], primary key (id, event_time)) partition by range (event_time);
    create table public.events_0 partition of public.events for values from (0) to (1000);
    insert into public.events (id, event_time) values (0, 0);
"""
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        assert set(found) == {"code", "message", "hint", "line", "column", "value"}
        return found


class RunningHttp:
    """A server on a free port; ``stop`` waits until it has ended in order."""

    def __init__(self, app: App, token: str | None = TOKEN, host: str = "127.0.0.1", **limits: Any) -> None:
        settings = replace(app.settings, load_token=token, http=(host, 0))
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self._app, self._limits = App(settings), limits
        self.server: HttpServer
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(30)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self.server = HttpServer(self._app, **self._limits)
            await self.server.serve(self._started.set)

        try:
            asyncio.run(serve())
        except BaseException as failure:  # noqa: BLE001 - whoever started it gets it
            self._failure = failure
            self._started.set()

    @property
    def port(self) -> int:
        return self.server.port

    def ask_to_stop(self) -> None:
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.server.stop)

    def stop(self) -> None:
        self.ask_to_stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self._failure is None, self._failure


@contextlib.contextmanager
def serving(app: App, token: str | None = TOKEN, **limits: Any) -> Iterator[RunningHttp]:
    running = RunningHttp(app, token, **limits)
    try:
        yield running
    finally:
        running.stop()


@contextlib.contextmanager
def served_table(cluster: Cluster, template: str, folder: Path) -> Iterator[App]:
    """An application on a database with public.events registered; everything at or above 0 is hot."""
    name = f"serving_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template)))
    try:
        app = App(settings_of({"HOME": os.environ.get("HOME", "/")}, dsn=cluster.dsn(name), data=str(folder)))
        with app.connection() as connection:
            connection.execute(TABLE)
            chosen = options(primary_key=("id", "event_time"), lag="0", width="1000")
            register_table(connection, app.lake(profiles.get(connection, None)), chosen=chosen)
        yield app
    finally:
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def call(port: int, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body, dict(headers or {}))
        found = connection.getresponse()
        return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())


def jsonl(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def load(port: int, label: str, body: Any, path: str = PATH, **headers: str) -> Answer:
    """A batch, of dicts or of bytes; ``content_type`` is the header Content-Type."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    content = body if isinstance(body, bytes | Iterator) else jsonl(body)
    return call(port, "POST", path, content, {"X-Modak-Token": TOKEN, "X-Modak-Label": label, **given})


def until(condition: Callable[[], Any], seconds: float = 90) -> Any:
    """What the condition says once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.005)
    return found


def row(number: int, place: int = 5, **more: Any) -> dict[str, Any]:
    return {"id": number, "event_time": place, "val": f"v{number}", **more}


class Gate:
    """Holds the batch of one label back, so that others gather behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, label: str = "first") -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        original = group._outcome

        def outcome(loader: Any, batch: Batch, options: Any) -> Any:
            if batch.label == label:
                self.reached.set()
                assert self.opened.wait(60)
            return original(loader, batch, options)

        monkeypatch.setattr(group, "_outcome", outcome)


def waiting(http: RunningHttp) -> int:
    """Batches that gather behind the one at work."""
    loads = http.server.loads
    assert loads is not None
    return sum(len(lane.waiting) for lane in loads._lanes.values())


@contextlib.contextmanager
def gathered(http: RunningHttp, gate: Gate, bodies: dict[str, Any]) -> Iterator[dict[str, concurrent.futures.Future[Answer]]]:
    """All of these wait behind the first one, in a single group, when the block begins; they are answered when it ends."""
    with concurrent.futures.ThreadPoolExecutor(len(bodies) + 1) as pool:
        first = pool.submit(load, http.port, "first", [row(10**6, 20)])
        assert gate.reached.wait(30)
        answers = {name: pool.submit(load, http.port, name, body) for name, body in bodies.items()}
        until(lambda: waiting(http) == len(bodies))
        yield answers
        gate.opened.set()
        assert first.result(60).status == 200


def forget(connection: Connection, *labels: str) -> None:
    connection.execute("delete from modak.load_labels where label = any(%s)", [list(labels)])


class WorkerProcess:
    """``modak worker`` as a user runs it, on a port of its choice."""

    def __init__(self, app: App, port: int = 0, *options: str, module: str = "modak.cli.main", **variables: str) -> None:
        environment = {name: text for name, text in os.environ.items() if not name.startswith("MODAK_") or name == "MODAK_CACHE"}
        environment |= {"MODAK_DSN": app.dsn, "MODAK_DATA": str(app.settings.data), "MODAK_LOAD_TOKEN": TOKEN, **variables}
        arguments = [sys.executable, "-m", module, "worker", "--listen", f"127.0.0.1:{port}", *options]
        # Not a pipe that nobody reads: once it is full, the worker waits for a reader.
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - goes with this object
        self.process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first, self.wait()
        self.port = int(first.split()[2].rpartition(":")[2].rstrip(";"))

    def terminate(self) -> tuple[int, str]:
        """By SIGTERM; the exit code and what it logged."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        self.process.communicate(timeout=60)
        self._log.seek(0)
        return self.process.returncode, self._log.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)
