"""The translator's parts that need no database: parsing, literals, numbers, messages."""

from __future__ import annotations

import math

import pytest

from modak.core.type_map import TEXT, PgType
from modak.gateway.dialect.arrays import array_elements
from modak.gateway.dialect.errors import Untranslatable, runtime_problem
from modak.gateway.dialect.functions import float4_text, float8_text, numeric_div, numeric_key, numeric_round
from modak.gateway.dialect.literals import literal
from modak.gateway.dialect.output import text_sql
from modak.gateway.dialect.parse import parse, parse_expression
from modak.gateway.dialect.types import SqlType, column_type, declared_type, numeric
from modak.scan.predicate import ColumnType


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1_000",
        "SELECT 0x1F",
        "SELECT U&'a'",
        "SELECT N'a'",
        "SELECT B'1'",
        "SELECT E'\\101'",
        "SELECT " + "x" * 64,
        "SELECT 1; SELECT 2",
        "SELECT (",
        "",
    ],
)
def test_what_may_mean_something_else_is_not_parsed(sql: str) -> None:
    with pytest.raises(Untranslatable):
        parse(sql)


@pytest.mark.parametrize("sql", ["a < b < c", "a = b = c", "a BETWEEN 1 AND 2 BETWEEN b AND c", "a IN (1) IN (true)"])
def test_comparisons_do_not_chain(sql: str) -> None:
    with pytest.raises(Untranslatable):
        parse_expression(sql)


@pytest.mark.parametrize(
    "sql", ["a + b * c", "(a < b) = c", "NOT a = b", "- a::int", "a || b LIKE c", "a = b IS NULL", "a AND b OR NOT c", "a - b - c"]
)
def test_postgres_and_the_parser_agree_on(sql: str) -> None:
    parse_expression(sql)


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("{}", []),
        ("{1,2}", ["1", "2"]),
        ("{NULL,x}", [None, "x"]),
        ('{"NULL","a,b","q\\"","\\\\"}', ["NULL", "a,b", 'q"', "\\"]),
        ('{""}', [""]),
    ],
)
def test_an_array_literal(text: str, elements: list[str | None]) -> None:
    assert array_elements(text) == elements


@pytest.mark.parametrize("text", ["", "{", "1,2", "{1,}", "{{1}}", "[0:1]={1,2}", "{ 1}", '{"a}', '{"a"b}'])
def test_no_array_literal(text: str) -> None:
    with pytest.raises(Untranslatable):
        array_elements(text)


LITERALS = [
    ("bool", "t", "t"),
    ("int4", "-7", "-7"),
    ("int8", "9223372036854775807", "9223372036854775807"),
    ("numeric", "1.50", "1.50"),
    ("numeric", "1e3", "1000"),
    ("numeric", "1.5e-3", "0.0015"),
    ("numeric", "-0.0", "0.0"),
    ("float8", "1e10", "1e10"),
    ("float8", "NaN", "NaN"),
    ("date", "2024-02-29", "2024-02-29"),
    ("date", "0044-03-15 BC", "0044-03-15 BC"),
    ("date", "4713-01-01 BC", "4713-01-01 BC"),
    ("date", "0001-02-29 BC", "0001-02-29 BC"),
    ("timestamp", "2024-02-29", "2024-02-29 00:00:00"),
    ("timestamp", "2024-02-29T01:02:03.100", "2024-02-29 01:02:03.1"),
    ("timestamptz", "2024-02-29 01:02:03+00", "2024-02-29 01:02:03+00"),
    ("timestamptz", "2024-01-01 00:30:00+05:30", "2023-12-31 19:00:00+00"),
    ("timestamptz", "0001-01-01 00:00:00+01", "0001-12-31 23:00:00+00 BC"),
    ("timestamptz", "1850-01-01 00:00:00+00:53:28", "1849-12-31 23:06:32+00"),
    ("uuid", "ABCDEF00-0000-0000-0000-000000000000", "abcdef00-0000-0000-0000-000000000000"),
    ("bytea", "\\xAB00", "\\xab00"),
    ("bpchar", "ab  ", "ab"),
]


@pytest.mark.parametrize(("kind", "text", "value"), LITERALS)
def test_a_literal(kind: str, text: str, value: str) -> None:
    assert literal(text, SqlType(kind), "UTC").text == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("bool", "maybe"),
        ("int4", "2147483648"),
        ("int4", "1.0"),
        ("int2", " 1x"),
        ("numeric", "NaN"),
        ("numeric", "."),
        ("numeric", "9" * 39),
        ("float8", "1e400"),
        ("float8", "1e-400"),
        ("float8", "0x10"),
        ("float4", "1e39"),
        ("date", "2023-02-29"),
        ("date", "today"),
        ("date", "infinity"),
        ("date", "1/2/2024"),
        ("date", "0000-01-01"),
        ("timestamp", "2024-01-01 24:00:00"),
        ("timestamp", "2024-01-01 00:00:60"),
        ("timestamp", "2024-01-01 00:00:00+01"),
        ("timestamp", "2024-01-01 00:00:00.1234567"),
        ("timestamptz", "2024-01-01 00:00:00 Europe/Berlin"),
        ("timestamptz", "2024-01-01 00:00:00+99"),
        ("uuid", "abc"),
        ("bytea", "abc"),
        ("interval", "1 day"),
        ("text", "a\0b"),
    ],
)
def test_no_literal(kind: str, text: str) -> None:
    with pytest.raises(Untranslatable):
        literal(text, SqlType(kind), "UTC")


