"""``modak up``: one command, and whatever of it is killed comes back."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.mirroring import lake_rows, start
from tests.serving import until
from tests.support import value

from modak.app import App
from modak.connection import connect
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.embedded.postmaster import alive
from modak.errors import ConnectionFailed
from modak.settings import Settings, load

pytestmark = [pytest.mark.inline, pytest.mark.timeout(280)]
ITEMS = Name("public", "items")
AWAY = (psycopg.OperationalError, ConnectionFailed)


class Up:
    """One run of it; ``found`` is what it printed when everything was up."""

    def __init__(self, folder: Path, settings: Settings, *options: str) -> None:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("MODAK_")}
        environment = {**kept, "MODAK_CACHE": str(settings.cache), "MODAK_CYCLE_SECONDS": "0.3", "MODAK_LEASE_SECONDS": "3",
                       "MODAK_HTTP": "127.0.0.1:0", "MODAK_GATEWAY": "127.0.0.1:0"}  # fmt: skip
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - goes with this object
        arguments = [sys.executable, "-m", "modak.cli.main", "up", "--json", "--dir", str(folder), *options]
        self.process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        lines = []
        while (line := self.process.stdout.readline()) and line != "}\n":
            lines.append(line)
        assert lines, self.log()
        self.found: dict[str, Any] = json.loads("".join(lines) + "}")

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def child(self, name: str) -> int:
        """The process that runs a command; 0 while there is none."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == self.process.pid and f"\0{name}\0".encode() in (entry / "cmdline").read_bytes():
                    return int(entry.name)
        return 0

    def kill(self, name: str) -> None:
        """And wait for the next one."""
        dead = self.child(name)
        os.kill(dead, signal.SIGKILL)
        until(lambda: self.child(name) not in (0, dead), 60)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "everything"
    found = Cluster.find(tmp_path / "everything" / "postgres")
    if found is not None:
        found.stop("immediate")


def answers(up: Up) -> None:
    """Worker and gateway are there, at the addresses that were printed."""

    def health() -> bool:
        host, port = up.found["http"].removeprefix("http://").rsplit(":", 1)
        client = http.client.HTTPConnection(host, int(port), timeout=30)
        with contextlib.closing(client), contextlib.suppress(OSError, http.client.HTTPException):
            client.request("GET", "/healthz")
            return client.getresponse().status == 200
        return False

    def gateway() -> bool:
        host, port = up.found["gateway"].rsplit(":", 1)
        parts = psycopg.conninfo.conninfo_to_dict(up.found["postgres"]) | {"host": host, "port": port}
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(psycopg.conninfo.make_conninfo(**parts)) as client:
            return client.execute("select count(*) from public.items").fetchone() is not None
        return False

    until(health, 60)
    until(gateway, 60)


def follows(app: App, number: int) -> None:
    """What is written now comes to the lake by itself."""

    def is_there() -> bool:
        with contextlib.suppress(*AWAY), connect(app.dsn, autocommit=True) as connection:
            return number in {row["id"] for row in lake_rows(app, connection, ITEMS)}
        return False

    def written() -> bool:
        with contextlib.suppress(*AWAY), connect(app.dsn, autocommit=True) as connection:
            connection.execute("insert into public.items values (%s, now(), 'new') on conflict do nothing", [number])
            return True
        return False

    until(written, 60)
    until(is_there, 60)


def test_everything_comes_back(folder: Path, settings: Settings) -> None:
    up = Up(folder, settings)
    try:
        made = Cluster.find(folder / "postgres")
        assert made is not None
        # Our own server, at a port that nobody can know: who reads this may connect.
        assert up.found["postgres"] == made.dsn()
        file = Path(up.found["postgres_file"])
        assert (file.parent, file.read_text(), file.stat().st_mode & 0o777) == (folder, f"{made.dsn()}\n", 0o600)
        app = App(load({"MODAK_CACHE": str(settings.cache)}, dsn=made.dsn(), data=str(folder)))
        with connect(app.dsn, autocommit=True) as connection:
            connection.execute("create table public.items (id bigint primary key, at timestamptz not null, note text)")
            connection.execute("insert into public.items select i, now(), 'n' from generate_series(1, 3) i")
            start(app, connection, ITEMS)
        answers(up)
        follows(app, 10)
        up.kill("worker")
        follows(app, 11)
        up.kill("gateway")
        answers(up)
        cluster = Cluster.find(folder / "postgres")
        assert cluster is not None
        os.kill(cluster.pid, signal.SIGKILL)
        follows(app, 12)
        answers(up)
        # Killed itself, it takes its children along, and the next start goes on.
        children = [up.child("worker"), up.child("gateway")]
        up.process.kill()
        up.process.wait(30)
        until(lambda: not any(alive(pid) for pid in children), 60)
        up = Up(folder, settings)
        follows(app, 13)
        answers(up)
        with connect(app.dsn) as connection:
            assert value(connection, "select count(*) from public.items") == 7
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(90) == 0, up.log()
        assert Cluster.find(folder / "postgres") is None
        assert up.found["stream_load"] is False
    finally:
        if up.process.poll() is None:
            up.process.kill()
            up.process.wait(30)


def test_a_database_of_yours(folder: Path, settings: Settings, dsn: str) -> None:
    """Nothing of it is started or stopped; the rest is as ever."""
    with connect(dsn, autocommit=True) as connection:
        connection.execute("create table public.items (id bigint primary key)")
    up = Up(folder, settings, "--dsn", dsn)
    try:
        assert str(psycopg.conninfo.conninfo_to_dict(dsn)["password"]) not in str(up.found)
        assert "postgres_file" not in up.found
        up.found["postgres"] = dsn
        answers(up)
        with connect(dsn, autocommit=True) as connection:
            until(lambda: value(connection, "select count(*) from modak.leader where pid = %s", up.child("worker")) == 1)
            assert not (folder / "postgres").exists()
            up.process.send_signal(signal.SIGTERM)
            assert up.process.wait(90) == 0, up.log()
            assert value(connection, "select count(*) from public.items") == 0
    finally:
        if up.process.poll() is None:
            up.process.kill()
            up.process.wait(30)
