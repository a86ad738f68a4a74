"""The worker's loop: jobs come of themselves, one table's failure is not another's, and one worker at a time runs them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.adopting import Loads, row, seam_of, shown
from tests.loading import World, world
from tests.support import value

from modak.catalog import problems
from modak.catalog.leadership import LEADER_LOCK
from modak.connection import Connection, connect
from modak.core.schedule import Limits
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.errors import LakeError
from modak.failpoints import armed
from modak.jobs import fold, maintain
from modak.worker.lake_only import LakeOnly
from modak.worker.loop import Loop

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
def running(made: World, **limits: Any) -> Iterator[Loop]:
    stop = threading.Event()
    loop = Loop(made.app, stop, 0.1, Limits(**limits))
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_jobs_come_of_themselves(made: World, connection: Connection) -> None:
    loads = Loads(made, "pairs")
    loads.stage(row(10, 50, "staged"))
    loads.trickle(row(1, 10, "corrected"))
    connection.execute("create table public.pairs_3 partition of public.pairs_hot for values from (300) to (400)")
    connection.execute("insert into public.pairs values (20, 310, 'newest', 1)")
    with running(made, fold_rows=1):
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
    with running(made) as loop:
        eventually(lambda: value(connection, "select count(*) from modak.load_labels where state = 'committed'") == 1)
        # It is tried again, later and later, and whoever looks knows when.
        eventually(
            lambda: value(connection, "select max(attempts) from modak.problems where job = 'adopt' and next_attempt is not null") == 2
        )
        assert list(loop.state.failures) == list(loop.state.next_attempt) == ["public.events"]
    problems = value(connection, "select problems from modak.status where table_name = 'events'")
    assert problems[0]["next_attempt"]
    assert shown(connection, "pairs")[10] == (50, "x")


def test_whatever_fails_stays_with_its_table(made: World, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a mistake of our own, which no error class knows."""

    def breaks(context: Any) -> fold.FoldOutcome:
        if context.table.table_name == "events":
            raise ZeroDivisionError("a mistake")
        return original(context)

    original = fold.fold
    monkeypatch.setattr(fold, "fold", breaks)
    for name in ("events", "pairs"):
        Loads(made, name).trickle(row(1, 10, "corrected"))
    with running(made, fold_rows=1):
        eventually(lambda: value(connection, "select count(*) from modak.delta") == 1)
        eventually(lambda: value(connection, "select count(*) from modak.problems where message like 'ZeroDivisionError%'") == 1)
        monkeypatch.setattr(fold, "fold", original)
        eventually(lambda: value(connection, "select count(*) from modak.delta") == 0)
        eventually(lambda: value(connection, "select count(*) from modak.problems") == 0)


