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


def test_the_same_call_on_another_node_is_the_same_table(pair: Pair, first: Session, second: Session) -> None:
    parts = ["bucket(4, id)", "day(at)"]
    assert create(first, "twins", partition_by=parts) == []
    first.execute("insert into twins (id) values (1)")
    heard = create(second, "twins", partition_by=["bucket(id, 4)", "DAY(at)"])
    assert heard == ["lake table public.twins is there already, with the same columns: table public.twins is attached to it"]
    assert columns(second, "public.twins") == columns(first, "public.twins")
    second.execute("insert into twins (id, code) values (2, 'x')")
    assert first.execute("select id, code from twins order by id").fetchall() == [(1, "new"), (2, "x")]
    # Once more, as a script does that is run twice; and as somebody else does who has heard of it.
    assert create(second, "twins", partition_by=parts) == [
        "table public.twins is there already, with the same columns: it is lake table public.twins",
    ]
    assert attach(second, "twins", "public.twins") == ["table public.twins is attached to lake table public.twins already"]
    with pytest.raises(psycopg.errors.DuplicateTable):
        create(first, "twins", partition_by=parts)
    # It is attached here: letting go of it takes nothing from the node that made it.
    second.execute("select modak.drop_iceberg_table('public', 'twins')")
    assert first.execute("select count(*) from twins").fetchall() == [(2,)]
    # What one statement of a transaction attached the next ones write to, and a rollback undoes both.
    with second.transaction(force_rollback=True):
        create(second, "twins", partition_by=parts)
        second.execute("insert into twins (id) values (3)")
        assert second.execute("select count(*) from twins").fetchall() == [(3,)]
    assert first.execute("select count(*) from twins").fetchall() == [(2,)]
    # A foreign table that is dropped by itself leaves the way free, too.
    create(second, "twins", partition_by=parts)
    second.execute("drop foreign table twins")
    assert len(create(second, "twins", partition_by=parts)) == 1
    assert second.execute("select count(*) from twins").fetchall() == [(2,)]
    second.execute("select modak.drop_iceberg_table('public', 'twins')")
    first.execute("select modak.drop_iceberg_table('public', 'twins', true)")


SHORT = [{"name": "id", "type": "bigint", "not_null": True}, {"name": "code", "type": "varchar(3)"}]
OTHERS = [
    (
        [SHORT[0], {"name": "code", "type": "varchar(4)"}],
        None,
        r"column code is character varying\(3\).* there, and character varying\(4\)",
    ),
    ([SHORT[0], {**SHORT[1], "not_null": True}], None, "not null"),
    ([{**SHORT[0], "not_null": False}, SHORT[1]], None, "column id"),
    ([SHORT[0], {**SHORT[1], "name": "kode"}], None, "column code is not wanted here"),
    (SHORT[:1], None, "column code is not wanted here"),
    ([*SHORT, {"name": "more", "type": "text"}], None, "column more is not there"),
    ([SHORT[1], SHORT[0]], None, "column id is not wanted here"),
    (SHORT, ["id"], "partitioned by nothing there, and by id here"),
]


@pytest.mark.parametrize(("wanted", "partition_by", "reason"), OTHERS)
def test_other_columns_are_another_table(
    pair: Pair, first: Session, second: Session, wanted: Any, partition_by: list[str] | None, reason: str
) -> None:
    create(first, "other", SHORT)
    try:
        with pytest.raises(psycopg.errors.DuplicateTable, match=reason) as failed:
            create(second, "other", wanted, partition_by)
        assert "modak.attach_iceberg_table('public', 'other', 'public.other')" in str(failed.value.diag.message_hint)
        assert second.execute("select to_regclass('public.other') is null").fetchall() == [(True,)]
        attach(second, "other", "public.other")
        with pytest.raises(psycopg.errors.DuplicateTable, match=reason):
            create(second, "other", wanted, partition_by)
        assert second.execute("select relname from pg_class where relname ~ '^modak_[0-9a-f]'").fetchall() == []
    finally:
        second.execute("drop foreign table if exists other")
        first.execute("select modak.drop_iceberg_table('public', 'other', true)")


def test_a_table_that_may_be_taken_back_is_not_joined(pair: Pair, first: Session) -> None:
    """Its transaction is open still: what a second session of the same node finds in the lake is nobody's yet."""
    create(first, "doubtful", SHORT)
    stamp = pair.lake_table("public.doubtful").properties["modak.commit-id"]
    first.execute("drop foreign table doubtful; delete from modak.decoupled where lake_table_ref = 'public.doubtful'")
    with pair.first.client(autocommit=False) as other:
        [xid] = other.execute("select pg_current_xact_id()::text").fetchone() or []
        first.execute("insert into modak.lake_commits (commit_id, xid, changes) values (%s, %s, '[]')", [stamp, xid])
        pair.first.gateway.gateway.decoupled.settled._known.clear()
        with pytest.raises(psycopg.errors.DuplicateTable, match="may yet be taken back"):
            create(first, "doubtful", SHORT)
        other.commit()
    first.execute("delete from modak.lake_commits where commit_id = %s", [stamp])
    assert len(create(first, "doubtful", SHORT)) == 1
    first.execute("select modak.drop_iceberg_table('public', 'doubtful', true)")
