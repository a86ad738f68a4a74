"""Partitions that come to a mirrored table: rows that they bring are not in the stream, and rows written through the table are."""

from __future__ import annotations

import psycopg
import pytest
from tests.mirroring import copy, problem, pump, same, start, state

from modak.app import App
from modak.catalog import tables
from modak.connection import Connection
from modak.core.table import Name
from modak.jobs.mirroring import leaves

pytestmark = pytest.mark.inline
T = Name("public", "items")
World = tuple[App, Connection]
ATTACH = "alter table items attach partition {} for values from (100) to (200)"
PLAIN = "create table p (id int not null, note text)"


@pytest.fixture
def items(mirrored: World) -> World:
    app, connection = mirrored
    connection.execute("create table items (id int primary key, note text) partition by range (id)")
    connection.execute("create table p0 partition of items for values from (0) to (100)")
    connection.execute("insert into items select i, 'n' from generate_series(1, 20) i")
    start(app, connection, T)
    return app, connection


def tree(connection: Connection) -> None:
    """A partitioned partition, with a row, whose inner link is older than the row."""
    connection.execute("create table p (id int not null, note text) partition by range (id)")
    connection.execute("create table p_inner partition of p for values from (100) to (200)")
    connection.execute("insert into p values (105, 'brought')")
    connection.execute(ATTACH.format("p"))


def one_transaction(connection: Connection) -> None:
    """The row's transaction number is a savepoint's, above the one that attaches."""
    with connection.transaction():
        connection.execute(PLAIN)
        with connection.transaction():
            connection.execute("insert into p values (105, 'brought')")
        connection.execute(ATTACH.format("p"))


def later_number(connection: Connection) -> None:
    """Whoever attaches got his number before the writer did."""
    connection.execute(PLAIN)
    with psycopg.connect(connection.info.dsn, password=connection.info.password, options="-c search_path=public") as other:
        other.execute("select pg_current_xact_id()")
        connection.execute("insert into p values (105, 'brought')")
        other.execute(ATTACH.format("p"))


def left_and_came_back(connection: Connection) -> None:
    connection.execute("create table p partition of items for values from (100) to (200)")
    connection.execute("alter table items detach partition p")
    connection.execute("insert into p values (105, 'brought')")
    connection.execute(ATTACH.format("p"))


def inside_a_tree(connection: Connection) -> None:
    """The upper link is known, or old; the lower one is new."""
    connection.execute("create table upper partition of items for values from (100) to (200) partition by range (id)")
    connection.execute(PLAIN)
    connection.execute("insert into p values (105, 'brought')")
    connection.execute("alter table upper attach partition p for values from (100) to (150)")


@pytest.mark.parametrize("bring", [tree, one_transaction, later_number, left_and_came_back, inside_a_tree])
def test_rows_that_were_brought_are_never_missed(items: World, bring: object) -> None:
    app, connection = items
    assert callable(bring)
    bring(connection)
    connection.execute("insert into items values (106, 'through the table')")
    assert list(pump(app, connection).parked) == ["public.items"]
    assert "was attached with rows in it" in problem(connection, T)
    copy(app, T, again=True)
    same(app, connection, T)
    connection.execute("delete from items where id = 105")
    assert not pump(app, connection).parked
    same(app, connection, T)


def in_place(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("create table p partition of items for values from (100) to (200)")
        connection.execute("insert into items values (105, 'n')")


def in_place_and_deep(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("create table upper partition of items for values from (100) to (200) partition by range (id)")
        connection.execute("create table p partition of upper for values from (100) to (150)")
        connection.execute("insert into items values (105, 'n')")


def attached_empty(connection: Connection) -> None:
    """As tools that make partitions ahead do."""
    with connection.transaction():
        connection.execute("create table p (like items including all)")
        connection.execute(ATTACH.format("p"))
    connection.execute("insert into items select i, 'n' from generate_series(105, 150) i")
    connection.execute("insert into p values (160, 'n')")
    connection.execute("delete from items where id = 110")


def tree_attached_empty(connection: Connection) -> None:
    connection.execute("create table p (id int not null, note text) partition by range (id)")
    connection.execute("create table p_inner partition of p for values from (100) to (200)")
    connection.execute(ATTACH.format("p"))
    connection.execute("insert into items values (105, 'n')")


@pytest.mark.parametrize("come", [in_place, in_place_and_deep, attached_empty, tree_attached_empty])
def test_partitions_that_were_filled_through_the_table_go_on(items: World, come: object) -> None:
    app, connection = items
    assert callable(come)
    before = state(connection, T)
    come(connection)
    if come in (in_place, in_place_and_deep):
        # However many rows there are, the catalog alone proves it.
        table = tables.get(connection, T)
        assert leaves.difference(connection, table, before.leaves, leaves.read(connection, table.table_id)) is None
    connection.execute("insert into items values (106, 'n') on conflict do nothing")
    assert not pump(app, connection).parked
    same(app, connection, T)
    connection.execute("update items set note = 'again' where id > 100")
    done = pump(app, connection)
    assert not done.parked
    assert not done.failed
    same(app, connection, T)


def test_a_partition_comes_while_the_table_is_truncated(items: World) -> None:
    app, connection = items
    connection.execute("truncate items")
    connection.execute(PLAIN)
    connection.execute("insert into p values (105, 'brought')")
    connection.execute(ATTACH.format("p"))
    assert list(pump(app, connection).parked) == ["public.items"]
    copy(app, T, again=True)
    same(app, connection, T)
