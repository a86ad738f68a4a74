"""Every type of the type map by copy and by stream: the same value in the lake."""

from __future__ import annotations

from typing import Any

import pytest
from tests.mirroring import copy, lake_rows, problem, pump, start, state
from tests.support import has_xml

from modak.app import App
from modak.connection import Connection
from modak.core.table import Name

pytestmark = pytest.mark.inline
T = Name("public", "things")
World = tuple[App, Connection]

COLUMNS = {
    "a_bool": ("boolean", ["true", "false"]),
    "a_int2": ("smallint", ["-32768", "32767"]),
    "a_int4": ("integer", ["-2147483648", "2147483647"]),
    "a_int8": ("bigint", ["-9223372036854775808", "9223372036854775807"]),
    "a_float4": ("real", ["'NaN'", "1e-45", "'-Infinity'", "0.1"]),
    "a_float8": ("double precision", ["'NaN'", "5e-324", "'Infinity'", "0.1", "-0.0"]),
    "a_numeric": ("numeric(20,4)", ["1.5", "-9999999999999999.9999"]),
    "a_wide": ("numeric", ["1.50", "'NaN'", "1e50"]),
    "a_text": ("text", ["''", "'ü€𝄞'", "E'a\\nb\\tc\\\\'"]),
    "a_varchar": ("varchar(20)", ["'x  '"]),
    "a_char": ("char(8)", ["'x'", "''"]),
    "a_bytea": ("bytea", ["'\\x'", "'\\x00ff'"]),
    "a_uuid": ("uuid", ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"]),
    "a_date": ("date", ["'2026-02-28'", "'0044-03-15 BC'", "'9999-12-31'", "'0001-01-01'"]),
    "a_time": ("time", ["'24:00'", "'01:02:03.000004'"]),
    "a_timestamp": ("timestamp", ["'2026-02-28 01:02:03.456789'", "'0001-01-01 00:00:00'"]),
    "a_timestamptz": ("timestamptz", ["'2026-02-28 01:02:03.4+05:30'", "'1969-12-31 23:59:59.999999Z'"]),
    "a_interval": ("interval", ["'1 year -2 days 03:04:05.6'"]),
    "a_json": ("json", ["'{\"a\" : 1}'"]),
    "a_jsonb": ("jsonb", ['\'{"b": [1,2], "a": null}\'']),
    "a_oid": ("oid", ["4294967295"]),
    "a_inet": ("inet", ["'10.0.0.1'", "'10.0.0.0/8'", "'::1'"]),
    "a_cidr": ("cidr", ["'10.0.0.0/8'", "'10.1.1.1'"]),
    "a_array": ("int[]", ["'{1,NULL,3}'", "'{}'"]),
    "a_times": ("timestamptz[]", ["array[timestamptz '2026-01-01 00:00+02']"]),
    "a_range": ("int4range", ["'[1,5)'", "'empty'"]),
    "a_enum": ("public.mood", ["'sad'", "'happy'"]),
    "a_domain": ("public.small", ["5"]),
    "a_fixed": ("public.code", ["'ab'"]),
    "a_bit": ("bit varying(9)", ["B'1010'"]),
    "a_name": ("name", ["'someone'"]),
    "a_letter": ('"char"', ["'x'"]),
    "a_xml": (
        "xml",
        [
            "'<a>b</a>'",
            '\'<?xml version="1.0" encoding="UTF-8"?><a/>\'',
            '\'<?xml version="1.0" standalone="yes"?>\n<a/>\'',
            "'just text'",
        ],
    ),
    "a_xmls": ("xml[]", ["array['<?xml version=\"1.0\"?><a/>'::xml]"]),
    "a_flags": ("boolean[]", ["'{t,f,NULL}'"]),
    "a_pair": ("public.yes", ["true"]),
}


def create(connection: Connection) -> None:
    connection.execute("create type mood as enum ('sad', 'happy')")
    connection.execute("create domain small as int check (value < 100)")
    connection.execute("create domain code as char(6)")
    connection.execute("create domain yes as boolean")
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    connection.execute(f"create table things (id int primary key, {columns})")


def fill(connection: Connection, first: int) -> int:
    """Each value once, in a row of NULLs, and a row of nothing else."""
    number = first
    for name, (kind, values) in COLUMNS.items():
        for value in values if has_xml(connection) or not kind.startswith("xml") else ():
            connection.execute(f"insert into things (id, {name}) values ({number}, {value})")
            number += 1
    connection.execute(f"insert into things (id) values ({number})")
    return number + 1 - first


@pytest.mark.parametrize("as_text", [(), tuple(COLUMNS)], ids=["native", "as text"])
def test_copy_and_stream_bring_the_same(mirrored: World, as_text: tuple[str, ...]) -> None:
    app, connection = mirrored
    create(connection)
    count = fill(connection, 1)
    start(app, connection, T, text_columns=as_text)
    fill(connection, 1001)
    connection.execute("insert into things select * from things where false")
    done = pump(app, connection)
    assert not done.parked
    rows = {row.pop("id"): row for row in lake_rows(app, connection, T, exact=True)}
    assert len(rows) == 2 * count
    for number in range(1, count + 1):
        assert repr(rows[number]) == repr(rows[number + 1000])
    if as_text:
        _reads_as_before(connection, rows)


def _reads_as_before(connection: Connection, rows: dict[int, dict[str, Any]]) -> None:
    """Cast back, the text is the value that the heap has: as the way that a tiered row is read."""
    for name, (kind, _) in COLUMNS.items():
        for number, row in rows.items():
            if row[name] is None:
                continue
            found = connection.execute(
                f"select concat({name}) = concat(%s::{kind}) as is_same from things where id = %s",  # type: ignore[arg-type]
                [row[name], number],
            ).fetchone()
            assert found == {"is_same": True}, (name, row[name])


@pytest.mark.parametrize(
    ("column", "value"),
    [("a_date", "'infinity'"), ("a_timestamptz", "'-infinity'"), ("a_numeric", "'NaN'"), ("a_timestamp", "'294276-12-31'")],
)
def test_a_value_that_the_lake_cannot_hold_parks_the_table(mirrored: World, column: str, value: str) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    connection.execute(f"insert into things (id, {column}) values (1, {value})")
    assert list(pump(app, connection).parked) == ["public.things"]
    assert column in problem(connection, T)
    assert state(connection, T).is_parked


def test_a_renamed_label_is_noticed_and_an_added_one_is_not(mirrored: World) -> None:
    """Every row of the heap has the new label, and the stream does not say a word."""
    app, connection = mirrored
    connection.execute("create type mood as enum ('sad', 'happy')")
    connection.execute("create domain feeling as mood")
    connection.execute("create table things (id int primary key, now mood, earlier mood[], deep feeling)")
    connection.execute("insert into things values (1, 'sad', '{happy,sad}', 'happy')")
    start(app, connection, T)
    connection.execute("alter type mood add value 'calm' before 'happy'")
    connection.execute("insert into things values (2, 'calm')")
    assert not pump(app, connection).parked
    connection.execute("alter table things add column note text")
    connection.execute("insert into things values (3, 'sad')")
    assert not pump(app, connection).parked
    for old, new in (("calm", "quiet"), ("happy", "glad")):
        connection.execute(f"alter type mood rename value '{old}' to '{new}'")
        connection.execute("insert into things (id) select max(id) + 1 from things")
        assert list(pump(app, connection).parked) == ["public.things"]
        assert f"label '{old}' of an enum was renamed to '{new}'" in problem(connection, T)
        copy(app, T, again=True)
        assert not pump(app, connection).parked
    heap = connection.execute("select id, now::text, earlier::text, deep::text, note from things order by id").fetchall()
    assert sorted(lake_rows(app, connection, T), key=lambda row: int(row["id"])) == heap
