"""Predicates for pruning are the simple conditions, in the column's own type, and never more than the condition says."""

from __future__ import annotations

import pytest

from modak.core.type_map import PgType, lake_type
from modak.errors import Problem
from modak.gateway.dialect.predicates import predicates
from modak.gateway.dialect.remote import parse_remote, substitute
from modak.scan.predicate import Columns, ColumnType


def column(base: str, modifier: int = -1, kind: str = "b", namespace: str = "pg_catalog") -> ColumnType:
    pg = PgType(base, base, modifier=modifier, kind=kind, namespace=namespace)
    lake = lake_type(pg)
    assert not isinstance(lake, Problem)
    return ColumnType(pg, lake)


COLUMNS: Columns = {
    "a": column("int4"),
    "b": column("int8"),
    "n": column("numeric", ((10 << 16) | 2) + 4),
    "f": column("float8"),
    "g": column("float4"),
    "t": column("text"),
    "c": column("bpchar", 9),
    "d": column("date"),
    "ts": column("timestamp"),
    "tz": column("timestamptz"),
    "u": column("uuid"),
    "ba": column("bytea"),
    "flag": column("bool"),
    "e": column("mood", kind="e", namespace="public"),
    "j": column("jsonb"),
    "nu": column("numeric"),
}

CASES: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "a = 5": [("a", "=", ("5",))],
    "5 > a": [("a", "<", ("5",))],
    "a <> 5": [],
    "a < (-5)::bigint": [("a", "<", ("-5",))],
    "a = 3000000000": [],
    "a = 5.0": [("a", "=", ("5",))],
    "a < 5.5": [],
    "a = '7'": [("a", "=", ("7",))],
    "a = NULL": [],
    "a IN (1, 2, NULL, 1)": [("a", "in", ("1", "2"))],
    "a IN (1, b)": [],
    "a NOT IN (1, 2)": [],
    "b = ANY ('{1,2,NULL}'::bigint[])": [("b", "in", ("1", "2"))],
    "b = ANY (ARRAY[1, 2])": [("b", "in", ("1", "2"))],
    "b <> ALL ('{1,2}'::bigint[])": [],
    "b < ANY ('{1,2}'::bigint[])": [],
    "a BETWEEN 1 AND 9": [("a", ">=", ("1",)), ("a", "<=", ("9",))],
    "a NOT BETWEEN 1 AND 9": [],
    "(a = 1 AND b > 2)": [("a", "=", ("1",)), ("b", ">", ("2",))],
    "(a = 1) OR (a = 2) OR a IN (3)": [("a", "in", ("1", "2", "3"))],
    "(a = 1) OR (b = 2)": [],
    "(a = 1) OR (a > 2)": [],
    "(a = 1) OR (a = 2 AND b = 1)": [],
    "(NOT ((a = 1)))": [],
    "a IS NULL": [("a", "is null", ())],
    "a IS NOT NULL": [("a", "is not null", ())],
    "NOT (a IS NULL)": [("a", "is not null", ())],
    "a IS NOT DISTINCT FROM 5": [("a", "=", ("5",))],
    "a IS DISTINCT FROM 5": [],
    "j IS NULL": [("j", "is null", ())],
    "a + 1 = 5": [],
    "a = 4 + 1": [],
    "d < date '2020-01-01' + 1500": [("d", "<", ("2024-02-09",))],
    "d >= ('2024-03-01'::date - 1)": [("d", ">=", ("2024-02-29",))],
    "d = date '0001-01-01' - 1": [("d", "=", ("0001-12-31 BC",))],
    "d < date '2020-01-01' + 99999999999": [],
    "d < date 'infinity' + 1": [],
    "d < date '2020-01-01' + interval '1 day'": [],
    "d < date '2020-01-01' + NULL": [],
    "tz < date '2020-01-01' + 1": [("tz", "<", ("2020-01-02 00:00:00+00",))],
    "a = b": [],
    "n = 1.5": [("n", "=", ("1.50",))],
    "n = 1.505": [],
    "n > 3": [("n", ">", ("3.00",))],
    "n = 99999999999": [],
    "nu = 1": [],
    "f = 1.5": [("f", "=", ("1.5",))],
    "f < 1.5": [("f", "<", ("1.5",))],
    "f > 1.5": [],
    "f >= 1.5": [],
    "f = 'NaN'": [],
    "f < 'NaN'": [],
    "g = 0.1": [],
    "g = 0.5": [("g", "=", ("0.5",))],
    "g = 0.1::real": [("g", "=", ("0.1",))],
    "t = 'x'": [("t", "=", ("x",))],
    "t = 'x'::text": [("t", "=", ("x",))],
    "t IN ('x', 'y''z')": [("t", "in", ("x", "y'z"))],
    "t > 'x'": [],
    "t LIKE 'x%'": [],
    "t = E'a\\\\b'": [("t", "=", ("a\\b",))],
    "c = 'ab  '": [("c", "=", ("ab",))],
    "c = 'ab  '::text": [],
    "d >= '2026-01-01'": [("d", ">=", ("2026-01-01",))],
    "d = '2026-01-01'::timestamp": [],
    "d = 'today'": [],
    "d = '0044-03-15 BC'": [("d", "=", ("0044-03-15 BC",))],
    "ts < '2026-01-01'::date": [("ts", "<", ("2026-01-01 00:00:00",))],
    "ts < '2026-01-01 12:00:00.5'": [("ts", "<", ("2026-01-01 12:00:00.5",))],
    "tz < '2026-01-01 01:00:00+01'::timestamp with time zone": [("tz", "<", ("2026-01-01 00:00:00+00",))],
    "tz < '2026-01-01 00:00:00-05:30'": [("tz", "<", ("2026-01-01 05:30:00+00",))],
    "tz < 'infinity'": [],
    "u = 'ABCDEF00-0000-0000-0000-000000000000'": [("u", "=", ("abcdef00-0000-0000-0000-000000000000",))],
    "u < 'ABCDEF00-0000-0000-0000-000000000000'": [],
    "ba = '\\xAB'": [("ba", "=", ("\\xab",))],
    "flag": [("flag", "=", ("t",))],
    "NOT flag": [("flag", "=", ("f",))],
    "flag = false": [("flag", "=", ("f",))],
    "flag IS TRUE": [("flag", "=", ("t",))],
    "flag IS NOT TRUE": [],
    "e = 'happy'": [("e", "=", ("happy",))],
    "e > 'happy'": [],
    "j = '{}'": [],
    "lower(t) = 'x'": [],
}


@pytest.mark.parametrize("condition", CASES)
def test_a_condition_becomes(condition: str) -> None:
    scan = parse_remote(f"SELECT a FROM t WHERE (({condition}))")
    assert [(item.column, item.operator, item.values) for item in predicates(scan.conjuncts, COLUMNS)] == CASES[condition]


def test_a_session_elsewhere_skips_what_depends_on_it() -> None:
    scan = parse_remote("SELECT a FROM t WHERE tz < '2026-01-01' AND tz > '2025-01-01 00:00:00+00' AND tz >= '2026-01-01'::date")
    found = predicates(scan.conjuncts, COLUMNS, timezone="Europe/Berlin")
    assert [(item.operator, item.values) for item in found] == [(">", ("2025-01-01 00:00:00+00",))]


def test_a_placeholder_refutes_nothing() -> None:
    scan = substitute(parse_remote("SELECT a FROM t WHERE ((a = ((SELECT null::int)::int))) AND ((b = 1))"), [])
    assert [item.column for item in predicates(scan.conjuncts, COLUMNS)] == ["b"]
