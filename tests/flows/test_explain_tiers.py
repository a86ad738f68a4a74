"""Which tiers a statement touches, by modak_explain: T is 200, p0 and p1 are cold and gone from the heap. Mostly without a gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from tests import events
from tests.commands import Modak
from tests.events import drop_tiered, put_under_modak, tier
from tests.gateways import RunningGateway
from tests.support import photograph, rows, value

from modak.app import App
from modak.catalog.explain import route
from modak.connection import Connection
from modak.errors import Refused

pytestmark = pytest.mark.inline

NOT_THERE = "gateway: it does not answer; what follows is the plan of Postgres alone"
# A statement, its route, and its tiers.
STATEMENTS = [
    ("select 1", None, []),
    ("select relname from pg_class h", None, []),
    ("select * from modak.delta d", None, []),
    ("select * from events", "both", ["cold", "hot"]),
    ("select * from events where event_time >= 200", "hot", ["hot"]),
    ("select * from events where event_time > 100000", "hot", ["hot"]),
    ("select * from events where event_time < 200", "cold", ["cold"]),
    ("/* a note */ -- and another\n (select count(*) from events)", "both", ["cold", "hot"]),
    ("with old as (select * from events where event_time < 50) select * from old join pg_class on true", "cold", ["cold"]),
    ("table events", "both", ["cold", "hot"]),
    ("select * from events_hot", "hot", ["hot"]),
    ("select * from p2", "hot", ["hot"]),
    ("update events set val = 'x' where event_time >= 200", "hot", ["hot"]),
    ("update events set val = 'x' where event_time < 200", "cold", ["cold"]),
    ("update events set val = 'x'", "both", ["cold", "hot"]),
    ("delete from events where event_time < 200 returning id", "cold", ["cold"]),
    ("delete from events_hot", "hot", ["hot"]),
    ("create table new as select * from events where event_time < 200", "cold", ["cold"]),
    ("insert into plain select id from events where event_time < 200", "cold", ["cold"]),
    ("with added as (insert into events values (9, 250, 'x') returning id) select * from added", "both", ["cold", "hot"]),
]


@pytest.fixture
def tiered(app: App, connection: Connection) -> App:
    events.create(connection)
    connection.execute("create table public.plain (id bigint)")
    put_under_modak(app, connection)
    tier(app)
    drop_tiered(app)
    # As the command has it; photographs show names by it.
    connection.execute("set search_path = public, pg_catalog")
    return app


def test_without_a_gateway_and_with_one(tiered: App, connection: Connection) -> None:
    before = photograph(connection), rows(connection, "select * from public.events_hot order by id")
    for there in (False, True):
        running = RunningGateway(tiered)
        if there:
            running.start()
        try:
            for statement, way, tiers in STATEMENTS:
                found = route(connection, statement)
                assert found.tiers == tiers, (statement, found.lines)
                assert [line for line in found.lines if line.startswith("modak: route: ")] == ([f"modak: route: {way}"] if way else [])
                assert any(line.startswith("postgres: ") for line in found.lines), statement
                asked = re.match(r"(?s).*?(select|with|table)", statement) and not re.match(r"insert|create|update|delete", statement)
                assert (NOT_THERE in found.lines) == (bool(asked) and not there), (statement, found.lines)
        finally:
            running.stop()
    assert (photograph(connection), rows(connection, "select * from public.events_hot order by id")) == before


def test_corrections_count_where_there_are_some_and_cold_rows_are_asked_for(tiered: App, connection: Connection) -> None:
    connection.execute("insert into public.events values (9, 50, 'late')")
    assert route(connection, "select * from events").tiers == ["cold", "corrections", "hot"]
    assert route(connection, "select * from events where event_time < 200").tiers == ["cold", "corrections"]
    assert route(connection, "select * from events where event_time >= 200").tiers == ["hot"]
    assert "modak: route: cold" in route(connection, "delete from events where event_time < 200").lines
    events.fold(tiered)
    assert route(connection, "select * from events").tiers == ["cold", "hot"]


def test_before_anything_is_cold(app: App, connection: Connection) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    assert route(connection, "select * from events").tiers == ["hot"]
    connection.execute("insert into public.events values (9, -50, 'late')")
    assert route(connection, "select * from events").tiers == ["corrections", "hot"]


def test_copies_that_still_stand_in_the_heap_are_not_hot(app: App, connection: Connection) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    tier(app)
    assert route(connection, "select * from events where event_time < 200").tiers == ["cold"]
    assert route(connection, "select * from events_hot where event_time < 200").tiers == ["hot"]


def test_with_the_heap_as_surface_the_name_is_hot(app: App, connection: Connection) -> None:
    events.create(connection)
    put_under_modak(app, connection, surface="heap")
    tier(app)
    drop_tiered(app)
    assert route(connection, "select * from events").tiers == ["hot"]
    assert route(connection, "select * from events_all").tiers == ["cold", "hot"]


def test_a_decoupled_table_is_in_the_lake_alone(tiered: App, connection: Connection, gateway: RunningGateway) -> None:
    columns = '[{"name": "id", "type": "bigint"}]'
    connection.execute("select modak.create_iceberg_table('public', 'alone', %s)", [columns])
    for statement in ("select * from alone", "delete from alone", "insert into alone values (1)"):
        found = route(connection, statement)
        assert (found.tiers, "modak: route: lake" in found.lines) == (["lake"], True), found.lines
    # Postgres leaves these to the gateway whole, and names the tables only in words.
    connection.execute("select modak.create_iceberg_table('public', 'An \"odd\".one', %s)", [columns])
    for statement in (
        "select count(*) from alone",
        'select count(*) from alone a join "An ""odd"".one" b using (id)',
        "select max(id) from alone",
    ):
        found = route(connection, statement)
        assert (found.tiers, any("Relations" in line for line in found.lines)) == (["lake"], True), found.lines
    assert route(connection, 'select count(*) from "An ""odd"".one" x').tiers == ["lake"]
    both = route(connection, "select * from alone natural join events where event_time >= 200")
    assert (both.tiers, "modak: route: both" in both.lines) == (["hot", "lake"], True)


def test_a_job_that_is_none_of_a_decoupled_table_says_what_is(connection: Connection, gateway: RunningGateway, modak: Modak) -> None:
    connection.execute("""select modak.create_iceberg_table('public', 'alone', '[{"name": "id", "type": "bigint"}]')""")
    for command in ("tier", "fold", "untier"):
        refused = modak(command, "public.alone", code=1).err
        assert "public.alone is a decoupled table" in refused
        assert "`modak maintain`" in refused


@pytest.mark.parametrize(
    "statement",
    [
        "merge into events e using (values (1, 250)) v(id, at) on e.id = v.id when matched then delete",
        "MERGE INTO public.events USING (values (1, 250)) v(i, at) on events.id = v.i when not matched then insert values (v.i, v.at, '')",
        "insert into events values (1, 250, 'x') on conflict do nothing",
    ],
)
def test_what_a_view_does_not_take_is_told_where_to_go(tiered: App, connection: Connection, modak: Modak, statement: str) -> None:
    found = route(connection, statement)
    assert (found.tiers, found.lines[0]) == (["rejected"], "modak: route: rejected")
    assert "run it on the heap, events_hot, or on the gateway's port" in found.lines[2]
    assert "touches: rejected" in modak("explain", statement).out
    assert route(connection, re.sub(r"\bevents\b", "events_hot", statement)).tiers == ["hot"] or statement.startswith("insert")


def test_a_gateway_that_is_asked_in_vain(tiered: App, connection: Connection) -> None:
    """Its machine died with it: Postgres goes on asking for estimates of cold rows, and has no plan without."""
    assert value(connection, "select 'use_remote_estimate=false' = any(srvoptions) from pg_foreign_server where srvname = 'modak_gateway'")
    connection.execute("alter server modak_gateway options (set port '1', set use_remote_estimate 'true')")
    found = route(connection, "select * from events")
    assert (found.tiers, found.lines[:2]) == (["cold"], (NOT_THERE, "modak: route: cold"))
    assert "hot rows may be touched as well" in found.lines[2]
    assert route(connection, "select * from events where event_time >= 200").tiers == ["hot"]


def test_a_gateway_without_its_lake(tiered: App, connection: Connection) -> None:
    warehouse = tiered.settings.data / "warehouse"
    warehouse.rename(warehouse.with_name("away"))
    running = RunningGateway(tiered)
    running.start()
    try:
        found = route(connection, "select * from events")
    finally:
        running.stop()
        warehouse.with_name("away").rename(warehouse)
    assert (found.tiers, found.lines[0].startswith("gateway: ")) == (["cold", "hot"], True), found.lines
    assert "engine" not in found.lines[0]


def test_the_command(tiered: App, connection: Connection, modak: Modak) -> None:
    shown = modak("explain", "select 1")
    assert NOT_THERE in shown.out
    assert "touches: no registered table" in shown.out
    assert modak("explain", "select * from events where event_time < 200", "--json").json["tiers"] == ["cold"]
    for wrong, words in (("select * from nothing", 'relation "nothing" does not exist'), ("truncate events", 'at or near "truncate"')):
        failed = modak("explain", wrong, code=1)
        assert f"error: Postgres cannot plan the statement: {words}" in failed.err.replace("syntax error ", "")
        assert "hint: " in failed.err
        assert "CONTEXT" not in failed.err


@pytest.mark.parametrize("second", ["delete from public.events_hot", "drop view public.events", "create table public.made (id int)"])
def test_a_second_statement_is_not_run(tiered: App, connection: Connection, second: str) -> None:
    before = photograph(connection)
    with pytest.raises(Refused, match="multi-query"):
        route(connection, f"select 1; {second}")
    with pytest.raises(Refused, match="syntax error"):
        route(connection, f"analyze {second}")
    assert photograph(connection) == before
    assert value(connection, "select count(*) from public.events_hot") == 2


@pytest.fixture
def guest(tiered: App, connection: Connection) -> Iterator[psycopg.Connection[tuple[str]]]:
    """Somebody who may read a view of the table's owner, and not the table."""
    connection.execute("create view public.recent as select * from public.events where event_time < 200")
    connection.execute(
        "create role explain_guest; grant usage on schema modak to explain_guest; grant select on public.recent to explain_guest"
    )
    with psycopg.connect(tiered.dsn, autocommit=True) as session:
        session.execute("set role explain_guest")
        yield session
    connection.execute("drop owned by explain_guest; drop role explain_guest")


def test_through_a_view_of_somebody_else(guest: psycopg.Connection[tuple[str]]) -> None:
    lines = [line for (line,) in guest.execute("select public.modak_explain('select * from public.recent')").fetchall()]
    assert "modak: tiers: cold" in lines
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        guest.execute("select public.modak_explain('select * from public.events')").fetchall()
