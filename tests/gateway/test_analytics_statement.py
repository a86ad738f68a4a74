"""Statements taken apart, and parameters as literals: no database."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from psycopg.adapt import PyFormat, Transformer
from sqlglot import exp

from modak.core.table import Name
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType
from modak.core.type_map import NATIVE, PgType
from modak.gateway.analytics.hot import hot_sql, is_only_hot
from modak.gateway.analytics.in_full import in_full
from modak.gateway.analytics.parameters import bound, data_type, value_text
from modak.gateway.analytics.relations import RegisteredRelation, RelationColumn
from modak.gateway.analytics.seam import Declined, Seam, client_sql
from modak.gateway.analytics.statement import read_statement, taken_apart, with_views
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.parse import parse
from modak.gateway.interception import Parameter
from modak.lake.storage import Storage
from modak.scan.predicate import Predicate


def column(number: int, name: str, base: str, **facts: str) -> RelationColumn:
    return RelationColumn(number, name, PgType(base, base), NATIVE[base], number, 0, -1, **facts)  # type: ignore[arg-type]


EVENTS = RegisteredRelation(
    table_id=1,
    name=Name("public", "events"),
    heap=Name("public", "events_hot"),
    view=Name("public", "events"),
    view_oid=2,
    surface="view",
    mode="tiered",
    primary_key=("id",),
    tier_key="at",
    key_type=TierKeyType.BIGINT,
    columns=(column(1, "id", "int8"), column(2, "at", "int8"), column(3, "note", "text"), column(4, "made", "timestamptz")),
    lake_ref="public.events",
    profile="default",
    storage=Storage("modak", "file:///w", "jdbc", "", {}),
    cold_build=1,
    fingerprint="f",
)


def seam(line: int) -> Seam:
    return Seam(EVENTS, line, 1, "m", None, 0)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("select * from events", [("events",)]),
        ('select * from "Events" e, public.events', [("Events",), ("public", "events")]),
        ("select * from EVENTS a join events b on true", [("events",)]),
        ("with events as (select 1) select * from events", None),
        ("with x as (select * from events), events as (select * from x) select * from events", [("events",)]),
        ("with recursive events as (select 1 union all select * from events) select * from events", None),
        ("with x as (select * from public.x) select * from x", [("public", "x")]),
        ("select * from (with a as (select * from events) select * from a) q, a", [("a",), ("events",)]),
        ("select (select count(*) from o where o.id = e.id) from events e", [("events",), ("o",)]),
        ("select * from events for update", None),
        ("select * into t from events", None),
        ("with d as (delete from events returning *) select * from d", None),
        ("select * from generate_series(1, 2)", None),
        ("select 1", None),
        ("select 1 from events; select 2", None),
    ],
)
def test_which_relations_are_named(sql: str, names: list[tuple[str, ...]] | None) -> None:
    found = read_statement(sql)
    assert (None if found is None else sorted(found.names)) == (None if names is None else sorted(names))


def test_a_function_in_from_is_postgres() -> None:
    found = read_statement("select * from events e, generate_series(1, 2) g")
    assert found is not None
    assert (found.names, found.reason) == ((("events",),), "a function in FROM")


def uses(sql: str, count: int = 1) -> list[tuple[tuple[str, ...], list[tuple[str, str, tuple[str, ...]]]]]:
    _, found = taken_apart(parse(sql), [EVENTS] * count, "UTC")
    return [(use.columns, [(p.column, p.operator, p.values) for p in use.predicates]) for use in found]


def test_columns_and_conditions_of_each_use() -> None:
    assert uses("select count(*) from events") == [((), [])]
    assert uses("select * from events where at < 5") == [(("id", "at", "note", "made"), [("at", "<", ("5",))])]
    assert uses("select id from events where note = 'x' and 3 <= at order by made") == [
        (("id", "at", "note", "made"), [("note", "=", ("x",)), ("at", ">=", ("3",))])
    ]
    assert uses("select a.id, b.note from events a join events b on b.id = a.id and b.at > 7 where a.at = 1", 2) == [
        (("id", "at"), [("at", "=", ("1",))]),
        (("id", "at", "note"), [("at", ">", ("7",))]),
    ]
    assert uses("select e.id from events e where e.at < 5 or e.note = 'x'") == [(("id", "at", "note"), [])]
    assert uses("select a.* from events a join events b using (id)", 2) == [(("id", "at", "note", "made"), []), (("id",), [])]
    assert uses("select x from events e(x) where x = 1") == [(("id", "at", "note", "made"), [])]


def test_outer_joins_keep_conditions_that_null_would_meet() -> None:
    (_, left), (_, right) = uses(
        "select a.id from events a left join events b on b.at = 5 where b.note is null and a.at = 1 and b.id > 2", 2
    )
    assert left == [("at", "=", ("1",))]
    assert right == [("id", ">", ("2",))], "neither IS NULL nor the join's own condition"


def test_a_subquery_has_conditions_of_its_own() -> None:
    outer, inner = uses("select 1 from events e where exists (select 1 from events i where i.id = e.id and i.at = 9) and at < 4", 2)
    assert outer == (("id", "at"), [("at", "<", ("4",))])
    assert inner == (("id", "at"), [("at", "=", ("9",))])


def test_each_use_gets_a_name_and_keeps_its_alias() -> None:
    tree, found = taken_apart(parse("select events.id from public.events, events e"), [EVENTS, EVENTS], None)
    assert [use.name for use in found] == ["modak:0", "modak:1"]
    assert tree.sql("postgres") == 'SELECT events.id FROM "modak:0" AS "events", "modak:1" AS e'


@pytest.mark.parametrize("sql", ["select public.events.id from public.events", "select * from only events"])
def test_what_is_not_taken_apart(sql: str) -> None:
    with pytest.raises(Declined):
        taken_apart(parse(sql), [EVENTS], None)


def test_names_are_replaced_in_the_text() -> None:
    found = read_statement("select events.id, 'events' from public.events, (select * from EVENTS x) y -- events")
    assert found is not None
    assert with_views(found, {}) == found.sql
    numbers = dict(enumerate([EVENTS] * len(found.names)))
    assert with_views(found, numbers) == (
        'select events.id, \'events\' from "public"."events" AS "events", (select * from "public"."events" x) y -- events'
    )


def test_a_statement_is_written_in_full_for_a_session_of_ours() -> None:
    found = read_statement(
        "select E.Val, pg_catalog.lower(val), E'\\\\', 'a''b', 1.5e3 /* no */ from events E where exists (select 1 from public.events)"
    )
    assert found is not None
    view = '"public"."events"'
    assert in_full(found, [EVENTS, EVENTS]) == (
        'SELECT "e"."val", "pg_catalog".lower("val"), \'\\\', \'a\'\'b\', 1.5e3 '
        f'FROM {view} AS "e" WHERE EXISTS(SELECT 1 FROM {view} AS "events")'
    )


@pytest.mark.parametrize(
    "item",
    [
        "evil.f(1)",
        '"evil"."f"(1)',
        "'x'::evil.pair",
        "'x'::evil.pair[]",
        "1 operator(evil.+) 1",
        "(events).f",
        'extract("evil.f(1), epoch" from at)',
    ],
)
def test_no_name_of_others_is_written_in_full(item: str) -> None:
    """Wherever it stands: the translator need not have looked there."""
    found = read_statement(f"select 1 from events where exists (select {item} from events)")
    assert found is not None
    with pytest.raises(Declined):
        in_full(found, [EVENTS, EVENTS])


def test_hot_rows_are_asked_for_with_their_conditions() -> None:
    columns = EVENTS.columns[:1]
    base = 'select "id"::pg_catalog.int8 as c0 from "public"."events_hot"'
    assert hot_sql(seam(100), columns, []) == f"{base} where \"at\" >= '100'"
    assert hot_sql(seam(KEY_MIN), columns, []) == f"{base} where \"at\" >= '{KEY_MIN}'"
    assert hot_sql(seam(KEY_MAX), columns, []) is None
    narrowed = [Predicate("note", "in", ("it's", "b")), Predicate("at", "<", ("150",)), Predicate("made", "is not null")]
    assert hot_sql(seam(100), columns, narrowed) == (
        f"{base} where \"at\" >= '100' and \"note\" in ('it''s'::pg_catalog.\"text\", 'b'::pg_catalog.\"text\")"
        ' and "at" < \'150\'::pg_catalog."int8" and "made" is not null'
    )


@pytest.mark.parametrize(
    ("operator", "values", "below", "above"),
    [
        ("<", ("100",), True, False),
        ("<", ("101",), False, False),
        ("<=", ("99",), True, False),
        ("<=", ("100",), False, False),
        ("=", ("99",), True, False),
        ("=", ("100",), False, True),
        ("in", ("5", "99"), True, False),
        ("in", ("5", "100"), False, False),
        ("in", ("100", "200"), False, True),
        (">=", ("100",), False, True),
        (">=", ("99",), False, False),
        (">", ("100",), False, True),
        ("is not null", (), False, False),
    ],
)
def test_conditions_on_the_tier_key_choose_the_tier(operator: str, values: tuple[str, ...], below: bool, above: bool) -> None:
    predicate = Predicate("at", operator, values)  # type: ignore[arg-type]
    assert (hot_sql(seam(100), EVENTS.columns[:1], [predicate]) is None) is below
    assert is_only_hot(EVENTS, 100, [predicate]) is above


VALUES = [
    (True, 16, "t"),
    (-7, 20, "-7"),
    (32767, 21, "32767"),
    (-(2**31), 23, "-2147483648"),
    ("it's", 25, "it's"),
    (0.1, 701, "0.1"),
    (float("-inf"), 701, "-Infinity"),
    (float("nan"), 701, "NaN"),
    (b"\x00\xff", 17, "\\x00ff"),
    (date(2024, 2, 29), 1082, "2024-02-29"),
    (date(1, 1, 1), 1082, "0001-01-01"),
    (datetime(2024, 2, 29, 1, 2, 3, 400), 1114, "2024-02-29 01:02:03.0004"),
    (datetime(1969, 12, 31, tzinfo=UTC), 1184, "1969-12-31 00:00:00+00"),
    (Decimal("0"), 1700, "0"),
    (Decimal("-1234567.8900"), 1700, "-1234567.8900"),
    (Decimal("0.00001234"), 1700, "0.00001234"),
    (Decimal("120000000000"), 1700, "120000000000"),
    ([1, None, 3], 1016, '{"1",NULL,"3"}'),
    (["a", 'q"\\'], 1009, '{"a","q\\"\\\\"}'),
]


@pytest.mark.parametrize(("value", "oid", "text"), VALUES, ids=[f"{oid}-{text}" for _, oid, text in VALUES])
def test_binary_parameters(value: object, oid: int, text: str) -> None:
    """Encoded by psycopg, which knows the types' binary forms itself."""
    dumper = {20: "!q", 21: "!h", 23: "!i"}.get(oid)
    encoded = struct.pack(dumper, value) if dumper else bytes(Transformer().get_dumper(value, PyFormat.BINARY).dump(value) or b"")
    if oid == 1016:
        encoded = _bigints(value)  # type: ignore[arg-type]
    assert value_text(Parameter(encoded, 1, oid), oid) == text


