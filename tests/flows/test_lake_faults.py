"""A REST catalog over an object store, and both of them down, slow, wrong or silent: nothing is lost, it is said, and it ends by itself."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from tests.adopting import Loads, row, run_adopt, run_fold, shown
from tests.attaching import attached
from tests.faults import fault_proxy
from tests.inline import inlined
from tests.loading import KINDS, PAIR, make
from tests.object_store import ACCESS_KEY, SECRET_KEY, object_store
from tests.remote import RemoteWorld, remote_world
from tests.rest_catalog import rest_catalog
from tests.support import value

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection, connect
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.errors import CommitUnknown, LakeError
from modak.jobs.tier import TierOutcome, tier
from modak.lake.change import LakeMoved
from modak.lake.commits import OP_ID
from modak.registration.unregister import unregister
from modak.settings import load
from modak.worker.loop import Loop

pytestmark = pytest.mark.inline

BEFORE = {1: (10, "a"), 2: (20, "b"), 3: (110, "c"), 4: (210, "hot"), 5: (220, "hot")}
_numbers = itertools.count(1)
COMMIT = r"^/v1/namespaces/[^/]+/tables/[^/?]+$"


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteWorld]:
    folder = tmp_path_factory.mktemp("rest")
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute("create database rest_catalog")
    app = App(load({name: os.environ[name] for name in ("HOME", "MODAK_CACHE", "XDG_CACHE_HOME") if name in os.environ}))
    with (
        object_store(folder) as store,
        rest_catalog(app, folder, cluster.dsn("rest_catalog"), store) as catalog,
        fault_proxy(store.endpoint) as proxy,
        fault_proxy(catalog.uri) as catalog_proxy,
        remote_world(cluster, "rest_world", tmp_path_factory.mktemp("world"), store, proxy, catalog_proxy) as found,
    ):
        with inlined(), connect(found.dsn, autocommit=True) as connection:
            make(found.app, connection, "pairs")
        yield found


@pytest.fixture
def connection(world: RemoteWorld) -> Iterator[Connection]:
    with connect(world.dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def table(world: RemoteWorld, connection: Connection, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of the test's own, tiered up to 200, with rows above that are due next."""
    name = f"t{next(_numbers)}_{request.node.name.split('[')[0].removeprefix('test_')[:36]}"
    monkeypatch.setitem(KINDS, name, (PAIR, ("id", "event_time"), True, {}))
    make(world.app, connection, name)
    return name


def due(connection: Connection, table: str) -> None:
    """A partition becomes due: newer rows than its own are there."""
    connection.execute(f"create table public.{table}_3 partition of public.{table}_hot for values from (300) to (400)")
    connection.execute(f"insert into public.{table} values (6, 310, 'newer', 6)")


def run_tier(world: RemoteWorld, table: str) -> TierOutcome:
    with world.app.job(Name("public", table)) as job:
        return tier(job)


def problem(connection: Connection, table: str) -> tuple[str, str] | None:
    row = connection.execute(
        "select code, message from modak.problems join modak.tables using (table_id) where table_name = %s and job = 'tier'", [table]
    ).fetchone()
    return (row["code"], row["message"]) if row else None


def op_ids(world: RemoteWorld, connection: Connection, table: str) -> list[str]:
    """The operations whose commits stand on the lake table's line."""
    found = tables.get(connection, Name("public", table))
    lake = world.app.lake(profiles.get(connection, None)).load(found.lake_table_ref)
    line, current = [], lake.current_snapshot()
    while current is not None:
        assert current.summary is not None
        line.append(current.summary.additional_properties[OP_ID])
        current = lake.snapshot_by_id(current.parent_snapshot_id) if current.parent_snapshot_id else None
    return line


def eventually(holds: Callable[[], bool], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


ALL = BEFORE | {6: (310, "newer")}


def test_every_flow(world: RemoteWorld, connection: Connection) -> None:
    assert shown(connection, "pairs") == BEFORE
    connection.execute("update public.pairs set val = 'corrected' where id = 2")
    connection.execute("delete from public.pairs where id = 3")
    assert run_fold(world.app, "pairs").corrections == 2
    Loads(world, "pairs").stage(row(10, 30, "staged"), row(1, 10, "anew"))
    assert run_adopt(world.app, "pairs").rows == 2
    expected = {one: place for one, place in BEFORE.items() if one != 3} | {2: (20, "corrected"), 10: (30, "staged"), 1: (10, "anew")}
    assert shown(connection, "pairs") == expected
    with psycopg.connect(world.port_dsn, autocommit=True) as people:
        assert people.execute("select count(*), sum(event_time) from public.pairs").fetchall() == [(5, 490)]
    ref = tables.get(connection, Name("public", "pairs")).lake_table_ref
    lake = world.app.lake(profiles.get(connection, None))
    assert value(connection, "select count(*) from modak_lake.iceberg_tables") == 0
    assert ("POST", "/v1/oauth/tokens") in world.catalog.seen
    unregister(connection, lake, tables.get(connection, Name("public", "pairs")), drop_lake=True)
    assert lake.find(ref) is None


def test_duckdb_attached_to_the_catalog(world: RemoteWorld, connection: Connection, table: str) -> None:
    """Another engine reads what was published, with nothing of Modak's in between."""
    assert world.catalog is not None
    ref = tables.get(connection, Name("public", table)).lake_table_ref
    with attached(world.catalog.url) as database:
        database.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{ACCESS_KEY}', SECRET '{SECRET_KEY}', ENDPOINT '{world.proxy.url.removeprefix('http://')}', "
            "URL_STYLE 'path', USE_SSL false, REGION 'us-east-1')"
        )
        assert database.execute(f"select id, event_time, val from lake.{ref} order by id").fetchall() == [
            (number, *BEFORE[number]) for number in (1, 2, 3)
        ]


