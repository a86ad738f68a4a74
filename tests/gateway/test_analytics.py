"""Whole queries in the lake's engine: the same answers as plain tables with the same rows, or None."""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql as composed
from tests.gateway import analytics_support as support
from tests.gateway.analytics_support import ORDERS, READINGS, TICKS, Client, World, twin
from tests.gateways import RunningGateway

from modak.app import App
from modak.connection import Connection, connect
from modak.embedded.postgres import Cluster
from modak.gateway.analytics.reader import Cancelled, Readers
from modak.gateway.analytics.route import Route
from modak.gateway.interception import Parameter
from modak.settings import load

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def app(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    name = f"analytics_{next(_numbers)}"
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(composed.SQL("create database {} template {}").format(composed.Identifier(name), composed.Identifier(template)))
    environ = {"HOME": os.environ.get("HOME", "/")} | {
        key: os.environ[key] for key in ("MODAK_CACHE", "XDG_CACHE_HOME") if key in os.environ
    }
    yield App(load(environ, dsn=cluster.dsn(name), data=str(tmp_path_factory.mktemp("analytics") / "data")))
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(composed.SQL("drop database {} with (force)").format(composed.Identifier(name)))


@pytest.fixture(scope="module")
def connection(app: App) -> Iterator[Connection]:
    with connect(app.dsn, autocommit=True) as opened:
        opened.execute("set search_path = public, pg_catalog")
        yield opened


@pytest.fixture(scope="module")
def world(app: App, connection: Connection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Tiered once, corrected through the view."""
    support.create(app, connection)
    support.tier(app, READINGS, "2024-03-01 00:00:00+00")
    support.tier(app, ORDERS, "2024-03-01")
    support.tier(app, TICKS, "100")
    gateway = RunningGateway(app)
    gateway.start()
    support.correct(connection)
    gateway.stop()
    made = World(app, tmp_path_factory.mktemp("engine"), connection)
    yield made
    made.close()


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    made = world.client()
    yield made
    made.connection.close()


EVERYTHING = "id, ts, sensor, price, ratio, single, note, label, code, day, at, active, key, raw, body, tags, small, free, mood, score"

QUERIES = [
    "select * from readings order by id",
    f"select {EVERYTHING} from readings order by ts desc, id",
    "select count(*), sum(price), min(ts), max(ts), avg(sensor), count(note), count(distinct label) from readings",
    "select sensor, count(*), sum(price), max(note) from readings group by sensor order by sensor",
    "select count(*) from readings where ts < '2024-03-01 00:00:00+00'",
    "select count(*), min(id) from readings where ts >= '2024-02-15 00:00:00+00' and ts < '2024-03-20 00:00:00+00'",
    "select id from readings where ts in ('2024-03-01 00:00:00+00', '2024-01-01 06:00:07+00')",
    "select id from readings where ts between '2024-02-29 00:00+00' and '2024-03-02 00:00+00' order by 1",
    "select note, price, ratio from readings where id = 3",
    "select note, ratio from readings where id in (4, 5, 7, 60, 400, 9001) order by id",
    "select id, ts from readings where note is null and ts < '2024-02-01 00:00+00' order by id limit 7 offset 2",
    "select id from readings where note = 'corrected' order by id",
    "select id, code, label from readings where active and sensor between 2 and 4 order by id desc limit 20",
    "select r.id, o.id, o.amount from readings r join orders o on o.reading = r.id where r.sensor = 2 order by r.id, o.id",
    "select o.day, count(r.id), sum(o.amount) from orders o left join readings r on r.id = o.reading group by o.day order by 1",
    "select a.id, b.id from readings a join readings b on b.id = a.id + 1 where a.ts < '2024-01-05 00:00+00' order by 1",
    "with cold as (select * from readings where ts < '2024-02-01 00:00+00'),"
    " sums as (select sensor, sum(price) as p from cold group by sensor)"
    " select s.sensor, s.p, count(*) from sums s join readings r on r.sensor = s.sensor group by s.sensor, s.p order by 1",
    "select id, row_number() over (partition by sensor order by id), sum(id) over (order by id) from readings where id < 60 order by id",
    "select sensor, count(*) filter (where price > 5) from readings group by sensor having count(*) > 3 order by sensor",
    "select distinct label from readings order by label",
    "select id, mood, score from readings where mood = 'happy' and score > 40 order by id",
    "select score, count(*) from readings where mood <> 'sad' group by score order by score",
    "select r.id from readings r full join orders o on o.reading = r.id where r.id is null or o.id is null order by r.id limit 20",
    "select r.id, o.id from orders o left join readings r on r.id = o.reading and r.ts < '2024-02-01 00:00+00' order by o.id",
    "select count(*) from readings a where not exists (select 1 from orders o where o.reading = a.id and o.day < date '2024-02-01')",
    "select x.note, count(*) from (select * from readings where sensor <> 3) x group by x.note order by 2 desc, 1 limit 5",
    "select id from readings where id in (select reading from orders where amount > 300) order by id",
    "select (select count(*) from orders o where o.reading = r.id), r.id from readings r where r.id < 30 order by r.id",
    "select id from readings where sensor = 1 union all select id from orders where amount < 20 order by 1",
    "select extract(month from ts), count(*) from readings group by 1 order by 1",
    "select date_trunc('day', ts), sum(price) from readings where ts < '2024-01-20 00:00+00' group by 1 order by 1",
    "select count(*) from public.orders where day < date '2024-03-01'",
    "select day, sum(amount) from orders group by day order by day",
    "select id, amount from orders where id in (10, 11) order by id",
    "select upper(label) || '-' || code, length(note) from readings order by id limit 12",
    "select coalesce(note, 'none'), case when sensor > 3 then 'high' else 'low' end from readings order by id limit 15",
    "table orders",
    'select "r"."id" as "Id", count(*) over () from "readings" as "r" where "id" > 460 order by 1',
]


@pytest.mark.parametrize("sql", QUERIES)
def test_answers_equal_those_of_a_plain_table(world: World, client: Client, sql: str) -> None:
    found = world.texts(client, sql)
    expected = client.postgres(twin(sql))
    assert found is not None, "left to Postgres"
    if "order by" in sql:
        assert found == expected
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert client.transaction_status == b"I"
    assert world.pins.held == []


def test_only_what_is_needed_is_read(world: World, client: Client) -> None:
    answer = world.start(client, "select note from ticks where id < 50")
    assert answer is not None
    (relation,) = answer.relations.values()
    assert "modak:rows" not in relation, "no hot row can be below T"
    assert "NOT EXISTS" not in relation, "there are no corrections"
    assert "WHERE" not in relation, "every file lies below T"
    answer.close()
    answer = world.start(client, "select note from ticks where id < 150")
    assert answer is not None
    assert "modak:rows" in answer.relations["modak:0"]
    assert len(support.decoded(list(answer.encoded(())))) == 150
    answer.close()


def test_routes(world: World, client: Client) -> None:
    def route(sql: str) -> Route:
        return asyncio.run(world.lake.describe_route(sql, client))

    found = route("select sum(price) from readings where ts >= '2024-02-03 00:00+00'")
    assert found.engine == "lake"
    assert [(one.name, one.tier_key_hi, one.columns) for one in found.relations] == [(READINGS, "2024-03-01 00:00:00+00", ("ts", "price"))]
    assert found.cold_files == 1
    assert found.cold_bytes > 0
    assert found.hot_rows > 100
    assert "sum" in found.sql
    cold = route("select * from ticks where id < 10")
    assert (cold.engine, cold.hot_rows) == ("lake", 0)
    assert route("select * from ticks where id > 150").reason == "only hot rows are asked for, which Postgres holds itself"
    assert route("select pg_sleep(1) from ticks").engine == "postgres"
    assert route("delete from ticks").engine == "postgres"
    assert "pg_class" in route("select * from pg_class").reason
    assert world.pins.held == []


def test_corrections_play_no_part_in_hot_rows(world: World, client: Client) -> None:
    assert world.start(client, "select count(*) from readings where ts >= '2024-03-01 00:00+00'") is None
    late = [text("2024-03-05 00:00+00", 1184)]
    candidate = world.lake.candidate("select count(*) from readings where ts >= $1")
    assert candidate is not None
    client.asked.clear()
    assert asyncio.run(world.lake.answer(candidate, client, late)) is None
    assert client.asked == [], "the last T seen is enough to know"


def test_a_stopped_preparation_leaves_nothing_behind(world: World, client: Client) -> None:
    """A partition is locked, so that reading the heap waits until it is stopped."""
    candidate = world.lake.candidate("select count(*), sum(price) from readings")
    assert candidate is not None

    async def stopped() -> None:
        work = asyncio.ensure_future(world.lake.answer(candidate, client, ()))
        await asyncio.sleep(1)
        assert not work.done()
        work.cancel()
        await work

    with psycopg.connect(world.app.dsn) as blocker:
        blocker.execute("lock table public.readings_3 in access exclusive mode")
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(stopped())
    assert world.pins.held == []
    assert client.transaction_status == b"I"
    assert world.texts(client, "select count(*) from readings") is not None


def test_many_at_once(world: World) -> None:
    expected = world.texts(world.client(), QUERIES[3])

    def ask(number: int) -> bool:
        mine = world.client()
        try:
            return all(world.texts(mine, QUERIES[3]) == expected for _ in range(5))
        finally:
            mine.connection.close()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))
    assert world.pins.held == []


def test_describes_the_columns_as_postgres_does(world: World, client: Client) -> None:
    answer = world.start(client, "select id as a, price * 2, note from readings")
    assert answer is not None
    assert [(one.name, one.type_oid) for one in answer.fields] == [("a", 20), ("?column?", 1700), ("note", 25)]
    answer.close()


LEFT = {
    "an unregistered relation": "select * from readings r join pg_class c on c.oid = r.id",
    "the heap itself": "select count(*) from readings_hot",
    "a locking clause": "select * from readings where id = 3 for update",
    "a function nobody translated": "select pg_sleep(0), id from readings",
    "only hot rows": "select count(*) from ticks where id >= 100",
    "a function in FROM": "select count(*) from readings, generate_series(1, 3)",
    "a change": "with gone as (delete from readings where id = 1 returning id) select * from gone",
    "another statement": "explain select * from readings",
}


@pytest.mark.parametrize("sql", LEFT.values(), ids=list(LEFT))
def test_what_is_left_to_postgres(world: World, client: Client, sql: str) -> None:
    assert world.start(client, sql) is None
    assert client.transaction_status == b"I"


def test_postgres_finds_the_clients_mistakes(world: World, client: Client) -> None:
    with pytest.raises(psycopg.DatabaseError, match="nowhere"):
        world.start(client, "select nowhere from readings")
    assert client.transaction_status == b"I"


@pytest.mark.parametrize("setting", [("datestyle", "German"), ("bytea_output", "escape"), ("extra_float_digits", "0")])
def test_texts_in_other_styles_are_left_to_postgres(world: World, setting: tuple[str, str]) -> None:
    client = world.client(**{setting[0]: setting[1]})
    assert world.start(client, "select count(*) from readings") is None
    client.connection.close()


def test_time_zones(world: World) -> None:
    client = world.client(timezone="Europe/Berlin")
    for sql in (
        "select count(*), max(id) from readings where ts < '2024-02-01 00:00:00+01'",
        "select count(*) from readings where ts < '2024-02-01'",
        "select ts from readings order by id limit 3",
        "select at, day from readings order by id limit 3",
    ):
        found = world.texts(client, sql)
        assert found in (None, client.postgres(twin(sql))), sql
    assert world.texts(client, "select at, day from readings order by id limit 3") is not None
    client.connection.close()


def text(value: str | None, oid: int) -> Parameter:
    return Parameter(None if value is None else value.encode(), 0, oid)


def test_parameters(world: World, client: Client) -> None:
    micros = struct.pack("!q", 762_134_400_000_000)
    cases = [
        ("select count(*), sum(price) from readings where id < $1", [text("100", 0)]),
        ("select count(*) from readings where id < $1 and note = $2", [Parameter(struct.pack("!q", 300), 1, 20), text("note 3", 25)]),
        ("select count(*), max(id) from readings where ts < $1", [Parameter(micros, 1, 1184)]),
        ("select id from readings where ts < $1 order by id limit $2", [text("2024-01-09 00:00+00", 1184), text("4", 20)]),
        ("select count(*) from readings where id = any ($1)", [text("{1,3,4,9001}", 1016)]),
        ("select count(*) from readings where note = $1", [text(None, 25)]),
        (
            "select $1::int + sensor from readings where key = $2 order by 1",
            [text("5", 23), text("00000000-0000-0000-0000-000000000009", 2950)],
        ),
        ("select count(*) from orders where day >= $1 and amount > $2", [text("2024-02-10", 1082), text("20.5", 1700)]),
    ]
    for sql, parameters in cases:
        found = world.texts(client, sql, parameters)
        assert found is not None, sql
        assert found == client.postgres(twin(sql), parameters), sql


def test_a_parameter_that_is_no_value_is_postgres_to_refuse(world: World, client: Client) -> None:
    assert world.start(client, "select count(*) from readings where id < $1", [text("many", 20)]) is None


def test_binary_results(world: World, client: Client) -> None:
    sql = "select id, sensor, price, ratio, single, note, code, day, at, ts, active, key, raw, body, small from readings order by id"
    found = world.rows(client, sql, formats=[1])
    result = client.connection.pgconn.exec_params(twin(sql).encode(), [], result_format=1)
    assert found == [tuple(result.get_value(row, column) for column in range(result.nfields)) for row in range(result.ntuples)]


def test_rows_in_portions(world: World, client: Client) -> None:
    answer = world.start(client, "select id from readings order by id")
    assert answer is not None
    first = support.decoded(list(answer.encoded((), 100)))
    assert (len(first), answer.rows, answer.exhausted) == (100, 100, False)
    rest = support.decoded(list(answer.encoded(())))
    assert answer.exhausted
    expected = client.postgres("select id from readings_twin order by id")
    assert [row[0] for row in first + rest] == [(row[0] or "").encode() for row in expected]
    answer.close()


def test_own_changes_are_shown_by_postgres(world: World, client: Client) -> None:
    client.connection.execute("begin")
    assert world.texts(client, "select count(*) from readings") is not None
    assert client.transaction_status == b"T"
    client.connection.execute("insert into readings (id, ts) values (7777, '2024-04-20')")
    assert world.start(client, "select count(*) from readings") is None
    client.connection.execute("rollback")


def test_savepoints_serializable_and_failed_transactions_are_left_to_postgres(world: World, client: Client) -> None:
    client.connection.execute("begin isolation level repeatable read read only")
    client.connection.execute("savepoint s")
    client.in_savepoint = True
    assert world.start(client, "select count(*) from readings") is None
    assert client.transaction_status == b"T"
    client.connection.execute("rollback")
    client.connection.execute("begin")
    client.connection.execute("savepoint s")
    assert world.texts(client, "select count(*) from readings") == [("469",)], "each statement has its own snapshot anyway"
    client.connection.execute("rollback")
    client.in_savepoint = False
    client.connection.execute("begin isolation level serializable read only")
    assert world.start(client, "select count(*) from readings") is None
    with pytest.raises(psycopg.DatabaseError):
        client.connection.execute("select 1/0")
    assert world.start(client, "select count(*) from readings") is None
    client.connection.execute("rollback")


def test_a_snapshot_that_stays_is_exported_once_and_serves_savepoints_too(world: World, connection: Connection, client: Client) -> None:
    sql = "select count(*), max(id) from orders"
    for level in ("repeatable read read only", "serializable read only deferrable"):
        client.exported = None
        client.connection.execute(f"begin isolation level {level}")
        before = world.texts(client, sql)
        assert before is not None
        exported = client.exported
        assert exported is not None
        client.connection.execute("savepoint s")
        client.in_savepoint = True
        connection.execute("insert into orders values (100000, '2024-04-20')")
        try:
            assert world.texts(client, sql) == before
            assert client.exported == exported
            client.connection.execute("rollback")
            client.in_savepoint = False
            assert world.texts(client, sql) != before
        finally:
            connection.execute("delete from orders_hot where id = 100000")


def test_who_may_not_read_is_told_so_by_postgres(world: World, connection: Connection) -> None:
    connection.execute("create role analytics_guest login")
    connection.execute("grant usage on schema public to analytics_guest")
    try:
        client = world.client(role="analytics_guest")
        assert world.start(client, "select count(*) from readings") is None
        connection.execute("grant select on readings to analytics_guest")
        assert world.texts(client, "select count(*) from readings") == [("469",)]
        client.connection.close()
    finally:
        connection.execute("drop owned by analytics_guest")
        connection.execute("drop role analytics_guest")


def test_a_gateway_without_rights_of_its_own_leaves_it_to_postgres(world: World, connection: Connection, client: Client) -> None:
    connection.execute("create role analytics_weak login")
    weak = Readers(psycopg.conninfo.make_conninfo(world.app.dsn, user="analytics_weak"))
    strong, world.lake._readers = world.lake._readers, weak
    try:
        assert world.start(client, "select count(*) from readings") is None
        weak._dsn = psycopg.conninfo.make_conninfo(world.app.dsn, port="1")
        assert world.start(client, "select count(*) from readings") is None
    finally:
        world.lake._readers = strong
        weak.close()
        connection.execute("drop role analytics_weak")
    assert world.pins.held == []


def test_shadowed_names(world: World, client: Client) -> None:
    client.connection.execute("create temp table readings (id bigint)")
    assert world.start(client, "select count(*) from readings") is None
    found = world.texts(client, "with readings as (select id from public.readings where id < 10) select count(*) from readings")
    assert found == client.postgres("select count(*) from public.readings_twin where id < 10")
    client.connection.execute("drop table pg_temp.readings")
    client.connection.execute("set search_path = pg_catalog")
    with pytest.raises(psycopg.DatabaseError, match="does not exist"):
        world.start(client, "select count(*) from readings")


def test_functions_of_the_users_own_are_respected(world: World, connection: Connection, client: Client) -> None:
    assert world.texts(client, "select upper(label) from readings where id = 1") == [("L1",)]
    connection.execute("create function public.upper(varchar) returns text language sql as $$ select 'mine' $$")
    try:
        assert world.start(client, "select upper(label) from readings where id = 1") is None
        assert world.texts(client, "select lower(label) from readings where id = 1") == [("l1",)]
    finally:
        connection.execute("drop function public.upper(varchar)")


def test_cancel(world: World, client: Client) -> None:
    answer = world.start(client, "select count(*) from readings a, readings b, readings c, readings d where a.id + b.id + c.id <> d.id * 5")
    assert answer is not None
    threading.Timer(0.5, answer.cancel).start()
    with pytest.raises(Cancelled) as raised:
        list(answer.encoded(()))
    assert raised.value.sqlstate == "57014"
    answer.close()
    assert world.pins.held == []


def test_errors_at_run_time_have_their_sqlstate(world: World, client: Client) -> None:
    answer = world.start(client, "select id / (id - 3) from readings where ts < '2024-01-05 00:00+00'")
    assert answer is not None
    with pytest.raises(Exception, match="division by zero") as raised:
        list(answer.encoded(()))
    assert raised.value.sqlstate == "22012"  # type: ignore[attr-defined]
    answer.close()


def test_infinite_hot_values_are_left_to_postgres(world: World, connection: Connection, client: Client) -> None:
    connection.execute("insert into readings (id, ts, day) values (8888, '2024-04-20 00:00+00', 'infinity')")
    try:
        assert world.start(client, "select max(day) from readings") is None
        assert world.texts(client, "select count(*) from readings") is not None, "the column is not asked for"
    finally:
        connection.execute("delete from readings_hot where id = 8888")


def test_a_table_that_changed_a_moment_ago_is_looked_at_again(world: World, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to Postgres, the whole lake would go through it."""
    world.relations.refresh(force=True)
    old = dict(world.relations._known)
    stale = {number: replace(relation, fingerprint="another") for number, relation in old.items()}
    monkeypatch.setattr(world.relations, "_known", stale)
    monkeypatch.setattr(world.relations, "_checked", time.monotonic() + 3600)
    sql = "select count(*), sum(id) from readings"
    assert world.texts(client, sql) == client.postgres(twin(sql))
    assert world.relations._known[next(iter(old))].fingerprint == old[next(iter(old))].fingerprint


def test_an_old_transaction_keeps_its_seam(world: World, connection: Connection, client: Client) -> None:
    """Last, since it moves the line."""
    client.connection.execute("begin isolation level repeatable read read only")
    sql = "select count(*), sum(id), max(ts) from readings"
    before = world.texts(client, sql)
    seen = set(world.pins.seen)
    support.tier(world.app, READINGS, "2024-04-01 00:00:00+00")
    connection.execute("delete from readings_hot where id = 470")
    connection.execute("delete from readings_twin where id = 470")
    assert before is not None
    assert world.texts(client, sql) == before
    assert world.pins.seen == seen, "the snapshot of then"
    client.connection.execute("commit")
    assert world.texts(client, sql) == client.postgres(twin(sql)) != before
    assert world.pins.seen != seen
