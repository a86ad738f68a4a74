"""Nodes for benchmarks of decoupled tables: Postgres servers with a gateway each, one catalog for all of them, one table."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import uvicorn

from bench.support import machine
from modak.app import App
from modak.catalog.migrate import migrate
from modak.connection import connect
from modak.embedded.postgres import Cluster
from modak.settings import load

COLUMNS = json.dumps(
    [
        {"name": "id", "type": "bigint"},
        {"name": "at", "type": "timestamptz"},
        {"name": "status", "type": "text"},
        {"name": "amount", "type": "numeric(12,2)"},
        {"name": "ratio", "type": "double precision"},
    ]
)
_TOKEN = "a-token-for-the-bench"
_NAMES = ("anna", "berta", "clara")
_OPTIONS = {"wal_level": "logical", "wal_receiver_status_interval": "1s", "max_connections": "100"}


@dataclass(frozen=True)
class Node:
    app: App

    def client(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.app.dsn, autocommit=True)


@contextlib.contextmanager
def nodes(count: int) -> Iterator[list[Node]]:
    """All of them write ``public.events``; several are a mesh, and speak to the first one's catalog by REST."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(machine(_OPTIONS))
        if count == 1:
            made = [Node(first)]
            stack.enter_context(_gateway(first))
        else:
            made = _mesh(stack, first, count)
        with made[0].client() as client:
            client.execute("select modak.create_iceberg_table('public', 'events', %s)", [COLUMNS])
        for node in made[1:]:
            with node.client() as client:
                client.execute("select modak.attach_iceberg_table('public', 'events', 'public.events')")
        yield made


def _mesh(stack: contextlib.ExitStack, catalog: App, count: int) -> list[Node]:
    address = stack.enter_context(_served(App(replace(catalog.settings, rest_token=_TOKEN))))
    made: dict[str, Node] = {}
    for name in _NAMES[:count]:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="modak-bench-")))
        cluster = Cluster.start(folder / "postgres", options=_OPTIONS)
        stack.callback(cluster.stop, "immediate")
        with connect(cluster.dsn()) as connection:
            migrate(connection)
            connection.execute("update modak.storage_profiles set credential_ref = 'BENCH' where is_default")
        home = {"HOME": os.environ.get("HOME", "/"), "MODAK_CATALOG": address, "MODAK_CREDENTIALS_BENCH": f"token={_TOKEN}"}
        made[name] = Node(App(load(home, dsn=cluster.dsn(), data=str(folder / "data"))))
    for name, node in made.items():
        with node.client() as client:
            client.execute("select modak.join_mesh(%s, %s)", [name, json.dumps({other: one.app.dsn for other, one in made.items()})])
    for node in made.values():
        stack.enter_context(_gateway(node.app))
    return list(made.values())


@contextlib.contextmanager
def _gateway(app: App) -> Iterator[None]:
    """In a process of its own, as nodes have it: in one process they would share an interpreter."""
    settings = app.settings
    given = {name: value for name, value in os.environ.items() if not name.startswith("MODAK_")}
    given |= {"MODAK_DSN": app.dsn, "MODAK_DATA": str(settings.data), "MODAK_CREDENTIALS_BENCH": f"token={_TOKEN}"}
    if settings.catalog != "jdbc":
        given["MODAK_CATALOG"] = settings.catalog
    command = [sys.executable, "-m", "modak.cli.main", "gateway", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()  # it listens
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def _served(app: App) -> Iterator[str]:
    """The REST face alone, on a free port."""
    face = app.rest_catalog()
    assert face is not None
    server = uvicorn.Server(uvicorn.Config(face.build(), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def commits_per_second(made: list[Node], writers: int, seconds: float) -> tuple[float, dict[int, int]]:
    """Single-row INSERTs, each a commit, by so many writers spread over the nodes; and how many each node had."""
    until, counts, lock = time.monotonic() + seconds, dict.fromkeys(range(len(made)), 0), threading.Lock()

    def write(number: int) -> None:
        place = number % len(made)
        with made[place].client() as client:
            while time.monotonic() < until:
                client.execute("insert into events values (%s, now(), 'one', 1, 0.5)", [number])
                with lock:
                    counts[place] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts.values()) / (time.monotonic() - started), counts
