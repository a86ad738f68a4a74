"""Rows that fit no partition: below T they are corrections of the cold tier, above it mistakes of the user."""

from __future__ import annotations

import psycopg
import pytest
from tests.support import EVENTS, options, register_events, register_table, rows, value

from modak.connection import Connection, connect
from modak.core.table import Name
from modak.lake.iceberg import IcebergLake

DELTA = "select pk, op, tier_key, payload ->> 'val' from modak.delta order by pk"


@pytest.fixture(params=["events", "events_hot"])
def name(request: pytest.FixtureRequest) -> str:
    return f"public.{request.param}"


def test_keys_from_the_cut_line_on_are_refused_in_the_users_terms(connection: Connection, lake: IcebergLake, name: str) -> None:
    register_events(connection, lake)
    with pytest.raises(psycopg.errors.CheckViolation, match=r'no partition of table "public.events" for event_time = 300') as refused:
        connection.execute(f"insert into {name} values (9, 300, 'x')")
    assert "partition" in str(refused.value.diag.message_hint)
    with pytest.raises(psycopg.errors.CheckViolation, match=r"event_time = 5000"):
        connection.execute(f"update {name} set event_time = 5000 where id = 4")
    assert value(connection, "select count(*) from modak.delta") == 0
    assert value(connection, "select event_time from public.events where id = 4") == 210


def test_keys_below_the_cut_line_go_to_spill_and_delta(connection: Connection, lake: IcebergLake, name: str) -> None:
    register_events(connection, lake)
    assert connection.execute(f"insert into {name} values (10, -1, 'a'), (11, -2, 'b'), (12, 250, 'hot')").rowcount == 3
    with connection.cursor().copy(f"copy {name if name.endswith('hot') else 'public.events_hot'} from stdin") as copy:
        copy.write_row((13, -3, "copied"))
    assert rows(connection, DELTA) == [("10", 0, -1, "a"), ("11", 0, -2, "b"), ("13", 0, -3, "copied")]
    assert connection.execute(f"update {name} set val = 'new' where id = 10").rowcount == 1
    assert connection.execute(f"delete from {name} where id = 11").rowcount == 1
    assert rows(connection, DELTA) == [("10", 0, -1, "new"), ("11", 1, -2, None), ("13", 0, -3, "copied")]
    assert rows(connection, f"select id from {name} where event_time < 0 order by id") == [(10,), (13,)]
    versions = [version for (version,) in rows(connection, "select version from modak.delta order by pk")]
    assert versions[0] > versions[2]


def test_rows_move_across_the_line_both_ways(connection: Connection, lake: IcebergLake, name: str) -> None:
    register_events(connection, lake)
    connection.execute(f"update {name} set event_time = -7 where id = 4")
    assert rows(connection, DELTA) == [("4", 0, -7, "hot")]
    connection.execute(f"update {name} set event_time = -9 where id = 4")
    assert rows(connection, DELTA) == [("4", 0, -9, "hot")]
    connection.execute(f"update {name} set event_time = 150 where id = 4")
    assert [row[:2] for row in rows(connection, DELTA)] == [("4", 1)]
    assert value(connection, f"select event_time from {name} where id = 4") == 150
    connection.execute(f"update {name} set event_time = -9, id = 44 where id = 4")
    connection.execute(f"update {name} set id = 45 where id = 44")
    assert [row[:2] for row in rows(connection, DELTA)] == [("4", 1), ("44", 1), ("45", 0)]


def test_a_rolled_back_correction_leaves_no_trace(connection: Connection, dsn: str, lake: IcebergLake) -> None:
    register_events(connection, lake)
    with connect(dsn) as other:
        other.execute("insert into public.events values (10, -1, 'a')")
        other.rollback()
    assert value(connection, "select count(*) from modak.delta") == 0


def test_null_keys_are_refused(connection: Connection, lake: IcebergLake, name: str) -> None:
    register_events(connection, lake)
    with pytest.raises(psycopg.errors.NotNullViolation, match="event_time"):
        connection.execute(f"insert into {name} values (9, null, 'x')")
    with pytest.raises(psycopg.errors.NotNullViolation):
        connection.execute(f"insert into {name} values (null, 10, 'x')")


@pytest.mark.parametrize("column_type", ["timestamptz", "timestamp", "date"])
@pytest.mark.parametrize("key", ["infinity", "-infinity"])
def test_infinite_keys_are_refused(connection: Connection, lake: IcebergLake, column_type: str, key: str) -> None:
    connection.execute(f"create table public.t (id bigint not null, k {column_type}) partition by range (k)")
    connection.execute("create table public.t_1 partition of public.t for values from ('2026-01-01') to ('2026-02-01')")
    register_table(connection, lake, Name("public", "t"), options("k"))
    with pytest.raises(psycopg.errors.DatetimeFieldOverflow, match=r'tier key "k" of "public.t" cannot be infinite'):
        connection.execute("insert into public.t values (1, %s)", [key])


def test_keys_below_the_retention_line_are_refused(connection: Connection, lake: IcebergLake, name: str) -> None:
    register_events(connection, lake)
    connection.execute("update modak.cutline set retention_line = -10")
    connection.execute(f"insert into {name} values (9, -10, 'x')")
    with pytest.raises(psycopg.errors.DatetimeFieldOverflow, match="below the retention line"):
        connection.execute(f"insert into {name} values (10, -11, 'x')")


