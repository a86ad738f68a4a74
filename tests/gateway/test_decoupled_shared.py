"""One lake table, several nodes: each has the columns as they were declared, wherever the table was made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pyiceberg.types import LongType, StringType
from tests.two_nodes import Pair, Session, two_nodes

from modak.core.declared import PROPERTY
from modak.embedded.postgres import Cluster

DECLARED = [
    {"name": "id", "type": "bigint", "not_null": True, "comment": "the key"},
    {"name": "code", "type": "varchar(3)", "default": "'new'", "not_null": True},
    {"name": "data", "type": "jsonb", "default": "'{}'"},
    {"name": "n", "type": "smallint"},
    {"name": "c", "type": "char(5)"},
    {"name": "i", "type": "interval day to second(3)"},
    {"name": "t", "type": "time(0)"},
    {"name": "at", "type": "timestamp(0) with time zone", "default": "now()"},
    {"name": "amount", "type": "numeric(12,2)"},
    {"name": "doc", "type": "json"},
    {"name": "note", "type": "text"},
]
COLUMNS = """
    select a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
           col_description(a.attrelid, a.attnum)
      from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
     where a.attrelid = %s::regclass and a.attnum > 0 order by a.attnum"""


@pytest.fixture(scope="module")
def pair(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_nodes(cluster, template, tmp_path_factory.mktemp("shared"), f"shared_{os.getpid()}") as made:
        yield made


@pytest.fixture
def first(pair: Pair) -> Iterator[Session]:
    with pair.first.client() as client:
        yield client


@pytest.fixture
def second(pair: Pair) -> Iterator[Session]:
    with pair.second.client() as client:
        yield client


def create(session: Session, name: str, columns: Any = DECLARED, partition_by: list[str] | None = None) -> list[str]:
    """What was told meanwhile."""
    return told(session, "select modak.create_iceberg_table('public', %s, %s, %s)", [name, Jsonb(columns), partition_by])


def attach(session: Session, name: str, ref: str) -> list[str]:
    return told(session, "select modak.attach_iceberg_table('public', %s, %s)", [name, ref])


def told(session: Session, statement: str, parameters: list[Any]) -> list[str]:
    heard: list[str] = []

    def hear(notice: Any) -> None:
        heard.append(str(notice.message_primary))

    session.add_notice_handler(hear)
    try:
        session.execute(statement, parameters)  # type: ignore[arg-type]
    finally:
        session.remove_notice_handler(hear)
    return heard


def columns(session: Session, name: str) -> list[tuple[Any, ...]]:
    return session.execute(COLUMNS, [name]).fetchall()  # type: ignore[arg-type]


WRONG = [
    ("code", "'toolong'", psycopg.errors.StringDataRightTruncation),
    ("code", "null", psycopg.errors.NotNullViolation),
    ("data", "'not json'", psycopg.errors.InvalidTextRepresentation),
    ("n", "100000", psycopg.errors.NumericValueOutOfRange),
    ("c", "'123456'", psycopg.errors.StringDataRightTruncation),
]


def test_every_node_has_the_declared_columns(pair: Pair, first: Session, second: Session) -> None:
    create(first, "declared")
    assert attach(second, "declared", "public.declared") == []
    assert columns(second, "public.declared") == columns(first, "public.declared")
    for column, value, failure in WRONG:
        with pytest.raises(failure):
            second.execute(f"insert into declared (id, {column}) values (1, {value})")  # type: ignore[arg-type]
    second.execute("""
        insert into declared (id, data, n, c, i, t, amount, doc, note)
        values (2, '{"k": [1, 2]}', 7, 'x', '1 day 2 hours', '12:00', 1.5, '{"a":  1}', 'y')
    """)
    seen = "select id, code, data->'k'->>1, n, c, i, t, at is not null, amount, doc, note from declared"
    expected = [(2, "new", "2", 7, "x    ")]
    for session in (first, second):
        assert [row[:5] for row in session.execute(seen).fetchall()] == expected
    assert first.execute(seen).fetchall() == second.execute(seen).fetchall()
    second.execute("update declared set code = 'old' where data @> '{\"k\": [1]}' and i > interval '1 hour'")
    assert first.execute("select code from declared").fetchall() == [("old",)]
    second.execute("select modak.drop_iceberg_table('public', 'declared')")
    first.execute("select modak.drop_iceberg_table('public', 'declared', true)")


def test_a_foreign_table_that_was_dropped_by_itself_comes_back_as_it_was(first: Session) -> None:
    create(first, "again")
    before = columns(first, "public.again")
    first.execute("insert into again (id, i) values (1, '1 day')")
    first.execute("drop foreign table again")
    assert attach(first, "again", "public.again") == []
    assert columns(first, "public.again") == before
    assert first.execute("select id, code, data, i::text from again").fetchall() == [(1, "new", {}, "1 day")]
    first.execute("select modak.drop_iceberg_table('public', 'again', true)")


def test_what_other_engines_did_to_the_columns(pair: Pair, first: Session, second: Session) -> None:
    """By field id: a renamed column keeps its type, a widened one has the lake's, one that is new has no other."""
    create(first, "changed", [*DECLARED, {"name": "gone", "type": "jsonb"}])
    table = pair.lake_table("public.changed")
    with table.update_schema() as change:
        change.rename_column("data", "tree")
        change.update_column("n", LongType())
        change.make_column_optional("code")
        change.delete_column("gone")
        change.add_column("added", StringType())
    with pair.lake_table("public.changed").update_schema() as change:
        change.add_column("data", StringType())
    assert attach(second, "changed", "public.changed") == []
    found = {name: (kind, required, preset) for name, kind, required, preset, _ in columns(second, "public.changed")}
    assert found["tree"] == ("jsonb", False, "'{}'::jsonb")
    assert found["n"] == ("bigint", False, None)
    assert found["code"] == ("character varying(3)", False, "'new'::character varying")
    assert (found["added"], found["data"]) == (("text", False, None), ("text", False, None))
    assert "gone" not in found
    second.execute("insert into changed (id, n, code, tree) values (1, 100000, null, '{\"k\": 1}')")
    assert second.execute("select n, code, tree->>'k', data from changed").fetchall() == [(100000, None, "1", None)]
    second.execute("select modak.drop_iceberg_table('public', 'changed')")
    first.execute("select modak.drop_iceberg_table('public', 'changed', true)")