def test_a_store_that_is_down(world: RemoteWorld, connection: Connection, table: str) -> None:
    """Cold reads fail cleanly, hot reads and connecting work, and afterwards everything does."""
    due(connection, table)
    with world.proxy.down():
        for dsn in (world.dsn, world.port_dsn):
            with psycopg.connect(dsn, autocommit=True) as session:
                with pytest.raises(psycopg.Error) as refused:
                    session.execute(f"select * from public.{table} order by id").fetchall()
                assert refused.value.sqlstate == "58030", dsn
                assert refused.value.diag.message_hint
                assert session.execute(f"select id from public.{table} where event_time >= 200 order by id").fetchall() == [
                    (4,),
                    (5,),
                    (6,),
                ]
                session.execute(f"update public.{table} set val = 'hot' where id = 4 and event_time >= 200")
        with pytest.raises(LakeError):
            run_tier(world, table)
        found = problem(connection, table)
        assert found is not None
        assert found[0] == "lake"
        assert SECRET_KEY not in found[1]
        assert shown_hot(connection, table) == [4, 5, 6]
    assert shown(connection, table) == ALL
    assert run_tier(world, table).rows == 2
    assert problem(connection, table) is None
    assert shown(connection, table) == ALL


def shown_hot(connection: Connection, table: str) -> list[int]:
    return [one["id"] for one in connection.execute(f"select id from public.{table} where event_time >= 200 order by id").fetchall()]


@pytest.mark.parametrize("fault", [{"method": "PUT|POST", "status": 500}, pytest.param({"status": 503}, marks=pytest.mark.soak)])
def test_a_store_that_fails(world: RemoteWorld, connection: Connection, table: str, fault: dict[str, object]) -> None:
    due(connection, table)
    with world.proxy.failing(**fault), pytest.raises(LakeError):
        run_tier(world, table)
    assert problem(connection, table) is not None
    assert shown(connection, table) == ALL
    assert run_tier(world, table).rows == 2
    assert shown(connection, table) == ALL


def test_a_store_that_fails_for_a_moment_is_not_noticed(world: RemoteWorld, connection: Connection, table: str) -> None:
    due(connection, table)
    with world.proxy.failing(status=503, times=1) as first, world.proxy.failing(seconds=0.3) as slow:
        assert run_tier(world, table).rows == 2
        assert shown(connection, table) == ALL
    assert first.met == 1
    assert slow.met > 1


def test_a_catalog_that_is_down(world: RemoteWorld, connection: Connection, table: str) -> None:
    """Readers do not ask it."""
    due(connection, table)
    with world.catalog.down():
        assert shown(connection, table) == ALL
        with pytest.raises(LakeError):
            run_tier(world, table)
        assert problem(connection, table) is not None
    assert run_tier(world, table).rows == 2
    assert shown(connection, table) == ALL


def test_a_catalog_that_is_slow(world: RemoteWorld, connection: Connection, table: str) -> None:
    due(connection, table)
    with world.catalog.failing(seconds=0.3) as slow:
        assert shown(connection, table) == ALL
        assert run_tier(world, table).rows == 2
    assert slow.met > 1
    assert shown(connection, table) == ALL


def test_a_store_that_answers_with_a_conflict(world: RemoteWorld, connection: Connection, table: str) -> None:
    """As S3 does to one of two who write an object at the same time."""
    due(connection, table)
    with world.proxy.failing(method="PUT|POST", status=409), pytest.raises(LakeError):
        run_tier(world, table)
    assert problem(connection, table) is not None
    assert shown(connection, table) == ALL
    assert run_tier(world, table).rows == 2
    assert shown(connection, table) == ALL


FAULTS: dict[str, tuple[str, dict[str, object]]] = {
    "store_500": ("proxy", {"method": "PUT|POST", "status": 500}),
    "store_409": ("proxy", {"method": "PUT|POST", "status": 409}),
    "catalog_500": ("catalog", {"method": "POST", "path": COMMIT, "status": 500}),
    "catalog_409": ("catalog", {"method": "POST", "path": COMMIT, "status": 409}),
}


