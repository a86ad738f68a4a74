"""How statements and sessions end before their time: cancel, a client or a Postgres that dies, a gateway that stops, limits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
from relay_support import FakeLake, Gateway, Raw, counted, errors, roles, tags, wait_for

from modak.embedded.postgres import Cluster
from modak.gateway.relay.pump import Pump
from modak.gateway.wire.messages import Bind, Execute, Message, Parse, Query, Sync, parse_error


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
def direct(cluster: Cluster) -> Iterator[psycopg.Connection]:
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as connection:
        yield connection


def running(direct: psycopg.Connection, gateway: Gateway) -> Callable[[], bool]:
    """Whether the gateway's last session is at work in Postgres."""

    def asked() -> bool:
        # A client may be greeted a moment before the gateway notes its session.
        keys = [backend.key for backend in gateway.backends[-1:] if backend.key is not None]
        query = "select state = 'active' from pg_stat_activity where pid = %s"
        return bool(keys) and direct.execute(query, (keys[0].pid,)).fetchone() == (True,)

    return asked


def gone(direct: psycopg.Connection, gateway: Gateway) -> Callable[[], bool]:
    query = "select from pg_stat_activity where pid = %s"
    return lambda: bool(gateway.backends) and direct.execute(query, (gateway.backends[-1].key.pid,)).fetchone() is None


def dawdling(gateway: Gateway) -> Callable[[], bool]:
    return lambda: bool(gateway.lake.answers) and gateway.lake.answers[-1].started.is_set()


@pytest.mark.parametrize("parameters", [None, (1,)])
@pytest.mark.parametrize("kind", ["postgres", "lake", "session"])
def test_cancel(gateway: Gateway, direct: psycopg.Connection, kind: str, parameters: tuple[int, ...] | None) -> None:
    placeholder = "%s::int" if parameters else "1"
    postgres = f"select pg_sleep(30 * {placeholder})"
    query = {"postgres": postgres, "lake": counted(placeholder, "slow rows=5"), "session": counted(placeholder, "sleep")}[kind]
    reached = dawdling(gateway) if kind == "lake" else running(direct, gateway)
    with gateway.connect(autocommit=True) as client:
        for transaction in (False, True):
            gateway.lake.answers.clear()
            if transaction:
                client.execute("begin")
            canceller = threading.Thread(target=lambda: (wait_for(reached), client.cancel_safe()))
            canceller.start()
            with pytest.raises(psycopg.errors.QueryCanceled, match="canceling statement due to user request"):
                client.execute(query, parameters)
            canceller.join()
            assert client.info.transaction_status.name == ("INERROR" if transaction else "IDLE")
        client.execute("rollback")
        assert client.execute("select 1").fetchone() == (1,)
        assert client.execute(counted("1", "rows=1")).fetchall() == [(1, "lake1")]
    wait_for(lambda: all(answer.closed for answer in gateway.lake.answers))


def test_a_cancel_between_statements_does_nothing(gateway: Gateway) -> None:
    with gateway.connect(autocommit=True) as client:
        client.execute("select 1")
        client.cancel_safe()
        assert client.execute(counted("1", "rows=1")).fetchall() == [(1, "lake1")]


@pytest.mark.parametrize("query", ["select pg_sleep(30)", counted("1", "slow rows=5"), counted("1", "sleep")])
def test_a_client_that_dies_takes_its_work_along(gateway: Gateway, direct: psycopg.Connection, query: str) -> None:
    with Raw(gateway.port, "r_trust") as raw:
        raw.send(Query(query))
        wait_for(dawdling(gateway) if "slow" in query else lambda: bool(gateway.backends) and running(direct, gateway)())
    wait_for(gone(direct, gateway))
    assert all(answer.stopped.is_set() for answer in gateway.lake.answers)
    wait_for(lambda: all(answer.closed for answer in gateway.lake.answers))


def test_a_client_that_dies_while_rows_are_on_their_way(gateway: Gateway, direct: psycopg.Connection) -> None:
    for query in ("select repeat('x', 1000) from generate_series(1, 3000000)", counted("1", "rows=50000000")):
        with Raw(gateway.port, "r_trust") as raw:
            raw.send(Query(query))
            assert raw.one().tag == b"T"
        wait_for(gone(direct, gateway))
    # Not made beyond what the client took and the sockets hold: the lake waits for a client that does not read.
    assert gateway.lake.answers[0].rows < 5_000_000
    wait_for(lambda: gateway.lake.answers[0].closed)


