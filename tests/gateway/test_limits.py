"""What a gateway does not do: take more connections, longer messages, slower log-ins, more memory or more time than it was told."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import conninfo
from relay_support import wait_for
from tests.worlds import World

from modak.app import App
from modak.gateway.background import running
from modak.gateway.server import Limits
from modak.gateway.service import Gateway
from modak.gateway.wire.messages import PROTOCOL_3_0, StartupMessage

JOIN = "select count(*) from t_large a join t_large b on a.t <> b.t join t_large c on c.id <> b.id where a.key < 60000"


@contextlib.contextmanager
def started(app: App, limits: Limits | None = None, **settings: Any) -> Iterator[Gateway]:
    gateway = App(replace(app.settings, gateway=("127.0.0.1", 0), **settings)).gateway()
    if limits is not None:
        gateway._options = replace(gateway._options, limits=limits)
    with running(gateway):
        yield gateway


def on(app: App, gateway: Gateway, **changed: Any) -> str:
    return conninfo.make_conninfo(app.dsn, **({"host": "127.0.0.1", "port": gateway.port} | changed))


def test_one_connection_too_many_is_told_so_and_the_next_one_is_not(app: App) -> None:
    with started(app, gateway_connections=2) as gateway:
        with psycopg.connect(on(app, gateway)) as first, psycopg.connect(on(app, gateway)) as second:
            with pytest.raises(psycopg.OperationalError, match="no connection left") as refused:
                psycopg.connect(on(app, gateway))
            assert "MODAK_GATEWAY_CONNECTIONS" in str(refused.value)
            assert [one.execute("select 1").fetchone() for one in (first, second)] == [(1,), (1,)]
        wait_for(lambda: psycopg.connect(on(app, gateway)).close())


def test_who_does_not_log_in_is_let_go(app: App) -> None:
    with started(app, Limits(login_seconds=0.2)) as gateway:
        for opening in (b"", StartupMessage(PROTOCOL_3_0, {"user": "modak_gateway"}).encode()):
            with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as idle:
                idle.sendall(opening)
                while idle.recv(4096):
                    pass
        assert gateway._server.sessions == 0


def test_a_message_beyond_the_limit_ends_that_session_only(app: App) -> None:
    with started(app, Limits(message_bytes=100_000)) as gateway, psycopg.connect(on(app, gateway), autocommit=True) as other:
        with psycopg.connect(on(app, gateway), autocommit=True) as connection:
            assert connection.execute("select length(%s)", ["x" * 90_000]).fetchone() == (90_000,)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select length(%s)", ["x" * 110_000])
        assert other.execute("select length(repeat('x', 5000000))").fetchone() == (5_000_000,), "answers may be as long as they are"


def test_a_first_message_is_short(app: App) -> None:
    with started(app) as gateway, socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as strange:
        strange.sendall((50_000_000).to_bytes(4, "big") + b"\0\3\0\0")
        assert b"08P01" in strange.recv(4096)


@pytest.fixture
def narrow(world: World) -> Iterator[Gateway]:
    """A gateway with next to no memory, in the place of the world's own."""
    with started(world.app, gateway_memory="8MB") as gateway:
        yield gateway
    world.gateway.stop()
    world.gateway.start()


@pytest.mark.spark
@pytest.mark.inline
def test_memory_is_bounded_and_what_needs_more_says_so(world: World, narrow: Gateway) -> None:
    few = "select count(*) from public.t_large where key < 100"
    with psycopg.connect(on(world.app, narrow), autocommit=True) as people:
        with pytest.raises(psycopg.errors.OutOfMemory, match="more memory than the gateway has"):
            people.execute("select t, count(*) from public.t_large group by t")
        assert people.execute(few).fetchall() == [(100,)]
    with psycopg.connect(world.dsn, autocommit=True) as session:
        session.execute("set enable_sort = off")  # so that the lake is to sort
        with pytest.raises(psycopg.errors.OutOfMemory, match="more memory than the gateway has"):
            session.execute("select * from public.t_large where key < 60000 order by key desc")
        assert session.execute(few).fetchall() == [(100,)]


@pytest.mark.spark
@pytest.mark.inline
def test_a_statement_has_the_time_its_session_gives_it(world: World, people: psycopg.Connection[Any]) -> None:
    with psycopg.connect(world.dsn, autocommit=True) as direct:
        for session in (people, direct):
            for _ in range(2):
                session.execute("set statement_timeout = '500ms'")
                with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
                    session.execute(JOIN)
                session.execute("reset statement_timeout")
                assert session.execute("select count(*) from t_large where key < 10").fetchall() == [(10,)]
