"""Tiering, case by case, on the fixture table E."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests import events, seam
from tests.commands import Modak
from tests.events import EVENTS, ROWS, add_partition, drop_tiered, put_under_modak, tier
from tests.gateways import RunningGateway

from modak.app import App
from modak.connection import Connection, connect
from modak.core.profile import Profile
from modak.errors import LakeError, LockNotAvailable, Refused, ValueRefused
from modak.jobs import tier as tier_module
from modak.pinned.seam import pinned

pytestmark = [pytest.mark.spark, pytest.mark.inline]

ALL = {str(row[0]): row for row in ROWS}


@pytest.fixture
def registered(app: App, connection: Connection, gateway: RunningGateway) -> App:
    events.create(connection)
    put_under_modak(app, connection)
    return app


@pytest.fixture
def during_flush(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], Any]], None]:
    """Run something at a named point of the pass."""

    def at(name: str, action: Callable[[], Any]) -> None:
        def hit(reached: str) -> None:
            if reached == name:
                action()

        monkeypatch.setattr(tier_module, "failpoint", hit)

    return at


@pytest.mark.distributed
def test_a_pass_moves_due_partitions(registered: App, connection: Connection) -> None:
    outcome = tier(registered)
    assert (outcome.partitions, outcome.rows, outcome.tier_key_hi, outcome.snapshot) == (("public.p0", "public.p1"), 3, 200, 1)
    assert seam.states(connection, EVENTS) == {"p0": "tiered", "p1": "tiered", "p2": "hot"}
    row = connection.execute("select * from modak.cutline").fetchone()
    assert row is not None
    assert (row["tier_key_hi"], row["lake_snapshot_id"]) == (200, 1)
    assert row["lake_props"]["metadata_location"].endswith(".metadata.json")
    assert row["lake_props"]["snapshot_id"]
    operation = connection.execute("select * from modak.op_log").fetchone()
    assert operation is not None
    assert (operation["op_kind"], operation["phase"], operation["snapshot"]) == ("tiering", "advanced", 1)
    stamps = seam.data_commits(registered, EVENTS)
    assert len(stamps) == 1
    assert stamps[0]["modak.op-id"] == operation["op_id"]
    assert stamps[0]["modak.op-kind"] == "tiering"
    assert stamps[0]["modak.table-id"] == str(operation["table_id"])
    assert stamps[0]["modak.tier-key-hi"] == "200"
    assert seam.read(registered, EVENTS) == ALL


@pytest.mark.distributed
def test_reclaim_drops_what_the_lake_holds(registered: App, connection: Connection) -> None:
    tier(registered)
    assert drop_tiered(registered).dropped == ("public.p0", "public.p1")
    assert seam.states(connection, EVENTS) == {"p0": "dropped", "p1": "dropped", "p2": "hot"}
    assert connection.execute("select count(*) as n from public.events_hot").fetchone() == {"n": 2}
    assert seam.read(registered, EVENTS) == ALL


def test_a_second_pass_is_a_no_op(registered: App, connection: Connection) -> None:
    tier(registered)
    assert tier(registered).partitions == ()
    assert len(seam.data_commits(registered, EVENTS)) == 1


@pytest.mark.parametrize(("lag", "moved"), [("100", ("public.p0",)), ("0", ("public.p0", "public.p1")), ("1000", ())])
def test_the_lag_counts_from_the_datas_own_maximum(app: App, connection: Connection, lag: str, moved: tuple[str, ...]) -> None:
    events.create(connection)
    put_under_modak(app, connection, lag=lag)
    assert tier(app).partitions == moved
    assert seam.read(app, EVENTS) == ALL


def test_without_a_lag_nothing_is_ever_due_but_upto_works(app: App, connection: Connection) -> None:
    events.create(connection)
    put_under_modak(app, connection, lag=None)
    nothing = tier(app)
    assert (nothing.partitions, nothing.note) == ((), "no lag: nothing is due by itself; use --upto or `modak policy public.events lag=…`")
    moved = tier(app, upto=100)
    assert (moved.partitions, moved.note) == (("public.p0",), None)
    assert tier(app, upto=100).note is None


def test_the_command_without_a_lag_drops_what_a_pin_kept(app: App, connection: Connection, modak: Modak) -> None:
    """There is nothing to move, and what was tiered earlier goes all the same, once nobody holds it."""
    events.create(connection)
    put_under_modak(app, connection, lag=None)
    with pinned(app.dsn, "public.events"):
        assert modak("tier", "public.events", "--upto", "100", "--json").json[0]["partitions"] == ["public.p0"]
        waiting = modak("tier", "public.events")
        assert "no lag: nothing is due by itself; use --upto or `modak policy public.events lag=…`" in waiting.err
        assert "not dropped yet: public.p0: pinned by" in waiting.err
    drop_until = time.monotonic() + 30
    while "public.p0" not in modak("tier", "--json").json[0]["dropped"]:
        assert time.monotonic() < drop_until
    assert seam.states(connection, EVENTS)["p0"] == "dropped"
    assert modak("tier", "--quiet").err == ""


def test_empty_partitions_move_the_line_without_a_snapshot(registered: App, connection: Connection) -> None:
    connection.execute("delete from public.events where event_time < 200")
    outcome = tier(registered)
    assert (outcome.tier_key_hi, outcome.snapshot, outcome.rows) == (200, None, 0)
    assert seam.data_commits(registered, EVENTS) == []
    assert drop_tiered(registered).dropped == ("public.p0", "public.p1")


def test_a_partition_that_never_held_a_row_is_as_good_as_any(app: App, connection: Connection) -> None:
    """It has no page at all, unlike one whose rows were deleted."""
    events.create(connection, partitions=4)
    connection.execute("insert into public.events values (6, 310, 'x')")
    connection.execute("delete from public.events where event_time between 100 and 199")
    connection.execute("truncate public.p1")
    put_under_modak(app, connection)
    assert tier(app).partitions == ("public.p0", "public.p1", "public.p2")
    assert seam.read(app, EVENTS) == {key: row for key, row in ALL.items() if key != "3"} | {"6": (6, 310, "x")}


def test_new_partitions_are_found_and_tier_in_bound_order(registered: App, connection: Connection) -> None:
    tier(registered)
    connection.execute("create table public.a_newer partition of public.events_hot for values from (400) to (500)")
    add_partition(connection, 3, "public.events_hot")
    connection.execute("insert into public.events values (6, 310, 'x'), (7, 450, 'y')")
    assert tier(registered).partitions == ("public.p2", "public.p3")
    assert seam.read(registered, EVENTS) == ALL | {"6": (6, 310, "x"), "7": (7, 450, "y")}


def test_a_hole_between_partitions_is_no_wall(registered: App, connection: Connection) -> None:
    connection.execute("create table public.far partition of public.events_hot for values from (500) to (600)")
    connection.execute("create table public.farther partition of public.events_hot for values from (600) to (700)")
    connection.execute("insert into public.events values (8, 550, 'far'), (9, 650, 'farther')")
    assert tier(registered).partitions == ("public.p0", "public.p1", "public.p2", "public.far")
    assert seam.read(registered, EVENTS) == ALL | {"8": (8, 550, "far"), "9": (9, 650, "farther")}


def test_rows_below_the_line_that_nobody_sees_stop_the_table(registered: App, connection: Connection) -> None:
    tier(registered)
    drop_tiered(registered)
    connection.execute("create table public.late (like public.events_hot)")
    connection.execute("insert into public.late values (99, 50, 'only copy')")
    connection.execute("alter table public.events_hot attach partition public.late for values from (0) to (100)")
    with pytest.raises(Refused, match="only copy"):
        tier(registered)
    assert connection.execute("select message from modak.problems").fetchone() is not None
    connection.execute("truncate public.late")
    tier(registered)
    assert connection.execute("select 1 from modak.problems").fetchone() is None


@pytest.mark.distributed
def test_writes_during_the_flush_become_corrections(
    registered: App, connection: Connection, dsn: str, during_flush: Callable[[str, Callable[[], Any]], None]
) -> None:
    def write() -> None:
        with connect(dsn, autocommit=True) as writer:
            writer.execute("update public.events set val = 'newer' where id = 1")
            writer.execute("delete from public.events_hot where id = 2")
            writer.execute("insert into public.events values (50, 60, 'late')")
            writer.execute("update public.events_hot set event_time = 150 where id = 50")
            writer.execute("update public.events_hot set event_time = 230 where id = 3")

    during_flush("tier.after_files", write)
    outcome = tier(registered)
    assert outcome.corrected_rows == 4
    expected = {"1": (1, 10, "newer"), "3": (3, 230, "c"), "50": (50, 150, "late"), "4": ALL["4"], "5": ALL["5"]}
    assert seam.read(registered, EVENTS) == expected
    assert drop_tiered(registered).dropped == ("public.p0", "public.p1")
    assert seam.read(registered, EVENTS) == expected


@pytest.mark.distributed
def test_writes_after_the_advance_go_to_heap_and_delta(registered: App, connection: Connection) -> None:
    tier(registered)
    connection.execute("update public.events_hot set val = 'corrected' where id = 2")
    connection.execute("delete from public.events_hot where id = 3")
    rows = connection.execute("select pk, op, tier_key, payload from modak.delta order by pk").fetchall()
    assert [(row["pk"], row["op"], row["tier_key"]) for row in rows] == [("2", 0, 20), ("3", 1, 110)]
    assert rows[0]["payload"] == {"id": 2, "event_time": 20, "val": "corrected"}
    assert rows[1]["payload"] == {"id": 3}
    assert seam.read(registered, EVENTS) == {key: row for key, row in ALL.items() if key != "3"} | {"2": (2, 20, "corrected")}
    assert drop_tiered(registered).dropped == ("public.p0", "public.p1")


def test_a_key_that_left_a_cold_partition_may_tier_again(registered: App, connection: Connection) -> None:
    """Its old place in the lake is hidden by a tombstone; the new place must not be."""
    tier(registered)
    connection.execute("update public.events_hot set event_time = 250 where id = 1")
    add_partition(connection, 3, "public.events_hot")
    connection.execute("insert into public.events values (6, 310, 'x')")
    assert tier(registered).partitions == ("public.p2",)
    assert seam.read(registered, EVENTS) == ALL | {"1": (1, 250, "a"), "6": (6, 310, "x")}
    assert drop_tiered(registered).dropped == ("public.p0", "public.p1", "public.p2")
    assert seam.read(registered, EVENTS) == ALL | {"1": (1, 250, "a"), "6": (6, 310, "x")}


def test_an_open_writer_is_waited_for_and_then_included(registered: App, connection: Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as writer:
        writer.execute("insert into public.events values (60, 70, 'open')")
        with pytest.raises(LockNotAvailable, match=r"seal of public\.p0"):
            tier(registered)
        assert seam.states(connection, EVENTS)["p0"] == "hot"
        writer.commit()
    tier(registered)
    assert seam.read(registered, EVENTS) == ALL | {"60": (60, 70, "open")}


def test_a_prepared_transaction_is_waited_for(registered: App, connection: Connection, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("begin; insert into public.events values (61, 71, 'prepared'); prepare transaction 'waiting'")
        with pytest.raises(LockNotAvailable, match="prepared transaction 'waiting'"):
            tier(registered)
        writer.execute("commit prepared 'waiting'")
    tier(registered)
    assert seam.read(registered, EVENTS) == ALL | {"61": (61, 71, "prepared")}


def test_a_repeatable_read_writer_of_an_older_world_is_refused(registered: App, dsn: str) -> None:
    with psycopg.connect(dsn) as writer:
        writer.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        writer.execute("select count(*) from public.events")
        tier(registered)
        with pytest.raises(psycopg.errors.SerializationFailure):
            writer.execute("update public.events set val = 'lost?' where id = 1")
    assert seam.read(registered, EVENTS) == ALL


def test_an_old_reader_keeps_its_partitions(registered: App, connection: Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        before = reader.execute("select count(*) from public.events").fetchone()
        tier(registered)
        held = drop_tiered(registered, patience=0)
        assert held.dropped == ()
        assert "session" in held.waiting[0]
        assert reader.execute("select count(*) from public.events").fetchone() == before
    assert drop_tiered(registered).dropped == ("public.p0", "public.p1")


def test_a_pin_keeps_partitions_until_it_is_released_or_expires(registered: App, connection: Connection) -> None:
    connection.execute(
        "insert into modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi) "
        "select table_id, lake_snapshot_id, tier_key_hi from modak.cutline"
    )
    tier(registered)
    assert "pinned by" in drop_tiered(registered, patience=0).waiting[0]
    connection.execute("update modak.read_pins set expires_at = now() - interval '1 second'")
    assert drop_tiered(registered).dropped == ("public.p0", "public.p1")


def test_reclaim_has_its_own_lag(app: App, connection: Connection) -> None:
    events.create(connection)
    put_under_modak(app, connection, reclaim_lag="120")
    tier(app)
    assert drop_tiered(app).dropped == ("public.p0",)


@pytest.mark.distributed
def test_a_partition_that_differs_from_the_lake_is_not_dropped(registered: App, connection: Connection) -> None:
    tier(registered)
    connection.execute("set session_replication_role = replica")
    connection.execute("alter table public.p0 disable trigger user")
    connection.execute("update public.p0 set val = 'tampered' where id = 1")
    with pytest.raises(Exception, match="differ in 1 rows") as caught:
        drop_tiered(registered)
    assert "tampered" in str(caught.value)
    assert '"val":"a"' in str(caught.value)
    assert seam.states(connection, EVENTS)["p0"] == "tiered"


def test_a_foreign_snapshot_is_noticed(registered: App, connection: Connection, app: App) -> None:
    tier(registered)
    app.spark(Profile("default")).sql("delete from modak.public.events where id = 1")
    add_partition(connection, 3, "public.events_hot")
    connection.execute("insert into public.events values (6, 310, 'x')")
    with pytest.raises(LakeError, match="that Modak did not make"):
        tier(registered)
    assert seam.read(registered, EVENTS) == ALL | {"6": (6, 310, "x")}
    assert tier(registered, foreign_snapshots="rollback").partitions == ("public.p2",)
    assert seam.read(registered, EVENTS) == ALL | {"6": (6, 310, "x")}


def test_an_accepted_foreign_snapshot_is_built_on(registered: App, connection: Connection, app: App) -> None:
    tier(registered)
    app.spark(Profile("default")).sql("delete from modak.public.events where id = 1")
    add_partition(connection, 3, "public.events_hot")
    connection.execute("insert into public.events values (6, 310, 'x')")
    tier(registered, foreign_snapshots="accept")
    assert "1" not in seam.read(registered, EVENTS)


def test_truncate_of_a_partition_on_its_way_is_refused(registered: App, connection: Connection) -> None:
    tier(registered)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="TRUNCATE"):
        connection.execute("truncate public.p0")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="TRUNCATE"):
        connection.execute("truncate public.events_hot")


def test_an_inbound_foreign_key_blocks_the_drop_and_heals(app: App, connection: Connection) -> None:
    events.create(connection)
    connection.execute(
        "create table public.refs (event_id bigint, event_time bigint, foreign key (event_id, event_time) references public.events)"
    )
    connection.execute("insert into public.refs values (1, 10)")
    put_under_modak(app, connection, dependents="keep")
    tier(app)
    with pytest.raises(Refused, match="cannot be dropped"):
        drop_tiered(app)
    connection.execute("delete from public.refs")
    assert drop_tiered(app).dropped == ("public.p0", "public.p1")


@pytest.mark.distributed
def test_a_value_the_lake_cannot_hold_keeps_its_partition_hot(app: App, connection: Connection) -> None:
    connection.execute(
        "create table public.events (id bigint not null, event_time bigint not null, amount numeric(10,2), primary key (id, event_time)) "
        "partition by range (event_time)"
    )
    for number in range(3):
        add_partition(connection, number)
    connection.execute("insert into public.events values (1, 10, 1.5), (2, 110, 'NaN'), (3, 210, 2)")
    put_under_modak(app, connection)
    with pytest.raises(ValueRefused, match="stays hot") as caught:
        tier(app)
    assert caught.value.facts["column"] == "amount"
    assert caught.value.facts["key"] == "2"
    assert seam.states(connection, EVENTS) == {"p0": "hot", "p1": "hot", "p2": "hot"}
    problem = connection.execute("select problems from modak.status").fetchone()
    assert problem is not None
    assert "--as-text amount" in problem["problems"][0]["hint"]
    connection.execute("update public.events set amount = 0 where id = 2")
    assert tier(app).partitions == ("public.p0", "public.p1")


def test_a_row_that_moves_from_a_captured_partition_to_a_cold_one_stays(
    registered: App, connection: Connection, dsn: str, during_flush: Callable[[str, Callable[[], Any]], None]
) -> None:
    """Its removal is captured and its arrival is a correction; the advance must not let the older event win."""
    tier(registered, upto=100)

    def move() -> None:
        with connect(dsn, autocommit=True) as writer:
            writer.execute("update public.events_hot set event_time = 50 where id = 3")

    during_flush("tier.after_files", move)
    tier(registered)
    assert seam.read(registered, EVENTS) == ALL | {"3": (3, 50, "c")}
    row = connection.execute("select op, tier_key, old_tier_key from modak.delta where pk = '3'").fetchone()
    assert row == {"op": 0, "tier_key": 50, "old_tier_key": 110}
    drop_tiered(registered)
    assert seam.read(registered, EVENTS) == ALL | {"3": (3, 50, "c")}
