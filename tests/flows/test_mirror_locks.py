"""What Postgres refuses or withholds on the steps of one mirrored table is that table's: the others are followed (SCENARIOS 75)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest
from tests.mirroring import problem, pump, same, start, state

from modak.app import App
from modak.catalog import leadership, tables
from modak.connection import Connection, connect
from modak.core.table import Name
from modak.jobs import mirror
from modak.jobs.mirroring import heap_failures, leaves

pytestmark = pytest.mark.inline
PARTED, OTHER = Name("public", "parted"), Name("public", "other")
World = tuple[App, Connection]
R = TypeVar("R")


@pytest.fixture
def followed(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> World:
    app, connection = mirrored
    connection.execute("create table parted (id int primary key, n int) partition by range (id)")
    for number in (1, 2):
        connection.execute(f"create table parted_{number} partition of parted for values from ({number}00) to ({number + 1}00)")
    connection.execute("create table other (id int primary key)")
    start(app, connection, PARTED)
    start(app, connection, OTHER)
    monkeypatch.setattr(heap_failures, "LOCK_SECONDS_MAX", 0.5)
    return mirrored


@contextlib.contextmanager
def locked(app: App, table: str) -> Iterator[int]:
    """Somebody's DDL that is not committed yet."""
    with connect(app.dsn, application="somebody") as session:
        session.execute(f"lock table public.{table} in access exclusive mode")
        yield session.info.backend_pid
        session.rollback()


def soon(call: Callable[[], R]) -> R:
    """A pass that waits for ever is a failure, and not a test that does."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call)
        try:
            return waiting.result(timeout=60)
        except TimeoutError:
            waiting.cancel()
            pool.shutdown(wait=False)
            raise


def test_a_locked_partition_stops_neither_its_table_nor_the_others(followed: World) -> None:
    app, connection = followed
    connection.execute("insert into parted values (150, 1), (250, 2)")
    connection.execute("insert into other values (1)")
    with locked(app, "parted_1"):
        done = soon(lambda: pump(app, connection))
        assert (done.failed, done.parked) == ({}, {})
        connection.execute("insert into other values (2)")
        assert soon(lambda: pump(app, connection)).failed == {}
        same(app, connection, OTHER)
    same(app, connection, PARTED)


def test_a_locked_table_stops_nobody(followed: World) -> None:
    app, connection = followed
    connection.execute("insert into parted values (150, 1)")
    connection.execute("insert into other values (1)")
    with locked(app, "parted"):
        done = soon(lambda: pump(app, connection))
        assert (done.failed, done.parked) == ({}, {})
    same(app, connection, PARTED)
    same(app, connection, OTHER)


def test_what_needs_the_lock_waits_for_a_while_and_says_who_has_it(followed: World) -> None:
    """A partition that was attached is looked into: for that the lock is needed."""
    app, connection = followed
    connection.execute("create table parted_3 (like parted including all)")
    connection.execute("alter table parted attach partition parted_3 for values from (300) to (400)")
    connection.execute("insert into parted values (350, 3)")
    connection.execute("insert into other values (1)")
    with locked(app, "parted_3") as holder:
        done = soon(lambda: pump(app, connection, wal_bytes_max=1))
        assert (list(done.failed), done.parked) == (["public.parted"], {})
        assert "public.parted_3" in problem(connection, PARTED)
        assert f"session {holder} (somebody" in problem(connection, PARTED)
        same(app, connection, OTHER)
        assert "public.parted" in (done.warning or ""), "the WAL that it keeps is counted"
    assert not pump(app, connection).failed
    same(app, connection, PARTED)
    assert problem(connection, PARTED) == ""


def refused_on(table_id: int) -> Callable[[Connection, int], Any]:
    def read(connection: Connection, oid: int) -> Any:
        if oid == table_id:
            raise psycopg.errors.InsufficientPrivilege("permission denied for something")
        return leaves_read(connection, oid)

    leaves_read = leaves.read
    return read


def test_whatever_postgres_refuses_is_the_tables_failure(followed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = followed
    connection.execute("insert into parted values (150, 1)")
    connection.execute("insert into other values (1)")
    with monkeypatch.context() as patch:
        patch.setattr(leaves, "read", refused_on(tables.get(connection, PARTED).table_id))
        done = pump(app, connection, wal_bytes_max=1)
        assert (list(done.failed), done.parked) == (["public.parted"], {})
        assert "permission denied" in problem(connection, PARTED)
        same(app, connection, OTHER)
        assert list(pump(app, connection, wal_bytes_max=1, wal_warned_seconds=0).parked) == ["public.parted"]
    assert state(connection, PARTED).is_parked


def test_a_job_session_that_breaks_is_the_tables_failure(followed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = followed
    connection.execute("insert into other values (1)")
    parted = tables.get(connection, PARTED).table_id
    leaves_read = leaves.read

    def read(session: Connection, oid: int) -> Any:
        if oid == parted:
            connection.execute("select pg_terminate_backend(%s)", [session.info.backend_pid])
        return leaves_read(session, oid)

    with monkeypatch.context() as patch:
        patch.setattr(leaves, "read", read)
        assert list(pump(app, connection).failed) == ["public.parted"]
    same(app, connection, OTHER)
    assert not pump(app, connection).failed


def test_a_worker_gives_it_time(followed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pump is everybody's: a table that fails on Postgres is tried again later and later."""
    app, connection = followed
    with connect(app.dsn, autocommit=True) as lease:
        assert leadership.try_lead(lease)
        epoch = leadership.take(lease, holder="h", host="h", pid=1)
        work = partial(mirror.mirror, connection, app.dsn, partial(app.job, epoch=epoch), epoch=epoch)
        with monkeypatch.context() as patch:
            patch.setattr(leaves, "read", refused_on(tables.get(connection, PARTED).table_id))
            assert "permission denied" in work().failed["public.parted"]
        assert "not tried again before" in work().failed["public.parted"]
        assert not pump(app, connection).failed, "by hand it is tried at once"
        assert not work().failed


def test_a_pass_that_postgres_ends_is_looked_at_too(followed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = followed
    connection.execute("insert into parted values (150, 1)")

    def fails(*_: Any) -> None:
        raise psycopg.errors.InternalError_("something broke")

    monkeypatch.setattr("modak.jobs.mirror._Pump._follow", fails)
    with pytest.raises(psycopg.Error):
        pump(app, connection, wal_bytes_max=1)
    found = connection.execute("select message from modak.problems where job = 'wal'").fetchall()
    assert ["something broke" in row["message"] for row in found] == [True, True]


def test_the_pumps_session_has_its_own_patience_back_afterwards(followed: World) -> None:
    app, connection = followed
    connection.execute("set lock_timeout = '7s'")
    pump(app, connection)
    assert connection.execute("show lock_timeout").fetchone() == {"lock_timeout": "7s"}
