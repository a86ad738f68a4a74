"""Partitions that are dropped or detached: the lake's rows go with them, in order with the stream, or the table is parked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from tests.mirroring import copy, lake_rows, problem, pump, run, same, start, state

from modak.app import App
from modak.catalog import tables
from modak.connection import Connection, connect
from modak.core.table import Name
from modak.failpoints import FailpointError, armed
from modak.source import replication

pytestmark = pytest.mark.inline
T, OTHER = Name("public", "items"), Name("public", "other")
World = tuple[App, Connection]


@pytest.fixture
def items(mirrored: World) -> World:
    app, connection = mirrored
    connection.execute("create table items (id int, n int, note text, primary key (id)) partition by range (id)")
    for number in range(3):
        connection.execute(f"create table p{number} partition of items for values from ({number * 100}) to ({number * 100 + 100})")
    connection.execute("insert into items select i, i, 'n' from generate_series(0, 299) i")
    start(app, connection, T)
    return app, connection


FOLLOWED = {
    "dropped": ["drop table p1"],
    "detached": ["alter table items detach partition p1"],
    "concurrently": ["alter table items detach partition p1 concurrently"],
    "after writes": [
        "update items set note = 'm' where id % 7 = 0",
        "update items set id = 1000 - id where id in (750)",
        "delete from items where id in (110, 10)",
        "insert into items values (110, 0, 'again')",
        "drop table p1",
        "update items set note = 'last' where id = 5",
    ],
    "in one transaction": [
        "begin; update items set note = 'm' where id in (5, 150); delete from items where id = 6; drop table p1; commit"
    ],
    "several": ["drop table p0", "drop table p2"],
    "all": ["drop table p0, p1, p2"],
    "and one elsewhere": [
        "drop table p1",
        "create table p3 partition of items for values from (300) to (400)",
        "insert into items values (300)",
    ],
    "and a truncation": ["update items set n = 0 where id = 105", "truncate items", "drop table p1", "insert into items values (7)"],
    "with columns": ["alter table items add column c int default 5", "drop table p1", "update items set c = 6 where id = 299"],
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_rows_of_a_partition_leave_with_it(items: World, name: str) -> None:
    app, connection = items
    run(app, connection, *FOLLOWED[name])
    # What comes in its place is followed from then on.
    if name != "several":
        run(
            app, connection, "create table q1 partition of items for values from (100) to (200)", "insert into items values (150, 1, 'new')"
        )
    assert pump(app, connection).commits == 0


def test_partitions_that_go_one_after_the_other(items: World) -> None:
    """As retention does it; rows in the lake's files are of several partitions, and of one."""
    app, connection = items
    run(app, connection, "create table p3 partition of items for values from (300) to (400)", "drop table p0")
    run(app, connection, "insert into items select i, i, 'n' from generate_series(300, 399) i", "drop table p1")
    run(app, connection, "drop table p2", "delete from items where id = 301")
    run(app, connection, "drop table p3")
    assert lake_rows(app, connection, T) == []


BY = {
    "date": ("date", "'2026-01-01'", "'2026-02-01'", "date '2025-12-15' + i"),
    "timestamptz": (
        "timestamptz",
        "'2026-01-01 00:00+02'",
        "'2026-02-01 00:00+02'",
        "timestamptz '2025-12-31 21:30Z' + i * interval '10 min'",
    ),
    "timestamp": ("timestamp(3)", "'2026-01-01'", "'2026-01-02 00:00:00.001'", "timestamp '2025-12-31 23:00' + i * interval '15 min'"),
    "bigint": ("bigint", "9000000000000000000", "MAXVALUE", "9223372036854775807 - 200 * (i::bigint - 1) * (i - 1) * 1000000000000"),
    "below": ("smallint", "MINVALUE", "-5", "i - 30"),
}


@pytest.mark.parametrize("name", BY)
def test_ranges_of_every_kind(mirrored: World, name: str) -> None:
    """By a column that is not the tier key."""
    app, connection = mirrored
    kind, low, high, value = BY[name]
    connection.execute(f"create table items (id int, at {kind}, note text, primary key (id, at)) partition by range (at)")
    connection.execute(f"create table p1 partition of items for values from ({low}) to ({high})")
    connection.execute("create table p_rest partition of items default")
    connection.execute(f"insert into items select i, {value}, 'n' from generate_series(1, 60) i")
    start(app, connection, T)
    run(app, connection, f"insert into items select i, {value}, 'n' from generate_series(61, 90) i")

    # The rest was written to in this pass and may have taken rows; from the next on it has not.
    run(app, connection)
    before = len(lake_rows(app, connection, T))
    run(app, connection, "drop table p1")
    assert 0 < len(lake_rows(app, connection, T)) < before


