"""The same jobs over Spark Connect: no job may lean on a JVM in its own process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import events, seam
from tests.events import EVENTS, ROWS, put_under_modak
from tests.spark_server import spark_server

from modak.app import App
from modak.connection import Connection
from modak.settings import Settings

pytestmark = pytest.mark.spark


def environment(address: str, settings: Settings, dsn: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MODAK_", "SPARK_", "PYSPARK_"))},
        "MODAK_DSN": dsn,
        "MODAK_DATA": str(settings.data),
        "MODAK_CACHE": str(settings.cache),
        "MODAK_SPARK": address,
    }


def test_a_pass_and_a_verification_over_connect(spark_connect: str, app: App, connection: Connection, settings: Settings, dsn: str) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    for arguments in (["tier", "public.events", "--keep"], ["verify", "public.events"], ["tier", "public.events"]):
        command = [sys.executable, "-m", "modak.cli.main", *arguments]
        done = subprocess.run(
            command, env=environment(spark_connect, settings, dsn), capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
    assert seam.states(connection, EVENTS) == {"p0": "dropped", "p1": "dropped", "p2": "hot"}
    assert seam.read(app, EVENTS) == {str(row[0]): row for row in ROWS}


@contextlib.contextmanager
def client(address: str, settings: Settings, dsn: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """It has tiered once when the block begins."""
    command = [sys.executable, "-m", "tests.connect_client", *arguments]
    running = subprocess.Popen(
        command, env=environment(address, settings, dsn), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "once\n", running.communicate(timeout=60)[1]
        yield running
    finally:
        running.kill()
        running.communicate(timeout=60)


def goes_on(running: subprocess.Popen[str], connection: Connection) -> None:
    events.add_partition(connection, 3, "public.events_hot")
    connection.execute("insert into public.events_hot values (6, 310, 'newest')")
    said, log = running.communicate("\n", timeout=200)
    assert (running.returncode, said) == (0, "twice\n"), log


def test_a_session_that_the_server_let_go_is_replaced(
    spark_connect: str, app: App, connection: Connection, settings: Settings, dsn: str
) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    with client(spark_connect, settings, dsn, "released") as running:
        goes_on(running, connection)


@pytest.mark.soak  # two servers are started for it
def test_a_server_that_was_started_again(app: App, connection: Connection, settings: Settings, dsn: str, tmp_path: Path) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    with contextlib.ExitStack() as stack:
        with spark_server(app, tmp_path) as address:
            running = stack.enter_context(client(address, settings, dsn))
        stack.enter_context(spark_server(app, tmp_path, int(address.rpartition(":")[2])))
        goes_on(running, connection)
