"""The three deaths that every flow must survive: the worker's, its backend's, the server's."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg

from modak.settings import Settings


def killed_worker(settings: Settings, dsn: str, spark: str, point: str, *command: str) -> None:
    """Run a command of the CLI that is killed by SIGKILL at a failpoint.

    Its Spark is a server elsewhere and outlives it, as a cluster does: tasks may still be writing when the next pass begins.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MODAK_", "SPARK_", "PYSPARK_"))},
        "MODAK_DSN": dsn,
        "MODAK_DATA": str(settings.data),
        "MODAK_CACHE": str(settings.cache),
        "MODAK_SPARK": spark,
        "MODAK_FAILPOINTS": f"{point}=kill",
    }
    arguments = [sys.executable, "-m", "modak.cli.main", *command]
    dead = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert dead.returncode == -9, dead.stderr


def kill_backends(dsn: str) -> None:
    """End every session of a job, as an administrator or a failing network would."""
    with psycopg.connect(dsn, autocommit=True) as killer:
        killer.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'modak' and pid <> pg_backend_pid()"
        )
