"""INSERTs of many rows straight on Postgres: they are acknowledged before they are read, and nothing else is different."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.decoupling import EVERY_TYPE, Client, House, contents, house, make
from tests.gateway.test_decoupled_bulk import EDGES, PLAIN, files_of
from tests.gateway.test_decoupled_sql import ROW

from modak.embedded.postgres import Cluster

MANY = 9_000
LARGE = 230_000


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("intake"), f"decoupled_intake_{os.getpid()}") as made:
        yield made


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client(options="-c timezone=America/New_York") as connection:
        yield connection
        connection.execute("rollback")
        connection.execute("select modak.drop_iceberg_table('public', t.table_name, true) from modak.decoupled t")
        connection.execute("drop table if exists twin; drop function if exists counted")


def rows(first: int, count: int, note: str = "n") -> str:
    return f"select g, (g % 7)::int, '{note}' || g % 100 from generate_series({first}::bigint, {first + count - 1}) g"


def count(client: Client) -> int:
    found = client.execute("select count(*) from events").fetchone()
    assert found is not None
    return int(found[0])


def known(world: House) -> set[str]:
    return {task.file.file_path.removeprefix("file://") for task in world.lake_table("public.events").scan().plan_files()}


@pytest.mark.parametrize("partition_by", [None, ["day(moment)", "bucket(4, id)"]])
def test_every_type_comes_as_it_is(client: Client, partition_by: list[str] | None) -> None:
    make(client, "events", EVERY_TYPE, partition_by)
    client.execute(f"create table twin ({', '.join(f'{name} {kind}' for name, kind in EVERY_TYPE)})")  # type: ignore[arg-type]
    client.execute("insert into twin " + ROW.format(first=10, last=900))  # type: ignore[arg-type]
    client.execute("insert into twin " + EDGES)  # type: ignore[arg-type]
    assert client.execute("insert into events select * from twin").rowcount == 896
    assert contents(client, "events", "id") == contents(client, "twin", "id")
    # Fewer columns, in another order; the others are NULL.
    client.execute("insert into twin (note, id) select note, id + 10000 from twin")
    client.execute("insert into events (note, id) select note, id from twin where id > 10000")
    assert contents(client, "events", "id") == contents(client, "twin", "id")


def test_one_transaction_is_one_file_and_leaves_nothing_when_it_is_rolled_back(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    with client.transaction():
        client.execute("insert into events " + rows(1, LARGE))  # type: ignore[arg-type]
        client.execute("insert into events " + rows(LARGE + 1, MANY))  # type: ignore[arg-type]
        client.execute("insert into events values (0, 0, 'one')")
    assert count(client) == LARGE + MANY + 1
    assert len(world.lake_table("public.events").snapshots()) == 1
    kept = files_of(world, "public.events")
    # The single row is one operation of its own, and has a file.
    assert known(world) == kept
    assert len(kept) == 2
    with client.transaction():
        client.execute("insert into events " + rows(1, LARGE))  # type: ignore[arg-type]
        raise psycopg.Rollback
    assert files_of(world, "public.events") == kept
    assert count(client) == LARGE + MANY + 1


def test_the_transaction_sees_its_own_rows(client: Client) -> None:
    make(client, "events", PLAIN)
    with client.transaction():
        client.execute("insert into events " + rows(1, LARGE))  # type: ignore[arg-type]
        assert count(client) == LARGE
        assert client.execute("insert into events select id + 1000000, v, 'again' from events where id <= 3000").rowcount == 3000
        assert client.execute("update events set note = 'new' where id = 1000001").rowcount == 1
        assert client.execute("delete from events where id > 1000001").rowcount == 2999
        client.execute("insert into events " + rows(LARGE + 1, MANY))  # type: ignore[arg-type]
        assert client.execute("select count(*), max(note) filter (where id = 1000001) from events").fetchone() == (LARGE + MANY + 1, "new")
    assert client.execute("select count(*), count(distinct id) from events").fetchone() == (LARGE + MANY + 1,) * 2


def test_a_function_that_looks_while_rows_come(client: Client) -> None:
    """A volatile one sees what its own statement has inserted so far, or not: but never more, and nothing is lost by its looking."""
    make(client, "events", PLAIN)
    client.execute(
        """create function counted() returns int language plpgsql volatile
           as 'begin return (select count(*) from events); end'"""
    )
    client.execute(f"insert into events select g, case when g % 4000 = 0 then counted() else -1 end, 'x' from generate_series(1, {MANY}) g")
    seen = [row[0] for row in client.execute("select v from events where v >= 0 order by id").fetchall()]
    assert len(seen) == 2
    assert all(0 <= found <= 4000 * (place + 1) for place, found in enumerate(seen))
    assert count(client) == MANY


def test_savepoints_take_back_exactly_what_came_after_them(client: Client) -> None:
    make(client, "events", PLAIN)
    with client.transaction():
        client.execute("insert into events " + rows(1, MANY))  # type: ignore[arg-type]
        client.execute("savepoint a")
        client.execute("insert into events " + rows(MANY + 1, MANY))  # type: ignore[arg-type]
        client.execute("savepoint b")
        client.execute("insert into events " + rows(2 * MANY + 1, MANY))  # type: ignore[arg-type]
        client.execute("rollback to b")
        client.execute("insert into events " + rows(3 * MANY + 1, MANY))  # type: ignore[arg-type]
        client.execute("release b")
        client.execute("rollback to a")
        client.execute("insert into events " + rows(4 * MANY + 1, MANY))  # type: ignore[arg-type]
    found = client.execute("select count(*), min(id), max(id), count(*) filter (where id between 9001 and 36000) from events").fetchone()
    assert found == (2 * MANY, 1, 5 * MANY, 0)


MISTAKES = [
    ("select nullif(g, {at}), 1, 'x' from generate_series(1::bigint, {rows}) g", "23502"),
    ("select g, 1 / ({at} - g)::int, 'x' from generate_series(1::bigint, {rows}) g", "22012"),
    ("select g, 1, repeat('x', case when g = {at} then 9 else 1 end) from generate_series(1::bigint, {rows}) g", "22001"),
]


@pytest.mark.parametrize("total", [MANY, LARGE])
@pytest.mark.parametrize(("query", "sqlstate"), MISTAKES)
def test_a_mistake_is_the_inserts_own(world: House, client: Client, query: str, sqlstate: str, total: int) -> None:
    make(client, "events", PLAIN)
    for at in (1, total // 2, total):
        with pytest.raises(psycopg.Error) as refused:
            client.execute("insert into events " + query.format(at=at, rows=total))  # type: ignore[arg-type]
        assert refused.value.sqlstate == sqlstate
    assert files_of(world, "public.events") == set()
    with client.transaction():
        client.execute("insert into events values (1, 2, 'kept')")
        # The block's own handler meets it, so it came before the block ended.
        client.execute(
            f"""do $$ begin
                insert into events {query.format(at=total, rows=total)};
                raise 'not reached';
            exception when others then
                if sqlstate <> '{sqlstate}' then raise; end if;
            end $$"""  # type: ignore[arg-type]
        )
        client.execute("insert into events " + rows(10, MANY))  # type: ignore[arg-type]
    assert count(client) == MANY + 1


def test_a_value_that_the_lake_does_not_keep(client: Client) -> None:
    make(client, "events", [("id", "bigint"), ("at", "timestamptz")])
    with pytest.raises(psycopg.Error, match="at") as refused:
        client.execute(
            f"insert into events select g, case when g = {MANY} then 'infinity'::timestamptz end from generate_series(1, {MANY}) g"
        )
    assert refused.value.sqlstate == "22003"
    assert count(client) == 0


def test_it_can_be_cancelled(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    for own in (False, True):
        if own:
            client.execute("begin")
        threading.Timer(0.7, client.cancel_safe).start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            client.execute("insert into events " + rows(1, 50_000_000))  # type: ignore[arg-type]
        if own:
            client.execute("rollback")
        assert count(client) == 0
    assert files_of(world, "public.events") == set()


def test_a_client_that_dies_leaves_nothing(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    with world.client(autocommit=False) as other:
        other.execute("insert into events " + rows(1, LARGE))  # type: ignore[arg-type]
        pid = other.info.backend_pid
        assert len(files_of(world, "public.events")) == 1
        client.execute("select pg_terminate_backend(%s, 10000)", [pid])
        with pytest.raises(psycopg.OperationalError):
            other.execute("select 1")
    done = threading.Event()
    for _ in range(600):
        if not files_of(world, "public.events"):
            break
        done.wait(0.05)
    assert files_of(world, "public.events") == set()
    assert count(client) == 0


def test_a_table_of_the_same_transaction_and_two_tables_in_turns(client: Client) -> None:
    make(client, "other", PLAIN)
    with client.transaction():
        make(client, "events", PLAIN)
        client.execute("insert into events " + rows(1, MANY))  # type: ignore[arg-type]
        client.execute("insert into other " + rows(1, MANY))  # type: ignore[arg-type]
        client.execute("insert into events " + rows(MANY + 1, MANY))  # type: ignore[arg-type]
        client.execute("insert into other select id + 100000, v, note from events")
    assert count(client) == 2 * MANY
    assert client.execute("select count(*), count(distinct id) from other").fetchone() == (3 * MANY, 3 * MANY)


def test_copy_and_returning_and_many_values(client: Client, tmp_path: Path) -> None:
    make(client, "events", PLAIN)
    with client.cursor() as cursor, cursor.copy("copy events from stdin") as copy:
        for number in range(MANY):
            copy.write_row((number, number % 7, None if number % 5 else ""))
    returned = client.execute("insert into events " + rows(MANY, 500) + " returning id, note").fetchall()  # type: ignore[arg-type]
    assert returned == [(g, f"n{g % 100}") for g in range(MANY, MANY + 500)]
    values = ", ".join(f"({g}, {g % 7}, 'v')" for g in range(MANY + 500, MANY + 1500))
    assert client.execute(f"insert into events values {values}").rowcount == 1000  # type: ignore[arg-type]
    found = client.execute("select count(*), count(distinct id), count(note), count(*) filter (where note = '') from events").fetchone()
    assert found == (MANY + 1500, MANY + 1500, MANY // 5 + 1500, MANY // 5)
