"""One Postgres cluster per run, one migrated template, one database per test; one Spark session per run."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from modak.app import App
from modak.catalog.migrate import migrate
from modak.connection import Connection, connect
from modak.core.profile import Profile
from modak.embedded.postgres import Cluster
from modak.failpoints import armed
from modak.lake.iceberg import IcebergLake
from modak.settings import Settings, load
from tests.commands import modak
from tests.gateways import RunningGateway
from tests.inline import run_inline
from tests.mirroring import logical, mirrored
from tests.spark_server import spark_server

# The machine's own settings must not decide a test; where fetched jars are kept may.
for _name in [name for name in os.environ if name.startswith("MODAK_") and name != "MODAK_CACHE"]:
    del os.environ[_name]
# Every JVM of a run is a short one with little data: compiling once and collecting with one thread leaves the cores to the tests.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Fixtures for all files: one cluster whose stream can be read, and the command line.
__all__ = ["logical", "mirrored", "modak"]

_TEMPLATE = "modak_template"
_numbers = itertools.count(1)


# Variations of what a quicker test holds already: `make soak` runs them, so that `make test` stays within its time.
_VARIATIONS = (
    "test_untier_shapes.py",
    "test_mirror_twin.py::test_the_lake_is_the_heap_at_every_frontier[2",
    "test_untier_crash.py::test_the_worker_is_killed[untier.after_copy",
    "test_adopt.py::test_any_order_of_loads_and_jobs_ends_as_the_labels_say[pairs-1",
    "test_adopt.py::test_any_order_of_loads_and_jobs_ends_as_the_labels_say[events-1",
    "test_untier_writers.py::test_what_is_written_meanwhile",
    "test_untier_writers.py::test_many_corrections",
    "test_untier_writers.py::test_writers_that_never_stop",
    "test_untier_writers.py::test_a_",
    "test_orms_django.py::test_django[server_binding",
    "test_orms_django.py::test_django[port",
    "test_keep_heap.py::test_the_heap_is_the_truth",
    "test_keep_heap.py::test_against_a_plain_twin[1",
    "test_keep_heap.py::test_against_a_plain_twin[2",
    "test_retain.py::test_what_was_not_looked_up_leaves_a_tombstone",
    "test_retain.py::test_tables_of_every_kind_of_key[smallint",
    "test_retain.py::test_tables_of_every_kind_of_key[integer",
    "test_retain.py::test_tables_of_every_kind_of_key[timestamp]",
    "test_retain.py::test_tables_of_every_kind_of_key[date by day",
    "test_keep_heap.py::test_the_command_drops_nothing",
    "test_fold_crash.py::test_the_worker_is_killed[fold.after_journal",
    "test_fold_crash.py::test_the_worker_is_killed[fold.after_publish",
    "test_untier_crash.py::test_the_worker_is_killed[untier.after_journal",
    "test_untier_crash.py::test_the_worker_is_killed[untier.after_publish",
    "test_retain_crash.py::test_the_worker_is_killed[retain.after_journal",
    "test_retain_crash.py::test_the_worker_is_killed[retain.after_publish",
    "test_tier_crash.py::test_the_worker_is_killed[tier.after_seal",
    "test_tier_crash.py::test_the_worker_is_killed[tier.after_files",
    "test_tier_crash.py::test_the_worker_is_killed[tier.before_advance",
    "test_tier_crash.py::test_the_server_stops_at_once[tier.after_advance",
    "test_tier_crash.py::test_its_backend_is_killed[tier.after_journal",
    "test_tier_crash.py::test_its_backend_is_killed[tier.before_advance",
    "test_tier_crash.py::test_its_backend_is_killed[tier.after_attach",
    "test_tier_crash.py::test_the_server_stops_at_once[tier.after_seal",
    "test_tier_crash.py::test_the_server_stops_at_once[tier.after_files",
)


# Files of few tests that take long. They go first: last, one process would work on them while the others have nothing left to do.
_LONG = (
    "test_docs",
    "test_demo",
    "test_lake_faults",
    "test_oracle",
    "test_load_ledger",
    "test_ledger",
    "test_mirror",
    "_crash",
    "test_adopt",
    "test_reconcile",
    "test_untier",
    "test_keep_heap",
    "test_retain",
    "test_maintain",
    "test_fold",
    "test_spark_connect",
    "test_load",
    "test_up",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(variation in item.nodeid for variation in _VARIATIONS):
            item.add_marker(pytest.mark.soak)
    places = {name: place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: next((place for name, place in places.items() if name in item.path.name), len(places)))


def pytest_report_header() -> str:
    from modak.embedded.server_binaries import find_server_binaries

    binaries = find_server_binaries()
    return f"postgres: {binaries.major} ({binaries.origin})"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Durability is not what these tests are about; crash tests start clusters of their own."""
    options = {"fsync": "off", "full_page_writes": "off", "max_connections": "100"}
    started = Cluster.start(tmp_path_factory.mktemp("cluster") / "postgres", options=options)
    yield started
    started.stop("immediate")


