"""INSERT … SELECT into decoupled tables on the gateway's port: rows come as columns, and nothing else is different."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import make_conninfo
from tests.decoupling import EVERY_TYPE, Client, House, contents, house, make
from tests.gateway.test_decoupled_sql import ROW

from modak.embedded.postgres import Cluster

LARGE = 220_000
PLAIN = [("id", "bigint"), ("v", "int"), ("note", "varchar(8)")]


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("bulk"), f"decoupled_bulk_{os.getpid()}") as made:
        yield made


def on_port(world: House, **options: Any) -> Client:
    dsn = make_conninfo(world.dsn, host="127.0.0.1", port=world.gateway.port)
    return psycopg.connect(dsn, **{"autocommit": True, "prepare_threshold": None, **options})


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with on_port(world, options="-c timezone=America/New_York") as connection:
        yield connection
        connection.execute("rollback")
        connection.execute("reset all")
        connection.execute("select modak.drop_iceberg_table('public', t.table_name, true) from modak.decoupled t")
        connection.execute("drop table if exists twin, heap; drop sequence if exists counter")


def carried(world: House) -> int:
    return world.gateway.gateway.decoupled.parcels.carried


def insert(world: House, client: Client, statement: str, *, fast: bool = True) -> int:
    """Run it; how many rows. And by which way it went."""
    before = carried(world)
    rows = client.execute(statement).rowcount  # type: ignore[arg-type]
    assert (carried(world) - before == 1) is fast, statement
    return rows


def files_of(world: House, ref: str) -> set[str]:
    """Data files that are there, whoever knows them."""
    folder = Path(world.lake_table(ref).location().removeprefix("file://")) / "data"
    return {str(path) for path in folder.rglob("*.parquet")} if folder.exists() else set()


def pair(client: Client, *, partition_by: list[str] | None = None) -> None:
    make(client, "events", EVERY_TYPE, partition_by)
    columns = ", ".join(f"{name} {kind}" for name, kind in EVERY_TYPE)
    client.execute(f"create table twin ({columns})")  # type: ignore[arg-type]


EDGES = r"""
select * from (values
    (1::bigint, 1::smallint, 1, 'NaN'::real, '-Infinity'::float8, 0.0005::numeric(12,3), true, '', '', '', ''::bytea,
     '00000000-0000-0000-0000-000000000000'::uuid, date '0044-03-15 BC', time '24:00', timestamp '12024-01-01 00:00:00.000001',
     timestamptz '0001-01-01 00:00+00 BC', interval '-1 year 2 days -00:00:00.1', '{"a": "x,\"y\""}'::json, '"\\"'::jsonb),
    (2, -32768, -2147483648, 1e-40, 5e-324, -999999999.999, false, E'line\nbreak, "quoted" \\. \r\n tab\t', 'ééééüüüü', 'x  ', '\x00ff0a22',
     'ffffffff-ffff-ffff-ffff-ffffffffffff', '2024-02-29', '00:00:00.000001', '2024-03-10 02:30', '2024-03-10 02:30-05', '0', '[]', '{}'),
    (3, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null),
    (4, 0, 0, '-0', 0.1, 0, true, '\.', '"', ',', '\x5c', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '9999-12-31', '12:00',
     '1969-12-31 23:59:59.9', '1970-01-01 00:00:00.123456+00', '1 mon', 'null', 'null'),
    (5, 7, 7, 7, 7, 7, true, U&'\+01F600 \0001', E'\n', E'a\n', '\x', null, '0001-01-01', null, '0001-01-01',
     '9999-12-31 23:59:59+00', null, '1', '1')
) edge(id, small, whole, real_, double_, price, flag, note, short, padded, raw, key, day, clock, local_, moment, span, doc, tree)
"""


@pytest.mark.parametrize("partition_by", [None, ["day(moment)", "bucket(4, id)"]])
def test_every_type_comes_as_it_is(world: House, client: Client, partition_by: list[str] | None) -> None:
    pair(client, partition_by=partition_by)
    client.execute("insert into twin " + ROW.format(first=1, last=500))  # type: ignore[arg-type]
    client.execute("insert into twin " + EDGES)  # type: ignore[arg-type]
    assert insert(world, client, "insert into events select * from twin") == 505
    assert contents(client, "events", "id") == contents(client, "twin", "id")


def test_a_large_one_is_in_files_before_the_commit(world: House, client: Client) -> None:
    """The commit only adds them; who reads before finds the rows all the same, and nothing is left of what is taken back."""
    make(client, "events", PLAIN)
    query = f"select g, (g % 7)::int, 'n' || g % 100 from generate_series(1::bigint, {LARGE}) g"
    assert insert(world, client, f"insert into events {query};") == LARGE
    assert client.execute("select count(*), sum(v), max(note) from events").fetchone() == (
        LARGE,
        sum(g % 7 for g in range(1, LARGE + 1)),
        "n99",
    )
    kept = files_of(world, "public.events")
    # Whole row groups, whatever the pieces are that Postgres sends: a file of small ones is slow to read for ever.
    footer = pq.ParquetFile(*kept).metadata
    assert [footer.row_group(group).num_rows for group in range(footer.num_row_groups)] == [100_000, 100_000, LARGE - 200_000]
    client.execute("begin")
    insert(world, client, f"insert into events {query}")
    assert len(files_of(world, "public.events")) == len(kept) + 1
    client.execute("savepoint s")
    insert(world, client, f"insert into events {query}")
    client.execute("rollback to s")
    insert(world, client, "insert into events select id + 1000000, v, 'own' from events where id < 10")
    assert client.execute("select count(*) from events").fetchone() == (2 * LARGE + 18,)
    client.execute("update events set v = -1 where id = 5")
    client.execute("commit")
    assert client.execute("select count(*), count(*) filter (where v = -1) from events").fetchone() == (2 * LARGE + 18, 2)
    table = world.lake_table("public.events")
    known = {task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()}
    assert known == {path for path in files_of(world, "public.events") if "delete" not in path}
    client.execute("begin")
    insert(world, client, f"insert into events {query}")
    client.execute("rollback")
    assert client.execute("select count(*) from events").fetchone() == (2 * LARGE + 18,)
    assert {path for path in files_of(world, "public.events") if "delete" not in path} == known


def test_inside_a_transaction_it_sees_what_is_not_committed(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    client.execute("create table heap (id bigint, v int)")
    with client.transaction():
        client.execute("insert into heap select g, 1 from generate_series(1, 10) g")
        assert insert(world, client, "insert into events (v, id) with own as (select * from heap) select v, id from own order by id") == 10
        assert insert(world, client, 'INSERT INTO public."events" ( "id" , v ) TABLE heap -- all;') == 10
        assert client.execute("select count(*), sum(v), sum(id) from events").fetchone() == (20, 20, 110)
        with client.transaction():
            insert(world, client, "insert into events select id, v from events")
            assert client.execute("select count(*) from events").fetchone() == (40,)
            raise psycopg.Rollback
        insert(world, client, "insert into events (id) (select 99)")
    with world.client() as other:
        assert other.execute("select count(*) from events").fetchone() == (21,)
    assert len(world.lake_table("public.events").snapshots()) == 1


def test_defaults_and_column_lists(world: House, client: Client) -> None:
    client.execute("create sequence counter")
    client.execute(
        """select modak.create_iceberg_table('public', 'events', '[
            {"name": "id", "type": "bigint", "default": "nextval(''public.counter'')"},
            {"name": "note", "type": "varchar(8)", "default": "''new''"},
            {"name": "v", "type": "int", "default": "1.6"},
            {"name": "at", "type": "timestamptz", "default": "now()"}, {"name": "none", "type": "text"}]')"""
    )
    assert insert(world, client, "insert into events (none) select 'x' || g from generate_series(1, 3) g") == 3
    assert insert(world, client, "insert into events select 50, 'given'") == 1
    client.execute("alter table events rename column note to word")
    assert insert(world, client, "insert into events (word, id) select 'named', 60") == 1
    read = client.execute("select id, word, v, at > now() - interval '1 hour', none from events order by id").fetchall()
    assert read == [(n, "new", 2, True, f"x{n}") for n in (1, 2, 3)] + [(50, "given", 2, True, None), (60, "named", 2, True, None)]


