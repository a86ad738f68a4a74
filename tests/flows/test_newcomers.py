"""Partitions that somebody makes by hand: one below the cut-line takes no rows, since the name would not show them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import psycopg
import pytest
from tests import events
from tests.gateways import RunningGateway
from tests.support import EVENTS, options, photograph, register_events, register_table, rows, unregister_table, value

from modak.app import App
from modak.connection import Connection, connect
from modak.core.registration import Options
from modak.lake.iceberg import IcebergLake
from modak.source import newcomers

pytestmark = pytest.mark.inline

WATCHED = """select c.relname::text from pg_trigger t join pg_class c on c.oid = t.tgrelid
              where t.tgname = 'modak_newcomer' and t.tgenabled = 'A' and c.relkind = 'r' order by 1"""


def insert(connection: Connection, name: str) -> None:
    connection.execute(f"insert into {name} values (9, -50, 'late')")


def copy(connection: Connection, name: str) -> None:
    with connection.cursor().copy(f"copy {name} from stdin") as rows_in:
        rows_in.write_row((9, -50, "late"))


def move(connection: Connection, name: str) -> None:
    connection.execute(f"update {name} set event_time = -50 where id = 4")


def insert_straight(connection: Connection, name: str) -> None:
    connection.execute("insert into public.events_m1 values (9, -50, 'late')")


def upsert(connection: Connection, name: str) -> None:
    connection.execute("select public.modak_upsert('public.events', '{\"id\": 9, \"event_time\": -50}')")


def replicate(connection: Connection, name: str) -> None:
    with connection.transaction():
        connection.execute("set local session_replication_role = replica")
        connection.execute("insert into public.events_hot values (9, -50, 'late')")


WRITES = [insert, copy, move, insert_straight, upsert, replicate]


@pytest.mark.parametrize("name", ["public.events", "public.events_hot"])
@pytest.mark.parametrize("write", WRITES, ids=[write.__name__ for write in WRITES])
def test_nothing_comes_into_a_partition_below_the_line(
    connection: Connection, lake: IcebergLake, write: Callable[[Connection, str], None], name: str
) -> None:
    register_events(connection, lake)
    before = rows(connection, "select * from public.events order by id")
    connection.execute("create table public.events_m1 partition of public.events_hot for values from (-100) to (0)")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=r'events_m1 of table "public.events" lies below') as refused:
        write(connection, name)
    assert rows(connection, "select * from public.events order by id") == before
    assert value(connection, "select count(*) from modak.delta") == 0
    # The hint says what to do, and then it is a late row like any other.
    hint = refused.value.diag.message_hint
    assert hint is not None
    connection.execute(hint[hint.index("ALTER TABLE") :].encode())
    assert value(connection, "select to_regclass('public.events_m1') is not null")
    insert(connection, name)
    assert value(connection, "select val from public.events where event_time = -50") == "late"


def test_one_above_the_line_is_watched_until_a_pass_has_seen_it(app: App, connection: Connection) -> None:
    events.create(connection)
    events.put_under_modak(app, connection, lag=None)
    assert rows(connection, WATCHED) == []
    connection.execute("create table public.p3 partition of public.events_hot for values from (300) to (400)")
    connection.execute("insert into public.events values (6, 310, 'new')")
    assert rows(connection, WATCHED) == [("p3",)]
    events.tier(app)
    assert rows(connection, WATCHED) == []
    connection.execute("insert into public.events values (7, 320, 'newer'), (8, -5, 'late')")
    assert rows(connection, "select id from public.events where id > 5 order by id") == [(6,), (7,), (8,)]


def test_a_busy_partition_is_left_for_the_next_pass(app: App, connection: Connection, dsn: str) -> None:
    events.create(connection)
    events.put_under_modak(app, connection, lag=None)
    connection.execute("create table public.p3 partition of public.events_hot for values from (300) to (400)")
    with connect(dsn) as writer:
        writer.execute("insert into public.events values (6, 310, 'open')")
        events.tier(app)
        assert rows(connection, WATCHED) == [("p3",)]
    events.tier(app)
    assert rows(connection, WATCHED) == []


def test_one_across_the_line_takes_what_is_above_it(app: App, connection: Connection) -> None:
    events.create(connection)
    events.put_under_modak(app, connection, lag=None)
    connection.execute("drop table public.p0")
    connection.execute("create table public.wide partition of public.events_hot for values from (-100) to (100)")
    for _ in range(2):  # before a pass and after it
        connection.execute("insert into public.events values (11, 50, 'seen')")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="below the cut-line"):
            insert(connection, "public.events")
        assert rows(connection, "select id from public.events where event_time < 100") == [(11,)]
        connection.execute("delete from public.events where id = 11")
        events.tier(app)
    assert rows(connection, WATCHED) == [("wide",)]


def test_an_older_view_of_the_line_fails_instead_of_losing_the_row(app: App, connection: Connection, dsn: str) -> None:
    events.create(connection)
    connection.execute("drop table public.p1")
    events.put_under_modak(app, connection, lag=None)
    with connect(dsn) as writer:
        writer.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        writer.execute("select from modak.cutline")
        events.tier(app, upto=200)
        connection.execute("create table public.again partition of public.events_hot for values from (100) to (200)")
        with pytest.raises(psycopg.errors.SerializationFailure):
            writer.execute("insert into public.events_hot values (9, 150, 'late')")


def test_regions_and_what_comes_below_them(connection: Connection, lake: IcebergLake) -> None:
    connection.execute("""
        create table public.places (id bigint, region text, at bigint, primary key (id, region, at)) partition by list (region);
        create table public.eu partition of public.places for values in ('eu') partition by range (at);
        create table public.eu_0 partition of public.eu for values from (0) to (100);
    """)
    register_table(connection, lake, type(EVENTS)("public", "places"), Options(tier_key="at"))
    assert rows(connection, WATCHED) == []
    connection.execute("create table public.eu_m1 partition of public.eu for values from (-100) to (0)")
    connection.execute("create table public.us partition of public.places_hot for values in ('us') partition by range (at)")
    connection.execute("create table public.us_m1 partition of public.us for values from (-100) to (50)")
    for region in ("eu", "us"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=f"{region}_m1"):
            connection.execute("insert into public.places values (1, %s, -10)", [region])
    assert value(connection, "select count(*) from public.places") == 0


def test_a_registration_of_an_earlier_release_gets_it_with_the_next_pass(app: App, connection: Connection) -> None:
    events.create(connection)
    events.put_under_modak(app, connection, lag=None)
    number = value(connection, "select table_id from modak.tables")
    newcomers.remove(connection, number)
    connection.execute(f"comment on function modak.write_{number}() is 'modak 7 0123'")
    connection.execute("create table public.m1 partition of public.events_hot for values from (-100) to (0)")
    events.tier(app)
    assert rows(connection, WATCHED) == [("m1",)]
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        insert(connection, "public.events")
    connection.execute("drop table public.m1")
    insert(connection, "public.events")
    assert value(connection, "select count(*) from public.events") == 6


@pytest.mark.parametrize("which", ["user", "all"])
def test_triggers_that_were_all_switched_on_again_keep_no_cold_row_out(
    app: App, connection: Connection, gateway: RunningGateway, which: str
) -> None:
    """As scripts do around bulk work: what Modak looks after by other triggers must not be taken for a partition that nobody knows."""
    events.create(connection)
    events.put_under_modak(app, connection, lag=None)
    events.tier(app, upto=100)
    assert rows(connection, "select tableoid::regclass::text from public.events_hot where id = 1") == [("public.p0",)]
    connection.execute(f"alter table public.events_hot disable trigger {which}")
    connection.execute(f"alter table public.events_hot enable trigger {which}")
    connection.execute("insert into public.events values (9, -50, 'spilled'), (10, 50, 'standing')")
    connection.execute("update public.events set event_time = 60 where id = 4")
    connection.execute("update public.events set event_time = -60 where id = 5")
    assert rows(connection, "select id, event_time from public.events where id in (4, 5, 9, 10) order by 1") == [
        (4, 60),
        (5, -60),
        (9, -50),
        (10, 50),
    ]
    connection.execute("create table public.m1 partition of public.events_hot for values from (-200) to (-100)")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=r"public\.m1"):
        connection.execute("insert into public.events values (11, -150, 'nobody would see it')")
    events.tier(app, upto=100)
    watched = "select tgrelid::regclass::text from pg_trigger where tgname = 'modak_newcomer' and tgenabled <> 'D' order by 1"
    assert rows(connection, watched) == [("public.events_hot",), ("public.m1",)]


@pytest.fixture
def role(connection: Connection) -> Iterator[str]:
    name = f"maker_{os.getpid()}"
    connection.execute(f"create role {name}")
    yield name
    connection.execute(f"reset role; drop owned by {name} cascade; drop role {name}")


def test_the_owner_makes_partitions_as_ever(connection: Connection, lake: IcebergLake, role: str) -> None:
    """Postgres asks whether he may call the trigger's function, though it is the table that has it."""
    connection.execute(f"grant create on schema public to {role}")
    connection.execute(f"set role {role}")
    connection.execute("create table public.events (id bigint, event_time bigint, val text) partition by range (event_time)")
    connection.execute("create table public.p0 partition of public.events for values from (0) to (100)")
    connection.execute("reset role")
    register_table(connection, lake, EVENTS, options())
    connection.execute("select modak.set_up_roles()")
    connection.execute(f"set role {role}")
    connection.execute("create table public.p1 partition of public.events_hot for values from (100) to (200)")
    connection.execute("insert into public.events values (1, 150, 'x')")
    # On a table of his own it does nothing.
    number = value(connection, "select 'public.events_hot'::regclass::oid::bigint")
    connection.execute("create table public.own (event_time bigint)")
    connection.execute(f"create trigger mine after insert on public.own for each row execute function modak.newcomer_{number}()")
    connection.execute("insert into public.own values (-50)")
    connection.execute("reset role")
    assert value(connection, "select val from public.events where event_time = 150") == "x"
    assert value(connection, "select count(*) from public.own") == 1


def test_it_goes_with_the_registration(connection: Connection, lake: IcebergLake) -> None:
    events.create(connection)
    before = photograph(connection)
    register_table(connection, lake, EVENTS, options())
    assert value(connection, "select count(*) from pg_trigger where tgname = 'modak_newcomer'") > 0
    unregister_table(connection, lake, drop_lake=True)
    assert photograph(connection) == before
