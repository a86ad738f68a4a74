"""Mirrored tables on the gateway's port (SCENARIOS 78): the heap by default, the lake where the session chooses it, never a wrong row."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.gateways import RunningGateway
from tests.mirroring import pump, start

from modak.app import App
from modak.catalog import tables
from modak.connection import Connection
from modak.core.mirror_reads import WAIT_SECONDS, wait_seconds
from modak.core.table import Name
from modak.registration.policy import change

pytestmark = pytest.mark.inline
T, OTHER = Name("public", "items"), Name("public", "notes")
World = tuple[App, Connection]


class Session:
    """A client on the gateway's port, with the notices it got."""

    def __init__(self, app: App, port: int) -> None:
        self.connection = psycopg.connect(app.dsn, host="127.0.0.1", port=port, autocommit=True)
        # A statement that was prepared before the choice stays where it is.
        self.connection.prepare_threshold = None
        self.notices: list[str] = []
        self.connection.add_notice_handler(lambda notice: self.notices.append(notice.message_primary or ""))

    def run(self, statement: str) -> list[Any]:
        self.notices.clear()
        cursor = self.connection.execute(statement)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []

    @property
    def was_lake(self) -> bool:
        return any("read from the lake as of" in notice for notice in self.notices)


@pytest.fixture
def session(mirrored: World) -> Iterator[Session]:
    app, connection = mirrored
    connection.execute("create table items (id bigint primary key, at timestamptz not null, price numeric(10, 2), note text)")
    connection.execute("create table notes (item bigint primary key, words text)")
    connection.execute(
        "insert into items select i, timestamptz '2026-01-01' + i * interval '1 hour', i, 'n' || i from generate_series(1, 50) i"
    )
    connection.execute("insert into notes select i, 'w' || i from generate_series(1, 50, 2) i")
    start(app, connection, T, "at")
    start(app, connection, OTHER, "item")
    pump(app, connection)
    running = RunningGateway(app)
    running.start()
    made = Session(app, running.port)
    yield made
    made.connection.close()
    running.stop()


@contextlib.contextmanager
def followed(app: App) -> Iterator[None]:
    """The pump is at work all the time, as in a worker."""
    over = threading.Event()

    def follow() -> None:
        with app.connection() as own:
            while not over.is_set():
                pump(app, own)

    worker = threading.Thread(target=follow)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def test_the_heap_answers_by_default(mirrored: World, session: Session) -> None:
    _, connection = mirrored
    connection.execute("insert into items values (1000, now(), 0, 'new')")
    assert session.run("select count(*) from items") == [(51,)]
    assert session.notices == []


def test_the_lake_answers_where_it_is_chosen_and_says_as_of_when(mirrored: World, session: Session) -> None:
    app, connection = mirrored
    session.run("set modak.mirrored_reads = lake")
    assert session.run("select count(*), sum(price), min(at) from items") == session.run("select count(*), sum(price), min(at) from items")
    assert session.was_lake
    connection.execute("update items set note = 'later', price = price + 1 where id <= 10")
    connection.execute("delete from items where id = 20")
    assert session.run("select count(*) from items where note = 'later'") == [(0,)]
    assert session.was_lake
    late = re.search(r", (\d+) bytes of WAL and (\d+\.\d) s ago", session.notices[0])
    assert late is not None
    assert int(late[1]) > 0
    assert float(late[2]) > 0
    pump(app, connection)
    rows = "select i.id, i.price, i.note, n.words from items i left join notes n on n.item = i.id order by i.id"
    found = session.run(rows)
    assert session.was_lake
    session.run("set modak.mirrored_reads = heap")
    assert session.run(rows) == found
    assert not session.was_lake
    session.run("set modak.mirrored_reads = lake")
    session.run("set client_min_messages = warning")
    session.run("select count(*) from items")
    assert session.notices == []


def test_a_join_is_of_one_moment(mirrored: World, session: Session) -> None:
    """While one table is ahead of the other, the last moment they have in common is read."""
    _, connection = mirrored
    session.run("set modak.mirrored_reads = lake")
    joined = "select sum(i.price) from items i join notes n on n.item = i.id"
    before = session.run(joined)
    connection.execute("update items set price = 1000")
    connection.execute("update notes set words = 'x'")
    connection.execute("update modak.cutline set replicated_lsn = replicated_lsn + 1 where table_id = 'items'::regclass::oid::bigint")
    assert session.run(joined) == before
    assert session.was_lake


