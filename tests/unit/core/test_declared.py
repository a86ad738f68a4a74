"""What travels with an Iceberg table of Postgres's own types and defaults, and what is not honoured."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.core.test_decoupled import column as given_column
from tests.unit.core.test_decoupled import given

from modak.core.declared import PROPERTY, Declared, column_of, named, read, text_of, travels
from modak.core.decoupled import DecoupledColumn
from modak.errors import Problem
from modak.lake.decoupled import properties_of


def column(kind: str, base: str, field_id: int = 1, **more: Any) -> DecoupledColumn:
    return DecoupledColumn.parse(given_column(f"c{field_id}", base, kind, field_id=field_id, **more))


# Kinds as format_type writes them, with the Iceberg type that each is kept in.
KINDS = {
    "boolean": "boolean", "smallint": "int", "integer": "int", "bigint": "long", "real": "float", "double precision": "double",
    "numeric(12,3)": "decimal(12,3)", "numeric(38,0)": "decimal(38,0)", "text": "string", "character varying": "string",
    "character varying(3)": "string", "character(5)": "string", "bpchar": "string", "bytea": "binary", "uuid": "uuid", "date": "date",
    "time without time zone": "string", "time(3) without time zone": "string", "timestamp without time zone": "timestamp",
    "timestamp(0) with time zone": "timestamptz", "interval": "string", "interval(2)": "string", "interval day to second(3)": "string",
    "interval year to month": "string", "json": "string", "jsonb": "string",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_comes_back_as_it_was_declared(kind: str) -> None:
    pg = named(kind)
    assert pg is not None
    one = DecoupledColumn.parse(given_column("c", pg.base, kind, modifier=pg.modifier, field_id=4))
    found, told = column_of(KINDS[kind], read(text_of([one])).get(4))
    assert not isinstance(found, Problem)
    assert (found["type"], told) == (kind, [])
    assert found["modifier"] == pg.modifier
    # And is the same column again, once it is attached.
    again = DecoupledColumn.parse({"name": "c", "field_id": 4, **found})
    assert (again.pg, again.lake) == (one.pg, one.lake)


def test_only_what_iceberg_does_not_say_is_said() -> None:
    plain = [column("bigint", "int8", 1), column("text", "text", 2), column("timestamp with time zone", "timestamptz", 3)]
    assert text_of(plain) is None
    more = [*plain, column("smallint", "int2", 4), column("text", "text", 5, default="'new'")]
    assert json.loads(text_of(more) or "") == {"4": {"type": "smallint"}, "5": {"default": "'new'"}}


def test_the_property_is_one_of_the_tables() -> None:
    from modak.core.decoupled import Definition

    definition = Definition.parse(given(given_column("id", "int8", "bigint"), given_column("doc", "jsonb")))
    assert json.loads(properties_of(definition)[PROPERTY]) == {"2": {"type": "jsonb"}}
    assert PROPERTY not in properties_of(Definition.parse(given(given_column("id", "int8", "bigint"))))


@pytest.mark.parametrize(
    ("declared", "iceberg", "kind"),
    [
        ("smallint", "long", "bigint"),
        ("integer", "long", "bigint"),
        ("real", "double", "double precision"),
        ("numeric(10,2)", "decimal(12,2)", "numeric(12,2)"),
        ("jsonb", "binary", "bytea"),
        ("time without time zone", "time", "time without time zone"),
    ],
)
def test_what_was_widened_since_has_the_type_of_the_lake(declared: str, iceberg: str, kind: str) -> None:
    found, told = column_of(iceberg, Declared(type=declared))
    assert not isinstance(found, Problem)
    assert (found["type"], told) == (kind, [])


@pytest.mark.parametrize("strange", ["public.mood", "mood", "money", "numeric", "numeric(99,0)", "integer not null", "interval not null"])
def test_a_type_that_is_not_known_is_told(strange: str) -> None:
    found, told = column_of("string", Declared(type=strange))
    assert not isinstance(found, Problem)
    assert found["type"] == "text"
    assert told == [f"its type {strange} is not known here, and it is text"]


@pytest.mark.parametrize(
    "hostile",
    ["text); drop table x; --", 'text collate "C"', "text default (1)", "int,b int", "text options (a 'x')", "", " ", "TEXT", "a" * 5000],
)
def test_nothing_but_a_type_goes_into_a_statement(hostile: str) -> None:
    found, told = column_of("string", Declared(type=hostile))
    assert not isinstance(found, Problem)
    assert found["type"] == "text"
    assert told
    assert max(map(len, told)) < 200


@pytest.mark.parametrize("text", [None, "", "no json", "[1]", "null", "7", '{"1": 3, "x": {"type": "jsonb"}, "-1": {}}', "[" * 100_000])
def test_what_is_not_ours_is_passed_over(text: str | None) -> None:
    assert read(text) == {}


def test_parts_that_are_not_ours_are_passed_over() -> None:
    text = json.dumps({"1": {"type": 7, "default": ["x"], "later": True}, "2": {"type": "jsonb"}})
    assert read(text) == {1: Declared(), 2: Declared(type="jsonb")}
    assert column_of("long", Declared()) == column_of("long", None)
    assert isinstance(column_of("list<int>", Declared(type="jsonb"))[0], Problem)


@pytest.mark.parametrize(
    "default",
    [
        "0", "-1.5", "1e-3", "'new'", "'it''s'", "true", "NULL", "now()", "CURRENT_TIMESTAMP", "now() + interval '1 day'", "'{}'::jsonb",
        "gen_random_uuid()", "'x'::character varying", "(now() at time zone 'utc')", "pg_catalog.now()", "date '2020-01-01'",
        "cast('7' as integer)", "date_trunc('day', now())", "'a' || 'b'", "'; drop table x'",
    ],
)  # fmt: skip
def test_defaults_that_mean_the_same_everywhere(default: str) -> None:
    assert travels(default)
    found, told = column_of("string", Declared(default=default))
    assert not isinstance(found, Problem)
    assert (found["default"], told) == (default, [])


@pytest.mark.parametrize(
    "default",
    [
        "nextval('public.a_sequence')", "public.f()", "pg_read_file('/etc/passwd')", "lo_import('/x')", "set_config('role', 'x', false)",
        "1) , alter column id set default (2", "(1", "1)", ")(", "1 -- x", "1 /* x */", "1; select 1", "$$x$$", "e'\\\\'", "'open",
        '"now"()', "", " ", "'" + "x" * 2000 + "'", "query_to_xml('delete from x', true, true, '')", "current_setting('x')",
    ],
)  # fmt: skip
def test_a_default_that_could_do_something_stays_behind(default: str) -> None:
    assert not travels(default)
    found, told = column_of("string", Declared(default=default))
    assert not isinstance(found, Problem)
    assert "default" not in found
    assert len(told) == 1


def test_its_size_is_bounded() -> None:
    """Whatever people declare: each commit writes it anew."""
    long = [column("text", "text", number, default="'" + "x" * 900 + "'") for number in range(1, 1601)]
    too_long = column("text", "text", 1, default="'" + "x" * 2000 + "'")
    assert text_of([too_long]) is None
    assert len(text_of(long) or "") < 60_000
    wide = [column("timestamp(3) without time zone", "timestamp", number) for number in range(1, 1601)]
    assert len(text_of(wide) or "") < 100_000
    assert len(read(text_of(wide))) == 1600
