"""Tables and columns are what they are by number: names that change are followed, or the way out is said and works (SCENARIOS 75)."""

from __future__ import annotations

import pytest
from tests.mirroring import copy, heap_rows, lake_rows, problem, pump, same, start, state

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import NotRegistered, Refused
from modak.registration.policy import change
from modak.registration.unregister import unregister

pytestmark = pytest.mark.inline
T, OTHER, THINGS = Name("public", "items"), Name("public", "other"), Name("public", "things")
World = tuple[App, Connection]


@pytest.fixture
def followed(mirrored: World) -> World:
    app, connection = mirrored
    connection.execute("create table items (id int primary key, at date not null, note text)")
    connection.execute("insert into items select n, date '2026-01-01' + n, 'n' || n from generate_series(1, 20) n")
    connection.execute("create table other (id int primary key)")
    start(app, connection, T, "at", width="month")
    start(app, connection, OTHER)
    return mirrored


def parked(app: App, connection: Connection, name: Name = T) -> str:
    """A pass parks this table alone; returns why."""
    connection.execute("insert into other select coalesce(max(id), 0) + 1 from other")
    assert list(pump(app, connection).parked) == [str(name)]
    same(app, connection, OTHER)
    return problem(connection, name)


@pytest.mark.parametrize("column", ["at", "id"])
def test_a_key_that_was_renamed_is_copied_anew_under_its_new_name(followed: World, column: str) -> None:
    app, connection = followed
    connection.execute(f"alter table items rename column {column} to renamed")
    assert f"key column {column}" in parked(app, connection)
    copy(app, T, again=True)
    found = tables.get(connection, T)
    assert "renamed" in (found.tier_key_col, *found.primary_key_cols)
    key = "renamed" if column == "id" else "id"
    same(app, connection, T, key)
    connection.execute("update items set note = 'later'")
    connection.execute("alter table items add column more int default 3")
    done = pump(app, connection)
    assert (done.parked, done.failed) == ({}, {})
    same(app, connection, T, key)


def test_a_key_that_is_gone_stays_parked_and_says_what_to_do(followed: World) -> None:
    app, connection = followed
    connection.execute("alter table items drop column at")
    parked(app, connection)
    with pytest.raises(Refused, match=r"key column at is gone.*modak unregister public\.items"):
        copy(app, T, again=True)
    assert state(connection, T).is_parked
    unregister(connection, app.lake(profiles.get(connection, None)), tables.get(connection, T), drop_lake=True)
    start(app, connection, T, "id")
    same(app, connection, T)


def test_a_renamed_table_is_followed_under_its_new_name(followed: World) -> None:
    app, connection = followed
    connection.execute("alter table items rename to things")
    connection.execute("insert into things values (30, '2026-03-01', 'renamed')")
    assert tables.get(connection, THINGS).table_name == "items", "known by either name until the next pass"
    done = pump(app, connection)
    assert (done.parked, done.failed) == ({}, {})
    assert tables.get(connection, THINGS).heap == THINGS
    same(app, connection, THINGS)
    connection.execute("alter table things add column more int")
    connection.execute("insert into things values (31, '2026-03-02', 'more', 1)")
    pump(app, connection)
    same(app, connection, THINGS)
    connection.execute("create schema elsewhere")
    connection.execute("alter table things set schema elsewhere")
    # Somebody else has the name that was registered first.
    connection.execute("create table public.items (id int primary key)")
    connection.execute("insert into elsewhere.things values (32, '2026-03-03', 'elsewhere', 2)")
    assert pump(app, connection).parked == {}
    moved = Name("elsewhere", "things")
    same(app, connection, moved)
    with pytest.raises(NotRegistered):
        tables.get(connection, T)


def test_tables_that_swapped_their_names(followed: World) -> None:
    app, connection = followed
    ids = [tables.get(connection, name).table_id for name in (T, OTHER)]
    for old, new in (("items", "aside"), ("other", "items"), ("aside", "other")):
        connection.execute(f"alter table {old} rename to {new}")
    connection.execute("insert into items values (1)")
    connection.execute("delete from other where id < 5")
    assert pump(app, connection).failed == {}
    assert [tables.get(connection, name).table_id for name in (OTHER, T)] == ids
    for name in (T, OTHER):
        same(app, connection, name)


def test_a_table_renamed_while_it_is_parked_is_copied_by_its_new_name(followed: World) -> None:
    app, connection = followed
    connection.execute("alter table items alter column note type int using length(note)")
    parked(app, connection)
    connection.execute("alter table items rename to things")
    connection.execute("create table items (id int primary key)")
    copy(app, THINGS, again=True)
    same(app, connection, THINGS)
    assert pump(app, connection).parked == {}


