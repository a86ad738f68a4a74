"""Decoupled tables and whoever else writes Iceberg: PyIceberg, DuckDB and Spark on one table at the same time; and real clients."""

from __future__ import annotations

import datetime
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy import orm
from tests.attaching import TOKEN, attached
from tests.decoupling import Client, House, house, make
from tests.serving import RunningHttp

from modak.app import App
from modak.core.profile import Profile
from modak.embedded.postgres import Cluster
from modak.embedded.server_binaries import find_server_binaries

COLUMNS = [("id", "bigint"), ("who", "text"), ("at", "timestamptz"), ("price", "numeric(10,2)")]
TURNS = 3


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("decoupled"), "decoupled_engines") as made:
        yield made


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client() as connection:
        make(connection, "events", COLUMNS, ["day(at)"])
        yield connection
        connection.execute("select modak.drop_iceberg_table('public', t.table_name, true) from modak.decoupled t")


@pytest.fixture
def address(world: House) -> Iterator[str]:
    running = RunningHttp(App(replace(world.app.settings, rest_token=TOKEN)))
    yield f"http://127.0.0.1:{running.server.port}/iceberg"
    running.stop()


def insisting(work: Callable[[], Any], *failures: type[Exception]) -> None:
    """Engines that know nothing of turns are told of a conflict, and try again."""
    until = time.monotonic() + 60
    while True:
        try:
            work()
        except failures:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
            continue
        return


def sql_writer(world: House, first: int) -> None:
    with world.client() as own:
        for turn in range(TURNS):
            own.execute("insert into events values (%s, 'sql', '2024-01-01 00:00+00', 1.5)", [first + turn])
            insisting(
                lambda: own.execute("update events set price = price + 1 where who = 'sql' and id = %s", [first]),
                psycopg.errors.SerializationFailure,
            )


def pyiceberg_writer(world: House, first: int) -> None:
    moment = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
    for turn in range(TURNS):

        def append(number: int = first + turn) -> None:
            table = world.lake_table("public.events")
            row = {"id": number, "who": "pyiceberg", "at": moment, "price": None}
            table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))

        insisting(append, CommitFailedException)


def duckdb_writer(address: str, first: int) -> None:
    with attached(address) as database:
        for turn in range(TURNS):
            statement = f"INSERT INTO lake.public.events VALUES ({first + turn}, 'duckdb', TIMESTAMPTZ '2024-01-03 00:00:00+00', 2.25)"
            insisting(lambda statement=statement: database.execute(statement), duckdb.Error)  # type: ignore[misc]


def spark_writer(world: House, first: int) -> None:
    spark = world.app.spark(Profile("default"))
    for turn in range(TURNS):
        spark.sql(f"insert into modak.public.events values ({first + turn}, 'spark', timestamp '2024-01-04 00:00:00', 3.00)").collect()


def together(*work: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def run(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as failure:  # noqa: BLE001 - told below
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def expected(*who: str) -> list[tuple[str, int]]:
    return sorted((one, TURNS) for one in who)


def counts(client: Client) -> list[tuple[Any, ...]]:
    return client.execute("select who, count(distinct id) from events group by who order by 1").fetchall()


def test_nobody_loses_a_commit(world: House, client: Client, address: str) -> None:
    client.execute("insert into events values (1000, 'sql', '2024-01-01 00:00+00', 0)")
    together(
        lambda: sql_writer(world, 1000),
        lambda: sql_writer(world, 2000),
        lambda: pyiceberg_writer(world, 3000),
        lambda: duckdb_writer(address, 4000),
    )
    assert counts(client) == [("duckdb", TURNS), ("pyiceberg", TURNS), ("sql", 2 * TURNS)]
    # One row of the first writer's was there twice, and each of its updates met both.
    assert client.execute("select sum(price) from events where who = 'sql' and id = 2000").fetchone() == (1.5 + TURNS,)
    assert client.execute("select count(*) from events where id = 1000").fetchone() == (2,)
    with attached(address) as database:
        found = database.execute("SELECT count(*), count(DISTINCT id) FROM lake.public.events").fetchone()
        assert found == (4 * TURNS + 1, 4 * TURNS)
        database.execute("DELETE FROM lake.public.events WHERE who = 'duckdb'")
    assert world.lake_table("public.events").scan().to_arrow().num_rows == 3 * TURNS + 1
    assert counts(client) == [("pyiceberg", TURNS), ("sql", 2 * TURNS)]


@pytest.mark.spark
@pytest.mark.soak
def test_spark_is_one_of_them(world: House, client: Client, address: str) -> None:
    together(lambda: sql_writer(world, 1000), lambda: spark_writer(world, 5000), lambda: pyiceberg_writer(world, 3000))
    assert counts(client) == expected("sql", "spark", "pyiceberg")
    spark = world.app.spark(Profile("default"))
    assert spark.sql("select count(*) from modak.public.events").collect()[0][0] == 3 * TURNS
    spark.sql("delete from modak.public.events where who = 'spark' and id > 5000").collect()
    client.execute("update events set price = 7 where who = 'spark'")
    assert spark.sql("select id, price from modak.public.events where who = 'spark'").collect() == [(5000, 7)]


class Base(orm.DeclarativeBase):
    pass


class Event(Base):
    """SQLAlchemy wants to know a row by something: the table has no key, and here the column is one."""

    __tablename__ = "events"
    id: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    who: orm.Mapped[str]
    at: orm.Mapped[datetime.datetime] = orm.mapped_column(sa.DateTime(timezone=True))
    price: orm.Mapped[float] = orm.mapped_column(sa.Numeric(10, 2))


def test_sqlalchemy(world: House, client: Client) -> None:
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(world.dsn))
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    with orm.Session(engine) as session:
        session.add_all([Event(id=number, who="orm", at=moment, price=number) for number in range(1, 6)])
        session.commit()
        first = session.get(Event, 1)
        assert first is not None
        first.who = "changed"
        session.delete(session.get(Event, 2))
        session.commit()
        assert [one.id for one in session.scalars(sa.select(Event).order_by(Event.id).offset(1).limit(2))] == [3, 4]
    engine.dispose()
    assert client.execute("select who, count(*), sum(price) from events group by who order by 1").fetchall() == [
        ("changed", 1, 1),
        ("orm", 3, 12),
    ]


def test_psql_and_pgbench(world: House, client: Client, tmp_path: Any) -> None:
    psql, pgbench = (find_server_binaries().bin_dir / name for name in ("psql", "pgbench"))
    script = r"""
        \copy events (id, who) from stdin
1	psql
2	psql
\.
        begin;
        update events set price = id * 2 where who = 'psql';
        savepoint a;
        delete from events;
        rollback to a;
        commit;
        \pset format unaligned
        select id, price from events order by id;
    """
    done = subprocess.run([str(psql), "-X", "-q", "-t", world.dsn], input=script, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1|2.00", "2|4.00"]
    if not pgbench.exists():
        return  # this server came without it
    script = "\\set n random(1, 1000000)\ninsert into events (id, who) values (:n, 'pgbench');\nselect count(*) from events;\n"
    (tmp_path / "one.sql").write_text(script)
    command = [str(pgbench), "-n", "-c", "2", "-j", "1", "-t", "3", "-f", str(tmp_path / "one.sql"), world.dsn]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "number of transactions actually processed: 6/6" in done.stdout
    assert client.execute("select count(*) from events where who = 'pgbench'").fetchone() == (6,)