@pytest.mark.parametrize(
    ("column_type", "key", "canonical"),
    [
        ("timestamptz", "1999-12-31 23:59:59.999999+00", 946684799999999),
        ("timestamp", "0044-03-15 12:00:00.000001 BC", -63517780799999999),
        ("date", "4713-01-01 BC", -2440550),
        ("smallint", "-32768", -32768),
    ],
)
def test_keys_are_canonical_whatever_the_sessions_settings(
    connection: Connection, dsn: str, lake: IcebergLake, column_type: str, key: str, canonical: int
) -> None:
    columns = f"id bigint, k {column_type}, at timestamptz, i interval, primary key (id, k)"
    connection.execute(f"create table public.t ({columns}) partition by range (k)")
    low, high = ("'2026-01-01'", "'2026-02-01'") if "int" not in column_type else ("0", "10")
    connection.execute(f"create table public.t_1 partition of public.t for values from ({low}) to ({high})")
    register_table(connection, lake, Name("public", "t"), options("k", ()))
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("set timezone = 'Asia/Kathmandu'; set datestyle = 'SQL, DMY'; set intervalstyle = 'sql_standard'")
        insert = f"insert into public.t values (1, %s::text::{column_type}, '2026-01-01 00:00+00', '1 day 02:03')"
        other.execute(insert, [key])
    found = rows(connection, "select tier_key, pk, payload ->> 'at', payload ->> 'i' from modak.delta")
    assert [(tier_key, at, interval) for tier_key, _, at, interval in found] == [(canonical, "2026-01-01 00:00:00+00", "1 day 02:03:00")]
    assert found[0][1] == value(connection, "select id::text || chr(31) || k::text from public.t")


def test_a_column_may_be_called_like_anything_inside_the_triggers(connection: Connection, lake: IcebergLake) -> None:
    """The image of a row must be the row, also where a column bears a name that the trigger uses."""
    odd = ["image", "new", "old", "line", "row_key", "floor_line", "d", "c", "table_id", "pk", "op", "version", "payload", "found"]
    odd += ["tg_op", "x y"]
    columns = ", ".join(f'"{column}" text' for column in odd)
    connection.execute(f"create table public.events (id bigint, event_time bigint, {columns}) partition by range (event_time)")
    register_table(connection, lake)
    names = ", ".join(f'"{column}"' for column in odd)
    values = ", ".join(f"'value of {column}'" for column in odd)
    connection.execute(f"insert into public.events (id, event_time, {names}) values (1, -1, {values})")
    connection.execute("update public.events set image = image || '!'")
    payload = value(connection, "select payload from modak.delta")
    assert payload == {"id": 1, "event_time": -1, **{column: f"value of {column}" for column in odd}, "image": "value of image!"}
    connection.execute("delete from public.events")
    assert value(connection, "select op from modak.delta") == 1


def test_many_columns_are_no_limit(connection: Connection, lake: IcebergLake) -> None:
    columns = ", ".join(f"c{number} int default {number}" for number in range(200))
    connection.execute(f"create table public.events (id bigint, event_time bigint, {columns}) partition by range (event_time)")
    register_table(connection, lake)
    connection.execute("insert into public.events (id, event_time) values (1, -1)")
    assert value(connection, "select payload -> 'c199' from modak.delta") == 199


def test_composite_keys_do_not_collide(connection: Connection, lake: IcebergLake) -> None:
    connection.execute("create table public.events (event_time bigint, a text, b text) partition by range (event_time)")
    register_table(connection, lake, EVENTS, options(primary_key=("a", "b")))
    pairs = [("a", "b|c"), ("a|b", "c"), ("a\x1f", "b"), ("a", "\x1fb"), ("\\", ""), ("", "\\"), ("a\\", "b"), ("a", "\\b")]
    for a, b in pairs:
        connection.execute("insert into public.events values (-1, %s, %s)", [a, b])
    assert value(connection, "select count(*) from modak.delta") == len(pairs)
    connection.execute("update public.events set event_time = -2 where a = 'a' and b = 'b|c'")
    assert value(connection, "select count(*) from modak.delta") == len(pairs)


@pytest.mark.parametrize(
    ("column_type", "bounds", "wrong"), [("bigint", (0, 10), ["null"]), ("date", ("2026-01-01", "2026-02-01"), ["null", "'infinity'"])]
)
def test_a_key_that_is_none_is_refused_in_the_users_terms(
    connection: Connection, lake: IcebergLake, column_type: str, bounds: tuple[object, object], wrong: list[str]
) -> None:
    """Also where the tier key is part of the primary key, and an UPDATE looks whether its new key is taken."""
    connection.execute(f"create table public.t (id bigint, k {column_type}, primary key (id, k)) partition by range (k)")
    connection.execute(f"create table public.t_1 partition of public.t for values from ('{bounds[0]}') to ('{bounds[1]}')")
    register_table(connection, lake, Name("public", "t"), options("k", ()))
    low = f"'{bounds[0]}'::{column_type}"
    connection.execute(f"insert into public.t values (1, {low} - 5), (2, {low})")
    for key in (1, 2):
        for bad in wrong:
            with pytest.raises((psycopg.errors.NotNullViolation, psycopg.errors.DatetimeFieldOverflow)) as refused:
                connection.execute(f"update public.t set k = {bad} where id = {key}")
            assert "delta" not in str(refused.value)
    connection.execute(f"update public.t set k = {low} - 6 where id = 1")
    assert value(connection, "select count(*) from public.t") == 2
