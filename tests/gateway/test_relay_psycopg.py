"""psycopg and SQLAlchemy through the gateway: prepared statements, pipelines, cursors, COPY, notifications, two-phase commit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

import psycopg
import pytest
import sqlalchemy
from psycopg import conninfo
from relay_support import FakeLake, Gateway, counted

from modak.embedded.postgres import Cluster


@pytest.fixture
def gateway(cluster: Cluster) -> Iterator[Gateway]:
    started = Gateway(cluster.dsn("postgres"), FakeLake())
    yield started
    started.stop()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[psycopg.Connection]:
    with gateway.connect(autocommit=True) as connection:
        yield connection


def test_values_of_every_kind_in_text_and_binary(client: psycopg.Connection) -> None:
    values = (7, "naïve 日本", b"\0\xff", None, 1.5, [1, 2, None], {"a": 1})
    for binary in (False, True):
        cursor = client.cursor(binary=binary)
        given = (*values[:-1], psycopg.types.json.Jsonb(values[-1]))
        assert cursor.execute("select %s::int, %s::text, %s::bytea, %s::date, %s::float8, %s::int[], %s::jsonb", given).fetchone() == values


def test_many_rows_pass_in_order(client: psycopg.Connection) -> None:
    rows = client.execute("select g, repeat('x', g % 100) from generate_series(1, 200000) g").fetchall()
    assert len(rows) == 200_000
    assert all(row == (number, "x" * (number % 100)) for number, row in enumerate(rows, 1))


def test_prepared_statements_and_an_error_in_between(client: psycopg.Connection) -> None:
    for number in range(10):
        assert client.execute("select 100 / %s", (number + 1,), prepare=True).fetchone() == (100 // (number + 1),)
    with pytest.raises(psycopg.errors.DivisionByZero):
        client.execute("select 100 / %s", (0,), prepare=True)
    assert client.execute("select 100 / %s", (5,), prepare=True).fetchone() == (20,)


def test_a_pipeline_with_an_error_in_the_middle(client: psycopg.Connection) -> None:
    client.execute("create temp table t (n int primary key)")
    with client.pipeline() as pipeline:
        cursors = [client.execute("insert into t values (%s) returning n", (number,)) for number in range(500)]
        pipeline.sync()

        def fail() -> None:
            """Where the error is told depends on how soon its answer comes."""
            for number in (1000, 1, 1001):
                client.execute(f"insert into t values ({number})")
            pipeline.sync()

        with pytest.raises(psycopg.errors.UniqueViolation):
            fail()
        with contextlib.suppress(psycopg.errors.PipelineAborted):
            pipeline.sync()
        after = client.execute("select count(*), max(n) from t")
        assert [cursor.fetchone() for cursor in cursors] == [(number,) for number in range(500)]
        assert after.fetchone() == (500, 499)


def test_a_mixed_pipeline_is_answered_in_order(gateway: Gateway, client: psycopg.Connection) -> None:
    client.execute("create temp table t (n int)")
    with client.pipeline():
        asked = []
        for number in range(1, 6):
            asked.append(client.execute(counted("%s::int"), (number,)))
            asked.append(client.execute("insert into t values (%s) returning n", (number,)))
            asked.append(client.execute(counted("%s::int"), (number,)))
            asked.append(client.execute("select count(*) from t"))
        found = [cursor.fetchall() for cursor in asked]
    assert found[0] == [(1, "lake1")]
    # From the first change on the pipeline is one implicit transaction, which only Postgres sees.
    for number in range(1, 6):
        before, inserted, after, count = found[4 * number - 4 : 4 * number]
        assert [row[0] for row in before] == [row[0] for row in after] == list(range(1, number + 1))
        assert (inserted, count) == ([(number,)], [(number,)])
    assert found[2] == [(1, "postgres1")]
    assert [status for _, status in gateway.lake.seen] == [b"I"]


def test_a_pipeline_in_a_transaction_block_is_mixed_freely(gateway: Gateway) -> None:
    with gateway.connect() as connection, connection.pipeline():
        connection.execute("create temp table t (n int)")
        asked = [connection.execute(counted("%s::int"), (2,)), connection.execute("insert into t values (7) returning n")]
        asked += [connection.execute(counted("%s::int"), (1,)), connection.execute("select n from t")]
        assert [cursor.fetchall() for cursor in asked] == [[(1, "lake1"), (2, "lake2")], [(7,)], [(1, "lake1")], [(7,)]]
        connection.rollback()
    assert [status for _, status in gateway.lake.seen] == [b"T", b"T"]


def test_a_failure_in_a_pipeline_undoes_the_implicit_transaction(gateway: Gateway, client: psycopg.Connection) -> None:
    client.execute("create temp table t (n int)")
    with client.pipeline() as pipeline:
        fine = client.execute(counted("%s::int"), (1,))
        client.execute(counted("%s::int", "fail"), (1,))
        client.execute("insert into t values (1)")
        with pytest.raises(psycopg.errors.DivisionByZero):
            pipeline.sync()
        assert fine.fetchall() == [(1, "lake1")]
        assert client.execute("select count(*) from t").fetchone() == (0,)


def test_server_side_cursors(gateway: Gateway) -> None:
    with gateway.connect() as connection:
        with connection.cursor("named") as cursor:
            cursor.itersize = 10
            cursor.execute("select g from generate_series(1, 95) g")
            assert [row[0] for row in cursor] == list(range(1, 96))
        with connection.cursor("scrolled", scrollable=True) as cursor:
            cursor.execute("select g from generate_series(1, 95) g")
            cursor.scroll(90)
            assert cursor.fetchall() == [(number,) for number in range(91, 96)]


def test_copy_in_and_out(client: psycopg.Connection) -> None:
    client.execute("create temp table t (n int, s text)")
    with client.cursor().copy("copy t from stdin") as copy:
        for number in range(100_000):
            copy.write_row((number, f"row {number}"))
    with client.cursor().copy("copy t (n, s) from stdin (format binary)") as copy:
        copy.set_types(["int4", "text"])
        copy.write_row((-1, "binary"))
    assert client.execute("select count(*), min(n), max(n) from t").fetchone() == (100_001, -1, 99_999)
    with client.cursor().copy("copy (select n from t order by n) to stdout") as copy:
        assert [row[0] for row in copy.rows()] == [str(number) for number in range(-1, 100_000)]


def copy_rows(client: psycopg.Connection, rows: Iterable[tuple[int, ...]]) -> None:
    with client.cursor().copy("copy t from stdin") as copy:
        for row in rows:
            if not isinstance(row, tuple):
                raise TypeError
            copy.write_row(row)


def test_copy_with_parameters_and_a_copy_given_up(client: psycopg.Connection) -> None:
    client.execute("create temp table t (n int)")
    with client.cursor().copy("copy (select generate_series(1, %s)) to stdout", (3,)) as copy:
        assert [row[0] for row in copy.rows()] == ["1", "2", "3"]
    rows = iter([(1,), (2,), "not a row"])
    with pytest.raises(TypeError):
        copy_rows(client, rows)
    assert client.execute("select count(*) from t").fetchone() == (0,)


def test_a_trigger_that_fails_after_the_copy_began(client: psycopg.Connection) -> None:
    client.execute("create temp table t (n int)")
    client.execute("create function pg_temp.no() returns trigger language plpgsql as $$ begin raise 'not today'; end $$")
    client.execute("create trigger no before insert on t execute function pg_temp.no()")
    with pytest.raises(psycopg.errors.RaiseException, match="not today"):
        copy_rows(client, ((number,) for number in range(50_000)))
    assert client.execute("select count(*) from t").fetchone() == (0,)


def test_notifications_reach_a_client_that_says_nothing(client: psycopg.Connection, gateway: Gateway) -> None:
    client.execute("listen news")
    with psycopg.connect(gateway.dsn, autocommit=True) as other:
        other.execute("notify news, 'first'")
    assert [note.payload for note in client.notifies(timeout=60, stop_after=1)] == ["first"]
    client.execute("notify news, 'own'")
    assert [note.payload for note in client.notifies(timeout=60, stop_after=1)] == ["own"]


def test_a_notification_that_comes_during_a_lake_statement_is_not_lost(client: psycopg.Connection, gateway: Gateway) -> None:
    client.execute("listen news")
    with psycopg.connect(gateway.dsn, autocommit=True) as other:
        timer = threading.Timer(0.1, lambda: other.execute("notify news, 'during'"))
        timer.start()
        # It comes with the answer to a question of the gateway's own.
        assert client.execute(counted("1", "nap rows=1")).fetchall() == [(1, "lake1")]
        timer.join()
    assert [note.payload for note in client.notifies(timeout=60, stop_after=1)] == ["during"]


def test_notices_and_changed_settings_arrive(client: psycopg.Connection) -> None:
    told: list[str | None] = []
    client.add_notice_handler(lambda notice: told.append(notice.message_primary))
    client.execute("do $$ begin raise notice 'look %', 1; raise warning 'and there'; end $$")
    client.execute("set timezone = 'Asia/Tokyo'")
    assert told == ["look 1", "and there"]
    assert client.info.timezone.key == "Asia/Tokyo"


def test_two_phase_commit(gateway: Gateway) -> None:
    with psycopg.connect(gateway.dsn, autocommit=True) as direct:
        direct.execute("create table if not exists two_phase (n int)")
        with gateway.connect() as connection:
            transaction = connection.xid(1, "relay", "test")
            connection.tpc_begin(transaction)
            connection.execute("insert into two_phase values (1)")
            connection.tpc_prepare()
            assert direct.execute("select count(*) from two_phase").fetchone() == (0,)
            connection.tpc_commit()
            assert direct.execute("select count(*) from two_phase").fetchone() == (1,)
        direct.execute("drop table two_phase")


def test_large_objects_by_function_call(client: psycopg.Connection) -> None:
    with client.transaction():
        (oid,) = client.execute("select lo_create(0)").fetchone()
        (descriptor,) = client.execute("select lo_open(%s, 131072)", (oid,)).fetchone()
        assert client.execute("select lowrite(%s, 'abc')", (descriptor,)).fetchone() == (3,)
    client.execute("select lo_unlink(%s)", (oid,))


def test_another_client_encoding_is_postgres_business_alone(gateway: Gateway) -> None:
    with gateway.connect(client_encoding="latin1", autocommit=True) as connection:
        assert connection.execute("select 'é', octet_length('é')").fetchone() == ("é", 2)
        assert connection.execute(counted("1", "rows=1 é")).fetchall() == [(1, "postgres1")]
    with gateway.connect(autocommit=True) as connection:
        for encoding, who in (("utf8", "lake1"), ("latin1", "postgres1"), ("utf8", "lake1")):
            connection.execute(f"set client_encoding = {encoding}")
            assert connection.execute(counted("%s::int"), (1,), prepare=True).fetchall() == [(1, who)]


def test_sqlalchemy_reflects_what_it_sees_on_postgres_itself(new_database: Callable[..., str]) -> None:
    dsn = new_database()
    started = Gateway(dsn, FakeLake())
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table parents (id int primary key, name varchar(20) not null unique, tags text[])")
        connection.execute("create table children (id bigserial primary key, parent int references parents, at timestamptz default now())")
        connection.execute("create index on children (parent, at desc)")
        connection.execute("comment on column parents.name is 'how it is called'")
    seen = []
    for address in (started.conninfo(), dsn):
        creator = lambda address=address: psycopg.connect(conninfo.make_conninfo(address))  # noqa: E731
        engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=creator)
        inspector = sqlalchemy.inspect(engine)
        metadata = sqlalchemy.MetaData()
        metadata.reflect(engine)
        tables = [str(sqlalchemy.schema.CreateTable(metadata.tables[name])) for name in sorted(metadata.tables)]
        kinds = (inspector.get_indexes, inspector.get_foreign_keys, inspector.get_columns, inspector.get_unique_constraints)
        seen.append((tables, repr([kind(name) for kind in kinds for name in sorted(metadata.tables)])))
        engine.dispose()
    assert seen[0] == seen[1]
    assert "how it is called" in seen[0][1]
    started.stop()
