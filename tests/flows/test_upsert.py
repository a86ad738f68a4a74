"""modak_upsert and modak_delete: a row by its key, whichever tier it is in."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support import options, register_table
from tests.writing import ODD_KEYS, Session, World, world

from modak.connection import Connection
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.lake.iceberg import IcebergLake


@pytest.fixture(scope="module")
def tables(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(cluster, template, tmp_path_factory) as made:
        yield made


@pytest.fixture
def session(tables: World) -> Iterator[Session]:
    with psycopg.connect(tables.dsn, options="-c timezone=Asia/Kathmandu") as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def client(dsn: str) -> Iterator[Session]:
    """An application's session, as psql would open it."""
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


def upsert(session: Session, table: str, **image: Any) -> Any:
    return session.execute("select modak_upsert(%s, %s)", [table, json.dumps(image)]).fetchall()[0][0]


def delete(session: Session, table: str, **key: Any) -> Any:
    return session.execute("select modak_delete(%s, %s)", [table, json.dumps(key)]).fetchall()[0][0]


def content(session: Session, table: str = "events") -> dict[int, tuple[Any, ...]]:
    rows = session.execute(f"select id, event_time, val, n from public.{table}").fetchall()
    assert len({row[0] for row in rows}) == len(rows), rows
    return {row[0]: row[1:] for row in rows}


@pytest.mark.spark
@pytest.mark.inline
def test_a_row_is_changed_moved_or_added_wherever_it_stands(session: Session) -> None:
    wanted = content(session)
    steps: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
        ("cold", {"id": 2, "event_time": 20, "val": "new", "n": 0}, (20, "new", 0)),
        ("cold", {"id": 2, "event_time": 150, "val": "moved", "n": 0}, (150, "moved", 0)),
        ("hot", {"id": 2, "event_time": 250, "val": "hot now", "n": 0}, (250, "hot now", 0)),
        ("hot", {"id": 4, "event_time": 210, "val": "changed", "n": 1}, (210, "changed", 1)),
        ("hot", {"id": 4, "event_time": 290, "val": "moved", "n": 1}, (290, "moved", 1)),
        ("cold", {"id": 4, "event_time": 90, "val": "cold now", "n": 1}, (90, "cold now", 1)),
        ("cold", {"id": 10, "event_time": 30, "val": "added", "n": 2}, (30, "added", 2)),
        ("hot", {"id": 11, "event_time": 230, "val": "added", "n": 2}, (230, "added", 2)),
        ("cold", {"id": 11, "event_time": 199, "val": "below", "n": 2}, (199, "below", 2)),
        ("hot", {"id": 11, "event_time": 200, "val": "the line itself", "n": 2}, (200, "the line itself", 2)),
    ]
    for tier, image, row in steps:
        assert upsert(session, "public.events", **image) == tier
        wanted[image["id"]] = row
        assert content(session) == wanted
    assert delete(session, "public.events", id=2) == "hot"
    assert delete(session, "public.events", id=4, event_time=90) == "cold"
    assert delete(session, "public.events", id=3) == "cold"
    assert delete(session, "public.events", id=5, event_time=220) == "hot"
    assert sorted(content(session)) == [1, 10, 11]


@pytest.mark.spark
@pytest.mark.inline
def test_a_key_without_a_row_deletes_nothing(session: Session) -> None:
    assert delete(session, "public.events", id=99) is None
    assert delete(session, "public.events", id=2, event_time=21) is None
    assert delete(session, "public.events", id=3) == "cold"
    assert delete(session, "public.events", id=3) is None
    assert sorted(content(session)) == [1, 2, 4, 5]
    assert session.execute("select count(*) from modak.delta").fetchall() == [(1,)]


@pytest.mark.spark
@pytest.mark.inline
def test_the_newest_correction_wins_and_leaves_one_row(session: Session) -> None:
    upsert(session, "public.events", id=2, event_time=20, val="one")
    upsert(session, "public.events", id=2, event_time=20, val="two")
    delete(session, "public.events", id=2)
    assert upsert(session, "public.events", id=2, event_time=20, val="three") == "cold"
    rows = session.execute("select version, payload ->> 'val', placed, old_tier_key from modak.delta where pk = '2'").fetchall()
    assert [row[1:] for row in rows] == [("three", True, None)]
    assert rows[0][0] == session.execute("select max(version) from modak.delta").fetchall()[0][0]
    assert content(session)[2] == (20, "three", 7)


