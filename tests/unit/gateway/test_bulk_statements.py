"""Which statements may be an INSERT … SELECT into a decoupled table, told by their text."""

from __future__ import annotations

import pytest

from modak.gateway.decoupled.bulk import Statement, is_plain_query, recognise


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("insert into events select 1", Statement(("events",), None, "select 1")),
        (
            ' INSERT\nINTO public . Events(A,"B""c")WITH x AS (SELECT 1) SELECT * FROM x ; ',
            Statement(("public", "events"), ("a", 'B"c'), "WITH x AS (SELECT 1) SELECT * FROM x"),
        ),
        ("insert into e (select 1)", Statement(("e",), None, "(select 1)")),
        ("insert into e (a) ((table x))", Statement(("e",), ("a",), "((table x))")),
        ("insert into preselect select 1", Statement(("preselect",), None, "select 1")),
    ],
)
def test_recognised(sql: str, wanted: Statement) -> None:
    assert recognise(sql) == wanted
    assert is_plain_query(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "select 1",
        "insert into e values (1)",
        "insert into preselect values (1)",
        "insert into e default values",
        "insert into e as f select 1",
        "insert into a.b.c select 1",
        "insert into e overriding user value select 1",
        "insert into é select 1",
        "with x as (select 1) insert into e select * from x",
        "/* first */ insert into e select 1",
    ],
)
def test_not_recognised(sql: str) -> None:
    assert recognise(sql) is None


@pytest.mark.parametrize(
    "sql",
    [
        "insert into e select 1 returning id",
        "insert into e select 1 on conflict do nothing",
        "insert into e select 1; select 2",
        "insert into e select 1; drop table e",
        "insert into e select * from x for update",
        "insert into e with gone as (delete from x returning *) select * from gone",
        "insert into e select 1) to stdout; select (1",
        "insert into e select * into f from x",
    ],
)
def test_more_than_a_query(sql: str) -> None:
    assert not is_plain_query(sql)