def test_a_partition_with_partitions_of_its_own(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("create table items (id int, k text, primary key (id, k)) partition by range (id)")
    connection.execute("create table p0 partition of items for values from (0) to (100) partition by list (k)")
    connection.execute("create table p0a partition of p0 for values in ('a')")
    connection.execute("create table p0b partition of p0 for values in ('b')")
    connection.execute("create table p1 partition of items for values from (100) to (200)")
    connection.execute("insert into items select i, case when i % 2 = 0 then 'a' else 'b' end from generate_series(0, 199) i")
    start(app, connection, T)
    connection.execute("drop table p0a")
    assert "public.p0a was detached or dropped below" in pump(app, connection).parked["public.items"]
    copy(app, T, again=True)
    run(app, connection, "alter table items detach partition p0", "delete from items where id = 150")


OTHERS = {
    "another in its place": [
        "drop table p1",
        "create table q partition of items for values from (150) to (160)",
        "insert into q values (155)",
    ],
    "another around it": ["drop table p1, p2", "create table q partition of items for values from (100) to (300)"],
    "one that takes the rest": ["create table rest partition of items default", "drop table p1", "insert into items values (155)"],
    "one that takes it all": ["drop table p1", "create table rest partition of items default"],
}


@pytest.mark.parametrize("name", OTHERS)
def test_rows_of_its_range_may_be_elsewhere(items: World, name: str) -> None:
    app, connection = items
    for statement in OTHERS[name]:
        connection.execute(statement)
    before = lake_rows(app, connection, T)
    assert "may have taken rows of its range" in pump(app, connection).parked["public.items"]
    assert lake_rows(app, connection, T) == before
    copy(app, T, again=True)
    same(app, connection, T)


@pytest.mark.parametrize("when", ["before the pass", "after the look", "elsewhere"])
def test_the_partition_that_takes_the_rest(items: World, when: str) -> None:
    app, connection = items
    run(app, connection, "create table rest partition of items default", "insert into items values (5000, 1, 'n')")
    if when == "after the look":
        # The pass that looked before the partition went brings the row, and the next one hears nothing of it.
        with at_the_end_of_the_look(app, "drop table public.p1", "insert into public.items values (155, 1, 'kept')"):
            pump(app, connection)
    else:
        connection.execute("drop table p1")
    if when == "before the pass":
        connection.execute("insert into items values (155, 1, 'kept')")
    if when == "elsewhere":
        run(app, connection)
        return
    assert "public.rest may have taken rows of its range" in pump(app, connection).parked["public.items"]
    copy(app, T, again=True)
    same(app, connection, T)


def test_one_in_its_place_that_came_after_the_look(items: World) -> None:
    app, connection = items
    place = "create table public.q1 partition of public.items for values from (100) to (200)"
    with at_the_end_of_the_look(app, "drop table public.p1", place, "insert into public.items values (155, 1, 'kept')"):
        pump(app, connection)
    assert "public.q1 may have taken rows of its range" in pump(app, connection).parked["public.items"]


def test_one_in_its_place_that_comes_while_it_is_followed(items: World) -> None:
    app, connection = items
    connection.execute("drop table p1")
    place = "create table public.q1 partition of public.items for values from (100) to (200)"
    with at_the_end_of_the_look(app, place, "insert into public.items values (155, 1, 'kept')"):
        done = pump(app, connection)
    assert "public.q1 may have taken rows of its range" in done.parked["public.items"]


@contextlib.contextmanager
def at_the_end_of_the_look(app: App, *statements: str) -> Iterator[None]:
    """Before the pass knows where it ends."""
    server_time, left = replication.server_time, list(statements)

    def late(session: Connection) -> float:
        with connect(app.dsn, autocommit=True) as other:
            while left:
                other.execute(left.pop(0))
        return server_time(session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replication, "server_time", late)
        yield


@pytest.mark.parametrize("how", ["list (k)", "hash (k)", "range (k)"])
def test_partitions_of_other_kinds_park_the_table(mirrored: World, how: str) -> None:
    app, connection = mirrored
    bound = {"l": "in ('a')", "h": "with (modulus 2, remainder 0)", "r": "from ('a') to ('b')"}[how[0]]
    connection.execute(f"create table items (id int, k text, primary key (id, k)) partition by {how}")
    connection.execute(f"create table p0 partition of items for values {bound}")
    connection.execute("create table p1 partition of items for values with (modulus 2, remainder 1)" if how[0] == "h" else "create table p1 partition of items default")  # noqa: E501  # fmt: skip
    connection.execute("insert into items select i, chr(97 + i) from generate_series(0, 9) i")
    start(app, connection, T)
    connection.execute("drop table p0")
    assert "public.p0 was detached or dropped" in pump(app, connection).parked["public.items"]
    copy(app, T, again=True)
    same(app, connection, T)


@pytest.mark.parametrize("point", ["mirror.after_departure", "mirror.after_commit", "mirror.in_publish", "mirror.after_publish"])
def test_it_is_followed_again_after_a_death(items: World, point: str) -> None:
    app, connection = items
    connection.execute("update items set note = 'm' where id = 5")
    connection.execute("drop table p1")
    with armed(point), pytest.raises(FailpointError):
        pump(app, connection)
    run(app, connection)
    run(app, connection, "insert into items values (299, 0, 'n') on conflict (id) do update set note = 'k'")


def test_nothing_is_published_before_the_rows_are_gone(items: World) -> None:
    """F would have passed the place where the partition went."""
    app, connection = items
    connection.execute("drop table p1")
    for number in range(5):
        connection.execute("update items set n = -1 where id = %s", [number])
    done = pump(app, connection, changes_max=1)
    assert (done.parked, done.failed) == ({}, {})
    same(app, connection, T)
    row = connection.execute(
        "select count(*) as n from modak.op_log where table_id = %s and op_kind = 'mirror' and phase = 'advanced'",
        [tables.get(connection, T).table_id],
    ).fetchone()
    assert row == {"n": 1}


def test_a_partition_that_is_being_detached_is_waited_for(items: World) -> None:
    app, connection = items
    with connect(app.dsn) as reader:
        reader.execute("select count(*) from public.items").fetchone()
        connection.execute("set statement_timeout = '500ms'")
        with pytest.raises(Exception, match="statement timeout"):
            connection.execute("alter table items detach partition p1 concurrently")
        connection.execute("reset statement_timeout")
    assert "is being detached" in pump(app, connection).failed["public.items"]
    assert "is being detached" in problem(connection, T)
    run(app, connection, "alter table items detach partition p1 finalize", "insert into items values (299) on conflict do nothing")


def test_a_table_left_behind_speaks_of_it_again(items: World) -> None:
    """What another table needs again is old: partitions that went since are not missed twice."""
    app, connection = items
    connection.execute("create table other (id int primary key)")
    start(app, connection, OTHER)
    other = tables.get(connection, OTHER).table_id
    connection.execute("insert into other values (1)")
    connection.execute("update modak.tables set enabled = false where table_id = %s", [other])
    run(app, connection, "create table p3 partition of items for values from (300) to (400)", "insert into items values (305, 1, 'n')")
    run(app, connection, "drop table p3")
    connection.execute("update modak.tables set enabled = true where table_id = %s", [other])
    run(app, connection, "insert into items values (299, 1, 'n') on conflict do nothing", "insert into other values (2)")
    same(app, connection, OTHER)


def test_a_table_that_sheds_partitions_itself(mirrored: World) -> None:
    """There the lake keeps what the heap has not: which rows were meant to go, nobody says."""
    app, connection = mirrored
    connection.execute("create table items (id int, at int, primary key (id, at)) partition by range (at)")
    for number in range(4):
        connection.execute(f"create table p{number} partition of items for values from ({number * 100}) to ({number * 100 + 100})")
    connection.execute("insert into items select i, i from generate_series(0, 399) i")
    start(app, connection, T, "at", heap_retention="1000", width="100")
    connection.execute("drop table p1")
    assert list(pump(app, connection).parked) == ["public.items"]
    assert "public.p1 was detached or dropped" in problem(connection, T)
    assert state(connection, T).is_parked