@pytest.mark.spark
@pytest.mark.inline
def test_columns_that_are_not_given_keep_their_value_or_take_their_default(session: Session) -> None:
    for key, place in ((2, 20), (4, 210)):
        before = content(session)[key]
        upsert(session, "public.events", id=key, event_time=place, val="only this")
        assert content(session)[key] == (before[0], "only this", before[2])
        upsert(session, "public.events", id=key, event_time=place, val=None)
        assert content(session)[key] == (before[0], None, before[2])
        upsert(session, "public.events", id=key, event_time=place)
        assert content(session)[key] == (before[0], None, before[2])
    for key, place in ((10, 30), (11, 230)):
        upsert(session, "public.events", id=key, event_time=place)
        assert content(session)[key] == (place, None, 7)


@pytest.mark.spark
@pytest.mark.inline
@pytest.mark.parametrize("device", ODD_KEYS)
def test_composite_and_odd_keys(session: Session, device: str) -> None:
    image = {"tenant": 1, "device": device, "at": "2026-01-05T10:00:00+02:00", "reading": "12.34", "tags": ["a", None, device]}
    assert upsert(session, "public.keys", **image) == "cold"
    found = session.execute("select at, reading, doubled, tags from public.keys where tenant = 1 and device = %s", [device]).fetchall()
    at = datetime.datetime.fromisoformat("2026-01-05T10:00:00+02:00")
    assert found == [(at, decimal.Decimal("12.34"), decimal.Decimal("24.68"), ["a", None, device])]
    assert upsert(session, "public.keys", **image | {"at": "2026-02-05 10:00+00", "tags": "{x,y}"}) == "hot"
    assert delete(session, "public.keys", tenant=1, device=device, at="2026-02-05 15:45:00 Asia/Kathmandu") == "hot"
    assert delete(session, "public.keys", tenant=2, device=device) == "hot"
    assert session.execute("select count(*) from public.keys").fetchall() == [(2 * len(ODD_KEYS) - 2,)]


@pytest.mark.spark
@pytest.mark.inline
def test_the_surface_heap_takes_the_registered_name(session: Session) -> None:
    assert upsert(session, "public.whole", id=2, event_time=20, val="x") == "cold"
    assert upsert(session, "whole", id=4, event_time=210, val="x") == "hot"
    assert delete(session, "whole", id=1) == "cold"
    assert {key: row[1] for key, row in content(session, "whole_all").items()} == {2: "x", 3: "c", 4: "x", 5: "hot"}


@pytest.mark.spark
@pytest.mark.inline
def test_checked_keys_are_no_obstacle(session: Session) -> None:
    for image in ({"id": 2, "event_time": 20, "val": "x"}, {"id": 2, "event_time": 90, "val": "y"}, {"id": 30, "event_time": 30}):
        assert upsert(session, "strict", **image) == "cold"
    assert content(session, "strict")[2] == (90, "y", 2)


@pytest.mark.spark
@pytest.mark.inline
def test_a_transaction_that_keeps_its_snapshot_is_told_to_start_again(tables: World) -> None:
    with psycopg.connect(tables.dsn) as early, psycopg.connect(tables.dsn, autocommit=True) as other:
        early.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        early.execute("select count(*) from public.events")
        other.execute("update public.events set n = 50 where id = 5")
        with pytest.raises(psycopg.errors.SerializationFailure):
            upsert(early, "public.events", id=5, event_time=220, n=60)
        early.rollback()
        assert upsert(early, "public.events", id=5, event_time=220, n=60) == "hot"
        early.rollback()
        other.execute("update public.events set n = 5 where id = 5")


# Without a lake: what is below the lowest partition is cold from the beginning.


def make(connection: Connection, lake: IcebergLake, columns: str, key: str = "id", **given: Any) -> None:
    connection.execute(f"create table public.t (id bigint not null, k bigint not null, {columns}) partition by range (k)")
    connection.execute("create table public.t_0 partition of public.t for values from (0) to (100)")
    register_table(connection, lake, Name("public", "t"), options("k", (key,), **given))


