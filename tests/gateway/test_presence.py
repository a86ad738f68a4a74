"""Postgres knows whether its gateway is there: plans ask it for estimates only then, however it went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests import events
from tests.gateways import RunningGateway
from tests.support import rows

from modak.app import App
from modak.connection import Connection
from modak.gateway.fdw import presence

ESTIMATES = "select 'use_remote_estimate=true' = any (srvoptions) from pg_foreign_server where srvname = 'modak_gateway'"


def asks(connection: Connection) -> bool:
    return rows(connection, ESTIMATES) == [(True,)]


def eventually(condition: Callable[[], bool], seconds: float = 90) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Service:
    """``modak gateway`` as people start it."""

    def __init__(self, dsn: str, folder: Path) -> None:
        command = [sys.executable, "-m", "modak.cli.main", "gateway", "--listen", "127.0.0.1:0"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MODAK_") or name == "MODAK_CACHE"}
        settings = kept | {"MODAK_DSN": dsn, "MODAK_DATA": str(folder / "data")}
        self.process = subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def service(dsn: str, tmp_path: Path) -> Iterator[Callable[[], Service]]:
    started: list[Service] = []

    def start() -> Service:
        started.append(Service(dsn, tmp_path))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def test_before_the_first_one_nobody_is_asked(connection: Connection) -> None:
    assert not asks(connection)


def test_a_gateway_that_is_killed_is_reported_and_one_that_starts_is_asked_again(
    connection: Connection, service: Callable[[], Service]
) -> None:
    killed = service()
    assert asks(connection)
    (lookout,) = children(killed.process.pid)
    killed.end(signal.SIGKILL)
    assert eventually(lambda: not asks(connection))
    assert eventually(lambda: not is_running(lookout))
    stopped = service()
    assert asks(connection)
    (lookout,) = children(stopped.process.pid)
    told = Path(f"/proc/{lookout}/cmdline")
    assert eventually(lambda: told.read_text() != "")  # it has none while the kernel still puts the new program in place
    assert told.read_text().split("\0")[1:] == ["-m", "modak.gateway.lookout", ""], "no DSN for others to see"
    os.kill(lookout, signal.SIGTERM)  # as a service manager does to all processes of a service
    assert stopped.end(signal.SIGTERM) == 0
    assert not asks(connection)
    assert eventually(lambda: not is_running(lookout))


def test_who_went_does_not_speak_for_who_came(connection: Connection) -> None:
    first = presence.announce(connection, "127.0.0.1", 1111)
    second = presence.announce(connection, "127.0.0.1", 2222)
    assert first.verifier == second.verifier
    assert first.since is not None
    assert second.since is not None
    assert not presence.depart(connection, first.since)
    assert asks(connection)
    assert presence.depart(connection, second.since)
    assert not asks(connection)
    again = presence.announce(connection, "127.0.0.1", 2222)
    assert asks(connection)
    assert not presence.depart(connection, second.since)
    assert again.since is not None
    assert presence.depart(connection, again.since)


@pytest.mark.spark
@pytest.mark.inline
def test_a_lake_out_of_reach_stops_cold_rows_only(app: App, connection: Connection, dsn: str, gateway: RunningGateway) -> None:
    events.create(connection)
    events.put_under_modak(app, connection)
    events.tier(app)
    gateway.stop()
    gateway.start()  # it has read nothing yet
    warehouse = app.settings.data / "warehouse"
    aside = warehouse.rename(warehouse.with_name("aside"))
    hot = "select id from public.events where event_time >= 200 + (extract(epoch from now()) * 0)::bigint order by 1"
    with psycopg.connect(dsn, autocommit=True) as reader:
        assert reader.execute(hot).fetchall() == [(4,), (5,)]
        with pytest.raises(psycopg.Error, match="metadata"):
            reader.execute("select * from public.events")
        aside.rename(warehouse)
        assert len(reader.execute("select * from public.events").fetchall()) == 5
