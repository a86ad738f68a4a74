"""The worker's loop: jobs come of themselves, one table's failure is not another's, and one worker at a time runs them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.adopting import Loads, row, seam_of, shown
from tests.loading import World, world
from tests.support import value

from modak.connection import Connection, connect
from modak.embedded.postgres import Cluster
from modak.worker import loop as loop_module
from modak.worker.loop import LEADER_LOCK, Loop

pytestmark = [pytest.mark.spark, pytest.mark.inline]


@pytest.fixture
def made(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(cluster, template, tmp_path_factory, ["pairs", "events"]) as found:
        yield found


@pytest.fixture
def connection(made: World) -> Iterator[Connection]:
    with connect(made.dsn, autocommit=True) as opened:
        yield opened


@contextlib.contextmanager
def running(made: World) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=Loop(made.app, stop, 0.1).run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_jobs_come_of_themselves(made: World, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "FOLD_ROWS", 1)
    loads = Loads(made, "pairs")
    loads.stage(row(10, 50, "staged"))
    loads.trickle(row(1, 10, "corrected"))
    connection.execute("create table public.pairs_3 partition of public.pairs_hot for values from (300) to (400)")
    connection.execute("insert into public.pairs values (20, 310, 'newest', 1)")
    with running(made):
        eventually(lambda: value(connection, "select count(*) from modak.load_labels where state = 'staged'") == 0)
        eventually(lambda: value(connection, "select count(*) from modak.delta") == 0)
        eventually(lambda: seam_of(connection, "pairs")[0] == 300)
        eventually(lambda: value(connection, "select to_regclass('public.pairs_2') is null"))
    found = shown(connection, "pairs")
    assert (found[10], found[1], found[20]) == ((50, "staged"), (10, "corrected"), (310, "newest"))


def test_one_tables_failure_is_its_own(made: World, connection: Connection) -> None:
    Loads(made, "events").stage(row(10, 50))
    Loads(made, "pairs").stage(row(10, 50))
    connection.execute("update modak.load_labels set staged_files = array['file:///nowhere/load-x.parquet'] "
                       "where table_id = (select table_id from modak.tables where table_name = 'events')")  # fmt: skip
    with running(made):
        eventually(lambda: value(connection, "select count(*) from modak.load_labels where state = 'committed'") == 1)
        eventually(lambda: value(connection, "select count(*) from modak.problems where job = 'adopt'") == 1)
    assert shown(connection, "pairs")[10] == (50, "x")


def test_a_second_worker_stands_by(made: World, connection: Connection) -> None:
    Loads(made, "pairs").stage(row(10, 50))
    with connect(made.dsn, autocommit=True) as leader:
        assert value(leader, "select pg_try_advisory_lock(%s)", LEADER_LOCK)
        with running(made):
            time.sleep(1)
            assert value(connection, "select count(*) from modak.load_labels where state = 'staged'") == 1
            leader.close()
            eventually(lambda: value(connection, "select count(*) from modak.load_labels where state = 'staged'") == 0)
