"""Every operator and function the translator knows gives Postgres's own answer on edge values, or fails as Postgres does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import psycopg
import pytest
from dialect_support import COLUMNS, FAILED_OVER, ROWS, Answer, ask_duckdb, ask_postgres, copy_to_duckdb, create_postgres_table

from modak.embedded.postgres import Cluster
from modak.gateway.dialect.arithmetic import numeric_text
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.expression import Scope, Typed, translate
from modak.gateway.dialect.output import text_sql
from modak.gateway.dialect.parse import parse_expression
from modak.gateway.dialect.types import SqlType

NOW = "2026-11-15 12:34:56.789012+00"
COMPARED = {
    "i2": ["i2", "i4", "i8", "7", "'7'", "-1", "1.5", "n", "f8", "99999999999", "f4"],
    "i4": ["i4", "i8", "0", "2147483648", "n", "f8", "2.5", "'-7'", "f4"],
    "i8": ["i8", "9007199254740992", "f8", "n", "'9223372036854775807'", "1e3"],
    "f4": ["f4", "f8", "0.1", "'0.1'", "1.5", "'NaN'", "'-Infinity'", "0", "i4"],
    "f8": ["f8", "f4", "0.1", "'NaN'", "0", "1.5::real", "'Infinity'", "-0.0", "1e15"],
    "n": ["n", "i4", "2.5", "'1.5'", "1.505", "3", "n38"],
    "n38": ["n38", "1", "-1.5", "1.0000000001"],
    "t": ["t", "v", "'abc'", "''", "'日本語'", "c", "'a''b'", "E'a\\\\b'"],
    "v": ["v", "t", "'abc'", "'a '"],
    "c": ["c", "'a'", "'a   '", "t", "''"],
    "d": ["d", "'2024-02-29'", "'0044-03-15 BC'", "ts", "tz", "'2026-12-31'::date", "'2026-01-01'::timestamp"],
    "ts": ["ts", "'2024-02-29 12:34:56.789'", "'1970-01-01'", "d", "tz", "'2024-01-31'::date"],
    "tz": ["tz", "'2024-02-29 13:34:56.789+01'", "'1970-01-01'", "d", "ts", "'1969-12-31 23:59:59.999999Z'"],
    "b": ["b", "true", "'f'", "false"],
    "u": ["u", "'12345678-9ABC-def0-1234-56789abcdef0'"],
    "ba": ["ba", "'\\xff00ab'", "'\\x'"],
}
OPERATORS = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
# Every operator on the column itself and one other; the rest differ only in how the two sides come to one type.
COMPARISONS = [
    f"{left} {operator} {right}"
    for left, others in COMPARED.items()
    for number, right in enumerate(others)
    for operator in (OPERATORS if number < 2 else ["=", "<", "IS DISTINCT FROM"])
]
COMPARISONS += ["e = 'happy'", "e <> 'sad'", "e = e", "e IN ('sad', 'ok')"]

LOGIC = [
    "b AND i4 > 0",
    "b OR i4 > 0",
    "NOT b",
    "b AND NULL",
    "b OR NULL",
    "(b = true) IS UNKNOWN",
    *(f"b IS {word}" for word in ("TRUE", "NOT TRUE", "FALSE", "NOT FALSE", "NULL", "NOT NULL", "UNKNOWN", "NOT UNKNOWN")),
    *(f"{name} IS {word}" for name in COLUMNS for word in ("NULL", "NOT NULL")),
    "i4 IN (1, 7, NULL)",
    "i4 NOT IN (1, 7)",
    "i4 NOT IN (1, NULL)",
    "i4 IN (1, 2.5, 7)",
    "i8 IN ('1', '7')",
    "n IN (1.5, 2.50, 3)",
    "f8 IN (0, 2.5)",
    "t IN ('abc', 'ABC', '')",
    "c IN ('a', 'abc  ')",
    "d IN ('2024-02-29', '1970-01-01')",
    "i4 = ANY ('{1,7,NULL}'::int[])",
    "i8 = ANY ('{1,7}'::bigint[])",
    "i4 = ANY ('{1,7}'::bigint[])",
    "i4 = ANY ('{}'::int[])",
    "i4 <> ALL ('{}'::int[])",
    "i4 <> ALL ('{1,7}'::int[])",
    "i4 = ANY (ARRAY[1, 7])",
    "i4 = SOME (ARRAY[1, 7])",
    "i4 <> ALL (ARRAY[1, NULL])",
    """t = ANY ('{abc,"a''b","q\\"q","a\\\\b",""}'::text[])""",
    'tz = ANY (\'{"1970-01-01 00:00:00+00","2024-02-29 13:34:56.789+01"}\'::timestamptz[])',
    "i4 BETWEEN -1 AND 7",
    "i4 NOT BETWEEN -1 AND 7",
    "f8 BETWEEN 0 AND 'NaN'",
    "ts BETWEEN '1969-01-01' AND '2024-03-01'",
    "t BETWEEN 'a' AND 'b'",
    "n BETWEEN i4 AND 3",
]
TEXTS = [
    *(
        f"{name} {operator} '{pattern}'"
        for name in ("t", "v")
        for operator in ("LIKE", "NOT LIKE", "~~", "!~~")
        for pattern in ("abc", "a%", "%b%", "_", "__", "a\\%b\\_c", "a\\\\b", "%", "", "a\\bc", "日_語", "%x", "a''b")
    ),
    *(f"t {operator} '{pattern}'" for operator in ("ILIKE", "NOT ILIKE", "~~*") for pattern in ("ABC", "a%", "%", "_")),
    "t || v",
    "t || '!'",
    "'<' || c || '>'",
    "t || i4",
    "i8 || t",
    "t || NULL",
    "concat(t, '-', v, i4, NULL)",
    *(
        f"{function}({name})"
        for function in ("length", "char_length", "lower", "upper", "md5", "btrim", "ltrim", "rtrim")
        for name in ("t", "v", "c")
    ),
    *(f"substr(t, {start})" for start in (-1, 0, 1, 2, 3, 10)),
    *(f"substr(t, {start}, {length})" for start in (-1, 0, 1, 2) for length in (0, 1, 2, 3, 100)),
    "substr(t, i4)",
    "substr(t, i4, i4)",
    "substr(t, i2, 3)",
    "substr(t, 1, i2)",
    "substring(t from 2 for 2)",
    "substring(t, 2)",
    "substring(t for 2)",
    *(f"{side}(t, {count})" for side in ("left", "right") for count in (-100, -2, -1, 0, 1, 2, 100)),
    "trim(t)",
    "trim(both 'x' from t)",
    "trim(leading from t)",
    "trim(trailing 'xc' from t)",
    "btrim(t, 'xa')",
    "ltrim(t, 'éa ')",
    "rtrim(t, '語c')",
    "btrim(t, '')",
    "position('b' in t)",
    "position('' in t)",
    "strpos(t, 'b')",
    "strpos(t, '語')",
    "strpos(t, v)",
    "replace(t, 'b', 'xx')",
    "replace(t, '', 'xx')",
    "replace(t, v, '-')",
    "starts_with(t, 'a')",
    "starts_with(t, '')",
    "nullif(t, '')",
    "nullif(v, 'a')",
    "coalesce(t, v, 'none')",
    "coalesce(v, 'none')",
    "coalesce(c, c)",
    "coalesce(NULL, c)",
    "nullif(c, 'a')",
    "CASE WHEN b THEN c END",
    "greatest(t, v)",
    "least(t, 'abc', v)",
    "t::varchar(2)",
    "t::char(3)",
    "t::varchar",
    "'abcdef'::varchar(3)",
    "c::text",
    "v::text",
    "e::text",
    "pg_catalog.length(t)",
]
NUMBERS = ("i2", "i4", "i8", "f4", "f8", "n")
ARITHMETIC = [
    *(f"{left} {symbol} {right}" for left in NUMBERS for right in NUMBERS for symbol in "+-*"),
    *(f"{left} / {right}" for left in NUMBERS for right in NUMBERS),
    *(f"{left} % {right}" for left in NUMBERS[:3] for right in NUMBERS[:3]),
    *(f"{left} {symbol} {right}" for left in NUMBERS for right in ("1", "'1'", "-3", "0.5", "2147483648") for symbol in ("+", "*", "/")),
    *(f"{left} % {right}" for left in NUMBERS[:3] for right in ("2", "-1", "0", "-7")),
    *(f"- {name}" for name in NUMBERS),
    *(
        f"{function}({name})"
        for function in ("abs", "floor", "ceil", "ceiling", "round")
        for name in (*NUMBERS, "n38")
        if (function, name) != ("round", "f4")
    ),
    *(f"round({name}, {places})" for name in ("n", "n38") for places in (-2, -1, 0, 1, 2, 3)),
    "n38 + 1",
    "n38 * 2",
    "n38 - n",
    "n38 * n38",
    "- n38",
    "mod(i4, 3)",
    "mod(i8, i2)",
    "i4 + i4 * 2 - 7 / (i4 + 100)",
    "f8 * 2 + f8 / 4 - 1",
    "f8 * f8 * f8 * f8",
    "n * 1.1 + 5",
    "(1 - n) * (1 + n) * n",
    "i2 + i4 IS NOT NULL",
    "n38::bigint IS NULL",
    "nullif(f4, i2)",
    "NULL / i4",
    "i4 * NULL",
    "NULL % (i2 * i2)",
    "f8 + NULL",
    "n - NULL",
    "nullif(f4, 2.5)",
    "nullif(i4, f4)",
    "nullif(n, 1.5::float8)",
    "nullif(d, ts)",
    "nullif(ts, d)",
    "coalesce(n, 0)",
    "coalesce(n, 0) + 1",
    "coalesce(n, 0) * n",
    "coalesce(i4, 0)",
    "coalesce(i4, i8)",
    "coalesce(f8, 0)",
    "coalesce(n, 0.005)",
    "coalesce(n, i4)",
    "coalesce(NULL, n)",
    "coalesce(n, n38)",
    "nullif(i4, 0)",
    "nullif(i4, 1.0)",
    "nullif(n, 2.5)",
    "nullif(n, 0)",
    "nullif(i8, i4)",
    "greatest(i4, i8, 5)",
    "least(i4, 5)",
    "greatest(n, n)",
    "greatest(d, '2024-02-29')",
    "least(ts, '2024-02-29')",
    "i4 + 1 > 5",
    "i4 - 5 < 0",
    "5 - i4 > 3",
    "i4 * 2 = 14",
    "i8 + 1 = 8",
    "i2 + i2 > 0",
    "i8::int > 5",
    "i8::smallint > 5",
    "i4::smallint = 7",
    "n::int = 2",
    "n38::bigint > 0",
    "f8::int > 0",
    "f4::smallint = 2",
    "n::numeric(3,1) > 1",
    "n38::numeric(6,1) = 1",
    "- i2 > 5",
    "abs(i2) > 5",
    "n / 3 IS NULL",
    "floor(n) = 2",
    "d::timestamp > '2024-01-01'",
    "d + 1 > '2024-01-01'",
    "ts + interval '1 day' > '2024-01-01'",
    "i4 + 1 IN (2, 8)",
    "i4 + 1 = i8 + 1",
    "i4 + 1 = ANY ('{2,8}'::int[])",
    "i4 = i8 IS NULL = b",
    "-i4 < 5",
    "abs(i4) > 1",
]
CASTS = [
    *(f"{name}::{kind}" for name in ("i2", "i4", "i8", "f4", "f8", "n", "n38") for kind in ("smallint", "int", "bigint")),
    *(f"{name}::numeric" for name in ("i2", "i4", "i8", "n")),
    *(f"{name}::numeric(6,1)" for name in ("i4", "n", "i8", "n38")),
    *(f"{name}::double precision" for name in ("i2", "i4", "i8", "n", "f4")),
    *(f"{name}::real" for name in ("i2", "i4", "i8")),
    *(f"{name}::text" for name in ("i2", "i4", "i8", "n", "b", "u", "t")),
    "i4::boolean",
    "b::int",
    "ts::date",
    "tz::date",
    "tz::timestamp",
    "ts::timestamptz",
    "d::timestamp",
    "d::timestamptz",
    "1.5::int",
    "'5'::bigint",
    "'1.50'::numeric(10,3)",
    "5::bigint",
    "(-5)::smallint",
    "1.25::real",
    "1.25::float8",
    "null::int",
    "null::numeric(5,2)",
    "null::text",
    "CAST(i4 AS bigint)",
    "'t'::bool",
    "'2024-02-29'::date",
    "date '2024-02-29'",
    "'\\x00ff'::bytea",
]
TIMES = [
    "d - d",
    "d - '2024-02-29'",
    "d + 1",
    "d + i4",
    "d + i2",
    "1 + d",
    "d - 1",
    "d - i2",
    *(
        f"{name} {sign} interval '{span}'"
        for name in ("ts", "tz", "d")
        for sign in "+-"
        for span in (
            "1 day",
            "1 month",
            "1 year 2 mons 3 days",
            "36 hours",
            "90 minutes",
            "1 second",
            "-1 month",
            "2 weeks",
            "13 months 40 days 25 hours",
        )
    ),
    "ts + interval '1' month",
    "interval '1 day' + ts",
    "ts + '1 day'::interval",
    *(
        f"date_trunc('{unit}', {name})"
        for unit in ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
        for name in ("ts", "tz", "d")
    ),
    *(
        f"extract({field} from {name})"
        for name in ("ts", "tz")
        for field in ("year", "month", "day", "hour", "minute", "second", "quarter", "dow", "isodow", "doy", "week", "epoch")
    ),
    *(f"extract({field} from d)" for field in ("year", "month", "day", "quarter", "dow", "isodow", "doy", "week", "epoch")),
    *(
        f"date_part('{field}', {name})"
        for name in ("ts", "tz")
        for field in ("year", "month", "day", "hour", "minute", "dow", "doy", "week", "epoch")
    ),
    "date_part('year', d)",
    "ts AT TIME ZONE 'UTC'",
    "tz AT TIME ZONE 'UTC'",
]
CASES = [
    "CASE WHEN i4 > 0 THEN 'plus' WHEN i4 < 0 THEN 'minus' END",
    "CASE i4 WHEN 1 THEN 'one' WHEN 7 THEN t ELSE v END",
    "CASE WHEN b THEN n ELSE 0 END",
    "CASE WHEN b THEN n END",
    "CASE WHEN b THEN i4 ELSE i8 END",
    "CASE WHEN b THEN i4 ELSE 1.5 END",
    "CASE WHEN b THEN f8 ELSE 0 END",
    "CASE WHEN i4 <> 0 THEN 10 / i4 ELSE 0 END",
    "CASE WHEN b THEN NULL ELSE ts END",
    "CASE WHEN b THEN n WHEN i4 > 0 THEN n * 2 ELSE n + 1 END",
    "CASE WHEN b THEN 1 ELSE 2 END + i4",
    "5",
    "-5",
    "E'a\\\\b' = t",
    "E'\\t\\n' = t",
    "$$abc$$ = t",
    "'x'",
    "NULL",
    "1.50",
    "3000000000",
    "1e3",
    ".5",
    "true",
    "$1 + i4",
    "t = $2",
    "now()",
    "now() - interval '7 days'",
    "current_timestamp",
    "current_date",
    "now()::date",
    *COLUMNS,
]
EXPRESSIONS = [*COMPARISONS, *LOGIC, *TEXTS, *ARITHMETIC, *CASTS, *TIMES, *CASES]
PARAMETERS = {"$1": "'5'::int", "$2": "'abc'::text"}


@dataclass(frozen=True)
class Pair:
    postgres: psycopg.Connection[tuple[object, ...]]
    lake: duckdb.DuckDBPyConnection
    scope: Scope


@pytest.fixture(scope="module")
def pair(cluster: Cluster) -> Iterator[Pair]:
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute("drop database if exists dialect_edge with (force)")
        admin.execute("create database dialect_edge template template0 lc_collate 'C' lc_ctype 'C.UTF-8'")
    with psycopg.connect(cluster.dsn("dialect_edge"), autocommit=True) as postgres:
        postgres.execute("set timezone = 'UTC'")
        create_postgres_table(postgres)
        lake = copy_to_duckdb(postgres, "edge", COLUMNS)
        scope = Scope.of_table(
            COLUMNS, table="edge", collation_is_c=True, now=NOW, parameters={1: ("5", SqlType("int4")), 2: ("abc", SqlType("text"))}
        )
        yield Pair(postgres, lake, scope)


def for_postgres(expression: str) -> str:
    for name, value in PARAMETERS.items():
        expression = expression.replace(name, value)
    expression = expression.replace("now()", f"'{NOW}'::timestamptz").replace("current_timestamp", f"'{NOW}'::timestamptz")
    return expression.replace("current_date", f"('{NOW}'::timestamptz)::date")


def shown(typed: Typed, scope: Scope) -> str:
    if typed.null:
        return "NULL"
    if typed.unknown:
        return "'" + (typed.text or "").replace("'", "''") + "'"
    return numeric_text(typed) if typed.type.name == "numeric" else text_sql(typed.sql, typed.type, scope.timezone)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_it_equals_postgres(pair: Pair, expression: str) -> None:
    typed = translate(parse_expression(expression), pair.scope)
    theirs = f"select id, {for_postgres(expression)} from edge"
    ours = f"select CAST(id AS VARCHAR), {shown(typed, pair.scope)} from edge"
    types = same(pair, theirs, ours)
    if types and typed.type.name not in ("unknown", "opaque", "enum"):
        assert psycopg.postgres.types.get(types[1]).name == typed.type.name  # type: ignore[union-attr]
    if typed.type.name == "bool":
        same(pair, f"select id from edge where {for_postgres(expression)}", f"select CAST(id AS VARCHAR) from edge where {typed.sql}")


def same(pair: Pair, theirs: str, ours: str) -> tuple[int, ...]:
    expected, found = ask_postgres(pair.postgres, theirs + " order by id"), ask_duckdb(pair.lake, ours + " order by id")
    if expected.error is None and found.error is None:
        assert found.rows == expected.rows, ours
        return expected.types
    # Row by row: a row fails on one side exactly if it fails on the other, unless DuckDB said that it needs Postgres.
    each = {number: ask_postgres(pair.postgres, of_row(theirs, number)) for number in range(ROWS)}
    fine = [number for number, answer in each.items() if answer.error is None]
    together = ask_of_rows(pair, ours, fine)
    single = list(each)
    if together.error is None:
        assert together.rows == [row for number in fine for row in each[number].rows or []], ours
        single = [number for number in each if number not in fine]
    failed_over = 0
    for number in single:
        found = ask_of_rows(pair, ours, [number])
        if found.error == FAILED_OVER:
            failed_over += 1
        else:
            assert found == each[number], f"{number}: {ours}"
    assert failed_over < ROWS * 3 / 4, "nearly every row needs Postgres"
    return ()


def of_row(theirs: str, number: int) -> str:
    """OFFSET 0 keeps Postgres from testing the other conditions first."""
    return theirs.replace(" from edge", f" from (select * from edge where id = {number} offset 0) edge", 1)


def ask_of_rows(pair: Pair, ours: str, numbers: list[int]) -> Answer:
    """Of a table with these rows only: as a condition beside others it might be tested after them."""
    pair.lake.execute(f"CREATE OR REPLACE TEMP TABLE part AS FROM edge WHERE id IN ({', '.join(map(str, numbers)) or 'NULL'})")
    return ask_duckdb(pair.lake, ours.replace(" from edge", " from part", 1) + " order by id")


REFUSED = [
    "i4::regclass",
    "t > 'a' COLLATE \"de_DE\"",
    "j = '{}'",
    "j::text",
    "nu + 1",
    "nu > 1",
    "nu::text",
    "e < 'sad'",
    "t ~ 'a'",
    "t SIMILAR TO 'a'",
    "t LIKE v",
    "t LIKE 'a\\'",
    "c LIKE 'a%'",
    "t LIKE 'a' ESCAPE 'x'",
    "upper(i4)",
    "random()",
    "to_char(ts, 'YYYY')",
    "i4 = ANY (ARRAY[1, 'x'])",
    "i4 > ANY (ARRAY[1])",
    "i4 OPERATOR(pg_catalog.=) 1",
    "1_000",
    "f8::numeric",
    "f8 % 2",
    "n % 2",
    "f8::text",
    "ts::text",
    "t::int",
    "ts - ts",
    "tz + t",
    "i4 = b",
    "i4 = 'x'",
    "i4 = '99999999999'",
    "d = '2024-02-30'",
    "d = 'today'",
    "ts < 'infinity'",
    "extract(century from ts)",
    "extract(hour from d)",
    "date_trunc('century', ts)",
    "date_trunc('day', tz, 'Europe/Berlin')",
    "tz AT TIME ZONE 'Europe/Berlin'",
    "ctid",
    "edge",
    "(i4, i8) = (1, 2)",
    "ROW(i4, 1)",
    "i4 < i8 = true",
    "count(*)",
    "row_number() over ()",
    "(select 1)",
    "$3",
    "array[1]",
    "t[1]",
    "greatest(f8, 0)",
    "E'\\u0041' = t",
    "nosuch",
    "other.i4",
    "CASE WHEN i4 THEN 1 END",
    "b AND i4",
    "coalesce(i4, t)",
    "coalesce(c, 'abcdefgh')",
    "coalesce(c, t)",
    "c = v",
    "i4 BETWEEN SYMMETRIC 1 AND 2",
    "interval '1 day'::text",
]


@pytest.mark.parametrize("expression", REFUSED)
def test_it_is_left_to_postgres(pair: Pair, expression: str) -> None:
    with pytest.raises(Untranslatable):
        translate(parse_expression(expression), pair.scope)


def test_a_collation_refuses_order_and_keeps_equality(pair: Pair) -> None:
    scope = Scope.of_table(COLUMNS, collation_is_c=False)
    assert translate(parse_expression("t = 'a'"), scope).type.name == "bool"
    for expression in ("t < 'a'", "lower(t)", "t ILIKE 'a'", "greatest(t, v)", "t BETWEEN 'a' AND 'b'"):
        with pytest.raises(Untranslatable):
            translate(parse_expression(expression), scope)


def test_another_time_zone_refuses_what_depends_on_it(pair: Pair) -> None:
    scope = Scope.of_table(COLUMNS, timezone="Europe/Berlin", now=NOW)
    for expression in (
        "tz < '2026-01-01 00:00:00+00'",
        "tz + interval '36 hours'",
        "ts + interval '1 day'",
        "date_trunc('day', ts)",
        "now()",
    ):
        translate(parse_expression(expression), scope)
    for expression in (
        "tz < '2026-01-01'",
        "tz + interval '1 day'",
        "tz = ts",
        "d > tz",
        "date_trunc('day', tz)",
        "tz::date",
        "current_date",
    ):
        with pytest.raises(Untranslatable):
            translate(parse_expression(expression), scope)


def test_without_a_second_try_nothing_may_need_one(pair: Pair) -> None:
    scope = Scope.of_table(COLUMNS, collation_is_c=True, may_fail_over=False)
    for expression in ("lower(t)", "n38 * n38", "t ILIKE 'a'"):
        with pytest.raises(Untranslatable):
            translate(parse_expression(expression), scope)
