"""The same jobs over Spark Connect: no job may lean on a JVM in its own process."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import events, seam
from tests.events import EVENTS, ROWS, put_under_modak

from modak.app import App
from modak.connection import Connection
from modak.jobs.spark import SHARED
from modak.settings import Settings

pytestmark = pytest.mark.spark


@pytest.fixture
def connect_server(app: App, tmp_path: Path) -> Iterator[str]:
    """A Spark Connect server of the installed Spark on a free loopback port."""
    machine = app.machine()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = Path(found.origin).parent
    settings = {
        **SHARED,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.local.dir": str(tmp_path / "local"),
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--jars", ",".join(map(str, machine.jars))]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {**os.environ, "JAVA_HOME": str(machine.java_home), "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    with (tmp_path / "connect.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=tmp_path)
    try:
        _wait_for(port, server, tmp_path / "connect.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        assert server.poll() is None, log.read_text()[-3000:]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise AssertionError(f"the server did not come up: {log.read_text()[-3000:]}")


def test_a_pass_and_a_verification_over_connect(
    connect_server: str, app: App, connection: Connection, settings: Settings, dsn: str
) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MODAK_", "SPARK_", "PYSPARK_"))},
        "MODAK_DSN": dsn,
        "MODAK_DATA": str(settings.data),
        "MODAK_CACHE": str(settings.cache),
        "MODAK_SPARK": connect_server,
    }
    for arguments in (["tier", "public.events", "--keep"], ["verify", "public.events"], ["tier", "public.events"]):
        command = [sys.executable, "-m", "modak.cli.main", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
    assert seam.states(connection, EVENTS) == {"p0": "dropped", "p1": "dropped", "p2": "hot"}
    assert seam.read(app, EVENTS) == {str(row[0]): row for row in ROWS}
