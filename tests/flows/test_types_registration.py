"""Every type of SCENARIOS 100 at registration: kept natively, kept as text, or refused with the list of what is supported."""

from __future__ import annotations

import pytest
from tests.support import EVENTS, codes, has_xml, options, register_table, rows, value

from modak.connection import Connection
from modak.errors import Refused
from modak.lake.iceberg import IcebergLake

SETUP = """
    create type public.mood as enum ('good', 'bad');
    create type public.pair as (a int, b text);
    create domain public.whole as integer check (value > 0);
    create domain public.price as numeric(20, 5);
    create domain public.named as public.price not null;
    create domain public.pairs as public.pair;
    create type public.span as range (subtype = timestamptz);
"""

# type of the column: type in the lake; a * marks what is kept as text and cast back
ACCEPTED = {
    "boolean": "boolean", "smallint": "int", "integer": "int", "bigint": "long", "real": "float", "double precision": "double",
    "numeric(20,5)": "decimal(20, 5)", "numeric(38,0)": "decimal(38, 0)", "numeric(38,38)": "decimal(38, 38)",
    "numeric(5)": "decimal(5, 0)",
    "numeric": "string*", "numeric(39,0)": "string*", "numeric(5,-2)": "string*", "numeric(3,5)": "string*",
    "date": "date", "timestamp": "timestamp", "timestamptz": "timestamptz", "timestamp(3)": "timestamp", "timestamptz(0)": "timestamptz",
    "time": "string", "timetz": "string*", "interval": "string", "interval day to second": "string",
    "text": "string", "varchar(8)": "string", "char(10)": "string", "name": "string*", '"char"': "string*",
    "bytea": "binary", "uuid": "uuid", "json": "string", "jsonb": "string", "oid": "long",
    "public.mood": "string*", "public.whole": "int", "public.price": "decimal(20, 5)", "public.named": "decimal(20, 5)",
    "integer[]": "string*", "text[][]": "string*", "public.mood[]": "string*", "numeric(5,2)[]": "string*", "public.whole[]": "string*",
    "inet": "string*", "cidr": "string*", "macaddr": "string*", "macaddr8": "string*", "bit(3)": "string*", "bit varying": "string*",
    "int4range": "string*", "tstzrange": "string*", "public.span": "string*", "int4multirange": "string*", "datemultirange[]": "string*",
    "tsvector": "string*", "tsquery": "string*", "xml": "string*", "jsonpath": "string*", "pg_lsn": "string*", "xid8": "string*",
    "point": "string*", "box": "string*", "polygon": "string*", "circle": "string*", "int2vector": "string*", "oidvector": "string*",
}  # fmt: skip

REFUSED = {
    "public.pair": "composite", "public.pair[]": "composite", "public.pairs": "composite", "public.pairs[]": "composite",
    "pg_catalog.pg_class": "composite", "money": "lc_monetary", "money[]": "lc_monetary", "regclass": "renamed", "regtype": "renamed",
    "regrole": "renamed", "regnamespace": "renamed", "regproc[]": "renamed", "aclitem": "renamed", "tid": "not a value",
    "refcursor": "session",
}  # fmt: skip


def create(connection: Connection, column_types: list[str]) -> None:
    columns = ", ".join(f"c{number} {column_type}" for number, column_type in enumerate(column_types))
    connection.execute(SETUP)
    connection.execute(f"create table public.events (id bigint, event_time bigint, {columns}) partition by range (event_time)")


def lake_types(lake: IcebergLake) -> list[str]:
    return [str(field.field_type) for field in lake.catalog.load_table(("public", "events")).schema().fields][2:]


def test_every_accepted_type_has_its_lake_type(connection: Connection, lake: IcebergLake) -> None:
    types = list(ACCEPTED)
    create(connection, types)
    register_table(connection, lake)
    assert dict(zip(types, lake_types(lake), strict=True)) == {name: kept.rstrip("*") for name, kept in ACCEPTED.items()}


def test_every_refused_type_is_named_with_its_reason_in_one_message(connection: Connection, lake: IcebergLake) -> None:
    types = list(REFUSED)
    create(connection, types)
    with pytest.raises(Refused) as refused:
        register_table(connection, lake)
    assert codes(refused.value) == ["type"] * len(types)
    for number, (problem, reason) in enumerate(zip(refused.value.problems, REFUSED.values(), strict=True)):
        assert f"column c{number}: type " in problem.message
        assert reason in problem.message
        assert "supported: boolean" in str(problem.hint)
    assert lake.find("public.events") is None


def test_as_text_forces_text_and_saves_no_refused_type(connection: Connection, lake: IcebergLake) -> None:
    create(connection, ["bigint", "timestamptz", "bytea", "money"])
    with pytest.raises(Refused, match="column c3"):
        register_table(connection, lake, EVENTS, options(text_columns=("c0", "c1", "c2", "c3")))
    connection.execute("alter table public.events drop column c3")
    table = register_table(connection, lake, EVENTS, options(text_columns=("c0", "c1", "c2")))
    assert lake_types(lake) == ["string"] * 3
    assert table.text_cols == ("c0", "c1", "c2")


def test_dropped_columns_leave_no_hole(connection: Connection, lake: IcebergLake) -> None:
    create(connection, ["text", "money", "uuid"])
    connection.execute("alter table public.events drop column c1")
    register_table(connection, lake)
    assert lake_types(lake) == ["string", "uuid"]


CONTRIB = {"hstore": "hstore", "citext": "citext", "ltree": "ltree", "cube": "cube", "isn": "isbn13", "intarray": "query_int", "seg": "seg"}


