"""What this Postgres's own postgres_fdw deparses is understood, pruned by and evaluated to the same rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import psycopg
import pytest
from dialect_support import COLUMNS, ask_duckdb, ask_postgres, copy_to_duckdb, create_postgres_table

from modak.embedded.postgres import Cluster
from modak.gateway.dialect.expression import Scope, condition
from modak.gateway.dialect.predicates import predicates
from modak.gateway.dialect.query import Catalog, CatalogRelation, as_text, translate_query
from modak.gateway.dialect.remote import parse_remote, substitute

SCANS = {
    "i4 = 7": ["="],
    "i2 < 7 and i8 >= 1": ["<", ">="],
    "i8 in (1, 7, 9007199254740993)": ["in"],
    "i4 = -7 or i4 = 1": ["in"],
    "f8 < 1.5 and f8 = 2.5": ["<", "="],
    "f4 = 1.5::real": ["="],
    "n > 1.50 and n <> 2.5": [">"],
    "t = 'a''b'": ["="],
    "t = E'a\\\\b'": ["="],
    "t in ('abc', 'ABC', '日本語')": ["in"],
    "v = 'abc'": ["="],
    "c = 'abc'": ["="],
    "d >= '2024-02-29' and d < '2026-12-31'": [">=", "<"],
    "d = '0044-03-15 BC'": ["="],
    "ts < '2024-02-29 12:34:56.789'": ["<"],
    "tz between '1969-01-01+00' and '2024-03-01+01'": [">=", "<="],
    "b": ["="],
    "not b": ["="],
    "b is not true": [],
    "u = '12345678-9abc-def0-1234-56789abcdef0'": ["="],
    "ba = '\\xff00ab'": ["="],
    "e = 'happy'": [],  # postgres_fdw keeps comparisons of the user's types to itself
    "i4 is null": ["is null"],
    "i4 is not null and j is null": ["is not null", "is null"],
    "i4 is distinct from 7": [],
    "i4 + 1 = 8 and i4 < 100": ["<"],
    "i4 / 2 > 1 and i4 % 3 = 1": [],
    "case when i4 > 0 then true else false end": [],
    "length(t) = 3": [],
    "position('b' in t) = 2": [],
    "substring(t from 2 for 1) = 'b' or trim(both 'c' from t) = 'ab' or trim(leading from c) = 'ab'": [],
    "extract(year from d) = 2024 or overlay(t placing 'x' from 1) = 'xbc'": [],
    "t like 'a%' and t not like '%c'": [],
    "coalesce(i4, 0) = 0": [],
    "n * 2 > 5": [],
    "i4 = i8": [],
}
WHOLE = [
    "select count(*), sum(i4), avg(n), min(d), max(ts) from f",
    "select b, count(*), sum(i8) from f group by b",
    "select i2, count(*) from f where i4 > 0 group by i2 having count(*) > 1",
    "select a.id, c.id from f a join f c on a.i4 = c.i8 where a.b",
    "select a.id, c.id from f a left join f c on a.i4 = c.i8",
    "select id from f order by i4, id limit 5",
    "select id, i4 from f where b order by i4 desc nulls last, id limit 3 offset 1",
]


@dataclass(frozen=True)
class Pair:
    postgres: psycopg.Connection[tuple[object, ...]]
    lake: duckdb.DuckDBPyConnection


@pytest.fixture(scope="module")
def pair(cluster: Cluster) -> Iterator[Pair]:
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute("drop database if exists dialect_remote with (force)")
        admin.execute("create database dialect_remote template template0 lc_collate 'C' lc_ctype 'C.UTF-8'")
    with psycopg.connect(cluster.dsn("dialect_remote"), autocommit=True) as postgres:
        postgres.execute("set timezone = 'Europe/Berlin'")
        create_postgres_table(postgres)
        postgres.execute("create extension postgres_fdw")
        postgres.execute("create server loopback foreign data wrapper postgres_fdw options (fdw_startup_cost '1000')")
        postgres.execute("create user mapping for current_user server loopback")
        columns = ", ".join(f"{name} {kind}" for name, kind in _declared(postgres))
        postgres.execute(f"create foreign table f ({columns}) server loopback options (schema_name 'public', table_name 'edge')")
        yield Pair(postgres, copy_to_duckdb(postgres, "edge", COLUMNS))


def _declared(postgres: psycopg.Connection[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return postgres.execute(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'edge'::regclass and attnum > 0"
    ).fetchall()


def remote_sql(pair: Pair, query: str) -> str:
    """The statement postgres_fdw would send, out of EXPLAIN."""
    rows = pair.postgres.execute(f"explain (verbose, costs off) {query}").fetchall()
    (found,) = [match[1] for (line,) in rows if (match := re.search(r"Remote SQL: (.*)", str(line)))]
    return found


@pytest.mark.parametrize("where", SCANS)
def test_a_scan_gives_the_same_rows(pair: Pair, where: str) -> None:
    text = remote_sql(pair, f"select id from f where {where}")
    sent = parse_remote(text)
    assert (sent.whole, sent.schema, sent.table) == (None, "public", "edge")
    scope = Scope.of_table(COLUMNS, table="edge", schema="public", collation_is_c=True, may_fail_over=False)
    tests = [condition(node, scope) for node in sent.conjuncts]
    found = ask_duckdb(pair.lake, f"select CAST(id AS VARCHAR) from edge where {' and '.join(tests) or 'true'} order by id")
    # What postgres_fdw does not push it tests itself; what it pushed must give the same rows here as there.
    pushed = text.split(" WHERE ")[1] if " WHERE " in text else "true"
    assert found == ask_postgres(pair.postgres, f"select id from public.edge where {pushed} order by id")
    assert [item.operator for item in predicates(sent.conjuncts, COLUMNS)] == SCANS[where]


def test_parameters_of_a_generic_plan(pair: Pair) -> None:
    pair.postgres.execute("set plan_cache_mode = force_generic_plan")
    pair.postgres.execute("prepare find(bigint, timestamptz) as select id from f where i8 = $1 and tz >= $2")
    sent = remote_sql(pair, "execute find(7, '2020-01-01')")
    values = {"bigint": "7", "timestamp with time zone": "1969-01-01 00:00:00+01"}
    kinds = re.findall(r"\$(\d)::(bigint|timestamp with time zone)", sent)
    scan = substitute(parse_remote(sent), [values[kind] for _, kind in sorted(kinds)])
    found = {(item.column, item.operator): item.values for item in predicates(scan.conjuncts, COLUMNS)}
    assert found == {("i8", "="): ("7",), ("tz", ">="): ("1968-12-31 23:00:00+00",)}
    pair.postgres.execute("reset plan_cache_mode")


@pytest.mark.parametrize("query", WHOLE)
def test_a_pushed_query_gives_the_same_rows(pair: Pair, query: str) -> None:
    for method in ("hashjoin", "mergejoin", "nestloop", "sort"):
        pair.postgres.execute(f"set enable_{method} = off")
    sent = remote_sql(pair, query)
    select = parse_remote(sent).select

    def resolve(schema: str | None, name: str) -> CatalogRelation | None:
        return CatalogRelation(1, '"edge"', COLUMNS) if (schema, name) == ("public", "edge") else None

    translated = translate_query(select, Catalog(resolve, Scope(collation_is_c=True)))
    pair.postgres.execute("set timezone = 'UTC'")
    expected, found = ask_postgres(pair.postgres, sent), ask_duckdb(pair.lake, as_text(translated, "UTC"))
    assert expected.rows is not None
    assert found.rows is not None
    ordered = "ORDER BY" in sent
    assert found.rows == expected.rows if ordered else sorted(found.rows, key=repr) == sorted(expected.rows, key=repr)