def test_hybrid_waits_for_the_lake_or_asks_the_heap(mirrored: World, session: Session) -> None:
    app, connection = mirrored
    session.run("set modak.mirrored_reads = hybrid")
    connection.execute("update items set note = 'seen' where id <= 7")
    seen = "select count(*) from items where note = 'seen'"
    session.run("set modak.mirrored_wait = 50")
    assert session.run(seen) == [(7,)]
    assert [notice for notice in session.notices if "within 0.05 s" in notice]
    session.run("set modak.mirrored_wait = '30s'")
    with followed(app):
        for number in range(8, 11):
            connection.execute("update items set note = 'seen' where id = %s", [number])
            assert session.run(seen) == [(number,)]
            assert session.was_lake


def test_hybrid_tables_have_to_come_to_one_moment(mirrored: World, session: Session) -> None:
    """Each table is past the statement, at a place of its own; where both were together lies before it."""
    _, connection = mirrored
    session.run("set modak.mirrored_reads = hybrid")
    session.run("set modak.mirrored_wait = 50")
    connection.execute("update items set price = 1000")
    connection.execute("update notes set words = 'x'")
    for ahead, table in ((1 << 30, "items"), (2 << 30, "notes")):
        connection.execute(
            "update modak.cutline set replicated_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint + %s"
            " where table_id = %s::regclass::oid::bigint",
            [ahead, table],
        )
    assert session.run("select sum(i.price) from items i join notes n on n.item = i.id") == [(25_000,)]
    assert [notice for notice in session.notices if "within 0.05 s" in notice]
    # The waiting was not in vain, and then a pass moved one of them on.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modak.gateway.analytics.mirrors.passes", lambda *_: 1 << 60)
        assert session.run("select count(*) from items where price = 1000") == [(50,)]
    assert [notice for notice in session.notices if "did not come to this moment" in notice]


def test_a_column_that_the_lake_does_not_have_is_asked_of_the_heap(mirrored: World, session: Session) -> None:
    _, connection = mirrored
    session.run("set modak.mirrored_reads = lake")
    changes = (
        ("add column added int default 5", "select sum(added) from items", 250),
        ("drop column note, add column note text default 'anew'", "select count(*) from items where note = 'anew'", 50),
        ("alter column price type text using 'p' || price", "select count(*) from items where price like 'p%'", 50),
    )
    for change_, query, found in changes:
        connection.execute(f"alter table items {change_}")
        session.run("select count(id) from items")  # by now the gateway knows of the column
        assert session.run(query) == [(found,)]
        assert not session.was_lake
    session.run("select count(*), max(id) from items")
    assert session.was_lake


def test_what_only_postgres_can_say_it_says(mirrored: World, session: Session) -> None:
    _, connection = mirrored
    session.run("set modak.mirrored_reads = lake")
    for begin in ("begin", "begin isolation level repeatable read"):
        session.run(begin)
        if begin == "begin":
            session.run("update items set note = 'own' where id = 1")
        connection.execute("update items set note = 'another' where id = 2")
        session.run("select id, note from items order by id")
        assert not session.was_lake
        session.run("rollback")
    connection.execute("create role reader")
    connection.execute("grant usage on schema public to reader")
    session.run("set role reader")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.run("select count(*) from items")


def test_a_registration_may_choose(mirrored: World, session: Session) -> None:
    app, connection = mirrored
    change(connection, tables.get(connection, T), {"hybrid": "true"})
    pump(app, connection)
    session.run("set modak.mirrored_wait = 10000")
    with followed(app):
        # The gateway looks at registrations once a second.
        until = time.monotonic() + 30
        while not session.was_lake and time.monotonic() < until:
            assert session.run("select count(*) from items") == [(50,)]
            time.sleep(0.05)
        assert session.was_lake
        session.run("set modak.mirrored_reads = heap")
        session.run("select count(*) from items")
        assert not session.was_lake


def test_a_whole_query_from_inside_postgres(mirrored: World, session: Session) -> None:
    _, connection = mirrored
    connection.execute("insert into items values (1000, now(), 0, 'new')")
    query = "select n from modak.query($$select count(*) from items$$) as t(n bigint)"
    assert connection.execute(query).fetchone() == {"n": 51}
    for choice, found in (("lake", 50), ("heap", 51)):
        connection.execute(f"set modak.mirrored_reads = {choice}")
        assert connection.execute(query).fetchone() == {"n": found}
    connection.execute("set modak.mirrored_reads = hybrid")
    connection.execute("set modak.mirrored_wait = 20")
    assert connection.execute(query).fetchone() == {"n": 51}


def test_how_long_to_wait() -> None:
    assert [wait_seconds(text) for text in ("", "250", "3s", "40 ms", "soon")] == [WAIT_SECONDS, 0.25, 3.0, 0.04, WAIT_SECONDS]
