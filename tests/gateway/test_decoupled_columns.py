"""A decoupled table gets one more column: for whom it shows when, what it holds, and what is refused."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from tests.decoupling import EVERY_TYPE, Client, House, house, make

from modak.core import declared
from modak.embedded.postgres import Cluster
from modak.lake import widening


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("columns"), f"decoupled_columns_{os.getpid()}") as made:
        yield made


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client() as connection:
        make(connection, "events", [("id", "bigint"), ("v", "int")])
        connection.execute("insert into events values (1, 10), (2, 20)")
        yield connection
        connection.execute("rollback")
        connection.execute("select modak.drop_iceberg_table('public', 'events', true)")


def add(client: Client, name: str, kind: str, **more: Any) -> None:
    client.execute("select modak.add_iceberg_column('public', 'events', %s)", [json.dumps({"name": name, "type": kind, **more})])


def rows(client: Client, query: str = "select * from events order by id") -> list[tuple[Any, ...]]:
    return client.execute(query).fetchall()


def on_port(world: House) -> Client:
    return psycopg.connect(make_conninfo(world.dsn, host="127.0.0.1", port=world.gateway.port), autocommit=True)


def test_it_is_there_for_everybody_at_once(world: House, client: Client) -> None:
    with (
        world.client() as other,
        psycopg.connect(make_conninfo(world.dsn, host="127.0.0.1", port=world.gateway.port), autocommit=True) as port,
    ):
        for each in (other, port):
            assert rows(each) == [(1, 10), (2, 20)]
        add(client, "country", "varchar(2)", default="'de'", comment="where it was")
        for each in (other, port):
            assert rows(each) == [(1, 10, None), (2, 20, None)]
            assert (
                rows(each, "select count(*), count(country) from events where country is null or country = 'x' group by v > 15")
                == [(1, 0)] * 2
            )
        other.execute("insert into events (id, v) values (3, 30)")
        port.execute("insert into events select 4, 40, 'fr'")
        client.execute("update events set country = 'it' where id = 1")
        with pytest.raises(psycopg.errors.StringDataRightTruncation):
            other.execute("insert into events values (9, 9, 'long')")
        for each in (client, other, port):
            assert rows(each) == [(1, 10, "it"), (2, 20, None), (3, 30, "de"), (4, 40, "fr")]
            assert rows(each, "select country, sum(v) from events group by 1 order by 1 nulls last") == [
                ("de", 30), ("fr", 40), ("it", 10), (None, 20),
            ]  # fmt: skip
    lake = world.lake_table("public.events")
    assert lake.scan().to_arrow().sort_by("id").column("country").to_pylist() == ["it", None, "de", "fr"]
    assert lake.schema().find_field("country").doc == "where it was"


def test_every_type(client: Client) -> None:
    for name, kind in EVERY_TYPE[1:]:
        add(client, name, kind)
    client.execute("insert into events (id, tree, short, flag, price, span) values (3, '{\"a\": 1}', 'y', true, 1.5, '1 day')")
    client.execute("update events set moment = '2026-01-01 00:00+00', raw = '\\xdead', key = gen_random_uuid() where id = 3")
    found = (
        "select tree->>'a', short, flag, price::text, span::text, moment is not null, raw, key is not null, note from events where id = 3"
    )
    assert rows(client, found) == [("1", "y", True, "1.500", "1 day", True, b"\xde\xad", True, None)]


def test_whoever_attaches_it_finds_the_declared_type(world: House, client: Client) -> None:
    add(client, "tree", "jsonb", default="'{}'")
    said = declared.read(world.lake_table("public.events").properties[declared.PROPERTY])
    assert [(one.type, one.default) for one in said.values()] == [("jsonb", "'{}'")]


def test_a_rolled_back_column_is_shown_to_nobody_and_found_again(world: House, client: Client) -> None:
    client.execute("begin")
    add(client, "note", "text")
    client.execute("insert into events values (3, 30, 'mine')")
    client.execute("update events set note = 'set' where id = 1")
    assert rows(client) == [(1, 10, "set"), (2, 20, None), (3, 30, "mine")]
    client.execute("rollback")
    assert rows(client) == [(1, 10), (2, 20)]
    client.execute("insert into events values (4, 40)")
    add(client, "note", "text")
    assert rows(client) == [(1, 10, None), (2, 20, None), (4, 40, None)]
    assert [field.name for field in world.lake_table("public.events").schema().fields] == ["id", "v", "note"]


def test_in_one_transaction_with_what_it_is_for(world: House, client: Client) -> None:
    with client.transaction():
        add(client, "a", "text")
        add(client, "b", "int")
        client.execute("insert into events values (3, 30, 'a', 1)")
        with pytest.raises(psycopg.errors.ObjectInUse, match="cannot be given a column"), client.transaction():
            add(client, "c", "int")
        client.execute("update events set b = 2 where a = 'a'")
    assert rows(client, "select * from events where id = 3") == [(3, 30, "a", 2)]


def test_savepoints_take_it_back(client: Client) -> None:
    with client.transaction():
        add(client, "a", "text")
        with client.transaction(force_rollback=True):
            add(client, "b", "int")
            client.execute("insert into events values (3, 30, 'a', 1)")
        client.execute("insert into events values (4, 40, 'b')")
        assert rows(client) == [(1, 10, None), (2, 20, None), (4, 40, "b")]
    assert rows(client) == [(1, 10, None), (2, 20, None), (4, 40, "b")]


def test_writers_are_waited_for_and_lose_nothing(world: House, client: Client) -> None:
    with world.client(autocommit=False) as writer:
        writer.execute("insert into events values (3, 30)")
        adding = threading.Thread(target=add, args=(client, "note", "text"))
        adding.start()
        adding.join(0.5)
        assert adding.is_alive()
        writer.commit()
        adding.join(30)
    assert rows(client) == [(1, 10, None), (2, 20, None), (3, 30, None)]


def test_another_engines_column_is_taken_as_it_is(world: House, client: Client) -> None:
    table = world.lake_table("public.events")
    with table.update_schema() as schema:
        schema.add_column("extra", widening.iceberg_type("double"))
    table = world.lake_table("public.events")
    table.append(pa.Table.from_pylist([{"id": 3, "v": 30, "extra": 0.5}], schema=table.schema().as_arrow()))
    assert rows(client) == [(1, 10), (2, 20), (3, 30)]
    told: list[str] = []
    client.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
    add(client, "extra", "double precision")
    assert told == ["lake table public.events has a column extra already: its values are shown from now on"]
    assert rows(client) == [(1, 10, None), (2, 20, None), (3, 30, 0.5)]
    with pytest.raises(psycopg.errors.DuplicateColumn):
        add(client, "extra", "double precision")


def change_schema(world: House, *statements: tuple[str, Any]) -> None:
    with world.lake_table("public.events").update_schema(allow_incompatible_changes=True) as schema:
        for method, given in statements:
            getattr(schema, method)(*given)


@pytest.mark.parametrize("many", [False, True], ids=["rows", "bulk"])
def test_rows_come_in_beside_columns_that_others_added_and_renamed(world: House, client: Client, many: bool) -> None:
    change_schema(world, ("add_column", ("extra", widening.iceberg_type("uuid"))), ("rename_column", ("v", "w")))
    if many:
        with (
            psycopg.connect(make_conninfo(world.dsn, host="127.0.0.1", port=world.gateway.port), autocommit=True) as port,
            port.transaction(),
        ):
            port.execute("insert into events select n, n * 10 from generate_series(3, 200002) n")
            assert rows(port, "select count(*), sum(v) from events") == [(200_002, sum(range(1, 200_003)) * 10)]
    else:
        client.execute("insert into events values (3, 30), (4, 40)")
    client.execute("update events set v = v + 1 where id = 3")
    assert rows(client, "select * from events where id < 5 order by id") == [(1, 10), (2, 20), (3, 31), (4, 40)]
    found = world.lake_table("public.events").scan(row_filter="id < 5").to_arrow().sort_by("id")
    assert found.column("w").to_pylist() == [10, 20, 31, 40]
    assert found.column("extra").to_pylist() == [None] * 4


def test_a_commit_of_another_engine_in_between_is_no_obstacle(world: House, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    real, met = widening._add, []

    def late(table, column):  # type: ignore[no-untyped-def]
        if not met:
            met.append(True)
            other = world.lake_table("public.events")
            other.append(pa.Table.from_pylist([{"id": 3, "v": 30}], schema=other.schema().as_arrow()))
        real(table, column)

    monkeypatch.setattr(widening, "_add", late)
    add(client, "note", "text")
    assert rows(client) == [(1, 10, None), (2, 20, None), (3, 30, None)]


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({"name": "note", "type": "inet"}, "0A000", "inet"),
        ({"name": "note", "type": "numeric"}, "0A000", "numeric"),
        ({"name": "note", "type": "numeric(50,2)"}, "0A000", "Iceberg decimal"),
        ({"name": "note", "type": "text", "not_null": True}, "23502", "cannot be NOT NULL"),
        ({"name": "note", "type": "text", "nullable": False}, "23502", "cannot be NOT NULL"),
        ({"name": "v", "type": "text"}, "42701", "already exists"),
        ({"name": "V", "type": "text"}, "0A000", "has a column v already"),
        ({"name": "note", "type": "text", "size": 3}, "22023", "unknown part"),
        ({"name": "note", "type": "int", "default": "'x'"}, "22P02", "invalid input syntax"),
        ({"name": "_pos", "type": "int"}, "42602", "cannot be called"),
    ],
)
def test_what_is_refused_changes_nothing(world: House, client: Client, given: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(psycopg.Error, match=message) as refused:
        client.execute("select modak.add_iceberg_column('public', 'events', %s)", [json.dumps(given)])
    assert refused.value.sqlstate == code
    assert [field.name for field in world.lake_table("public.events").schema().fields] == ["id", "v"]
    assert rows(client) == [(1, 10), (2, 20)]


def test_what_was_dropped_here_does_not_come_back_by_itself(client: Client) -> None:
    client.execute("alter foreign table events drop column v")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="renamed or dropped here alone"):
        add(client, "v", "int")


def test_only_the_owner_and_only_decoupled_tables(client: Client) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable, match=r"no decoupled table public\.missing of yours"):
        client.execute('select modak.add_iceberg_column(\'public\', \'missing\', \'{"name": "x", "type": "text"}\')')


def test_large_rows_go_a_few_at_a_time(client: Client) -> None:
    options = """select option_value::int from pg_foreign_table, pg_options_to_table(ftoptions)
                  where ftrelid = 'events'::regclass and option_name = 'batch_size'"""
    assert rows(client, options) == [(5000,)]
    client.execute("alter foreign table events options (set batch_size '100')")
    add(client, "document", "text")
    assert rows(client, options) == [(100,)]
    client.execute("alter foreign table events options (set batch_size '4000')")
    add(client, "more", "text")
    assert rows(client, options) == [(255,)]
