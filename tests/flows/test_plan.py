"""``modak plan``: figures, blockers and advice, and nothing changed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import EVENTS, create_events, options, photograph, register_events

from modak.app import App
from modak.connection import Connection
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.lake.iceberg import IcebergLake
from modak.registration import report
from modak.source import statements

HEAP_SQL = [
    ("ON CONFLICT", "insert into events values (1) on conflict do nothing"),
    ("MERGE", "merge into public.events e using x on true when matched then delete"),
    ("row locks", "select * from events for no key update"),
    ("row locks", "select * from events for share"),
]


def plan(connection: Connection, name: Name = EVENTS, surface_given: bool = True, **given: Any) -> dict[str, Any]:
    return report.as_dict(report.report(connection, name, options(**given), surface_given=surface_given))


def test_figures_of_fixture_e(connection: Connection, app: App) -> None:
    create_events(connection)
    connection.execute("analyze public.events")
    before = photograph(connection, app.settings.data)
    found = plan(connection, lag="100")
    assert photograph(connection, app.settings.data) == before
    assert (found["would_register"], found["problems"]) == (True, [])
    assert (found["heap"], found["view"], found["lake_table"]) == ("public.events_hot", "public.events", "public.events")
    assert [(part["name"], part["from"], part["to"], part["rows_estimated"]) for part in found["partitions"]] == [
        ("events_p0", "0", "100", 2),
        ("events_p1", "100", "200", 1),
        ("events_p2", "200", "300", 2),
    ]
    assert (found["newest_key"], found["due_partitions"]) == ("220", ["events_p0"])
    assert found["bytes"] > found["due_bytes"] > 0
    assert [(column["name"], column["lake_type"]) for column in found["columns"]] == [
        ("id", "long"),
        ("event_time", "long"),
        ("val", "string"),
    ]
    assert any("registration looks for duplicates" in note for note in found["notes"])
    assert any("will be set NOT NULL" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("rows", "newest"), [("", None), ("(1, 150, 'x')", "150"), ("(1, 10, 'x'), (2, 299, 'y')", "299"), ("(1, 0, 'x')", "0")]
)
def test_the_newest_key_is_the_datas_own(connection: Connection, rows: str, newest: str | None) -> None:
    create_events(connection)
    connection.execute("truncate public.events")
    if rows:
        connection.execute(f"insert into public.events values {rows}")
    assert plan(connection)["newest_key"] == newest


def test_negative_keys_have_a_newest_one_too(connection: Connection) -> None:
    connection.execute("""
        create table public.events (id bigint, event_time bigint, r text) partition by list (r);
        create table public.events_a partition of public.events for values in ('a') partition by range (event_time);
        create table public.events_b partition of public.events for values in ('b') partition by range (event_time);
        create table public.events_a1 partition of public.events_a for values from (-100) to (0);
        create table public.events_b1 partition of public.events_b for values from (-100) to (0);
        insert into public.events values (1, -50, 'a'), (2, -10, 'b'), (3, -60, 'b')
    """)
    assert plan(connection)["newest_key"] == "-10"
    connection.execute("insert into public.events values (4, -1, 'a')")
    assert plan(connection)["newest_key"] == "-1"


def test_zero_is_a_newest_key_as_any_other(connection: Connection) -> None:
    connection.execute("""
        create table public.events (id bigint, event_time bigint, r text) partition by list (r);
        create table public.events_a partition of public.events for values in ('a') partition by range (event_time);
        create table public.events_b partition of public.events for values in ('b') partition by range (event_time);
        create table public.events_a1 partition of public.events_a for values from (-100) to (100);
        create table public.events_b1 partition of public.events_b for values from (-100) to (100);
        insert into public.events values (1, -5, 'a'), (2, 0, 'b')
    """)
    assert plan(connection)["newest_key"] == "0"


def test_blockers_are_listed_and_nothing_fails(connection: Connection) -> None:
    connection.execute("create table public.events (id bigint, event_time text, m money) partition by hash (id)")
    found = plan(connection, primary_key=(), dependents="refuse", lag="1")
    assert not found["would_register"]
    assert {"tier_key_type", "no_primary_key", "type"} <= {problem["code"] for problem in found["problems"]}
    assert found["tier_key_type"] is None


@pytest.mark.parametrize(
    "statement",
    [
        "create view public.events as select 1 as id, 2::bigint as event_time",
        "create sequence public.events",
        "create table public.events (id bigint, event_time bigint)",
        "create table public.events (id bigint, event_time bigint) partition by range (id, event_time)",
        "create table public.events (id bigint, event_time bigint) partition by list (id)",
        """create table public.events (id bigint, event_time bigint) partition by range (event_time);
           create table public.e_rest partition of public.events default""",
        """create table public.events (id bigint, event_time bigint) partition by range (event_time);
           create table public.e_1 partition of public.events for values from (0) to (5) partition by hash (id)""",
    ],
)
def test_a_plan_of_anything_ends_in_blockers_not_in_a_failure(connection: Connection, statement: str) -> None:
    connection.execute(statement)
    assert not plan(connection, lag="1")["would_register"]


def test_a_registered_table_says_so(connection: Connection, lake: IcebergLake) -> None:
    register_events(connection, lake)
    for name in ("events", "events_hot"):
        assert "registered" in {problem["code"] for problem in plan(connection, Name("public", name))["problems"]}


def test_a_plan_needs_no_catalog(new_database: Any) -> None:
    from modak.connection import connect

    with connect(new_database(), autocommit=True) as empty:
        create_events(empty)
        assert plan(empty)["would_register"]


@pytest.mark.parametrize(("kind", "text"), HEAP_SQL)
def test_kinds_of_statements_that_need_the_heap(kind: str, text: str) -> None:
    assert statements._kind(text) == kind


def test_without_statistics_the_advice_says_so(connection: Connection) -> None:
    create_events(connection)
    found = plan(connection)
    assert found["heap_statements"] is None
    assert "pg_stat_statements is not there" in found["surface_advice"]


def test_an_extension_that_is_not_preloaded_counts_as_absent(connection: Connection) -> None:
    create_events(connection)
    connection.execute("create schema stats; create extension pg_stat_statements schema stats")
    assert plan(connection)["heap_statements"] is None


def test_statements_found_demand_a_decision(tmp_path_factory: pytest.TempPathFactory) -> None:
    """On a cluster of its own: the extension must be preloaded."""
    from modak.connection import connect

    options_given = {"shared_preload_libraries": "pg_stat_statements", "fsync": "off"}
    cluster = Cluster.start(tmp_path_factory.mktemp("statements") / "postgres", options=options_given)
    try:
        with connect(cluster.dsn(), autocommit=True) as connection:
            connection.execute("create extension pg_stat_statements schema public")
            create_events(connection)
            connection.execute("create table public.my_events (id int primary key)")
            connection.execute("insert into public.my_events values (1) on conflict do nothing")
            assert plan(connection, surface_given=False)["would_register"], "another table's statements do not count"
            connection.execute("select * from public.events where id = 1 for update")
            found = plan(connection, surface_given=False)
            assert not found["would_register"]
            assert (found["surface_advice"], [line["kind"] for line in found["heap_statements"]]) == ("heap", ["row locks"])
            assert plan(connection, surface_given=True)["would_register"]
    finally:
        cluster.stop("immediate")
