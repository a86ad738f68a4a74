"""Partitions that come and go between two passes of the pump, or bring and lose rows without a word: the stream describes each one."""

from __future__ import annotations

import pytest
from tests.mirroring import copy, lake_rows, problem, pump, run, same, start, state

from modak.app import App
from modak.connection import Connection, connect
from modak.core.table import Name
from modak.errors import Refused
from modak.source import replication

pytestmark = pytest.mark.inline
T, OTHER = Name("public", "items"), Name("public", "other")
World = tuple[App, Connection]
P1 = "create table p1 partition of items for values from (100) to (200)"


@pytest.fixture
def items(mirrored: World) -> World:
    app, connection = mirrored
    connection.execute("create table items (id int primary key, note text) partition by range (id)")
    connection.execute("create table p0 partition of items for values from (0) to (100)")
    connection.execute("insert into items select i, 'n' from generate_series(1, 20) i")
    start(app, connection, T)
    return app, connection


LOST = {
    "dropped": (
        [P1, "insert into items values (105, 'ghost')", "drop table p1"],
        "public.p1 came, was filled, and was detached or dropped",
    ),
    "detached": ([P1, "insert into items values (105, 'ghost')", "alter table items detach partition p1"], "public.p1 came, was filled"),
    "in one transaction": ([f"begin; {P1}; insert into items values (105, 'ghost'); drop table p1; commit"], "public.p1 came"),
    "written to by itself": ([P1, "insert into p1 values (105, 'ghost')", "drop table p1"], "public.p1 came, was filled"),
    "truncated": ([P1, "insert into items values (105, 'ghost')", "truncate p1"], "public.p1 was filled, and truncated or rewritten"),
    "another in its place": (
        [P1, "insert into items values (105, 'ghost')", "drop table p1", P1, "insert into items values (105, 'again')"],
        "public.p1 came, was filled",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_a_partition_that_came_and_went_with_its_rows(items: World, name: str) -> None:
    app, connection = items
    statements, expected = LOST[name]
    for statement in statements:
        connection.execute(statement)
    before = lake_rows(app, connection, T)
    assert list(pump(app, connection).parked) == ["public.items"]
    assert expected in problem(connection, T)
    assert lake_rows(app, connection, T) == before
    copy(app, T, again=True)
    same(app, connection, T)
    run(app, connection, "delete from items where id in (3, 105)", "insert into items values (50, 'n')")


def test_in_small_batches_nothing_of_it_is_published(items: World) -> None:
    app, connection = items
    for statement in [P1, "insert into items values (105, 'ghost')", "drop table p1", "insert into items values (60, 'n')"]:
        connection.execute(statement)
    assert list(pump(app, connection, changes_max=1).parked) == ["public.items"]
    assert 105 not in {row["id"] for row in lake_rows(app, connection, T)}


def test_partitions_of_which_nothing_is_lost_go_on(items: World) -> None:
    app, connection = items
    run(app, connection, P1, "drop table p1")
    run(app, connection, P1, "insert into items values (105, 'n')")
    p2 = "create table p2 partition of items for values from (200) to (300)"
    run(app, connection, p2, "truncate items", "insert into items values (1, 'n'), (201, 'n')")
    # An empty one has nothing to lose.
    run(app, connection, "create table p3 partition of items for values from (300) to (400)", "vacuum full p3")
    run(app, connection, "insert into items values (301, 'n')")


def come_after_the_look(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the pass knows where it ends."""
    flushed = replication.flushed_lsn

    def come(session: Connection) -> int:
        with connect(app.dsn, autocommit=True) as other:
            other.execute("create table if not exists public.p1 partition of public.items for values from (100) to (200)")
            other.execute("insert into public.items values (106, 'n') on conflict do nothing")
        return flushed(session)

    monkeypatch.setattr(replication, "flushed_lsn", come)


def test_a_partition_that_comes_after_the_look_and_goes_before_the_next(items: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = items
    connection.execute("create table other (id int primary key)")
    start(app, connection, OTHER)
    come_after_the_look(app, monkeypatch)
    pump(app, connection)
    monkeypatch.undo()
    same(app, connection, T)
    assert {leaf["table_name"]: leaf.get("came") for leaf in state(connection, T).leaves} == {"p0": None, "p1": True}
    # Written down, so that it is missed.
    run(app, connection, "drop table p1", "insert into items values (50, 'n')")


def test_a_partition_that_comes_after_the_look_and_stays(items: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = items
    come_after_the_look(app, monkeypatch)
    pump(app, connection)
    monkeypatch.undo()
    run(app, connection, "update items set note = 'm' where id = 106")
    assert {leaf["table_name"]: leaf.get("came") for leaf in state(connection, T).leaves} == {"p0": None, "p1": None}
    run(app, connection, "delete from items where id = 106")


def test_other_tables_in_the_publication_are_no_partitions(items: World) -> None:
    """TRUNCATE of several describes them one after the other."""
    app, connection = items
    connection.execute("create table other (id int primary key)")
    connection.execute("alter publication modak add table other")
    run(app, connection, "insert into other values (1)", "truncate items, other", "insert into items values (7, 'n')")
    run(app, connection, "truncate other, items", "insert into other values (1)", "insert into items values (8, 'n')")


SILENT = {
    "unlogged": (["create unlogged table p1 partition of items for values from (100) to (200)"], "public.p1 is UNLOGGED", "set logged"),
    "unlogged below": (
        [
            "create table sub partition of items for values from (100) to (200) partition by range (id)",
            "create unlogged table p1 partition of sub for values from (100) to (200)",
        ],
        "public.p1 is UNLOGGED",
        "set logged",
    ),
    "foreign": (
        [
            "alter table items drop constraint items_pkey",  # a table with a unique index takes none
            "create extension if not exists postgres_fdw",
            "create server elsewhere foreign data wrapper postgres_fdw",
            "create foreign table p1 partition of items for values from (100) to (200) server elsewhere",
        ],
        "public.p1 is a foreign table",
        None,
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_a_partition_whose_rows_are_not_in_the_stream(items: World, name: str) -> None:
    app, connection = items
    statements, expected, way_out = SILENT[name]
    for statement in statements:
        connection.execute(statement)
    if way_out is not None:
        connection.execute("insert into items values (105, 'silent')")
    assert list(pump(app, connection).parked) == ["public.items"]
    assert expected in problem(connection, T)
    with pytest.raises(Refused, match="not in the stream"):
        copy(app, T, again=True)
    if way_out is not None:
        connection.execute(f"alter table p1 {way_out}")
        copy(app, T, again=True)
        same(app, connection, T)
        run(app, connection, "update items set note = 'told' where id = 105")


def test_a_partition_that_was_unlogged_for_a_while(items: World) -> None:
    app, connection = items
    for statement in [*SILENT["unlogged"][0], "insert into items values (105, 'silent')", "alter table p1 set logged"]:
        connection.execute(statement)
    connection.execute("insert into items values (106, 'told')")
    assert list(pump(app, connection).parked) == ["public.items"]
    copy(app, T, again=True)
    same(app, connection, T)
