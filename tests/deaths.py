"""The three deaths that every flow must survive: the worker's, its backend's, the server's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from modak.app import App
from modak.embedded.postgres import Cluster
from modak.settings import Settings, load


def killed_worker(settings: Settings, dsn: str, spark: str | None, point: str, *command: str) -> None:
    """Run a command of the CLI that is killed by SIGKILL at a failpoint.

    Its Spark is a server elsewhere and outlives it, as a cluster does: tasks may still be writing when the next pass begins. Without one
    its tasks run in itself.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MODAK_", "SPARK_", "PYSPARK_"))},
        "MODAK_DSN": dsn,
        "MODAK_DATA": str(settings.data),
        "MODAK_CACHE": str(settings.cache),
        **({"MODAK_SPARK": spark} if spark else {}),
        "MODAK_FAILPOINTS": f"{point}=kill",
    }
    arguments = [sys.executable, "-m", "modak.cli.main" if spark else "tests.inline_worker", *command]
    dead = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert dead.returncode == -9, dead.stderr


def spark_elsewhere(request: pytest.FixtureRequest, point: str, *without: str) -> str | None:
    """The Spark of a worker that dies at a point; None at those points that every run looks at and that Spark has no part in."""
    found: str | None = None if point in without else request.getfixturevalue("spark_connect")
    return found


def mostly_in_soak(points: Sequence[str], *kept: str) -> list[Any]:
    """Each of these deaths takes many seconds: a few in every run, all of them in `make soak`."""
    assert set(kept) <= set(points)
    return [point if point in kept else pytest.param(point, marks=pytest.mark.soak) for point in points]


def app_on(cluster: Cluster, settings: Settings, folder: Path) -> App:
    """The product on a cluster of the test's own, which may be another one than before it died."""
    return App(load({"MODAK_CACHE": str(settings.cache)}, dsn=cluster.dsn(), data=str(folder / "data")))


def kill_backends(dsn: str) -> None:
    """End every session of a job, as an administrator or a failing network would."""
    with psycopg.connect(dsn, autocommit=True) as killer:
        killer.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'modak' and pid <> pg_backend_pid()"
        )
