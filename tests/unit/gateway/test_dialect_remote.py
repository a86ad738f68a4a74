"""What postgres_fdw sends is taken apart without losing a condition."""

from __future__ import annotations

import pytest

from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.remote import PLACEHOLDER, parse_remote, substitute


def test_a_scan_is_described_completely() -> None:
    found = parse_remote(
        'SELECT a, "B", NULL FROM public."Some Table" WHERE ((a = 5)) AND ((b = ANY (\'{1,2}\'::bigint[])))'
        " ORDER BY a ASC NULLS LAST, b DESC NULLS FIRST LIMIT 3::bigint OFFSET 1::bigint"
    )
    assert found.whole is None
    assert (found.schema, found.table, found.alias) == ("public", "Some Table", None)
    assert [node.sql("postgres") for node in found.outputs] == ["a", '"B"', "NULL"]
    assert [node.sql("postgres") for node in found.conjuncts] == ["a = 5", "b = ANY(CAST('{1,2}' AS BIGINT[]))"]
    assert [(item.this.name, bool(item.args.get("desc")), item.args["nulls_first"]) for item in found.order_by] == [
        ("a", False, False),
        ("b", True, True),
    ]
    assert (found.limit, found.offset, found.locking) == (3, 1, False)


def test_an_alias_and_a_lock() -> None:
    found = parse_remote("SELECT r1.a, r1.ctid FROM public.t r1 WHERE ((r1.a = 5)) FOR UPDATE")
    assert (found.alias, found.locking, found.whole) == ("r1", True, None)


def test_nothing_but_null() -> None:
    found = parse_remote("SELECT NULL FROM public.t")
    assert (found.conjuncts, found.order_by, found.limit) == ((), (), None)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*), sum(a) FROM public.t",
        "SELECT b, sum(a) FROM public.t GROUP BY 1",
        "SELECT r1.a FROM (public.t r1 INNER JOIN public.u r2 ON (((r1.a = r2.a))))",
        "SELECT DISTINCT a FROM public.t",
        "SELECT (a + 1) FROM public.t",
        "SELECT a FROM (SELECT 1) s",
    ],
)
def test_the_rest_is_for_the_whole_translator(sql: str) -> None:
    found = parse_remote(sql)
    assert found.whole is found.select


def test_parameters_become_typed_literals() -> None:
    scan = parse_remote("SELECT a FROM t WHERE ((a = $1::bigint)) AND ((b < $2::timestamp with time zone)) LIMIT $3::bigint")
    found = substitute(scan, ["5", None, "7"])
    assert [node.sql("postgres") for node in found.conjuncts] == ["a = CAST('5' AS BIGINT)", "b < CAST(NULL AS TIMESTAMPTZ)"]
    assert found.limit == 7
    assert "$1" in scan.select.sql("postgres")


def test_a_parameter_without_a_value_is_refused() -> None:
    with pytest.raises(Untranslatable):
        substitute(parse_remote("SELECT a FROM t WHERE ((a = $2::bigint))"), ["5"])


def test_a_placeholder_is_not_a_null() -> None:
    scan = parse_remote("SELECT a FROM t WHERE ((a = ((SELECT null::bigint)::bigint)))")
    (condition,) = substitute(scan, []).conjuncts
    nulls = [node for node in condition.walk() if node.meta.get(PLACEHOLDER)]
    assert len(nulls) == 1


@pytest.mark.parametrize(
    ("sql", "share"),
    [
        ("SELECT a FROM public.t TABLESAMPLE SYSTEM(25.000000)", 0.25),
        ("SELECT a FROM public.t TABLESAMPLE BERNOULLI(1.500000)", 0.015),
        ("SELECT a FROM public.t WHERE pg_catalog.random() < 0.125000", 0.125),
    ],
)
def test_a_sample_for_analyze(sql: str, share: float) -> None:
    found = parse_remote(sql)
    assert found.sample == pytest.approx(share)
    assert found.conjuncts == ()


@pytest.mark.parametrize(
    "sql", ["UPDATE t SET a = 1", "SELECT a FROM t; SELECT b FROM t", "SELECT a FROM", "COMMIT", "SELECT a FROM t ORDER BY a USING <"]
)
def test_what_is_no_select_is_refused(sql: str) -> None:
    with pytest.raises(Untranslatable):
        parse_remote(sql)
