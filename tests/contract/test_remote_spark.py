"""Spark on a remote lake, as people run it: commands in processes of their own, on a cluster's master and on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests import seam
from tests.adopting import shown
from tests.faults import fault_proxy
from tests.loading import PAIR, ROWS, TABLE
from tests.object_store import SECRET_KEY, ObjectStore, object_store
from tests.remote import RemoteWorld, remote_world
from tests.rest_catalog import rest_catalog
from tests.spark_cluster import spark_cluster

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection, connect
from modak.core.registration import Options
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.registration.register import register
from modak.settings import load

pytestmark = pytest.mark.spark

_ROOT = Path(__file__).parents[2]
BEFORE = {number: (place, text) for number, place, text, _ in ROWS}


@pytest.fixture(scope="module")
def plain() -> App:
    return App(load({name: os.environ[name] for name in ("HOME", "MODAK_CACHE", "XDG_CACHE_HOME") if name in os.environ}))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("store")) as found:
        yield found


def create(app: App, connection: Connection) -> None:
    connection.execute(TABLE.format(name="pairs", more=PAIR))
    for number in range(3):
        bounds = f"from ({number * 100}) to ({number * 100 + 100})"
        connection.execute(f"create table public.pairs_{number} partition of public.pairs for values {bounds}")
    for row in ROWS:
        connection.execute("insert into public.pairs (id, event_time, val, n) values (%s, %s, %s, %s)", row)
    profile = profiles.get(connection, None)
    options = Options(tier_key="event_time", primary_key=("id", "event_time"), lag="0", width="100")
    register(connection, app.lake(profile), Name("public", "pairs"), options, profile=profile.name)


def run_story(app: App, master: str, *how: str) -> None:
    """Run it, and look meanwhile whether anybody can see a secret in the list of processes."""
    settings = app.settings
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MODAK_", "SPARK_", "PYSPARK_"))},
        "MODAK_DSN": app.dsn,
        "MODAK_DATA": str(settings.data),
        "MODAK_CACHE": str(settings.cache),
        "MODAK_SPARK": master,
        **{f"MODAK_CREDENTIALS_{name}": json.dumps(given) for name, given in settings.credentials.items()},
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}",
    }
    with _watching_processes() as seen:
        done = subprocess.run(
            [sys.executable, "-m", "tests.remote_story", *how], env=environment, capture_output=True, text=True, timeout=280, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert not seen, "a secret stands in a command line"
    assert SECRET_KEY not in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "done"


@contextlib.contextmanager
def _watching_processes() -> Iterator[list[bytes]]:
    seen: list[bytes] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.3):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    line = path.read_bytes()
                    if SECRET_KEY.encode() in line:
                        seen.append(line)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join(10)


def story(world: RemoteWorld, master: str) -> None:
    with connect(world.dsn, autocommit=True) as connection:
        create(world.app, connection)
        run_story(world.app, master)
        expected = {one: place for one, place in BEFORE.items() if one != 3} | {2: (20, "corrected")}
        assert shown(connection, "pairs") == expected


def no_secret_below(*folders: Path) -> None:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                assert SECRET_KEY.encode() not in path.read_bytes(), path


def test_a_cluster_tiers_a_table(app: App, connection: Connection, tmp_path: Path) -> None:
    """A standalone master, as every run has one; the longer ways are in `make soak`."""
    create(app, connection)
    (tmp_path / "spark").mkdir()
    with spark_cluster(app, tmp_path / "spark") as master:
        run_story(app, master, "short")
    assert seam.states(connection, Name("public", "pairs")) == {"pairs_0": "dropped", "pairs_1": "dropped", "pairs_2": "hot"}


@pytest.mark.soak
def test_a_cluster_works_on_an_object_store(plain: App, cluster: Cluster, store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "spark").mkdir()
    with (
        fault_proxy(store.endpoint) as proxy,
        remote_world(cluster, "spark_s3", tmp_path, store, proxy) as world,
        spark_cluster(plain, tmp_path / "spark") as master,
    ):
        story(world, master)
        # What the cluster's own processes wrote down: logs, work folders, event logs.
        no_secret_below(tmp_path / "spark", world.app.settings.data)


@pytest.mark.soak
def test_one_machine_works_on_a_rest_catalog(plain: App, cluster: Cluster, store: ObjectStore, tmp_path: Path) -> None:
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute("create database rest_of_spark")
    with (
        rest_catalog(plain, tmp_path, cluster.dsn("rest_of_spark"), store) as catalog,
        fault_proxy(store.endpoint) as proxy,
        fault_proxy(catalog.uri) as catalog_proxy,
        remote_world(cluster, "spark_rest", tmp_path, store, proxy, catalog_proxy) as world,
    ):
        story(world, "local[2]")
        assert any(path.startswith("/v1/") for _, path in catalog_proxy.seen)
        no_secret_below(world.app.settings.data)