@pytest.mark.parametrize("fault", [name if name == "catalog_500" else pytest.param(name, marks=pytest.mark.soak) for name in FAULTS])
def test_folds_and_adoptions_under_faults(world: RemoteWorld, connection: Connection, table: str, fault: str) -> None:
    where, what = FAULTS[fault]
    Loads(world, table).stage(row(10, 30, "staged"))
    for job, run in (("adopt", run_adopt), ("fold", run_fold)):
        if job == "fold":
            connection.execute(f"update public.{table} set val = 'corrected' where id = 2")
        before = shown(connection, table)
        with getattr(world, where).failing(**what), pytest.raises(LakeError):
            run(world.app, table)
        assert shown(connection, table) == before
        found = "select p.code from modak.problems p join modak.tables using (table_id) where table_name = %s and p.job = %s"
        assert value(connection, found, table, job) is not None
        run(world.app, table)
        assert connection.execute(found, [table, job]).fetchall() == []
    assert shown(connection, table) == BEFORE | {2: (20, "corrected"), 10: (30, "staged")}


def test_a_conflict_is_no_commit(world: RemoteWorld, connection: Connection, table: str) -> None:
    due(connection, table)
    with world.catalog.failing(method="POST", path=COMMIT, status=409), pytest.raises(LakeMoved):
        run_tier(world, table)
    assert run_tier(world, table).rows == 2
    assert shown(connection, table) == ALL
    assert len(op_ids(world, connection, table)) == 2


@pytest.mark.parametrize("status", [500, pytest.param(503, marks=pytest.mark.soak)])
def test_an_error_that_says_nothing_is_looked_into(world: RemoteWorld, connection: Connection, table: str, status: int) -> None:
    due(connection, table)
    with world.catalog.failing(method="POST", path=COMMIT, status=status), pytest.raises(LakeError):
        run_tier(world, table)
    assert value(connection, "select phase from modak.op_log order by started_at desc limit 1") == "abandoned"
    assert run_tier(world, table).rows == 2
    assert shown(connection, table) == ALL
    assert len(op_ids(world, connection, table)) == 2


def test_a_lost_answer_is_a_commit_all_the_same(world: RemoteWorld, connection: Connection, table: str) -> None:
    due(connection, table)
    with world.catalog.failing(method="POST", path=COMMIT, lost=True, times=1) as fault:
        assert run_tier(world, table).rows == 2
    assert fault.met == 1
    assert shown(connection, table) == ALL
    assert len(op_ids(world, connection, table)) == 2


def test_a_request_that_arrives_twice_is_one_commit(world: RemoteWorld, connection: Connection, table: str) -> None:
    due(connection, table)
    with world.catalog.failing(method="POST", path=COMMIT, twice=True) as fault:
        assert run_tier(world, table).rows == 2
    assert fault.met == 1
    assert shown(connection, table) == ALL
    assert len(op_ids(world, connection, table)) == 2


def test_a_lost_answer_and_then_silence(world: RemoteWorld, connection: Connection, table: str) -> None:
    """The operation stays open; its stamp decides when the catalog answers again, and nothing is copied twice."""
    due(connection, table)
    with world.catalog.failing(method="POST", path=COMMIT, lost=True, times=1) as fault:
        gone = world.catalog.failing(path="/tables/", status=500)
        with pytest.raises(CommitUnknown), _after(fault, gone.__enter__):
            run_tier(world, table)
        gone.__exit__(None, None, None)
    found = problem(connection, table)
    assert found is not None
    assert found[0] == "commit_unknown"
    assert shown(connection, table) == ALL
    assert len(run_tier(world, table).resumed) == 1
    assert problem(connection, table) is None
    assert shown(connection, table) == ALL
    assert len(op_ids(world, connection, table)) == 2


class _after:  # noqa: N801
    """Do something once a fault has been met."""

    def __init__(self, fault: object, action: Callable[[], object]) -> None:
        self._fault, self._action = fault, action

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)

    def _watch(self) -> None:
        while not self._fault.met:  # type: ignore[attr-defined]
            time.sleep(0.001)
        self._action()


def test_the_worker_goes_on_by_itself(world: RemoteWorld, connection: Connection, table: str) -> None:
    due(connection, table)
    stop = threading.Event()
    thread = threading.Thread(target=Loop(world.app, stop, 0.1).run, daemon=True)
    try:
        with world.proxy.down():
            thread.start()
            eventually(lambda: problem(connection, table) is not None)
            assert thread.is_alive()
        eventually(lambda: problem(connection, table) is None)
        eventually(lambda: value(connection, f"select count(*) from public.{table}_hot") == 1)
        assert shown(connection, table) == ALL
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
