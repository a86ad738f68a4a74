"""A lake in an object store: every flow, on a real S3 server that checks signatures. What needs Spark is in test_object_store_spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import mirroring, restoring
from tests.adopting import Loads, row, run_adopt, run_fold, shown
from tests.attaching import TOKEN, attached
from tests.faults import fault_proxy
from tests.inline import inlined
from tests.loading import make
from tests.mirroring import OPTIONS
from tests.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, object_store
from tests.remote import REFERENCE, RemoteWorld, remote_world
from tests.serving import RunningHttp

from modak import duckdb as pinned_duckdb
from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection, connect
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.errors import LakeError, MissingComponent
from modak.jobs.ingest import ingest
from modak.jobs.sweep import sweep
from modak.load.storage import lake_storage
from modak.registration.unregister import unregister
from modak.scan.engine import secret_sql

pytestmark = pytest.mark.inline

PAIRS = Name("public", "pairs")
BEFORE = {1: (10, "a"), 2: (20, "b"), 3: (110, "c"), 4: (210, "hot"), 5: (220, "hot")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteWorld]:
    folder = tmp_path_factory.mktemp("store")
    cluster = Cluster.start(tmp_path_factory.mktemp("logical") / "postgres", options=OPTIONS)
    try:
        with (
            object_store(folder) as store,
            fault_proxy(store.endpoint) as proxy,
            remote_world(cluster, "s3", tmp_path_factory.mktemp("world"), store, proxy) as found,
        ):
            with inlined(), connect(found.dsn, autocommit=True) as connection:
                make(found.app, connection, "pairs")
                make(found.app, connection, "events")
            yield found
    finally:
        cluster.stop("immediate")


@pytest.fixture
def connection(world: RemoteWorld) -> Iterator[Connection]:
    with connect(world.dsn, autocommit=True) as opened:
        yield opened


def test_every_flow(world: RemoteWorld, connection: Connection) -> None:
    assert any(path.endswith(".parquet") for path in world.store.files(world.prefix))
    assert not list(world.app.settings.data.rglob("*.parquet"))
    assert shown(connection, "pairs") == BEFORE
    with psycopg.connect(world.port_dsn, autocommit=True) as people:
        assert people.execute("select count(*), sum(event_time) from public.pairs").fetchall() == [(5, 570)]
    with pinned_duckdb.pinned_relation(world.dsn, "public.pairs", settings=world.app.settings) as relation:
        assert sorted(relation.project("id").fetchall()) == [(1,), (2,), (3,), (4,), (5,)]

    connection.execute("update public.pairs set val = 'corrected' where id = 2")
    connection.execute("delete from public.pairs where id = 3")
    assert run_fold(world.app, "pairs").corrections == 2
    expected = {one: value for one, value in BEFORE.items() if one != 3} | {2: (20, "corrected")}
    assert shown(connection, "pairs") == expected

    Loads(world, "pairs").stage(row(10, 30, "staged"), row(1, 10, "anew"))
    assert run_adopt(world.app, "pairs").rows == 2
    expected |= {10: (30, "staged"), 1: (10, "anew")}
    assert shown(connection, "pairs") == expected
    with psycopg.connect(world.port_dsn, autocommit=True) as people:
        assert people.execute("select count(*), sum(event_time) from public.pairs").fetchall() == [(5, 490)]


def test_files_in_the_store_are_taken_in(world: RemoteWorld, connection: Connection) -> None:
    rows = pa.Table.from_pylist([{"id": number, "event_time": number, "val": "history", "n": 1} for number in (60, 61)])
    pq.write_table(rows, f"{BUCKET}/incoming/part.parquet", filesystem=world.store._filesystem())
    before = shown(connection, "events")
    with world.app.job(Name("public", "events")) as job:
        assert ingest(job, [f"s3://{BUCKET}/incoming"], "parquet").rows == 2
    assert shown(connection, "events") == before | {60: (60, "history"), 61: (61, "history")}


def test_the_secret_that_postgres_keeps_opens_the_store(world: RemoteWorld, connection: Connection) -> None:
    """Where the environment has none; and it follows the secret as it changes."""
    without = App(replace(world.app.settings, credentials={}))
    ref = tables.get(connection, PAIRS).lake_table_ref
    endpoint = profiles.get(connection, None).lake_config["s3.endpoint"]
    with pytest.raises(MissingComponent, match="wants the credentials"):
        without.storage(profiles.get(connection, None))
    try:
        connection.execute("select modak.set_storage_secret(%s, %s, %s)", [ACCESS_KEY, "not the secret", world.store.endpoint])
        with pytest.raises(LakeError) as refused:
            without.lake(profiles.get(connection, None)).find(ref)
        assert "not the secret" not in str(refused.value)
        connection.execute("select modak.set_storage_secret(%s, %s, %s)", [ACCESS_KEY, SECRET_KEY, world.store.endpoint])
        found = without.lake(profiles.get(connection, None)).find(ref)
        assert found is not None
        assert lake_storage(world.dsn, without.settings)("default").config["s3.secret-access-key"] == SECRET_KEY
        # The environment comes first.
        other = App(replace(world.app.settings, credentials={REFERENCE: {"s3.secret-access-key": "other"}}))
        assert other.storage(profiles.get(connection, None)).config["s3.secret-access-key"] == "other"
        assert SECRET_KEY not in restoring.run("pg_dump", "--schema=modak", world.dsn)
        assert SECRET_KEY not in restoring.run("pg_dump", world.dsn)  # by a superuser
    finally:
        connection.execute("select modak.set_storage_secret(null, null, %s)", [endpoint])
    assert SECRET_KEY not in restoring.run("pg_dump", world.dsn)


def test_a_sweep_and_an_unregistration_leave_nothing_behind(world: RemoteWorld, connection: Connection) -> None:
    make(world.app, connection, "strict")
    name = Name("public", "strict")
    location = world.app.lake(profiles.get(connection, None)).load(tables.get(connection, name).lake_table_ref).location()
    prefix = location.removeprefix(f"s3://{BUCKET}/")
    with world.store._filesystem().open_output_stream(f"{BUCKET}/{prefix}/data/load-orphan.parquet") as stream:
        stream.write(b"nobody names it")
    with world.app.job(name) as job:
        assert sweep(job) == 0
        assert sweep(job, older_than=timedelta(seconds=-60)) == 1
    assert not any("load-orphan" in path for path in world.store.files(prefix))
    unregister(connection, world.app.lake(profiles.get(connection, None)), tables.get(connection, name), drop_lake=True)
    assert world.store.files(prefix) == []


def test_a_mirrored_table(world: RemoteWorld, connection: Connection) -> None:
    connection.execute("create table public.people (id bigint primary key, name text)")
    connection.execute("insert into public.people select n, 'person ' || n from generate_series(1, 200) n")
    name = Name("public", "people")
    mirroring.start(world.app, connection, name)
    connection.execute("update public.people set name = 'changed' where id % 10 = 0")
    connection.execute("delete from public.people where id % 10 = 1")
    outcome = mirroring.pump(world.app, connection)
    assert (outcome.failed, outcome.parked, outcome.changes) == ({}, {}, 40)
    mirroring.same(world.app, connection, name)


def test_duckdb_writes_through_the_rest_face(world: RemoteWorld, connection: Connection) -> None:
    """With keys of its own: the face hands out none."""
    running = RunningHttp(App(replace(world.app.settings, rest_token=TOKEN)))
    storage = world.app.storage(profiles.get(connection, None))
    try:
        with attached(f"http://127.0.0.1:{running.port}/iceberg") as database:
            database.execute("CREATE SCHEMA lake.own; CREATE TABLE lake.own.t (id BIGINT, v VARCHAR)")
            database.execute(secret_sql("keys", storage.scope, storage.config))
            database.execute("INSERT INTO lake.own.t SELECT range, 'x' FROM range(100)")
            database.execute("DELETE FROM lake.own.t WHERE id < 10")
            assert database.execute("SELECT count(*), sum(id) FROM lake.own.t").fetchall() == [(90, 4905)]
    finally:
        running.stop()


def test_the_secret_is_nowhere(world: RemoteWorld, connection: Connection) -> None:
    rows = connection.execute(
        "select oid::regclass::text as name from pg_class"
        " where relnamespace in ('modak'::regnamespace, 'modak_lake'::regnamespace) and relkind = 'r'"
    ).fetchall()
    assert len(rows) > 10
    for one in rows:
        found = connection.execute(f"select count(*) as n from {one['name']} t where t::text like %s", [f"%{SECRET_KEY}%"]).fetchone()
        assert found == {"n": 0}, one["name"]
    assert not any(SECRET_KEY.encode() in content for content in world.store.contents(world.prefix))
    for path in world.app.settings.data.rglob("*"):
        assert not path.is_file() or SECRET_KEY.encode() not in path.read_bytes(), path
