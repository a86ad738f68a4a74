"""Verify of a mirror: the heap as of a place in the WAL against the lake at that F, by value."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from tests.inline import inlined
from tests.mirroring import lake_rows, pump, same, start
from tests.serving import until

from modak.app import App
from modak.connection import Connection
from modak.core.table import Name
from modak.jobs.verify import Verified
from modak.jobs.verify_mirror import verify_table
from modak.spark import pinned_tables
from modak.worker.errands import Errands

pytestmark = pytest.mark.spark
T = Name("public", "items")
World = tuple[App, Connection]


@pytest.fixture
def items(mirrored: World) -> World:
    app, connection = mirrored
    connection.execute(
        "create table items (id bigint, at timestamptz not null, price numeric(10, 2), note text, primary key (id, at)) "
        "partition by range (at)"
    )
    for month in range(1, 5):
        connection.execute(
            f"create table items_{month} partition of items for values from ('2026-0{month}-01') to ('2026-0{month + 1}-01')"
        )
    connection.execute(
        "insert into items select i, timestamptz '2026-01-01' + i * interval '7 hours', i * 1.25, nullif('n' || i % 7, 'n3') "
        "from generate_series(1, 400) i"
    )
    with inlined():
        start(app, connection, T, "at", width="month")
    return app, connection


def run(world: World, *, repair: bool = False) -> Verified:
    app, connection = world
    return verify_table(connection, app.dsn, app.job, T, repair=repair)


def by_button(app: App) -> str:
    """What the console's button says of it."""
    errands = Errands(app)
    errands.ask(T, "verify")
    until(lambda: all(one.is_over for one in errands.listing()))
    errands.stop()
    return errands.listing()[0].message


def write(dsn: str, over: threading.Event) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number in range(100_000):
            if over.is_set():
                return
            connection.execute("update items set price = price + 1 where id = %s", [number % 400 + 1])
            connection.execute("insert into items values (%s, '2026-03-03', 1, 'new')", [1000 + number])
            connection.execute("delete from items where id = %s", [1000 + number - 20])


@pytest.fixture
def writer(items: World) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=write, args=(items[0].dsn, over))
    thread.start()
    yield
    over.set()
    thread.join()


def test_a_mirror_is_verified_while_it_is_written_to(items: World, writer: None) -> None:
    for _ in range(2):
        found = run(items)
        assert found.differences == ()
        assert found.rows >= 400
        assert (found.drift_bytes or 0) > 0


def test_a_difference_is_found_named_and_mended(items: World) -> None:
    app, connection = items
    pump(app, connection)
    # Behind the stream's back: the heap changes and nobody tells. That the publication was altered is hidden from the pump too.
    with psycopg.connect(app.dsn) as secret:
        secret.execute("alter publication modak drop table items")
        secret.execute("update items set note = 'secret' where id = 17")
        secret.execute("delete from items where id = 18")
        secret.execute("insert into items values (9000, '2026-02-02', 0, 'unheard of')")
        secret.execute("alter publication modak add table items")
        secret.execute("update modak.mirrors set published = null")
    found = run(items)
    assert len(found.differences) == 3
    by_key = {str(difference.key).split("\x1f")[0]: difference for difference in found.differences}
    assert '"secret"' in (by_key["17"].heap or "")
    assert sum(difference.heap is None for difference in found.differences) == 1
    assert by_key["9000"].lake is None
    assert "3 differences" in by_button(app)
    assert run(items, repair=True).repaired == 3
    same(app, connection, T)
    assert run(items).differences == ()


def test_spark_reads_several_tables_at_one_moment(items: World) -> None:
    app, connection = items
    connection.execute("create table totals (day int primary key, price numeric(12, 2))")
    connection.execute("insert into totals select 1, sum(price) from items")
    with inlined():
        start(app, connection, Name("public", "totals"), "day")
    with connection.transaction():
        connection.execute("update items set price = price + 1 where id = 5")
        connection.execute("update totals set price = price + 1")
    pump(app, connection)
    with app.job(T) as job, pinned_tables(job.spark(), app.dsn, ["public.items", "public.totals"], settings=app.settings) as frames:
        connection.execute("update totals set price = 0")
        pump(app, connection)
        left = frames["public.items"].selectExpr("sum(price)").collect()[0][0]
        right = frames["public.totals"].selectExpr("sum(price)").collect()[0][0]
        assert left == right
    assert [row["price"] for row in lake_rows(app, connection, Name("public", "totals"))] == [0]
