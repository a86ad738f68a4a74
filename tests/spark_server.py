"""A Spark Connect server of the installed Spark, in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from modak.app import App
from modak.jobs.spark import SHARED


def spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


@contextlib.contextmanager
def spark_server(app: App, folder: Path, port: int | None = None) -> Iterator[str]:
    """Its address, on a free loopback port, or on that of a server that has ended."""
    machine = app.machine()
    if port is None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
    home = spark_home()
    settings = {
        **SHARED,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--jars", ",".join(map(str, machine.jars))]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {**os.environ, "JAVA_HOME": str(machine.java_home), "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    with (folder / "connect.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        _wait_for(port, server, folder / "connect.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(480):
        assert server.poll() is None, log.read_text()[-3000:]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise AssertionError(f"the server did not come up: {log.read_text()[-3000:]}")
