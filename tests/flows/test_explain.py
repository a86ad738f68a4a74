"""Where an INSERT would go, by modak_explain: rows of literals are counted, and nothing is run. T is 200 and R is 100."""

from __future__ import annotations

import psycopg
import pytest
from tests.support import register_events, rows, value

from modak.catalog.explain import route
from modak.connection import Connection
from modak.lake.iceberg import IcebergLake

COUNTS = "{} hot, {} cold, {} rejected ({} below the retention line, {} without a partition, {} without a tier key)"


@pytest.fixture
def table(connection: Connection, lake: IcebergLake) -> str:
    register_events(connection, lake)
    connection.execute("update modak.cutline set tier_key_hi = 200, retention_line = 100")
    return "public.events"


def told(connection: Connection, statement: str) -> tuple[str, ...]:
    lines = [line for (line,) in rows(connection, "select line from public.modak_explain(%s) line", statement)]
    assert any(line.startswith("postgres: Insert on") for line in lines), lines
    told = [line.removeprefix("modak: ") for line in lines if line.startswith("modak: ")]
    return tuple(line.removeprefix("route: ").removeprefix("rows: ") for line in told)


@pytest.mark.parametrize(
    ("statement", "found", "counts"),
    [
        ("insert into {} values (1, 250, 'x'), (2, 200, null)", "hot", (2, 0, 0, 0, 0, 0)),
        ("INSERT INTO {} (val, event_time, id) VALUES ('it''s (1, 2)', '150', 7) returning id;", "cold", (0, 1, 0, 0, 0, 0)),
        ("insert into {} as e (id, event_time) values (1, 110), (2, +210)", "both", (1, 1, 0, 0, 0, 0)),
        ("insert into {} values (1, 99, 'x'), (2, 300, default), (3, null, 'x'), (4, 250, 'x')", "rejected", (1, 0, 3, 1, 1, 1)),
        ("insert into {} values (1, int8 '-5', 'x'), (2, 1.5e2::bigint, 'x')", "rejected", (0, 1, 1, 1, 0, 0)),
    ],
)
@pytest.mark.parametrize("name", ["public.events", "public.events_hot", 'public."events"'])
def test_rows_of_literals_are_counted(
    connection: Connection, table: str, name: str, statement: str, found: str, counts: tuple[int, ...]
) -> None:
    before = rows(connection, "select * from public.events_hot order by id")
    assert told(connection, statement.format(name)) == (found, COUNTS.format(*counts))
    assert rows(connection, "select * from public.events_hot order by id") == before
    assert value(connection, "select count(*) from modak.delta") == 0


@pytest.mark.parametrize(
    "rest",
    [
        "select 1, 150, 'x'",
        "values (1, nextval('public.counter'), 'x')",
        "(id) values (1)",
        "(id, event_time) values (1, default)",
        "values (1, 150, e'it\\'s')",
    ],
)
def test_what_has_to_be_run_is_decided_row_by_row(connection: Connection, table: str, rest: str) -> None:
    connection.execute("create sequence public.counter")
    how = "rows with event_time >= '200'::pg_catalog.int8 are hot, those below it cold, and those below '100'::pg_catalog.int8 are refused"
    assert told(connection, f"insert into public.events {rest}") == ("row by row", how)
    assert value(connection, "select is_called from public.counter") is False


def test_the_command_names_the_tiers(connection: Connection, table: str) -> None:
    assert route(connection, "insert into events values (1, 150, 'x'), (2, 250, 'x')").tiers == ["cold", "hot"]
    assert route(connection, "insert into events values (1, 50, 'x')").tiers == ["rejected"]
    assert route(connection, "insert into events select 1, 2, 'x'").tiers == ["cold", "hot"]
    connection.execute("create table public.plain (id int)")
    assert route(connection, "insert into plain values (1)").tiers == []


def test_who_may_not_write_learns_nothing(connection: Connection, table: str) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("create role nosy; grant usage on schema modak, public to nosy; set local role nosy")
        assert rows(connection, "select tier_key, line from modak.insert_seam('public.events')") == [(None, None)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute("select public.modak_explain('insert into public.events values (1, 150, null)')")