def _bigints(values: list[int | None]) -> bytes:
    body = b"".join(struct.pack("!i", -1) if value is None else struct.pack("!iq", 8, value) for value in values)
    return struct.pack("!iiIii", 1, 1, 20, len(values), 1) + body


def test_parameters_become_typed_literals() -> None:
    tree = bound(
        parse("select $1::date, id from t where a = $2 and b = any ($3)"), [_text("x"), _text(None), _text("{1}")], [1184, 25, 1016]
    )
    assert tree.sql("postgres") == (
        "SELECT CAST(CAST('x' AS TIMESTAMPTZ) AS DATE), id FROM t WHERE a = CAST(NULL AS TEXT) AND b = ANY(CAST('{1}' AS BIGINT[]))"
    )
    assert not list(tree.find_all(exp.Parameter))


def _text(value: str | None) -> Parameter:
    return Parameter(None if value is None else value.encode(), 0, 0)


def test_parameters_of_other_types_are_refused() -> None:
    with pytest.raises(Untranslatable, match="type 600"):
        data_type(600)
    with pytest.raises(Untranslatable, match="has no value"):
        bound(parse("select $2"), [_text("x")], [25])
    with pytest.raises(Untranslatable, match="length"):
        value_text(Parameter(b"\0", 1, 20), 20)
    with pytest.raises(Untranslatable, match="infinite"):
        value_text(Parameter(struct.pack("!q", 2**63 - 1), 1, 1184), 1184)
    with pytest.raises(Untranslatable, match="UTF-8"):
        value_text(Parameter(b"\xff", 0, 25), 25)


def test_the_question_to_a_client_quotes_names() -> None:
    asked = client_sql([("public", "o\"d'd")], ["lower"], may_export=False)
    assert 'to_regclass(\'"public"."o""d\'\'d"\')' in asked
    assert "pg_export_snapshot" not in asked