def test_a_name_that_another_registration_has(followed: World) -> None:
    app, connection = followed
    other = tables.get(connection, OTHER)
    connection.execute("drop table other")
    assert "was dropped" in pump(app, connection).parked["public.other"]
    hint = connection.execute("select hint from modak.problems where job = 'mirror'").fetchone()
    assert hint is not None
    assert "modak unregister public.other" in hint["hint"]
    connection.execute("alter table items rename to other")
    connection.execute("insert into other values (40, '2026-04-01', 'x')")
    assert list(pump(app, connection).failed) == ["public.items"]
    assert "another registered table" in problem(connection, T)
    unregister(connection, app.lake(profiles.get(connection, None)), other, drop_lake=False)
    assert pump(app, connection).failed == {}
    same(app, connection, OTHER)


def test_the_heap_of_a_table_that_sheds_keeps_its_name(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("create table items (id int, at int not null, primary key (id, at)) partition by range (at)")
    connection.execute("create table items_0 partition of items for values from (0) to (100)")
    connection.execute("insert into items values (1, 1)")
    start(app, connection, T, "at", width="100")
    change(connection, tables.get(connection, T), {"heap_retention": "1000"})
    pump(app, connection)
    connection.execute("alter table items_hot rename to items_warm")
    connection.execute("insert into items_warm values (2, 2)")
    assert list(pump(app, connection).parked) == ["public.items"]
    hint = connection.execute("select hint from modak.problems where job = 'mirror'").fetchone()
    assert hint is not None
    assert "rename it back to public.items_hot" in hint["hint"]
    connection.execute("alter table items_warm rename to items_hot")
    copy(app, T, again=True)
    assert sorted(row["id"] for row in lake_rows(app, connection, T)) == [1, 2]
    connection.execute("alter table items_hot rename column at to moment")
    parked_now = pump(app, connection).parked
    assert list(parked_now) == ["public.items"]
    with pytest.raises(Refused, match="rename column moment to at"):
        copy(app, T, again=True)
    assert state(connection, T).is_parked
    connection.execute("alter table items_hot rename column moment to at")
    copy(app, T, again=True)
    assert pump(app, connection).parked == {}


def test_a_generated_column_is_named_and_refused_until_it_is_plain(followed: World) -> None:
    app, connection = followed
    connection.execute("alter table items add column twice int generated always as (id * 2) stored")
    connection.execute("insert into items values (50, '2026-05-01', 'x')")
    why = parked(app, connection)
    assert "column twice is generated" in why
    assert 'alter column "twice" drop expression' in why
    with pytest.raises(Refused, match="column twice is generated"):
        copy(app, T, again=True)
    assert state(connection, T).is_parked
    connection.execute('alter table items alter column "twice" drop expression')
    copy(app, T, again=True)
    connection.execute("insert into items values (51, '2026-05-02', 'y', 7)")
    assert pump(app, connection).parked == {}
    same(app, connection, T)


def test_a_type_that_went_with_its_column(followed: World) -> None:
    app, connection = followed
    connection.execute("create type mood as enum ('sad', 'glad')")
    connection.execute("alter table items add column m mood")
    connection.execute("insert into items values (60, '2026-06-01', 'x', 'sad')")
    assert pump(app, connection).parked == {}
    # No row speaks of it any more: that is a dropped column like any other.
    connection.execute("alter table items drop column m")
    connection.execute("drop type mood")
    connection.execute("insert into items values (61, '2026-06-01', 'x')")
    assert pump(app, connection).parked == {}
    same(app, connection, T)
    connection.execute("create type mood as enum ('sad', 'glad')")
    connection.execute("alter table items add column m mood")
    connection.execute("insert into items values (62, '2026-06-01', 'x', 'sad')")
    assert pump(app, connection).parked == {}
    connection.execute("insert into items values (63, '2026-06-01', 'x', 'glad')")
    connection.execute("alter table items drop column m")
    connection.execute("drop type mood")
    why = parked(app, connection)
    assert "rows were written with m of a type that was dropped since" in why
    copy(app, T, again=True)
    assert pump(app, connection).parked == {}
    same(app, connection, T)


def test_a_column_kept_as_text_is_kept_so_under_another_name(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("create table items (id int primary key, n int)")
    connection.execute("insert into items values (1, 1)")
    start(app, connection, T, text_columns=("n",))
    connection.execute("alter table items rename column n to number")
    connection.execute("insert into items values (2, 2)")
    assert pump(app, connection).parked == {}
    assert sorted(row["number"] for row in lake_rows(app, connection, T)) == ["1", "2"]
    assert tables.get(connection, T).text_cols == ("number",)
    assert len(heap_rows(connection, T)) == 2