TYPED = {
    "ts timestamptz": ("2026-03-01 12:00:00.000001+05:30", "2026-03-01 06:30:00.000001+00"),
    "day date": ("0044-03-15 BC", "0044-03-15 BC"),
    "num numeric": (json.loads("12345678901234567890.1234567890", parse_float=str), "12345678901234567890.1234567890"),
    "bounded numeric(6,2)": ("1.5", "1.50"),
    "raw bytea": ("\\xdeadbeef", "\\xdeadbeef"),
    "words text[]": (["a b", None, 'q"'], '{"a b",NULL,"q\\""}'),
    "grid int[]": ([[1, 2], [3, 4]], "{{1,2},{3,4}}"),
    "body jsonb": ({"a": [1, None]}, '{"a": [1, null]}'),
    "letter char(3)": ("x", "x  "),
    "mood public.mood": ("good", "good"),
    "gap interval": ("1 day 02:03:04", "1 day 02:03:04"),
    "id2 uuid": ("00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000a"),
    "place int4range": ("[1,5)", "[1,5)"),
    "ok boolean": (True, "t"),
    "f double precision": (0.1, "0.1"),
}


@pytest.mark.parametrize("place", [-1, 50])
def test_values_are_read_by_the_columns_own_types(connection: Connection, client: Session, lake: IcebergLake, place: int) -> None:
    connection.execute("create type public.mood as enum ('good', 'bad')")
    make(connection, lake, ", ".join(TYPED))
    image = {column.split()[0]: given for column, (given, _) in TYPED.items()}
    for _ in range(2):  # once added, once changed
        assert upsert(client, "public.t", id=1, k=place, **image) == ("cold" if place < 0 else "hot")
        for column, (_, wanted) in TYPED.items():
            name = column.split()[0]
            assert client.execute(f"select concat({name}) from public.t where id = 1").fetchall() == [(wanted,)], column
    too_long = "select modak_upsert('public.t', %s)"
    with pytest.raises(psycopg.errors.StringDataRightTruncation):
        client.execute(too_long, [json.dumps({"id": 1, "k": place, "letter": "wxyz"})])
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        client.execute(too_long, [json.dumps({"id": "one", "k": place})])


def test_generated_columns_are_computed_and_identities_kept(connection: Connection, client: Session, lake: IcebergLake) -> None:
    made = "serial int generated by default as identity, fixed int generated always as identity, "
    made += "twice bigint generated always as (k * 2) stored"
    make(connection, lake, made)
    upsert(client, "t", id=1, k=-5, twice=999)
    upsert(client, "t", id=2, k=5)
    rows = "select serial, fixed, twice from public.t order by id"
    assert client.execute(rows).fetchall() == [(1, 1, -10), (2, 2, 10)]
    whole = client.execute("select to_jsonb(t) from public.t t where id = 1").fetchall()[0][0]
    assert upsert(client, "t", **whole | {"k": 6}) == "hot"
    assert client.execute(rows).fetchall() == [(1, 1, 12), (2, 2, 10)]
    with pytest.raises(psycopg.errors.GeneratedAlways):
        upsert(client, "t", id=3, k=6, fixed=77)


def test_the_tier_key_may_be_part_of_the_key(connection: Connection, client: Session, lake: IcebergLake) -> None:
    connection.execute("create table public.t (id bigint, k timestamptz, v int, primary key (id, k)) partition by range (k)")
    connection.execute("create table public.t_0 partition of public.t for values from ('2026-01-01') to ('2026-02-01')")
    register_table(connection, lake, Name("public", "t"), options("k", ()))
    assert upsert(client, "t", id=1, k="2025-12-31 23:59:59.999999+00", v=1) == "cold"
    assert upsert(client, "t", id=1, k="2026-01-01 00:00+00", v=2) == "hot"
    assert upsert(client, "t", id=1, k="2026-01-01 05:30+05:30", v=3) == "hot"
    assert delete(client, "t", id=1, k="2026-01-01T00:00:00Z") == "hot"
    assert client.execute("select id, v from public.t").fetchall() == [(1, 1)]
    with pytest.raises(psycopg.errors.NotNullViolation, match='"k"'):
        delete(client, "t", id=1)


