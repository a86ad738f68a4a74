"""A user's way with a decoupled table: create, load, query, change, roll back, join with a heap and with a tiered table, drop."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests import events
from tests.decoupling import make
from tests.events import drop_tiered, put_under_modak, tier

from modak.app import App
from modak.connection import Connection
from modak.gateway.background import running

pytestmark = pytest.mark.inline

COLUMNS = [("id", "bigint"), ("event", "bigint"), ("at", "timestamptz"), ("price", "numeric(12,2)"), ("data", "jsonb")]
LOAD = """insert into sales select n, n % 6, timestamptz '2026-01-01 00:00+00' + n * interval '1 minute', n * 0.25,
    jsonb_build_object('n', n) from generate_series(1, {rows}) n"""


@pytest.mark.parametrize("rows", [5_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("on_port", [False, True])
def test_the_journey(app: App, connection: Connection, rows: int, on_port: bool) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    with running(App(replace(app.settings, gateway=("127.0.0.1", 0))).gateway()) as gateway:
        tier(app)
        drop_tiered(app)
        dsn = make_conninfo(app.dsn, host="127.0.0.1", port=gateway.port) if on_port else app.dsn
        with psycopg.connect(dsn, autocommit=True) as client:
            journey(client, rows)


def journey(client: psycopg.Connection[tuple[object, ...]], rows: int) -> None:
    make(client, "sales", COLUMNS, ["day(at)"] if rows < 100_000 else ["month(at)"])
    assert client.execute(LOAD.format(rows=rows)).rowcount == rows  # type: ignore[arg-type]
    total = client.execute("select count(*), sum(price), min(at)::text from sales").fetchone()
    assert total is not None
    assert total[0] == rows
    assert client.execute("select data ->> 'n' from sales where id = 77").fetchall() == [("77",)]

    assert client.execute("update sales set price = price + 1 where id % 10 = 0").rowcount == rows // 10
    assert client.execute("delete from sales where id > %s", [rows - 100]).rowcount == 100
    with client.transaction(force_rollback=True):
        client.execute("delete from sales")
        client.execute("insert into sales (id) values (0)")
        assert client.execute("select count(*) from sales").fetchone() == (1,)
    assert client.execute("select count(*) from sales").fetchone() == (rows - 100,)

    client.execute("create table people (id bigint primary key, name text)")
    client.execute("insert into people values (1, 'Anna'), (2, 'Berta')")
    found = client.execute("select p.name, s.price from sales s join people p using (id) order by 1").fetchall()
    assert [(name, float(str(price))) for name, price in found] == [("Anna", 0.25), ("Berta", 0.5)]
    # Cold rows a, b and c, hot ones in the heap: one table all the same.
    found = client.execute("select e.val, count(*) from sales s join events e on e.id = s.event group by e.val order by 1").fetchall()
    assert [val for val, _ in found] == ["a", "b", "c", "hot"]
    expected = client.execute("select count(*) from sales where event between 1 and 5").fetchone()
    assert expected == (sum(int(str(count)) for _, count in found),)

    client.execute("insert into people select s.id, s.data ->> 'n' from sales s where s.id between 10 and 12")
    assert client.execute("select name from people where id >= 10 order by id").fetchall() == [("10",), ("11",), ("12",)]
    client.execute("select modak.drop_iceberg_table('public', 'sales', true)")
    with pytest.raises(psycopg.errors.UndefinedTable):
        client.execute("select * from sales")
