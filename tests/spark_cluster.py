"""A standalone Spark master and one worker of the installed Spark, in processes of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import modak
from modak.app import App
from tests.ports import free_ports
from tests.spark_server import spark_home

_START_SECONDS_MAX = 120


@contextlib.contextmanager
def spark_cluster(app: App, folder: Path) -> Iterator[str]:
    """The master's address, once its worker is there."""
    port = free_ports(1)[0]
    address = f"spark://127.0.0.1:{port}"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MODAK_")},
        "JAVA_HOME": str(app.machine().java_home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        # As on a cluster where Modak is installed.
        "PYTHONPATH": str(Path(modak.__file__).parents[1]),
    }
    master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = ["worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", "0", "-d", str(folder), address]
    with contextlib.ExitStack() as stack:
        for name, command in (("master", master), ("worker", worker)):
            log = folder / f"{name}.log"
            argv = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{command[0]}", *command[1:]]
            with log.open("w") as output:
                process = subprocess.Popen(argv, env=environment, stdout=output, stderr=output, cwd=folder)
            stack.callback(_end, process)
            _wait_for("New state: ALIVE" if name == "master" else "Successfully registered with master", log, process)
        yield address


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for(words: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_SECONDS_MAX
    while words not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.2)