@pytest.fixture(scope="session")
def template(cluster: Cluster) -> str:
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute(f"create database {_TEMPLATE}")
    with connect(cluster.dsn(_TEMPLATE)) as connection:
        migrate(connection)
    return _TEMPLATE


@pytest.fixture
def new_database(cluster: Cluster) -> Iterator[Callable[..., str]]:
    """Makes databases: empty ones, or copies of the migrated template. Returns DSNs."""
    made: list[str] = []

    def make(template: str = "template1") -> str:
        name = f"test_{next(_numbers)}"
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template)))
        made.append(name)
        return cluster.dsn(name)

    yield make
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        for name in made:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def dsn(new_database: Callable[..., str], template: str) -> str:
    """A database with the catalog in it."""
    return new_database(template)


@pytest.fixture
def connection(dsn: str) -> Iterator[Connection]:
    with connect(dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def settings(dsn: str, tmp_path: Path) -> Settings:
    return load({"HOME": os.environ.get("HOME", "/"), **_cache()}, dsn=dsn, data=str(tmp_path / "data"))


def _cache() -> dict[str, str]:
    return {name: os.environ[name] for name in ("MODAK_CACHE", "XDG_CACHE_HOME") if name in os.environ}


@pytest.fixture
def app(settings: Settings) -> App:
    return App(settings)


@pytest.fixture(autouse=True)
def _inline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = request.node.get_closest_marker
    if marked("inline") is not None and marked("distributed") is None:
        run_inline(monkeypatch)


@pytest.fixture
def at_point() -> Iterator[Callable[[str, Callable[[], Any]], None]]:
    """Run something at a named point, once."""
    with contextlib.ExitStack() as stack:

        def arrange(name: str, action: Callable[[], Any]) -> None:
            waiting = [action]
            stack.enter_context(armed(name, lambda: waiting.pop()() if waiting else None))

        yield arrange


@pytest.fixture(scope="session")
def made_cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cluster that stands still and has the catalog: to copy it takes a tenth of the time of making one."""
    folder = tmp_path_factory.mktemp("made") / "cluster"
    started = Cluster.start(folder, options={"fsync": "off"})
    with connect(started.dsn()) as connection:
        migrate(connection)
    started.stop()
    return folder


@pytest.fixture
def own_cluster(made_cluster: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that may be stopped the hard way, with durability on, and the catalog in it."""
    # Whoever the server runs as, its files stay his.
    subprocess.run(["cp", "-a", str(made_cluster), str(tmp_path / "own")], check=True)
    cluster = Cluster.start(tmp_path / "own")
    yield cluster
    found = Cluster.find(tmp_path / "own")
    if found is not None:
        found.stop("immediate")


@pytest.fixture(scope="session")
def spark_connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server: for workers that die, and need not start a JVM for it."""
    folder = tmp_path_factory.mktemp("connect")
    with spark_server(App(load({"HOME": os.environ.get("HOME", "/"), **_cache()}, data=str(folder / "data"))), folder) as address:
        yield address


@pytest.fixture
def lake(app: App) -> IcebergLake:
    return app.lake(Profile("default"))


@pytest.fixture
def gateway(app: App) -> Iterator[RunningGateway]:
    """A gateway of the test's database on a free port, started when first asked to be."""
    running = RunningGateway(app)
    running.start()
    yield running
    running.stop()