def test_a_client_that_dies_in_the_middle_of_a_copy(gateway: Gateway, direct: psycopg.Connection) -> None:
    direct.execute("create table if not exists half (n int)")
    direct.execute("grant insert on half to r_trust")
    with Raw(gateway.port, "r_trust") as raw:
        assert tags(raw.ask(Query("copy half from stdin"), until=b"G")) == "G"
        raw.send(Message(b"d", b"1\n2\n"))
    wait_for(gone(direct, gateway))
    assert direct.execute("select count(*) from half").fetchone() == (0,)
    direct.execute("drop table half")


def test_a_postgres_that_ends_the_session_is_heard(gateway: Gateway, direct: psycopg.Connection) -> None:
    for busy in (False, True):
        with Raw(gateway.port, "r_trust") as raw:
            raw.ask(Query("select 1"))
            if busy:
                raw.send(Query("select pg_sleep(30)"))
                wait_for(running(direct, gateway))
            direct.execute("select pg_terminate_backend(%s)", (gateway.backends[-1].key.pid,))
            found = raw.receive()
            assert (tags(found).lstrip("T"), errors(found)) == ("E", ["57P01"])


@pytest.mark.parametrize("query", [None, "select pg_sleep(30)", counted("1", "sleep")])
def test_a_connection_to_postgres_that_breaks_is_told(gateway: Gateway, direct: psycopg.Connection, query: str | None) -> None:
    with Raw(gateway.port, "r_trust") as raw:
        raw.ask(Query("select 1"))
        if query:
            raw.send(Query(query))
            wait_for(running(direct, gateway))
        backend = gateway.backends[-1]
        gateway.run(_break(backend))
        found = raw.receive()
        assert (tags(found), errors(found)) == ("E", ["08006"])
        assert parse_error(found[0]).severity == "FATAL"
    direct.execute("select pg_terminate_backend(%s)", (backend.key.pid,))


async def _break(backend: object) -> None:
    backend._writer.transport.abort()


def test_shutdown_waits_for_the_statement_and_then_says_why(gateway: Gateway, direct: psycopg.Connection) -> None:
    at_work = "select count(*) from pg_stat_activity where query = 'select pg_sleep(1)' and state = 'active'"
    with Raw(gateway.port, "r_trust") as idle, Raw(gateway.port, "r_trust") as busy:
        idle.ask(Query("select 1"))
        busy.send(Query("select pg_sleep(1)"))
        wait_for(lambda: len(gateway.sessions) == 2 and direct.execute(at_work).fetchone() == (1,))
        for session in gateway.sessions.values():
            gateway.run(session.shutdown())
        found = idle.receive()
        assert (tags(found), errors(found)) == ("E", ["57P01"])
        assert tags(busy.receive()) == "TDCZ"
        found = busy.receive()
        assert (errors(found), parse_error(found[0]).message) == (["57P01"], "terminating connection due to administrator command")


def test_a_message_beyond_the_limit_ends_the_session(gateway: Gateway, direct: psycopg.Connection) -> None:
    with Raw(gateway.port, "r_trust") as raw:
        raw.ask(Query("select 1"))
        raw._socket.sendall(b"Q" + (17 << 20).to_bytes(4, "big") + b"select")
        found = raw.receive()
        assert (tags(found), errors(found)) == ("E", ["08P01"])
    wait_for(gone(direct, gateway))


def test_a_message_nobody_knows_ends_the_session(gateway: Gateway) -> None:
    with Raw(gateway.port, "r_trust") as raw:
        assert errors(raw.ask(Message(b"?", b""))) == ["08P01"]


def test_a_client_that_sends_without_reading_does_not_block_the_relay_for_ever(gateway: Gateway) -> None:
    rows = 200
    with Raw(gateway.port, "r_trust") as raw:
        raw.ask(Parse("s", "select repeat('x', 20000) from generate_series(1, 10) where $1 <> ''"), Sync())
        # Far more answers than the sockets hold, behind more questions than are read ahead.
        batch = [step for _ in range(rows) for step in (Bind("", "s", (), (b"y" * 10_000,)), Execute(""), Sync())]
        sender = threading.Thread(target=raw.send, args=batch)
        sender.start()
        for _ in range(rows):
            assert tags(raw.receive()) == "2" + "D" * 10 + "CZ"
        sender.join(60)
        assert not sender.is_alive()


def test_a_cancel_that_comes_before_the_lake_has_begun_is_not_lost(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    resync = Pump.resync

    async def cancelled_meanwhile(pump: Pump) -> None:
        await next(iter(gateway.sessions.values())).cancel()
        await resync(pump)

    with gateway.connect(autocommit=True) as client:
        client.execute("select 1")
        with monkeypatch.context() as patched:
            patched.setattr(Pump, "resync", cancelled_meanwhile)
            with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
                client.execute(counted("1", "rows=1"))
        assert client.execute(counted("1", "rows=1")).fetchall() == [(1, "lake1")]