HOSTILE = {
    "1": {"type": "public.mood"},
    "2": {"type": "text); drop table public.victim; --", "default": "1); drop table public.victim; --"},
    "3": {"type": "jsonb", "default": "public.steal()"},
    "4": {"type": "smallint", "default": "'no number'"},
}


def test_a_property_that_says_nonsense_is_not_followed(pair: Pair, first: Session, second: Session) -> None:
    kinds = [("mood", "text"), ("victim", "text"), ("doc", "text"), ("n", "integer")]
    create(first, "strange", [{"name": name, "type": kind} for name, kind in kinds])
    with pair.lake_table("public.strange").transaction() as change:
        change.set_properties({PROPERTY: json.dumps(HOSTILE)})
    second.execute("create table public.victim (id int)")
    heard = attach(second, "strange", "public.strange")
    assert second.execute("select to_regclass('public.victim') is not null").fetchall() == [(True,)]
    found = [(kind, preset) for _, kind, _, preset, _ in columns(second, "public.strange")]
    assert found == [("text", None), ("text", None), ("jsonb", None), ("smallint", None)]
    assert [line.split(":")[0] for line in heard] == ["column mood", "column victim", "column victim", "column doc", "column n"]
    second.execute("drop table public.victim; select modak.drop_iceberg_table('public', 'strange')")
    first.execute("select modak.drop_iceberg_table('public', 'strange', true)")
