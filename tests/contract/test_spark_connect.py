"""The same jobs over Spark Connect: no job may lean on a JVM in its own process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests import events, seam
from tests.events import EVENTS, ROWS, put_under_modak

from modak.app import App
from modak.connection import Connection
from modak.settings import Settings

pytestmark = pytest.mark.spark


def test_a_pass_and_a_verification_over_connect(spark_connect: str, app: App, connection: Connection, settings: Settings, dsn: str) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MODAK_", "SPARK_", "PYSPARK_"))},
        "MODAK_DSN": dsn,
        "MODAK_DATA": str(settings.data),
        "MODAK_CACHE": str(settings.cache),
        "MODAK_SPARK": spark_connect,
    }
    for arguments in (["tier", "public.events", "--keep"], ["verify", "public.events"], ["tier", "public.events"]):
        command = [sys.executable, "-m", "modak.cli.main", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
    assert seam.states(connection, EVENTS) == {"p0": "dropped", "p1": "dropped", "p2": "hot"}
    assert seam.read(app, EVENTS) == {str(row[0]): row for row in ROWS}