def test_tiering_waits_for_a_backlog(made: World, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    original = fold.fold
    monkeypatch.setattr(fold, "fold", lambda _: fold.FoldOutcome(waiting="held"))
    Loads(made, "pairs").trickle(row(1, 10, "corrected"), row(2, 20, "corrected"))
    connection.execute("create table public.pairs_3 partition of public.pairs_hot for values from (300) to (400)")
    connection.execute("insert into public.pairs values (20, 310, 'newest', 1)")
    with running(made, fold_rows=1, backlog_rows=1) as loop:
        eventually(lambda: loop.state.cycles > 3)
        assert seam_of(connection, "pairs")[0] == 200
        assert loop.state.waits == {"public.pairs": "more than 1 corrections wait to be folded"}
        assert value(connection, "select code from modak.problems where job = 'backlog'") == "backlog"
        monkeypatch.setattr(fold, "fold", original)
        eventually(lambda: seam_of(connection, "pairs")[0] == 300)
        eventually(lambda: value(connection, "select count(*) from modak.problems") == 0)


def test_a_table_at_rest_is_left_alone(made: World, connection: Connection) -> None:
    """Its passes run once; afterwards a cycle is one statement, and no connection."""
    with running(made) as loop:
        eventually(lambda: len(loop._known) == 2 and all(known.passes for known in loop._known.values()))
        eventually(lambda: not loop.state.running and loop.state.cycles > 5)
        before = {table: dict(known.passes) for table, known in loop._known.items()}
        cycles = loop.state.cycles
        eventually(lambda: loop.state.cycles > cycles + 5)
        assert {table: dict(known.passes) for table, known in loop._known.items()} == before
        connection.execute("insert into public.pairs values (20, 210, 'newer', 1)")
        connection.execute("select pg_stat_force_next_flush()")
        connection.execute("select 1")
        eventually(lambda: {table: dict(known.passes) for table, known in loop._known.items()} != before)


def test_decoupled_tables_keep_nobody_waiting(made: World, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are due: one is at work, the others wait, and none begins when the worker ends."""
    names, begun, released = [Name("public", f"alone_{number}") for number in range(5)], list[Name](), threading.Event()

    def maintain(_: LakeOnly, name: Name) -> None:
        begun.append(name)
        assert released.wait(60)

    monkeypatch.setattr(LakeOnly, "due", lambda *_: names)
    monkeypatch.setattr(LakeOnly, "maintain", maintain)
    with running(made) as loop:
        eventually(lambda: begun == names[:1])
        Loads(made, "pairs").stage(row(10, 50))
        Loads(made, "events").stage(row(10, 50))
        eventually(lambda: value(connection, "select count(*) from modak.load_labels where state = 'staged'") == 0)
        assert begun == names[:1]
        loop.stop.set()
        released.set()
    assert begun == names[:1]


def test_what_is_at_work_is_finished_when_it_ends(made: World, connection: Connection) -> None:
    reached, released = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert released.wait(30)

    connection.execute("create table public.pairs_3 partition of public.pairs_hot for values from (300) to (400)")
    connection.execute("insert into public.pairs values (20, 310, 'newest', 1)")
    stop = threading.Event()
    thread = threading.Thread(target=Loop(made.app, stop, 0.1).run, daemon=True)
    with armed("tier.after_files", hold):
        thread.start()
        assert reached.wait(30)
        stop.set()
        thread.join(1)
        assert thread.is_alive()
        released.set()
        thread.join(30)
    assert not thread.is_alive()
    assert seam_of(connection, "pairs")[0] == 300
    # Reclaim would have come next; it was not begun.
    assert value(connection, "select to_regclass('public.pairs_2') is not null")


def test_a_second_worker_stands_by(made: World, connection: Connection) -> None:
    Loads(made, "pairs").stage(row(10, 50))
    with connect(made.dsn, autocommit=True) as leader:
        assert value(leader, "select pg_try_advisory_lock(%s)", LEADER_LOCK)
        with running(made):
            time.sleep(1)
            assert value(connection, "select count(*) from modak.load_labels where state = 'staged'") == 1
            leader.close()
            eventually(lambda: value(connection, "select count(*) from modak.load_labels where state = 'staged'") == 0)


def test_maintenance_is_claimed_once(made: World, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCENARIOS 97: whoever asks is served although nothing is due, and a pass that fails leaves the request."""
    done: list[str] = []

    def maintained(context: Any) -> None:
        done.append(context.table.table_name)
        with problems.reported(context.connection, context.table_id, "maintain"):
            if len(done) == 1:
                raise LakeError("not today")

    monkeypatch.setattr(maintain, "maintain", maintained)
    connection.execute("insert into modak.maintenance_requests (table_id) select table_id from modak.tables where table_name = 'pairs'")
    with running(made):
        eventually(lambda: len(done) >= 2)
        eventually(lambda: value(connection, "select count(*) from modak.maintenance_requests") == 0)
        time.sleep(0.5)
    assert done == ["pairs", "pairs"]
    assert value(connection, "select count(*) from modak.problems") == 0


@pytest.mark.distributed
@pytest.mark.soak
def test_two_tables_share_a_spark_session(made: World, connection: Connection) -> None:
    """Both are being copied at the same time: each waits at its flush for the other."""
    meeting = threading.Barrier(2, timeout=120)
    for name in ("pairs", "events"):
        connection.execute(f"create table public.{name}_3 partition of public.{name}_hot for values from (300) to (400)")
        connection.execute(f"insert into public.{name} select n, 200 + n % 100, 'x', 1 from generate_series(1000, 21000) n")
        connection.execute(f"insert into public.{name} values (20, 310, 'newest', 1)")
    with armed("tier.after_seal", meeting.wait), running(made):
        for name in ("pairs", "events"):
            eventually(lambda name=name: seam_of(connection, name)[0] == 300, 200)  # type: ignore[misc]
    assert value(connection, "select count(*) from modak.problems") == 0