REFUSED = [
    ("select modak_upsert('nowhere', '{}')", psycopg.errors.UndefinedTable, 'relation "nowhere" does not exist', None),
    ("select modak_upsert('pg_class', '{}')", psycopg.errors.WrongObjectType, '"pg_class" is not a registered table', "Register"),
    ("select modak_upsert('t_hot', '{}')", psycopg.errors.WrongObjectType, '"t_hot" is not a registered table', "part of public.t:"),
    ("select modak_upsert('t', null)", psycopg.errors.InvalidParameterValue, "JSON object, not NULL", None),
    ("select modak_upsert('t', '[1]')", psycopg.errors.InvalidParameterValue, "JSON object, not array", None),
    ("select modak_upsert('t', '{\"id\": 1}')", psycopg.errors.NotNullViolation, 'no value for key column "k" of table', "id, k"),
    ("select modak_upsert('t', '{\"id\": null, \"k\": 1}')", psycopg.errors.NotNullViolation, '"id"', "id, k"),
    ('select modak_upsert(\'t\', \'{"id": 1, "k": 1, "x": 1, "V": 2}\')', psycopg.errors.UndefinedColumn, '"V", "x" is no', "id, k, v"),
    ("select modak_delete('t', '{}')", psycopg.errors.NotNullViolation, '"id"', "id"),
    ("select modak_delete('t', '{\"id\": 1, \"v\": 1}')", psycopg.errors.UndefinedColumn, '"v" is no part of the key of', "id, k"),
    ("select modak_upsert('t', '{\"id\": 1, \"k\": 900}')", psycopg.errors.CheckViolation, "no partition of table", "Create the partition"),
]


@pytest.mark.parametrize(("statement", "error", "message", "hint"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_is_wrong_is_said(
    connection: Connection, client: Session, lake: IcebergLake, statement: str, error: type[psycopg.Error], message: str, hint: str | None
) -> None:
    make(connection, lake, "v int")
    with pytest.raises(error) as refused:
        client.execute(statement.encode())
    assert message in str(refused.value)
    assert hint is None or hint in str(refused.value.diag.message_hint)
    assert client.execute("select (select count(*) from public.t) + (select count(*) from modak.delta)").fetchall() == [(0,)]


def test_the_callers_own_rights_on_the_table_decide(connection: Connection, dsn: str, lake: IcebergLake) -> None:
    make(connection, lake, "v int")
    mark = connection.execute("select oid::text as oid from pg_database where datname = current_database()").fetchone()
    assert mark is not None
    role = f"writer_{mark['oid']}"
    connection.execute(f"create role {role}; grant select, insert on public.t to {role}")
    try:
        with psycopg.connect(dsn, autocommit=True) as session:
            session.execute(f"set role {role}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="t"):
                upsert(session, "public.t", id=1, k=-1)
            connection.execute(f"grant update on public.t to {role}")
            assert upsert(session, "public.t", id=1, k=-1, v=1) == "cold"
            assert upsert(session, "public.t", id=1, k=1, v=2) == "hot"
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                delete(session, "public.t", id=1)
            connection.execute(f"grant delete on public.t to {role}")
            assert delete(session, "public.t", id=1) == "hot"
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute("select * from modak.tables")
    finally:
        connection.execute(f"drop owned by {role}; drop role {role}")


def test_triggers_of_the_heap_find_the_session_as_it_is(connection: Connection, client: Session, lake: IcebergLake) -> None:
    make(connection, lake, "v text")
    connection.execute("create schema mine; create function mine.word() returns text language sql as $$ select 'mine' $$")
    connection.execute(
        "create function public.fill() returns trigger language plpgsql as $$ begin new.v := word(); return new; end $$;"
        "create trigger fill before insert on public.t_hot for each row execute function public.fill()"
    )
    client.execute("set search_path = mine, public")
    upsert(client, "t", id=1, k=1)
    upsert(client, "t", id=2, k=-1)
    assert client.execute("select distinct v from public.t").fetchall() == [("mine",)]