def test_a_bounded_numeric_keeps_its_scale() -> None:
    bounded = declared_type(parse_expression("x::numeric(10,3)").args["to"])
    assert literal("1.5", bounded).text == "1.500"
    with pytest.raises(Untranslatable):
        literal("1.23456", bounded)


@pytest.mark.parametrize(
    ("dividend", "divisor", "quotient"),
    [
        ("1", "3", "0.33333333333333333333"),
        ("10", "4", "2.5000000000000000"),
        ("-1", "3", "-0.33333333333333333333"),
        ("0", "7", "0.00000000000000000000"),
        ("123456789012345678", "2", "61728394506172839"),
        ("1.00", "3.0000", "0.33333333333333333333"),
        ("100000", "3", "33333.333333333333"),
    ],
)
def test_a_numeric_quotient(dividend: str, divisor: str, quotient: str) -> None:
    assert numeric_div(dividend, divisor) == quotient


@pytest.mark.parametrize(
    ("number", "places", "rounded"),
    [("2.5", 0, "3"), ("-2.5", 0, "-3"), ("1.005", 2, "1.01"), ("1", 2, "1.00"), ("1234.5", -2, "1200"), ("-0.4", 0, "0")],
)
def test_a_numeric_is_rounded_away_from_zero(number: str, places: int, rounded: str) -> None:
    assert numeric_round(number, places) == rounded


def test_numeric_keys_sort_as_numbers() -> None:
    numbers = [
        "-1000",
        "-10.5",
        "-10.50001",
        "-0.001",
        "0",
        "0.00",
        "0.001",
        "0.01",
        "1",
        "1.0",
        "9.99",
        "10",
        "10.01",
        "123456789012345678901234567890",
    ]
    by_value = sorted(numbers, key=lambda text: (float(text), len(text)))
    assert sorted(numbers, key=lambda text: (numeric_key(text), len(text))) == by_value
    assert numeric_key("1.0") == numeric_key("1")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e15, "1e+15"),
        (1e14, "100000000000000"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-0.0, "-0"),
        (1e23, "9.999999999999999e+22"),
        (5e-324, "5e-324"),
        (math.inf, "Infinity"),
        (math.nan, "NaN"),
        (29285647754853992.0, "2.9285647754853992e+16"),
        (0.1, "0.1"),
        (123456.5, "123456.5"),
    ],
)
def test_a_float8(value: float, text: str) -> None:
    assert float8_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1e6, "1e+06"), (999999.0, "999999"), (0.1, "0.1"), (1e-45, "1e-45"), (16777216.0, "1.6777216e+07")]
)
def test_a_float4(value: float, text: str) -> None:
    assert float4_text(value) == text


@pytest.mark.parametrize(
    ("message", "sqlstate", "text"),
    [
        ("Invalid Input Error: 22012: division by zero", "22012", "division by zero"),
        ("Out of Range Error: Overflow in addition of INT32 (2147483647 + 1)!", "22003", "integer out of range"),
        ("Out of Range Error: Overflow in division of -2147483648 / -1", "22003", "value out of range"),
        ("Out of Range Error: Overflow in multiplication of DECIMAL(38) (1 * 1)", None, None),
        (
            "Conversion Error: Type INT64 with value 70000 can't be cast because the value is out of range for the destination type INT16",
            "22003",
            "smallint out of range",
        ),
        ("Invalid Input Error: MODAK: lower beyond ASCII", None, "lower beyond ASCII"),
        ("Invalid Input Error: More than one row returned by a subquery used as an expression", "21000", None),
        ("IO Error: no such file", None, None),
    ],
)
def test_a_message_of_duckdb(message: str, sqlstate: str | None, text: str | None) -> None:
    problem = runtime_problem(message)
    assert problem.sqlstate == sqlstate
    assert text in (None, problem.message)


def test_another_zone_has_no_text() -> None:
    with pytest.raises(Untranslatable):
        text_sql("x", SqlType("timestamptz"), "Europe/Berlin")
    assert "+00" in text_sql("x", SqlType("timestamptz"), "GMT")


def test_arrays_of_moments_read_differently_elsewhere() -> None:
    moments = column_type(ColumnType(PgType("timestamptz[]", "_timestamptz", element=PgType("timestamptz", "timestamptz")), TEXT))
    assert text_sql("x", moments, "UTC") == "x"
    with pytest.raises(Untranslatable):
        text_sql("x", moments, "Europe/Berlin")


def test_a_numeric_type_stays_within_38_digits() -> None:
    assert numeric(50, 4).digits == (38, 4)
    with pytest.raises(Untranslatable):
        numeric(50, 39)
