"""Keys of cold rows: who replaces one leaves no copy behind, and who may not take one is told; whatever role the session plays."""

from __future__ import annotations

import psycopg
import pytest
from tests import events
from tests.gateways import RunningGateway
from tests.support import default_lake, options, register_events, register_table, rows, unregister_table, value

from modak.app import App
from modak.connection import Connection
from modak.core.table import Name
from modak.lake.iceberg import IcebergLake
from modak.source import writes


def heap(connection: Connection, table: str = "public.events_hot") -> list[tuple[object, ...]]:
    return rows(connection, f"select id, event_time from {table} where id < 4 or id > 5 order by id, event_time")


def test_a_replaced_late_row_does_not_come_back(connection: Connection, lake: IcebergLake) -> None:
    register_events(connection, lake)
    connection.execute("delete from public.events where id < 4")
    for at in (-10, -20, -15):
        connection.execute(f"insert into public.events values (7, {at}, 'late')")
        assert heap(connection) == [(7, at)]
        assert rows(connection, "select op, tier_key from modak.delta where pk = '7'") == [(0, at)]
    connection.execute("delete from public.events where id = 7")
    assert heap(connection) == []
    assert value(connection, "select coalesce(current_setting('modak.folding', true), '')") == ""


@pytest.mark.parametrize("key", [("id",), ("id", "event_time")])
def test_without_a_unique_index_a_late_row_replaces_the_one_at_its_place(
    connection: Connection, lake: IcebergLake, key: tuple[str, ...]
) -> None:
    register_events(connection, lake, primary_key=key)
    connection.execute("delete from public.events where id < 4")
    for val in ("a", "b"):
        connection.execute("insert into public.events values (10, -30, %s)", [val])
    assert rows(connection, "select id, event_time, val from public.events_spill") == [(10, -30, "b")]
    # Several in one statement: the last one stays, as in the delta.
    elsewhere = "(10, -40, 'e'), " if "event_time" not in key else ""
    connection.execute(f"insert into public.events values (10, -30, 'c'), (10, -30, 'd'), {elsewhere}(11, -30, 'x'), (10, -30, 'f')")
    assert rows(connection, "select id, event_time, val from public.events_spill order by 1") == [(10, -30, "f"), (11, -30, "x")]
    assert rows(connection, "select id, event_time, val from public.events where id > 5 order by 1") == [(10, -30, "f"), (11, -30, "x")]
    connection.execute("delete from public.events where id = 10")
    assert rows(connection, "update public.events_hot set val = 'z' where id = 10 returning id") == []
    assert rows(connection, "select id from public.events where id = 10") == []
    unregister_table(connection, lake, drop_lake=True)
    assert heap(connection, "public.events") == [(11, -30)]


def test_a_late_row_replaces_the_one_of_another_region(connection: Connection, lake: IcebergLake) -> None:
    """Of one key and one tier key, in two spills: no unique index sees both."""
    connection.execute(
        "create table public.readings (region text, id bigint, at bigint, primary key (region, id, at)) partition by list (region)"
    )
    for region in ("eu", "us"):
        connection.execute(
            f"create table public.r_{region} partition of public.readings for values in ('{region}') partition by range (at)"
        )
        connection.execute(f"create table public.r_{region}_1 partition of public.r_{region} for values from (100) to (200)")
    name = Name("public", "readings")
    register_table(connection, lake, name, options(tier_key="at", primary_key=("id",)))
    for region in ("eu", "us"):
        connection.execute("insert into public.readings values (%s, 7, 30)", [region])
        assert rows(connection, "select region from public.readings_hot where id = 7") == [(region,)]
    connection.execute("delete from public.readings where id = 7")
    assert rows(connection, "select region from public.readings_hot where id = 7") == []


@pytest.mark.spark
@pytest.mark.inline
def test_without_a_unique_index_a_row_of_a_tiered_partition_is_replaced_at_its_place(
    app: App, connection: Connection, gateway: RunningGateway
) -> None:
    events.create(connection, key="")
    events.put_under_modak(app, connection)
    events.tier(app, upto=100)
    connection.execute("insert into public.events values (1, 10, 'again')")
    assert rows(connection, "select id, event_time, val from public.p0 where id = 1") == [(1, 10, "again")]
    # Rows of a hot partition stand beside each other, as ever.
    connection.execute("insert into public.events values (3, 110, 'again')")
    assert value(connection, "select count(*) from public.p1 where id = 3") == 2