@pytest.mark.parametrize(
    ("query", "sqlstate"),
    [
        (f"select g, 1 / ({LARGE // 2} - g)::int, 'x' from generate_series(1::bigint, {LARGE}) g", "22012"),
        (f"select nullif(g, {LARGE}), 1, 'x' from generate_series(1::bigint, {LARGE}) g", "23502"),
        ("select g, 1, repeat('x', g::int) from generate_series(1::bigint, 10) g", "22001"),
        ("select g, g * 1000000000, 'x' from generate_series(1::bigint, 10) g", "22003"),
    ],
)
def test_an_error_leaves_nothing(world: House, client: Client, query: str, sqlstate: str) -> None:
    make(client, "events", PLAIN)
    before = files_of(world, "public.events")
    with pytest.raises(psycopg.Error) as refused:
        client.execute(f"insert into events {query}")  # type: ignore[arg-type]
    assert refused.value.sqlstate == sqlstate
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    client.execute("begin")
    insert(world, client, "insert into events select 1, 2, 'kept'")
    client.execute("savepoint s")
    with pytest.raises(psycopg.Error) as refused:
        client.execute(f"insert into events {query}")  # type: ignore[arg-type]
    assert refused.value.sqlstate == sqlstate
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
    client.execute("rollback to s")
    client.execute("commit")
    assert client.execute("select * from events").fetchall() == [(1, 2, "kept")]
    assert len(files_of(world, "public.events")) == len(before) + 1


