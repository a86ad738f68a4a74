"""GROUP BY small whole numbers: the engine groups by one byte where the files say that it does, and the answer is Postgres's own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.decoupling import Client, House, house, make

from modak.embedded.postgres import Cluster
from modak.gateway.decoupled import reading

COLUMNS = [("id", "bigint"), ("small", "smallint"), ("whole", "integer"), ("large", "bigint"), ("v", "numeric(12,2)")]
QUERIES = [
    "select whole, count(*), sum(v) from {t} group by whole order by whole",
    "select small, large, count(*), min(id) from {t} group by small, large order by small desc nulls last, large",
    "select distinct whole from {t} order by whole nulls first limit 3",
    "select whole, sum(whole), avg(whole), max(whole) from {t} group by whole order by 1",
    "select whole, count(*) from {t} group by whole having whole > 1 order by 1",
    "select whole / 2 + 1, whole, count(*) from {t} group by whole order by 2",
    "select whole, count(*) from {t} where whole < 50 group by whole order by 1",
    "select a.whole, b.small, count(*) from {t} a join {t} b using (id) group by a.whole, b.small order by 1, 2",
]


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("groups"), f"decoupled_groups_{os.getpid()}") as made:
        yield made


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client(prepare_threshold=None) as connection:
        make(connection, "events", COLUMNS)
        connection.execute(f"create table twin ({', '.join(f'{name} {kind}' for name, kind in COLUMNS)})")  # type: ignore[arg-type]
        yield connection
        connection.execute("rollback")
        connection.execute("select modak.drop_iceberg_table('public', 'events', true)")
        connection.execute("drop table twin")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the engine was asked."""
    found: list[str] = []
    scan = reading.scan

    def noted(*given):  # type: ignore[no-untyped-def]
        found.append(scan(*given).sql)
        return scan(*given)

    monkeypatch.setattr(reading, "scan", noted)
    return found


def fill(client: Client, values: str) -> None:
    for table in ("events", "twin"):
        client.execute(f"insert into {table} {values}")  # type: ignore[arg-type]


def check(client: Client) -> None:
    for query in QUERIES:
        found, wanted = (client.execute(query.format(t=table)).fetchall() for table in ("events", "twin"))  # type: ignore[arg-type]
        assert found == wanted, query


SERIES = "select g, (g % 7)::smallint, {whole}, {large}, g / 100.0 from generate_series(1, 500) g"


@pytest.mark.parametrize(
    ("whole", "large", "narrow"),
    [
        ("(g % 50)::int", "(g % 3)::bigint", "UTINYINT"),
        ("(g % 256)::int", "nullif(g % 256, 7)::bigint", "UTINYINT"),
        ("(g % 256 - 128)::int", "(-(g % 2))::bigint", " TINYINT"),
        ("(g % 257)::int", "9223372036854775807 - g % 2", None),
        ("((g % 3)::bigint * 1073741823)::int", "(-9223372036854775808) + g % 2", None),
        ("null::int", "null::bigint", None),
    ],
)
def test_groups_are_those_of_a_heap(client: Client, asked: list[str], whole: str, large: str, narrow: str | None) -> None:
    fill(client, SERIES.format(whole=whole, large=large))
    check(client)
    client.execute(QUERIES[0].format(t="events"))  # type: ignore[arg-type]
    assert ("TINYINT" in asked[-1]) is (narrow is not None)
    assert narrow is None or narrow in asked[-1]


def test_rows_of_later_files_and_of_the_own_transaction_need_not_fit(client: Client, asked: list[str]) -> None:
    fill(client, SERIES.format(whole="(g % 50)::int", large="(g % 3)::bigint"))
    check(client)
    client.execute("begin")
    fill(client, "values (1000, 32767, 2147483647, -9223372036854775808, 1), (1001, -32768, -2147483648, null, 2)")
    check(client)
    client.execute("rollback")
    check(client)
    fill(client, "values (1002, 300, 300, 300, 1)")
    check(client)
    assert "TINYINT" not in asked[-1]
    for table in ("events", "twin"):
        client.execute(f"delete from {table} where whole = 300")  # type: ignore[arg-type]
    check(client)


def test_only_what_is_grouped_by_is_narrow(client: Client, asked: list[str]) -> None:
    fill(client, SERIES.format(whole="(g % 50)::int", large="(g % 3)::bigint"))
    for query in QUERIES[3:7]:
        client.execute(query.format(t="events"))  # type: ignore[arg-type]
        assert "TINYINT" not in asked[-1], query