@pytest.mark.spark
@pytest.mark.inline
def test_a_replaced_copy_in_a_tiered_partition_goes_without_a_tombstone(app: App, connection: Connection, gateway: RunningGateway) -> None:
    events.create(connection)
    events.put_under_modak(app, connection)
    events.tier(app)
    # Both cold partitions stand: over from one to the other, then to the spill, and back.
    for at in (30, -5, 120):
        connection.execute(f"insert into public.events values (3, {at}, 'again')")
        assert [row for row in heap(connection) if row[0] == 3] == [(3, at)]
        assert rows(connection, "select id, event_time, val from public.events where id = 3") == [(3, at, "again")]
    assert events.fold(app).commits == 1
    assert rows(connection, "select id, event_time, val from public.events where id = 3") == [(3, 120, "again")]


@pytest.mark.spark
@pytest.mark.inline
def test_checked_keys_are_checked_in_tiered_partitions_and_for_hot_rows_that_change_theirs(
    app: App, connection: Connection, gateway: RunningGateway
) -> None:
    events.create(connection)
    events.put_under_modak(app, connection, check_cold_keys=True)
    events.tier(app)
    taken = (
        "insert into public.events values (2, 130, 'x')",
        "insert into public.p1 values (2, 130, 'x')",
        "update public.events_hot set id = 2 where id = 3",
        "update public.events set id = 2 where id = 4",
        "update public.events set id = 2 where id = 1",
    )
    for statement in taken:
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(statement.encode())
    connection.execute("insert into public.events values (8, 130, 'new')")
    connection.execute("delete from public.events where id = 2")
    connection.execute("insert into public.events values (2, 130, 'free again')")
    connection.execute("update public.events set id = 9 where id = 4")
    assert rows(connection, "select id, event_time from public.events order by id") == [
        (1, 10),
        (2, 130),
        (3, 110),
        (5, 220),
        (8, 130),
        (9, 210),
    ]
    events.drop_tiered(app)
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("update public.events set id = 3 where id = 5")


def test_what_a_replication_role_writes_is_seen(connection: Connection, lake: IcebergLake) -> None:
    register_events(connection, lake)
    with connection.transaction():
        connection.execute("set local session_replication_role = replica")
        connection.execute("insert into public.events_hot values (9, -10, 'late')")
        with pytest.raises(psycopg.errors.CheckViolation), connection.transaction():
            connection.execute("insert into public.events_hot values (10, 999999, 'nowhere')")
    assert rows(connection, "select event_time, val from public.events where id = 9") == [(-10, "late")]


@pytest.mark.spark
@pytest.mark.inline
def test_a_table_that_an_earlier_release_registered_gets_what_this_one_makes(
    app: App, connection: Connection, gateway: RunningGateway
) -> None:
    events.create(connection)
    events.put_under_modak(app, connection)
    events.tier(app)
    table = int(value(connection, "select table_id from modak.tables"))
    connection.execute("drop trigger modak_keys on public.events_spill")
    connection.execute("alter table public.events_spill enable trigger modak_mirror")
    connection.execute("drop trigger modak_before_capture on public.p1")
    connection.execute("drop trigger modak_missed on public.events")
    connection.execute(f"comment on function modak.write_{table}() is null")
    assert not writes.is_current(connection, table)
    events.tier(app)
    assert writes.is_current(connection, table)
    found = rows(
        connection,
        "select c.relname, tgname, tgenabled from pg_trigger join pg_class c on c.oid = tgrelid where tgname in "
        "('modak_keys', 'modak_mirror', 'modak_before_capture', 'modak_missed') and not tgisinternal order by 1, 2",
    )
    assert [row for row in found if row[0] in ("events", "events_spill", "p1")] == [
        ("events", "modak_missed", "O"),
        ("events_spill", "modak_keys", "A"),
        ("events_spill", "modak_mirror", "A"),
        ("p1", "modak_before_capture", "A"),
    ]
    build = value(connection, "select cold_build from modak.tables")
    events.tier(app)
    assert value(connection, "select cold_build from modak.tables") == build
    unregister_table(connection, default_lake(app, connection), drop_lake=True)
    assert value(connection, "select count(*) from pg_trigger where tgname like 'modak%'") == 0
