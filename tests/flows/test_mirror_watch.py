"""What keeps changes out of the stream is noticed, parks that table only, and a new copy puts it right."""

from __future__ import annotations

import pytest
from tests.mirroring import copy, problem, pump, same, start

from modak.app import App
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import Refused

pytestmark = pytest.mark.inline
T, OTHER = Name("public", "items"), Name("public", "other")
World = tuple[App, Connection]


@pytest.fixture
def items(mirrored: World) -> World:
    app, connection = mirrored
    connection.execute("create table items (id int primary key, code int not null, note text)")
    connection.execute("create unique index by_code on items (code)")
    connection.execute("insert into items select i, i, 'n' from generate_series(1, 5) i")
    start(app, connection, T)
    return app, connection


BROKEN = {
    "taken out": (["alter publication modak drop table items"], "does not have the table"),
    "out and in again": (["alter publication modak drop table items", "{}", "alter publication modak add table items"], "was altered"),
    "not every kind": (["alter publication modak set (publish = 'insert')"], "every kind of change"),
    "not every kind for a while": (
        [
            "alter publication modak set (publish = 'insert')",
            "{}",
            "alter publication modak set (publish = 'insert, update, delete, truncate')",
        ],
        "was altered",
    ),
    "not by the root": (["alter publication modak set (publish_via_partition_root = false)"], "partition root"),
    "some rows": (["alter publication modak set table items where (id > 3)"], "row filter"),
    "some columns": (["alter publication modak set table items (id, code)"], "list of columns"),
    "gone": (["drop publication modak"], "is gone"),
    "another identity": (["alter table items replica identity using index by_code"], "replica identity of public.items"),
    "another identity for a while": (
        ["alter table items replica identity using index by_code", "{}", "alter table items replica identity default"],
        "the replica identity was (code)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_the_stream_does_not_tell_parks_the_table(items: World, name: str) -> None:
    app, connection = items
    statements, expected = BROKEN[name]
    for statement in statements:
        connection.execute(statement.format("update items set id = 10 where id = 1"))
    assert list(pump(app, connection).parked) == ["public.items"]
    assert expected in problem(connection, T)
    copy(app, T, again=True)
    connection.execute("update items set id = 20 where id = 2")
    connection.execute("delete from items where id = 3")
    done = pump(app, connection)
    assert not done.parked
    assert not done.failed
    same(app, connection, T)


def test_other_entries_of_the_publication_are_nobodys_business(items: World) -> None:
    app, connection = items
    connection.execute("create table other (id int primary key)")
    start(app, connection, OTHER)
    connection.execute("alter publication modak drop table other")
    connection.execute("insert into items values (6, 6)")
    assert list(pump(app, connection).parked) == ["public.other"]
    same(app, connection, T)


def test_a_key_that_nothing_keeps_unique(items: World) -> None:
    app, connection = items
    connection.execute("alter table items drop constraint items_pkey")
    assert list(pump(app, connection).parked) == ["public.items"]
    assert "no index proves" in problem(connection, T)
    with pytest.raises(Refused, match="cannot be followed from a copy on"):
        copy(app, T, again=True)
    connection.execute("alter table items add primary key (id)")
    copy(app, T, again=True)
    same(app, connection, T)


def test_the_identity_of_a_partition(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("create table items (id int primary key, code int not null) partition by range (id)")
    connection.execute("create table p1 partition of items for values from (0) to (100)")
    connection.execute("create unique index by_code on p1 (code)")
    connection.execute("insert into items values (1, 1), (2, 2)")
    start(app, connection, T)
    connection.execute("alter table p1 replica identity using index by_code")
    connection.execute("update items set id = 10 where id = 1")
    assert list(pump(app, connection).parked) == ["public.items"]
    assert "replica identity of public.p1" in problem(connection, T)
    copy(app, T, again=True)
    connection.execute("update items set id = 20 where id = 2")
    assert not pump(app, connection).parked
    same(app, connection, T)


@pytest.mark.parametrize("options", ["publish = 'insert', publish_via_partition_root = true", "publish_via_partition_root = false"])
def test_a_publication_that_was_there_must_tell_everything(mirrored: World, options: str) -> None:
    app, connection = mirrored
    connection.execute(f"create publication modak with ({options})")
    connection.execute("create table items (id int primary key)")
    with pytest.raises(Refused, match="publication modak does not publish"):
        start(app, connection, T)


def test_the_identity_of_a_partition_that_was_another_one_for_a_while(mirrored: World) -> None:
    """Changed keys are named by what the partition had then: the old row would stay in the lake."""
    app, connection = mirrored
    connection.execute("create table items (id int primary key, code int not null) partition by range (id)")
    connection.execute("create table p1 partition of items for values from (0) to (100)")
    connection.execute("create unique index by_code on p1 (code)")
    connection.execute("insert into items values (1, 1), (2, 2)")
    start(app, connection, T)
    connection.execute("alter table p1 replica identity using index by_code")
    connection.execute("update items set id = 10 where id = 1")
    connection.execute("alter table p1 replica identity default")
    assert list(pump(app, connection).parked) == ["public.items"]
    assert "the replica identity of public.p1 was (code)" in problem(connection, T)
    copy(app, T, again=True)
    connection.execute("update items set id = 1 where id = 10")
    done = pump(app, connection)
    assert (done.parked, done.failed) == ({}, {})
    same(app, connection, T)
