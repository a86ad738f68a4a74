"""Statements that the lake answers, among others that it does not: by the simple protocol, by the extended one, in transactions."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from relay_support import FakeLake, Gateway, Raw, cells, counted, errors, roles, tags, wait_for

from modak.embedded.postgres import Cluster
from modak.gateway.wire.messages import (
    Bind,
    Close,
    CopyData,
    CopyDone,
    CopyFail,
    Describe,
    Execute,
    Flush,
    FunctionCall,
    Parse,
    Query,
    Sync,
    parse_command_complete,
    parse_error,
    parse_row_description,
)


@pytest.fixture(scope="module", autouse=True)
def with_roles(cluster: Cluster) -> Iterator[None]:
    with roles(cluster):
        yield


@pytest.fixture
def gateway(cluster: Cluster) -> Iterator[Gateway]:
    started = Gateway(cluster.dsn("postgres"), FakeLake())
    yield started
    started.stop()


@pytest.fixture
def raw(gateway: Gateway) -> Iterator[Raw]:
    with Raw(gateway.port, "r_trust") as connected:
        yield connected


@pytest.fixture
def client(gateway: Gateway) -> Iterator[psycopg.Connection]:
    with gateway.connect(autocommit=True) as connection:
        yield connection


def test_a_simple_query(raw: Raw) -> None:
    found = raw.ask(Query(counted("9", "rows=2")))
    assert tags(found) == "TDDCZ"
    assert cells(found) == [("1", "lake1"), ("2", "lake2")]
    assert [(one.name, one.type_oid) for one in parse_row_description(found[0])] == [("n", 23), ("who", 25)]
    assert parse_command_complete(found[-2]) == "SELECT 2"
    assert tags(raw.ask(Query(counted("9", "rows=0")))) == "TCZ"


def test_many_rows_arrive_in_order_in_both_formats(client: psycopg.Connection) -> None:
    for binary in (False, True):
        rows = client.execute(counted("%s::int"), (250_500,), binary=binary).fetchall()
        assert rows == [(number, f"lake{number}") for number in range(1, 250_501)]


def test_the_lake_sees_the_client_as_postgres_does(gateway: Gateway, client: psycopg.Connection) -> None:
    client.execute("set role r_scram")
    client.execute(counted("1", "rows=1"))
    with client.transaction():
        client.execute(counted("1", "rows=1"))
    assert gateway.lake.seen == [("r_scram", b"I"), ("r_scram", b"T")]


def test_parameters_come_with_value_format_and_type(gateway: Gateway, client: psycopg.Connection) -> None:
    client.execute(counted("%t::int", "rows=0"), (7,))
    client.execute(counted("%b::int", "rows=0"), (7,))
    client.execute(counted("%s", "rows=0"), ("8",))
    given = [(one.value, one.format, one.oid) for (one,) in gateway.lake.parameters]
    # psycopg says int2 for a small number; what it leaves open is for Postgres to infer.
    assert given == [(b"7", 0, 21), (b"\0\7", 1, 21), (b"8", 0, 23)]


def test_a_fault_of_the_lakes_reader_leaves_the_statement_to_postgres(client: psycopg.Connection) -> None:
    assert client.execute(counted("1", "unreadable")).fetchall() == [(1, "postgres1")]


@pytest.mark.parametrize("word", ["decline", "othertype"])
def test_what_the_lake_declines_postgres_answers(client: psycopg.Connection, word: str) -> None:
    for prepare in (False, True, True):
        assert client.execute(counted("%s::int", word), (2,), prepare=prepare).fetchall() == [(1, "postgres1"), (2, "postgres2")]


def test_a_format_the_lake_has_not_is_left_to_postgres(client: psycopg.Connection) -> None:
    query = counted("%s::int", "unsupported")
    assert client.execute(query, (1,), binary=True).fetchall() == [(1, "postgres1")]
    assert client.execute(query, (1,)).fetchall() == [(1, "lake1")]


def test_the_unnamed_statement_survives_the_gateways_own_questions(raw: Raw) -> None:
    parse = Parse("", counted("$1::int", "decline"))
    for message in (parse, None, None):
        found = raw.ask(*filter(None, (message, Bind("", "", (), (b"2",)), Describe(b"P", ""), Execute(""), Sync())))
        assert tags(found) == ("1" if message else "") + "2TDDCZ"
        assert cells(found) == [("1", "postgres1"), ("2", "postgres2")]
    assert errors(raw.ask(Query("select 1"), Bind("", "", (), (b"2",)), Sync(), until=b"Z")) == []
    assert errors(raw.receive()) == ["26000"]


def test_a_prepared_statement_described_and_executed_often(raw: Raw) -> None:
    found = raw.ask(Parse("s", counted()), Describe(b"S", "s"), Sync())
    assert tags(found) == "1tTZ"
    for rows in (b"1", b"3"):
        found = raw.ask(Bind("", "s", (), (rows,)), Execute(""), Sync())
        assert tags(found) == "2" + "D" * int(rows) + "CZ"
    found = raw.ask(Bind("", "s", (), (b"1",), (1, 0)), Describe(b"P", ""), Flush(), until=b"T")
    assert [one.format for one in parse_row_description(found[-1])] == [1, 0]
    found = raw.ask(Execute(""), Close(b"S", "s"), Sync())
    assert tags(found) == "DC3Z"
    assert errors(raw.ask(Bind("", "s", (), (b"1",)), Execute(""), Sync())) == ["26000"]


def test_rows_in_portions_until_the_portal_is_empty(gateway: Gateway, raw: Raw) -> None:
    raw.ask(Query("begin"))
    found = raw.ask(Parse("", counted()), Bind("p", "", (), (b"5",)), Execute("p", 2), Execute("p", 2), Sync())
    assert tags(found) == "12DDsDDsZ"
    assert cells(raw.ask(Query("select 'between'"))) == [("between",)]
    found = raw.ask(Execute("p", 2), Execute("p", 2), Sync())
    assert tags(found) == "DCCZ"
    assert [parse_command_complete(message) for message in found if message.tag == b"C"] == ["SELECT 1", "SELECT 0"]
    wait_for(lambda: gateway.lake.answers[0].closed)


def test_a_portal_ends_with_its_transaction(gateway: Gateway, raw: Raw) -> None:
    found = raw.ask(Parse("s", counted()), Bind("p", "s", (), (b"5",)), Execute("p", 2), Sync())
    assert tags(found) == "12DDsZ"
    assert errors(raw.ask(Execute("p", 2), Sync())) == ["34000"]
    wait_for(lambda: gateway.lake.answers[0].closed)
    raw.ask(Query("begin"), Bind("p", "s", (), (b"5",)), Execute("p", 2), Sync())
    raw.receive()
    raw.ask(Query("commit"))
    assert errors(raw.ask(Execute("p", 2), Sync())) == ["34000"]
    wait_for(lambda: gateway.lake.answers[1].closed)


def test_closing_a_portal(gateway: Gateway, raw: Raw) -> None:
    raw.ask(Query("begin"))
    found = raw.ask(Parse("", counted()), Bind("p", "", (), (b"5",)), Execute("p", 1), Close(b"P", "p"), Execute("p"), Sync())
    assert tags(found) == "12Ds3EZ"
    assert errors(found) == ["34000"]
    wait_for(lambda: gateway.lake.answers[0].closed)


def test_a_portal_outlives_the_statement_it_was_made_of(raw: Raw) -> None:
    raw.ask(Query("begin"))
    bound = raw.ask(Parse("", counted()), Bind("p", "", (), (b"1",)), Parse("", "select 'other'"), Bind("q", ""), Sync())
    assert tags(bound) == "1212Z"
    assert cells(raw.ask(Execute("p"), Execute("q"), Sync())) == [("1", "postgres1"), ("other",)]


def test_a_pipeline_of_several_batches_is_answered_in_order(raw: Raw) -> None:
    batches = []
    for number in range(30):
        sql = counted() if number % 3 == 0 else "select n, 'postgres' || n from generate_series(1, $1::int) n"
        batches += [Parse("", sql), Bind("", "", (), (b"%d" % number,)), Describe(b"P", ""), Execute("")]
        batches += [Sync()] if number % 2 else []
    raw.send(*batches)
    for number in range(1, 30, 2):
        found = raw.receive()
        assert tags(found) == f"12T{'D' * (number - 1)}C12T{'D' * number}CZ"
        assert [int(row[0]) for row in cells(found)] == [*range(1, number), *range(1, number + 1)]


def test_an_error_makes_everything_ignored_until_sync(gateway: Gateway, raw: Raw) -> None:
    ignored = (Parse("", "select 1"), Bind("", ""), Execute(""), Query("select 2"), Flush())
    found = raw.ask(Parse("", counted(words="fail")), Bind("", "", (), (b"1",)), Execute(""), *ignored, Sync())
    assert tags(found) == "12EZ"
    found = raw.ask(Parse("", "select nonsense"), Bind("", ""), Execute(""), *ignored, Sync())
    assert tags(found) == "EZ"
    found = raw.ask(Parse("x", "select nonsense"), Parse("", counted()), Bind("", "", (), (b"1",)), Execute(""), Sync())
    assert tags(found) == "EZ"
    assert len(gateway.lake.seen) == 1
    assert cells(raw.ask(Query("select 3"))) == [("3",)]


@pytest.mark.parametrize("word", ["fail", "missing", "crash", "fail_after=1000 rows=3000"])
def test_an_error_fails_the_clients_transaction(client: psycopg.Connection, word: str) -> None:
    client.execute("create temp table t (n int)")
    states = {"missing": "42P01", "crash": "XX000"}
    for parameters in (None, (9,)):
        query = counted("%s::int" if parameters else "9", word)
        client.execute("begin; insert into t values (1)")
        with pytest.raises(psycopg.DatabaseError) as caught:
            client.execute(query, parameters)
        assert caught.value.sqlstate == states.get(word, "22012")
        assert caught.value.diag.statement_position is None
        assert client.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            client.execute("insert into t values (2)")
        client.execute("rollback")
        client.execute("begin; savepoint a; insert into t values (2)")
        with pytest.raises(psycopg.DatabaseError):
            client.execute(query, parameters)
        client.execute("rollback to a; insert into t values (3); commit")
    assert client.execute("select n from t").fetchall() == [(3,), (3,)]


def test_in_a_failed_transaction_nothing_is_asked(gateway: Gateway, raw: Raw) -> None:
    raw.ask(Query("begin"))
    raw.ask(Parse("s", counted()), Bind("p", "s", (), (b"5",)), Execute("p", 1), Sync())
    assert errors(raw.ask(Query("select 1/0"))) == ["22012"]
    assert errors(raw.ask(Query(counted("1")))) == ["25P02"]
    assert errors(raw.ask(Execute("p", 1), Sync())) == ["25P02"]
    found = raw.ask(Bind("", "s", (), (b"1",)), Execute(""), Sync())
    assert (errors(found), found[-1].body) == (["25P02"], b"E")
    assert len(gateway.lake.seen) == 1


def test_a_cursor_lives_on_after_rollback_to_savepoint(raw: Raw) -> None:
    raw.ask(Query("begin"))
    raw.ask(Parse("s", counted()), Bind("p", "s", (), (b"5",)), Execute("p", 1), Sync())
    raw.ask(Query("savepoint a"))
    raw.ask(Query("select 1/0"))
    raw.ask(Query("rollback to a"))
    assert cells(raw.ask(Execute("p", 2), Sync())) == [("2", "lake2"), ("3", "lake3")]


def test_an_implicit_transaction_is_not_split_by_a_lake_statement(gateway: Gateway, raw: Raw) -> None:
    raw.ask(Query("create temp table t (n int)"))
    insert = (Parse("i", "insert into t values (1)"), Bind("", "i"), Execute(""))
    lake = (Parse("s", counted()), Bind("p", "s", (), (b"3",)), Execute("p", 1))
    # The portal is the lake's and open when the change is made; then it fails, or something else does.
    found = raw.ask(*lake, *insert, Execute("p", 1), Parse("", "select nonsense"), Sync())
    assert tags(found) == "12Ds12CDsEZ"
    assert cells(raw.ask(Query("select count(*) from t"))) == [("0",)]
    failing = (Parse("f", counted(words="fail_after=1000 rows=2000")), Bind("p", "f", (), (b"3",)), Execute("p", 1000))
    found = raw.ask(*failing, Bind("", "i"), Execute(""), Execute("p", 1), Sync())
    assert tags(found)[-7:] == "DDs2CEZ"
    assert parse_error(found[-2]).message == "division by zero, lately"
    assert cells(raw.ask(Query("select count(*) from t"))) == [("0",)]


def test_begin_and_a_lake_statement_in_one_batch(gateway: Gateway, raw: Raw) -> None:
    # As pgjdbc does without autocommit.
    begin = (Parse("", "begin"), Bind("", ""), Execute(""))
    found = raw.ask(*begin, Parse("", counted()), Bind("", "", (), (b"1",)), Describe(b"P", ""), Execute(""), Sync())
    assert (tags(found), found[-1].body) == ("12C12TDCZ", b"T")
    assert cells(found) == [("1", "lake1")]
    assert gateway.lake.seen == [("r_trust", b"T")]


@pytest.mark.parametrize("gone", ["deallocate s", "deallocate all", "discard all"])
def test_a_statement_that_went_by_sql_is_gone(raw: Raw, gone: str) -> None:
    execute = (Bind("", "s", (), (b"1",)), Execute(""), Sync())
    raw.ask(Parse("s", counted()), Sync())
    assert cells(raw.ask(*execute)) == [("1", "lake1")]
    raw.ask(Query("prepare other as select 1; deallocate other"))
    assert cells(raw.ask(*execute)) == [("1", "lake1")]
    raw.ask(Query(gone))
    assert errors(raw.ask(*execute)) == ["26000"]
    raw.ask(Query("prepare s(int) as select 'by sql', $1"))
    assert cells(raw.ask(*execute)) == [("by sql", "1")]


def test_faults_in_a_bind_are_postgres_to_tell(gateway: Gateway, raw: Raw) -> None:
    raw.ask(Parse("s", counted()), Sync())
    assert errors(raw.ask(Bind("", "s"), Execute(""), Sync())) == ["08P01"]
    assert errors(raw.ask(Bind("", "s", (), (b"1",), (0, 0, 0)), Execute(""), Sync())) == ["08P01"]
    assert errors(raw.ask(Bind("", "s", (1,), (b"\0\0\0\1",)), Execute(""), Sync())) == []
    assert len(gateway.lake.seen) == 1


def test_a_copy_by_the_extended_protocol(raw: Raw) -> None:
    raw.ask(Query("create temp table t (n int)"))
    begun = raw.ask(Parse("", "copy t from stdin"), Bind("", ""), Execute(""), Sync(), until=b"G")
    assert tags(begun) == "12G"
    assert tags(raw.ask(CopyData(b"1\n2\n"), Flush(), CopyDone(), Sync())) == "CZ"
    raw.ask(Bind("", ""), Execute(""), Sync(), until=b"G")
    assert tags(raw.ask(CopyData(b"3\n"), CopyFail("enough"), Sync())) == "EZ"
    raw.ask(Bind("", ""), Execute(""), Sync(), until=b"G")
    assert errors(raw.ask(CopyData(b"x\n"), CopyData(b"y\n"), CopyDone(), Sync())) == ["22P02"]
    assert cells(raw.ask(Query("select count(*) from t"))) == [("2",)]


def test_a_function_call_passes(raw: Raw) -> None:
    # int4pl(3, 4) of the fast path: its oid, one format for all, two arguments, result as text.
    argument = b"\0\0\0\4\0\0\0"
    body = (177).to_bytes(4, "big") + b"\0\1\0\1" + b"\0\2" + argument + b"\3" + argument + b"\4" + b"\0\1"
    found = raw.ask(FunctionCall(body))
    assert (tags(found), found[0].body) == ("VZ", b"\0\0\0\4\0\0\0\7")


def test_the_clients_statement_timeout_holds_for_the_lake(client: psycopg.Connection, gateway: Gateway) -> None:
    client.execute("set statement_timeout = '100ms'")
    with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
        client.execute(counted("1", "slow rows=5"))
    with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
        client.execute(counted("1", "sleep rows=5"))
    assert client.execute("select 1").fetchone() == (1,)
    assert all(answer.closed for answer in gateway.lake.answers)


def test_savepoints_and_exported_snapshots_are_kept_in_mind_for_one_transaction(gateway: Gateway) -> None:
    with gateway.connect(autocommit=True) as client:
        client.execute("select 1")
        backend = gateway.backends[-1]

        def after(statement: str) -> tuple[bool, str | None]:
            client.execute(statement)
            return backend.in_savepoint, backend.exported

        assert after("begin") == (False, None)
        backend.exported = "a snapshot"
        assert after("savepoint s") == (True, "a snapshot")
        # Which savepoint ended is not known, so there may be another.
        assert after("release s") == (True, "a snapshot")
        assert after("savepoint s") == (True, "a snapshot")
        assert after("rollback to s") == (True, None)
        backend.exported = "a snapshot"
        assert after("commit and chain") == (False, None)
        assert after("savepoint s") == (True, None)
        assert after("rollback") == (False, None)