def test_extension_types_are_kept_as_text(connection: Connection, lake: IcebergLake) -> None:
    there = {name for (name,) in rows(connection, "select name from pg_available_extensions")}
    found = {extension: column_type for extension, column_type in CONTRIB.items() if extension in there}
    assert found, "this server has no contrib extension at all, so their types cannot be tested; on Debian they come with the server"
    connection.execute("create schema ext")
    for extension in found:
        connection.execute(f"create extension {extension} schema ext")
    create(connection, [f"ext.{column_type}" for column_type in found.values()])
    register_table(connection, lake)
    assert lake_types(lake) == ["string"] * len(found)


ROUND_TRIPS = [
    ("boolean", ["true", "false"]),
    ("smallint", ["-32768", "32767"]),
    ("bigint", ["-9223372036854775808", "9223372036854775807"]),
    ("real", ["1.5", "-0", "NaN", "Infinity", "-Infinity", "3.4028235e38", "1e-45"]),
    ("double precision", ["0.1", "-0", "NaN", "Infinity", "2.2250738585072014e-308", "1.7976931348623157e308"]),
    ("numeric(20,5)", ["123.45", "NaN", "-999999999999999.99999"]),
    ("numeric", ["0.1000000000000000000000000000001", "NaN", "Infinity", "1e100", "1.00"]),
    ("date", ["4713-01-01 BC", "0044-03-15 BC", "9999-12-31", "5874897-12-31", "infinity", "-infinity"]),
    ("timestamp", ["4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999", "infinity", "1969-12-31 23:59:59.999999"]),
    ("timestamptz", ["2026-03-29 02:30:00.000001+00", "294276-12-31 23:59:59.999999+00", "-infinity", "0044-03-15 12:00+00 BC"]),
    ("time", ["24:00", "00:00:00.000001"]),
    ("timetz", ["12:00+05:45", "24:00-15:59"]),
    ("interval", ["1 day 2 hours", "-1 mons +3 days -00:00:00.000001", "178000000 years"]),
    ("text", ["", "ünïcödé 🎉", "\x1f\\'\"", "x" * 1_000_000]),
    ("char(10)", ["hello", ""]),
    ("bytea", ["\\xdeadbeef", "\\x", "\\x00ff"]),
    ("uuid", ["00000000-0000-0000-0000-000000000000"]),
    ("json", ['{"k": 1,  "k": 2}', "null"]),
    ("jsonb", ['{"k": 1.00}', "null", '"\\u00e9"']),
    ("public.mood", ["bad"]),
    ("integer[]", ["{}", "{1,NULL,3}", "[0:1]={1,2}", "{{1,2},{3,4}}"]),
    ("text[]", ['{"a,b","\\"q\\"",NULL,"NULL",""}']),
    ("tstzrange", ["empty", "(,)", '["2026-01-01 00:00+02",infinity)']),
    ("inet", ["10.0.0.1/8", "::1"]),
    ("oid", ["4294967295"]),
    ("xml", ["<a>&amp;</a>"]),
    ("tsvector", ["'a':1A 'b c':2"]),
]


@pytest.mark.parametrize(("column_type", "texts"), ROUND_TRIPS, ids=[column_type for column_type, _ in ROUND_TRIPS])
def test_the_image_of_a_value_casts_back_to_the_same_value(
    connection: Connection, dsn: str, lake: IcebergLake, column_type: str, texts: list[str]
) -> None:
    """The first half of the round trip: heap → delta's row image → the column's type again, under a strange session."""
    import psycopg

    create(connection, [column_type])
    register_table(connection, lake)
    with psycopg.connect(dsn, autocommit=True) as other:
        for number, text in enumerate([*(texts if column_type != "xml" or has_xml(connection) else []), None]):
            other.execute(f"insert into public.events values ({number}, -1, %s::text::{column_type})", [text])
        other.execute("set timezone = 'Pacific/Apia'; set datestyle = 'German'; set intervalstyle = 'iso_8601'; set extra_float_digits = 0")
        other.execute("set bytea_output = 'escape'; update public.events set event_time = -2")
    # Compared in their binary form: = takes -0 for 0 and 1.0 for 1.00, and json has no = at all.
    differing = rows(
        connection,
        f"""select e.id, e.c0::text, d.payload -> 'c0' from public.events e join modak.delta d on d.pk = e.id::text
             where e.c0::text is distinct from (d.payload ->> 'c0')::{column_type}::text""",
    )
    assert differing == []
    assert value(connection, "select count(*) from modak.delta where payload ->> 'c0' is null") == 1


def test_a_users_own_cast_to_text_is_neither_the_value_nor_run_for_him(connection: Connection, lake: IcebergLake) -> None:
    """The triggers run with the rights of whoever registered; a cast of the table's owner must not run inside them."""
    connection.execute("""
        create type public.mood as enum ('good', 'bad');
        create table public.ran_as (who text);
        create function public.cast_it(public.mood) returns text language plpgsql as
            $$ begin insert into public.ran_as values (current_user); return 'forged'; end $$;
        create cast (public.mood as text) with function public.cast_it(public.mood);
        create table public.events (id bigint, event_time bigint, m public.mood, ms public.mood[]) partition by range (event_time);
    """)
    register_table(connection, lake)
    connection.execute("insert into public.events values (1, -1, 'good', '{good,bad,NULL}'), (2, -1, null, null)")
    assert rows(connection, "select payload ->> 'm', payload ->> 'ms' from modak.delta order by pk") == [
        ("good", "{good,bad,NULL}"),
        (None, None),
    ]
    assert rows(connection, "select who from public.ran_as") == []
