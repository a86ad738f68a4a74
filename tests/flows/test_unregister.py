"""Unregister gives the table back as it was; the lake stays unless asked otherwise (SCENARIOS 10, 11)."""

from __future__ import annotations

import psycopg
import pytest
from tests.commands import Modak
from tests.support import (
    EVENTS,
    codes,
    create_events,
    files,
    options,
    photograph,
    register_events,
    register_table,
    rows,
    schema_dump,
    unregister_table,
    value,
)

from modak.app import App
from modak.catalog import tables
from modak.connection import Connection, connect
from modak.core.profile import Profile
from modak.core.table import Name
from modak.errors import LockNotAvailable, NotRegistered, Refused
from modak.lake.iceberg import IcebergLake
from modak.registration import unregister as flow


@pytest.mark.parametrize("surface", ["view", "heap"])
def test_the_table_is_exactly_what_it_was(connection: Connection, app: App, lake: IcebergLake, surface: str) -> None:
    create_events(connection)
    connection.execute("""
        alter table public.events_p0 alter column val set not null;
        create index events_by_val on public.events (val);
        create function public.touch() returns trigger language plpgsql as $$ begin new.val := upper(new.val); return new; end $$;
        create trigger touch before insert on public.events for each row execute function public.touch();
        create statistics public.related on id, val from public.events;
        create publication everything for table public.events;
    """)
    before = photograph(connection)
    register_table(connection, lake, surface=surface)
    connection.execute("insert into public.events values (6, 50, 'late')")
    assert value(connection, "select val from public.events where id = 6") == "LATE"
    outcome = unregister_table(connection, lake)
    assert (outcome.found, outcome.lake_dropped, outcome.spills) == (True, False, ())
    after = photograph(connection)
    assert after.pop(("lake table", "public.events"))
    assert after == before
    assert tables.listing(connection) == []
    for table in ("cutline", "partitions", "delta", "op_log", "read_pins"):
        assert value(connection, f"select count(*) from modak.{table}") == 0


def test_the_lake_is_kept_or_purged(connection: Connection, app: App, lake: IcebergLake) -> None:
    register_events(connection, lake)
    outcome = unregister_table(connection, lake)
    assert outcome.lake_table == "public.events"
    assert lake.find("public.events") is not None
    # Its own empty leftover is recognised, so the way back is open.
    register_table(connection, lake)
    assert unregister_table(connection, lake, drop_lake=True).lake_dropped
    assert lake.find("public.events") is None
    assert files(app.settings.data / "warehouse") == []
    assert not list((app.settings.data / "warehouse" / "public").iterdir())


def test_an_unknown_table_is_a_clean_no_op(connection: Connection, app: App, lake: IcebergLake) -> None:
    create_events(connection)
    before = photograph(connection, app.settings.data)
    outcome = flow.drop_forgotten_lake(connection, lake, EVENTS)
    assert (outcome.found, outcome.lake_dropped) == (False, False)
    with pytest.raises(NotRegistered, match=r"public\.events"):
        unregister_table(connection, lake)
    assert photograph(connection, app.settings.data) == before


def test_a_forgotten_lake_table_is_dropped_only_if_it_is_ours(connection: Connection, app: App, lake: IcebergLake) -> None:
    register_events(connection, lake)
    unregister_table(connection, lake)
    assert not flow.drop_forgotten_lake(connection, lake, Name("public", "other")).lake_dropped
    connection.execute("update modak.schema_meta set catalog_id = 'restored elsewhere'")
    assert not flow.drop_forgotten_lake(connection, lake, EVENTS).lake_dropped
    assert lake.find("public.events") is not None


def test_one_table_goes_and_the_other_stays(connection: Connection, lake: IcebergLake) -> None:
    register_events(connection, lake)
    connection.execute("create schema other; create table other.events (id bigint, event_time bigint) partition by range (event_time)")
    kept = register_table(connection, lake, Name("other", "events"))
    unregister_table(connection, lake, drop_lake=True)
    assert tables.listing(connection) == [kept]
    assert lake.find("other.events") is not None
    connection.execute("insert into other.events values (1, -1)")
    assert value(connection, "select count(*) from modak.delta") == 1