def test_what_the_lake_does_not_keep_is_told_by_the_columns_name(client: Client) -> None:
    make(client, "events", [("id", "bigint"), ("price", "numeric(12,3)")])
    with pytest.raises(psycopg.errors.NumericValueOutOfRange, match="column price holds a value"):
        client.execute("insert into events select g, 'NaN'::numeric from generate_series(1::bigint, 10) g")


def test_a_text_that_only_has_blanks_too_many_is_cut(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    assert insert(world, client, "insert into events select 1, 2.5, 'word        '") == 1
    assert client.execute("select v, note from events").fetchone() == (3, "word    ")


def test_it_can_be_cancelled(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    for own in (False, True):
        if own:
            client.execute("begin")
        threading.Timer(0.7, client.cancel_safe).start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            client.execute(f"insert into events select g, 1, pg_sleep(0.00001)::text from generate_series(1, {LARGE * 100}) g")
        assert client.info.transaction_status == (psycopg.pq.TransactionStatus.INERROR if own else psycopg.pq.TransactionStatus.IDLE)
        client.execute("rollback")
    client.execute("set statement_timeout = 300")
    with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
        client.execute(f"insert into events select g, 1, pg_sleep(0.00001)::text from generate_series(1, {LARGE * 100}) g")
    client.execute("reset statement_timeout")
    assert client.execute("select count(*) from events").fetchone() == (0,)
    assert files_of(world, "public.events") == set()


def test_rights_are_those_of_the_client(world: House, client: Client) -> None:
    role = f"bulk_{os.getpid()}"
    make(client, "events", PLAIN)
    client.execute("create table heap (id bigint)")
    client.execute("insert into heap values (7)")
    client.execute(f"create role {role} login")  # type: ignore[arg-type]
    try:
        client.execute(f"set role {role}")  # type: ignore[arg-type]
        for statement in ("insert into events (id) select 1", "insert into events (id) select id from heap"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                client.execute(statement)  # type: ignore[arg-type]
        client.execute("reset role")
        client.execute(f"grant insert (id) on events to {role}; set role {role}")  # type: ignore[arg-type]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            client.execute("insert into events (id, v) select 1, 2")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            client.execute("insert into events (id) select id from heap")
        # Nothing of the schema modak is open to it.
        insert(world, client, "insert into events (id) select 1")
        client.execute("set modak.parcel = '00000000000000000000000000000000'")
        client.execute("insert into events (id) values (2)")
        client.execute("reset role")
        assert client.execute("select id from events order by 1").fetchall() == [(1,), (2,)]
    finally:
        client.execute("reset role")
        client.execute(f"drop owned by {role}; drop role {role}")  # type: ignore[arg-type]


def test_notices_reach_the_client(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    client.execute(
        "create or replace function say(n bigint) returns bigint language plpgsql as"
        " $$ begin raise notice 'row %', n; insert into events values (n + 100); return n; end $$"
    )
    said: list[str] = []
    client.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
    insert(world, client, "insert into events (id) select say(g) from generate_series(1::bigint, 2) g")
    assert said == ["row 1", "row 2"]
    assert client.execute("select array_agg(id order by id) from events").fetchone() == ([1, 2, 101, 102],)


@pytest.mark.parametrize(
    "statement",
    [
        "insert into events (id) values (1), (2)",
        "insert into events (id) select 1 returning id",
        "insert into events (id) select 1 on conflict do nothing",
        "insert into events (id, v) select 1, null",
        "insert into events (id, note) select 1, now()",
        "with gone as (select 1 as id) insert into events (id) select id from gone",
        "insert into events (id) select id from heap for update",
        "insert into heap select 1",
        "insert into events as e (id) select 1",
    ],
)
def test_what_is_not_certain_goes_the_plain_way(world: House, client: Client, statement: str) -> None:
    make(client, "events", [("id", "bigint"), ("v", "int"), ("note", "text")])
    client.execute("create table heap (id bigint)")
    client.execute("insert into heap values (1)")
    assert insert(world, client, statement, fast=False) in (1, 2)


def test_settings_and_tables_that_make_a_difference(world: House, client: Client) -> None:
    make(client, "events", [("id", "bigint"), ("at", "timestamptz"), ("span", "interval"), ("f", "float8")])
    row = "insert into events select 1, timestamptz '2024-05-06 07:08:09.5+00', interval '1 day 2 hours', 0.1::float8 + 0.2"
    insert(world, client, row)
    for setting in ("datestyle = german", "intervalstyle = iso_8601", "extra_float_digits = 0", "client_encoding = latin1"):
        client.execute(f"set {setting}")  # type: ignore[arg-type]
        insert(world, client, row, fast=False)
        client.execute("reset all")
    client.execute("begin read only")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        client.execute(row)  # type: ignore[arg-type]
    client.execute("rollback")
    client.execute("begin")
    with pytest.raises(psycopg.errors.UndefinedTable):
        client.execute("insert into events select * from nowhere")
    client.execute("rollback")
    with pytest.raises(psycopg.errors.UndefinedTable):
        client.execute("insert into events select * from nowhere")
    assert client.execute("select count(*), count(distinct (at, span, f)) from events").fetchone() == (5, 1)
    client.execute("create function nothing() returns trigger language plpgsql as 'begin return new; end'")
    client.execute("create trigger own before insert on events for each row execute function nothing()")
    insert(world, client, row, fast=False)
    client.execute("drop trigger own on events; drop function nothing")


def test_a_table_of_the_same_transaction(world: House, client: Client) -> None:
    """Nobody else knows it yet."""
    client.execute("begin")
    make(client, "events", PLAIN)
    insert(world, client, "insert into events (id) select 1", fast=False)
    client.execute("commit")
    assert client.execute("select id from events").fetchall() == [(1,)]
