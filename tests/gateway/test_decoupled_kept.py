"""A statement that was translated before is not translated again, and never shows rows of another time."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import psycopg
import pytest
from tests.decoupling import Client, House, house, make

from modak.embedded.postgres import Cluster
from modak.gateway.decoupled import reading

QUERY = "select count(*), sum(v), max(note) from events where id < 100"
LOCATED = "select ctid is not null, v from events where id = 1"


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("kept"), f"decoupled_kept_{os.getpid()}") as made:
        yield made


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client(prepare_threshold=None) as connection:
        make(connection, "events", [("id", "bigint"), ("v", "int"), ("note", "text")])
        connection.execute("insert into events values (1, 10, 'a'), (2, 20, 'b')")
        yield connection
        connection.execute("rollback")
        connection.execute("select modak.drop_iceberg_table('public', 'events', true)")


@pytest.fixture
def translations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    translate = reading.translate_query

    def counted(tree, catalog):  # type: ignore[no-untyped-def]
        made.append(tree.sql())
        return translate(tree, catalog)

    monkeypatch.setattr(reading, "translate_query", counted)
    return made


def test_it_is_translated_once_for_a_snapshot(client: Client, translations: list[str]) -> None:
    for _ in range(3):
        assert client.execute(QUERY).fetchone() == (2, 30, "b")
    assert len(translations) == 1
    client.execute("insert into events values (3, 30, 'c')")
    for _ in range(2):
        assert client.execute(QUERY).fetchone() == (3, 60, "c")
    assert len(translations) == 2


def test_a_transaction_sees_its_own_rows_and_nobody_else_does(world: House, client: Client) -> None:
    assert client.execute(QUERY).fetchone() == (2, 30, "b")
    with world.client() as other:
        client.execute("begin")
        assert client.execute(QUERY).fetchone() == (2, 30, "b")
        client.execute("insert into events values (3, 5, 'z')")
        assert client.execute(QUERY).fetchone() == (3, 35, "z")
        client.execute("savepoint s")
        client.execute("delete from events where id = 1")
        assert client.execute(QUERY).fetchone() == (2, 25, "z")
        assert other.execute(QUERY).fetchone() == (2, 30, "b")
        client.execute("rollback to s")
        assert client.execute(QUERY).fetchone() == (3, 35, "z")
        client.execute("rollback")
        assert client.execute(QUERY).fetchone() == (2, 30, "b")


def test_one_snapshot_for_a_transaction_while_others_go_on(world: House, client: Client) -> None:
    with world.client() as other:
        client.execute("begin isolation level repeatable read")
        assert client.execute(QUERY).fetchone() == (2, 30, "b")
        other.execute("update events set v = v + 1, note = 'y' where id = 1")
        assert other.execute(QUERY).fetchone() == (2, 31, "y")
        assert client.execute(QUERY).fetchone() == (2, 30, "b")
        client.execute("commit")
        assert client.execute(QUERY).fetchone() == (2, 31, "y")


def test_deletes_of_the_lake_are_there_when_it_is_asked_again(client: Client, translations: list[str]) -> None:
    client.execute("delete from events where id = 2")
    translations.clear()
    for _ in range(3):
        gc.collect()  # what the engine keeps of a snapshot goes with it
        assert client.execute(QUERY).fetchone() == (1, 10, "a")
    assert len(translations) == 1


def test_rows_that_are_known_by_their_numbers_are_those_that_are_changed(world: House, client: Client) -> None:
    """Twice the same text, the second time kept: who was told numbers must not be taken to a newer snapshot in between."""
    for expected in (11, 12):
        client.execute("begin")
        assert client.execute(LOCATED).fetchone() == (True, expected - 1)
        client.execute("update events set v = v + 1 where id = 1")
        assert client.execute(LOCATED).fetchone() == (True, expected)
        client.execute("commit")


def test_parameters_and_other_tables_are_not_mixed_up(client: Client) -> None:
    make(client, "others", [("id", "bigint"), ("v", "int")])
    try:
        client.execute("insert into others values (1, 7)")
        joined = "select e.v, o.v from events e join others o using (id)"
        assert client.execute(joined).fetchall() == [(10, 7)]
        client.execute("update others set v = 8")
        assert client.execute(joined).fetchall() == [(10, 8)]
        for number, expected in ((1, 10), (2, 20), (1, 10)):
            assert client.execute("select v from events where id = %s", [number], prepare=True).fetchall() == [(expected,)]
    finally:
        client.execute("select modak.drop_iceberg_table('public', 'others', true)")


def test_many_statements_are_not_kept_for_ever(world: House, client: Client) -> None:
    for number in range(130):
        assert client.execute(f"select count(*) from events where id < {number}").fetchone() == (min(2, max(0, number - 1)),)  # type: ignore[arg-type]
    kept = world.gateway.gateway.decoupled
    assert all(len(known) <= 100 for cache in (kept.scans, kept.estimates) for known in cache._found.values())


def test_a_table_that_is_made_anew_by_the_same_name(client: Client) -> None:
    assert client.execute(QUERY).fetchone() == (2, 30, "b")
    client.execute("select modak.drop_iceberg_table('public', 'events', true)")
    with pytest.raises(psycopg.errors.UndefinedTable):
        client.execute(QUERY)
    make(client, "events", [("note", "text"), ("id", "bigint"), ("v", "int")])
    client.execute("insert into events values ('q', 1, 2)")
    assert client.execute(QUERY).fetchone() == (1, 2, "q")