def test_two_profiles_in_one_warehouse_never_share_a_folder(connection: Connection, app: App, lake: IcebergLake) -> None:
    """A purge removes the whole folder of a table, so no other table may live in it."""
    register_events(connection, lake)
    other = app.lake(Profile("second"))
    connection.execute("insert into modak.storage_profiles (profile_name) values ('second')")
    connection.execute("create table public.copies (id bigint, event_time bigint) partition by range (event_time)")
    flow_options = options(lake_table="public.events")
    from modak.registration.register import register

    register(connection, other, Name("public", "copies"), flow_options, profile="second")
    unregister_table(connection, other, Name("public", "copies"), drop_lake=True)
    found = lake.find("public.events")
    assert found is not None
    assert found.metadata_location.removeprefix("file://") in {str(path) for path in app.settings.data.rglob("*.json")}


def test_rows_in_the_spill_stay_as_a_default_partition(connection: Connection, lake: IcebergLake) -> None:
    register_events(connection, lake)
    connection.execute("insert into public.events values (0, -5, 'early')")
    outcome = unregister_table(connection, lake, drop_lake=True)
    assert outcome.spills == (Name("public", "events_spill"),)
    assert value(connection, "select count(*) from public.events") == 6
    assert value(connection, "select pg_get_expr(relpartbound, oid) from pg_class where relname = 'events_spill'") == "DEFAULT"
    assert value(connection, "select count(*) from pg_trigger t where tgrelid = 'public.events_spill'::regclass") == 0
    connection.execute("insert into public.events values (9, 9999, 'now anything goes')")


def test_a_long_transaction_makes_it_give_up(
    connection: Connection, dsn: str, app: App, lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "LOCK_TIMEOUT_MS", 200)
    register_events(connection, lake)
    before = photograph(connection, app.settings.data)
    with connect(dsn) as other:
        other.execute("select count(*) from public.events")
        with pytest.raises(LockNotAvailable, match="in use"):
            unregister_table(connection, lake, drop_lake=True)
    assert photograph(connection, app.settings.data) == before


def test_work_that_would_be_lost_stops_it(connection: Connection, app: App, lake: IcebergLake) -> None:
    table = register_events(connection, lake)
    connection.execute("insert into modak.op_log (op_id, table_id, op_kind) values ('x', %s, 'tiering')", [table.table_id])
    connection.execute("insert into public.events values (0, -5, 'early')")
    pointer = '{"metadata_location": "m", "snapshot_id": 1}'
    connection.execute("update modak.cutline set lake_snapshot_id = 1, lake_props = %s", [pointer])
    label = "insert into modak.load_labels (table_id, label, state, tier_key_lo, tier_key_hi) values (%s, 'l', 'staged', 0, 1)"
    connection.execute(label, [table.table_id])
    before = photograph(connection, app.settings.data)
    with pytest.raises(Refused) as refused:
        unregister_table(connection, lake)
    assert codes(refused.value) == ["busy", "unfolded", "unfolded"]
    assert photograph(connection, app.settings.data) == before
    connection.execute("update modak.op_log set phase = 'abandoned'")
    unregister_table(connection, lake, drop_lake=True)


def test_new_users_of_the_view_follow_the_name_or_stop_it(connection: Connection, lake: IcebergLake) -> None:
    register_events(connection, lake)
    connection.execute("create view public.after as select sum(event_time) from public.events")
    connection.execute("create materialized view public.stuck as select 1 from public.events")
    connection.execute("create function public.typed(public.events) returns text language sql as 'select $1.val'")
    with pytest.raises(Refused) as refused:
        unregister_table(connection, lake)
    assert codes(refused.value) == ["dependent", "dependent"]
    connection.execute("drop materialized view public.stuck; drop function public.typed")
    unregister_table(connection, lake)
    assert value(connection, "select * from public.after") == 570


def test_not_null_is_taken_back_only_where_nothing_needs_it_by_now(connection: Connection, lake: IcebergLake) -> None:
    create_events(connection)
    connection.execute("alter table public.events add column region text default 'eu', add column extra text default 'x'")
    table = register_table(connection, lake, primary_key=("id", "region", "extra"))
    assert table.original["set_not_null"] == ["id", "region", "extra"]
    connection.execute("alter table public.events_hot add primary key (id, event_time)")
    connection.execute("drop view public.events cascade; alter table public.events_hot drop column extra")
    unregister_table(connection, lake)
    found = rows(connection, "select attname, attnotnull from pg_attribute where attrelid = 'public.events'::regclass and attnum > 0")
    assert {("id", True), ("region", False)} <= set(found)


