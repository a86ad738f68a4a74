"""Where DuckDB has a limit that Postgres does not have (18 digits of a product, the year 294247), the answer is Postgres's all the same."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from tests.decoupling import Client, House, contents, house, make

from modak.embedded.postgres import Cluster

COLUMNS = [("id", "bigint"), ("price", "numeric(12,3)"), ("share", "numeric(18,8)"), ("total", "numeric(18,0)"), ("at", "timestamp")]
ROWS = """
values (1, 999999999.999, 9999999999.99999999, 123456789012345678, timestamp '294246-12-31 23:59:59'),
       (2, -999999999.999, -0.00000001, -999999999999999999, timestamp '4713-01-01 00:00 BC'),
       (3, 1.5, 2.5, 3, null), (4, null, null, null, null)
"""


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("limits"), f"decoupled_limits_{os.getpid()}") as made:
        yield made


@pytest.fixture(scope="module")
def client(world: House) -> Iterator[Client]:
    with world.client() as connection:
        make(connection, "events", COLUMNS)
        connection.execute(f"create table twin ({', '.join(f'{name} {kind}' for name, kind in COLUMNS)})")  # type: ignore[arg-type]
        for table in ("events", "twin"):
            connection.execute(f"insert into {table} {ROWS}")  # type: ignore[arg-type]
        yield connection


@pytest.mark.parametrize(
    "query",
    [
        "select sum(price * price), max(price * share) from {t}",
        "select id from {t} where price * price > 5 order by id",
        "select max(total + share), min(total - share), sum(total + total) from {t}",
        "select a.id, b.id from {t} a join {t} b on a.price * b.price >= a.total order by 1, 2",
        "select max(at + interval '1 month')::text from {t}",
        "select price + total, count(*) from {t} group by 1 order by 1",
        "select id from {t} where (share + total)::numeric(20,1) > 5 order by id",
    ],
)
def test_queries(client: Client, query: str) -> None:
    found, wanted = (client.execute(query.format(t=table)).fetchall() for table in ("events", "twin"))  # type: ignore[arg-type]
    assert found == wanted


@pytest.mark.parametrize(
    "statement",
    [
        "update {t} set total = 7 where price * price > 5 returning id",
        "update {t} set share = price * price / 1e15 where id < 4 returning id, share",
        "update {t} set total = total + share where id > 1 returning id, total",
        "delete from {t} where total - share < price * price returning id",
    ],
)
def test_changes(client: Client, statement: str) -> None:
    with client.transaction(force_rollback=True):
        found, wanted = (sorted(client.execute(statement.format(t=table)).fetchall()) for table in ("events", "twin"))  # type: ignore[arg-type]
        assert found == wanted
        assert contents(client, "events") == contents(client, "twin")


@pytest.mark.parametrize("query", ["select max(total::numeric(5,2)) from events", "delete from events where total::numeric(5,2) > 1"])
def test_what_postgres_refuses_too(client: Client, query: str) -> None:
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        client.execute(query)  # type: ignore[arg-type]


@pytest.mark.parametrize("written", ["insert into moments values (3, {last}, null)", "update moments set at = {last}, zoned = {last}"])
def test_the_last_microsecond_is_no_infinity(client: Client, written: str) -> None:
    """What DuckDB takes for infinity is refused; the one before it is kept."""
    with client.transaction(force_rollback=True):
        make(client, "moments", [("id", "bigint"), ("at", "timestamp"), ("zoned", "timestamptz")])
        for row in ("1, '294247-01-10 04:00:54.775806', '294247-01-10 04:00:54.775806+00'", "2, null, '294247-01-10 05:00:54.775806+01'"):
            client.execute(f"insert into moments values ({row})")  # type: ignore[arg-type]
        kept = "select at::text, (zoned at time zone 'UTC')::text from moments order by id"
        last = "294247-01-10 04:00:54.775806"
        assert client.execute(kept).fetchall() == [(last, last), (None, last)]  # type: ignore[arg-type]
        with pytest.raises(psycopg.errors.NumericValueOutOfRange), client.transaction():
            client.execute(written.format(last="'294247-01-10 04:00:54.775807'"))  # type: ignore[arg-type]
        assert client.execute(kept).fetchall() == [(last, last), (None, last)]  # type: ignore[arg-type]


KEYS = [
    (["key"], "uuid", ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"]),
    (["key"], "date", ["'4713-01-01 BC'", "'9999-12-31'", "'294247-01-01'"]),
    (["key"], "text", ["''", "'a/b=%'", "repeat('x', 300)", "repeat('ü', 99)"]),
    (["truncate(250, key)"], "text", ["repeat('x', 300)", "repeat('%', 300)"]),
]


@pytest.mark.parametrize(("partition_by", "kind", "values"), KEYS)
def test_partitions_of_odd_values(world: House, client: Client, partition_by: list[str], kind: str, values: list[str]) -> None:
    """What a folder cannot be called, and what Arrow does not group by."""
    client.execute(f"create table plain (id bigint, key {kind})")  # type: ignore[arg-type]
    make(client, "parted", [("id", "bigint"), ("key", kind)], partition_by)
    rows = ", ".join(f"({number}, {value})" for number, value in enumerate([*values, "null"]))
    client.execute(f"insert into plain values {rows}")  # type: ignore[arg-type]
    try:
        client.execute("insert into parted select * from plain")
        for statement in ["select 1", "update {t} set id = id + 10 where key is not null", "delete from {t} where key = {v}"]:
            for table in ("parted", "plain"):
                client.execute(statement.format(t=table, v=values[0]))  # type: ignore[arg-type]
            assert contents(client, "parted", "id") == contents(client, "plain", "id")
            for value in values:
                found, wanted = (
                    client.execute(f"select id from {table} where key = {value} order by id").fetchall()  # type: ignore[arg-type]
                    for table in ("parted", "plain")
                )
                assert found == wanted
    finally:
        client.execute("select modak.drop_iceberg_table('public', 'parted', true)")
        client.execute("drop table plain")