@pytest.mark.parametrize(("surface", "view"), [("view", "events"), ("heap", "events_all")])
def test_the_view_is_not_dropped_by_mistake(connection: Connection, dsn: str, lake: IcebergLake, surface: str, view: str) -> None:
    create_events(connection)
    before = schema_dump(dsn, "--schema-only", "--schema=public")
    register_table(connection, lake, surface=surface)
    for statement in (f"drop view public.{view}", "drop table public.events_hot" if surface == "view" else "drop table public.events"):
        with pytest.raises(psycopg.errors.DependentObjectsStillExist) as refused:
            connection.execute(statement)
        assert "unregister_first" in str(refused.value.diag.message_detail)
    connection.execute(f"select count(*) from public.{view}")
    unregister_table(connection, lake)
    assert schema_dump(dsn, "--schema-only", "--schema=public") == before
    assert value(connection, "select count(*) from pg_proc where proname like 'unregister_first%%'") == 0


def test_a_view_that_somebody_dropped_does_not_keep_the_name_away(connection: Connection, dsn: str, lake: IcebergLake) -> None:
    create_events(connection)
    before = schema_dump(dsn, "--schema-only", "--schema=public")
    register_table(connection, lake)
    connection.execute("drop view public.events cascade")
    unregister_table(connection, lake)
    assert schema_dump(dsn, "--schema-only", "--schema=public") == before


def test_a_stranger_under_the_tables_name_is_not_overrun(connection: Connection, app: App, lake: IcebergLake) -> None:
    register_events(connection, lake)
    connection.execute("drop view public.events cascade; create table public.events (mine int)")
    before = photograph(connection, app.settings.data)
    with pytest.raises(Refused, match="not the view that Modak made"):
        unregister_table(connection, lake)
    assert photograph(connection, app.settings.data) == before


def test_a_renamed_heap_gets_its_name_back(connection: Connection, dsn: str, lake: IcebergLake) -> None:
    create_events(connection)
    before = schema_dump(dsn, "--schema-only", "--schema=public")
    register_table(connection, lake)
    connection.execute("alter table public.events_hot rename to somewhere_else")
    unregister_table(connection, lake)
    assert schema_dump(dsn, "--schema-only", "--schema=public") == before


def test_a_dropped_heap_does_not_keep_its_registration_for_ever(connection: Connection, lake: IcebergLake) -> None:
    register_events(connection, lake)
    connection.execute("drop table public.events_hot cascade")
    outcome = unregister_table(connection, lake, drop_lake=True)
    assert outcome.found
    assert tables.listing(connection) == []
    assert value(connection, "select count(*) from pg_proc where proname ~ '^spill_'") == 0
    create_events(connection)
    register_table(connection, lake)


@pytest.mark.inline
@pytest.mark.parametrize("drop", [False, True])
def test_it_tells_what_becomes_of_cold_rows(connection: Connection, modak: Modak, drop: bool) -> None:
    create_events(connection)
    modak("register", "public.events", "--tier-key", "event_time", "--primary-key", "id", "--lag", "0")
    modak("tier", "public.events")
    before = value(connection, "select count(*) from public.events_hot")
    options = ["--drop-lake"] if drop else []
    done = modak("unregister", "public.events", *options)
    assert value(connection, "select count(*) from public.events") == before == 2
    assert ("the lake's 3 rows went with it" in done.err) == drop
    assert ("the lake keeps its 3 rows" in done.err) == (not drop)
    assert "modak untier" in done.err


@pytest.mark.inline
def test_rows_that_went_with_the_lake_are_not_left_in_it(connection: Connection, modak: Modak) -> None:
    create_events(connection)
    modak("register", "public.events", "--tier-key", "event_time", "--primary-key", "id", "--lag", "0")
    modak("tier", "public.events")
    gone = modak("--json", "unregister", "public.events", "--drop-lake").json
    assert (gone["rows_left_in_lake"], gone["rows_dropped_with_lake"]) == (0, 3)


@pytest.mark.inline
def test_a_kept_heap_has_all_rows_and_nobody_is_alarmed(connection: Connection, modak: Modak) -> None:
    create_events(connection)
    modak("register", "public.events", "--tier-key", "event_time", "--primary-key", "id", "--lag", "0", "--keep-heap")
    modak("tier", "public.events")
    assert modak("unregister", "public.events").err == ""
    assert value(connection, "select count(*) from public.events") == 5
