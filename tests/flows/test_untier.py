"""Cold rows come back into the heap, case by case, on the fixture table E: T = 200, three cold rows, their partitions gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests import events, seam
from tests.events import EVENTS, ROWS, fold, put_under_modak, tier
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.support import register_table, value

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.core.registration import Options
from modak.errors import LockNotAvailable, Refused, UsageError
from modak.jobs import untier as untier_module
from modak.jobs.foreign import ForeignSnapshot
from modak.jobs.publishing.seam import Pinned
from modak.jobs.reclaim import ContentDiffers
from modak.jobs.untier import UntierOutcome

pytestmark = [pytest.mark.spark, pytest.mark.inline]

ALL = {str(row[0]): row for row in ROWS}
ROWS_OF_E = sorted(ROWS)


@pytest.fixture
def cold(app: App, connection: Connection, gateway: RunningGateway) -> App:
    """E after its first pass, its two cold partitions gone from the heap."""
    events.create(connection)
    put_under_modak(app, connection)
    with inlined():
        tier(app)
        events.drop_tiered(app)
    return app


def untier(app: App, *, lock_attempts: int = 4, **options: Any) -> UntierOutcome:
    with app.job(EVENTS) as job:
        return untier_module.untier(replace(job, lock_attempts=lock_attempts), **options)


def lake_rows(app: App, connection: Connection) -> list[tuple[Any, ...]]:
    """What the lake holds at S, without the delta, as another engine reads it."""
    table = tables.get(connection, EVENTS)
    snapshot = tables.published_snapshot(connection, table.table_id)
    scan = app.lake(profiles.get(connection, None)).load(table.lake_table_ref).scan(snapshot_id=snapshot)
    return sorted(tuple(row.values()) for row in scan.to_arrow().to_pylist())


def selected(connection: Connection, source: str = "public.events") -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in connection.execute(f"select id, event_time, val from {source} order by id").fetchall()]


def delta(connection: Connection) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values()) for row in connection.execute("select pk, op, tier_key, old_tier_key from modak.delta order by pk").fetchall()
    ]


def line(connection: Connection) -> tuple[int, int | None]:
    row = connection.execute("select tier_key_hi, lake_snapshot_id from modak.cutline").fetchone()
    assert row is not None
    return row["tier_key_hi"], row["lake_snapshot_id"]


def nothing_left_over(connection: Connection) -> None:
    assert value(connection, "select count(*) from pg_class where relname like 'untier_%' and relnamespace = 'modak'::regnamespace") == 0
    assert value(connection, "select count(*) from modak.folded") == 0
    assert value(connection, "select count(*) from modak.op_log where phase in ('flushing', 'committed')") == 0
    assert value(connection, "select count(*) from pg_constraint where conname = 'modak_untier'") == 0


@pytest.mark.distributed
def test_everything_comes_back(cold: App, connection: Connection, gateway: RunningGateway) -> None:
    before = selected(connection)
    outcome = untier(cold)
    assert outcome.made == ("public.p0: as it was", "public.p1: as it was")
    assert (outcome.rows, outcome.tier_key_hi, outcome.snapshot, outcome.cold_left) == (3, 0, 2, False)
    assert line(connection) == (0, 2)
    assert lake_rows(cold, connection) == []
    assert seam.states(connection, EVENTS) == {"p0": "hot", "p1": "hot", "p2": "hot"}
    assert seam.read(cold, EVENTS) == ALL
    stamps = seam.data_commits(cold, EVENTS)
    assert [stamp["modak.op-kind"] for stamp in stamps] == ["tiering", "untier"]
    operation = connection.execute("select * from modak.op_log where op_kind = 'untier'").fetchone()
    assert operation is not None
    assert (operation["phase"], operation["snapshot"], operation["op_id"]) == ("advanced", 2, stamps[1]["modak.op-id"])
    nothing_left_over(connection)
    # Nothing is cold any more, so nobody asks the gateway.
    gateway.stop()
    assert selected(connection) == before == ROWS_OF_E
    assert selected(connection, "public.events_hot") == ROWS_OF_E
    connection.execute("update public.events set val = 'hot again' where id = 1")
    connection.execute("insert into public.events values (6, 150, 'new')")
    assert delta(connection) == []
    assert value(connection, "select tableoid::regclass::text from public.events_hot where id = 6") == "public.p1"


def test_from_a_key_in_the_middle_then_the_rest_then_nothing(cold: App, connection: Connection) -> None:
    outcome = untier(cold, key=150)
    assert (outcome.made, outcome.rows, outcome.cold_left) == (("public.p1: as it was",), 1, True)
    assert line(connection) == (100, 2)
    assert lake_rows(cold, connection) == [(1, 10, "a"), (2, 20, "b")]
    assert seam.states(connection, EVENTS) == {"p0": "dropped", "p1": "hot", "p2": "hot"}
    assert selected(connection) == ROWS_OF_E
    assert untier(cold).made == ("public.p0: as it was",)
    assert line(connection) == (0, 3)
    again = untier(cold)
    assert (again.made, again.rows, again.op_id, again.tier_key_hi) == ((), 0, None, 0)
    assert len(seam.data_commits(cold, EVENTS)) == 3
    assert selected(connection) == ROWS_OF_E


def test_a_hot_key_is_refused(cold: App, connection: Connection) -> None:
    with pytest.raises(UsageError, match="above the cut-line"):
        untier(cold, key=201)
    assert untier(cold, key=200).made == ()
    assert line(connection) == (200, 1)


def test_a_file_that_straddles_the_line_keeps_its_older_rows(app: App, connection: Connection, gateway: RunningGateway) -> None:
    events.create(connection)
    put_under_modak(app, connection, width=None)
    tier(app)
    events.drop_tiered(app)
    connection.execute("update public.events set val = 'corrected' where id in (2, 3)")
    outcome = untier(app, key=100)
    assert (outcome.rows, outcome.cold_left) == (1, True)
    assert lake_rows(app, connection) == [(1, 10, "a"), (2, 20, "corrected")]
    expected = [(1, 10, "a"), (2, 20, "corrected"), (3, 110, "corrected"), *ROWS_OF_E[3:]]
    assert selected(connection) == expected
    untier(app)
    assert lake_rows(app, connection) == []
    assert selected(connection, "public.events_hot") == expected


def test_tiering_takes_them_again(cold: App, connection: Connection) -> None:
    outcome = untier(cold)
    assert outcome.due_again == ("public.p0", "public.p1")
    assert tier(cold).partitions == ("public.p0", "public.p1")
    assert events.drop_tiered(cold).dropped == ("public.p0", "public.p1")
    assert line(connection) == (200, 3)
    assert selected(connection) == ROWS_OF_E
    assert untier(cold).rows == 3
    assert selected(connection, "public.events_hot") == ROWS_OF_E


def test_a_reader_from_between_two_tierings_keeps_its_partitions(
    app: App, connection: Connection, gateway: RunningGateway, dsn: str
) -> None:
    """The drop waits for whoever still sees the lower T, not for the advance before the untier."""
    events.create(connection)
    put_under_modak(app, connection)
    tier(app, upto=100)
    tier(app)
    events.drop_tiered(app)
    untier(app)
    with psycopg.connect(dsn) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select 1 from pg_class").fetchone()
        tier(app)
        waiting = events.drop_tiered(app, patience=0)
        assert waiting.dropped == ()
        assert "held by" in waiting.waiting[0]
        assert reader.execute("select count(*) from public.events").fetchone() == (5,)
    assert events.drop_tiered(app).dropped == ("public.p0", "public.p1")


def test_partitions_that_stand_become_hot_as_they_are(app: App, connection: Connection, gateway: RunningGateway) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    tier(app)
    connection.execute("update public.events set val = 'corrected' where id = 2")
    connection.execute("insert into public.events values (7, 70, 'late')")
    oids = value(
        connection, "select array_agg(inhrelid order by inhrelid) from pg_inherits where inhparent = 'public.events_hot'::regclass"
    )
    outcome = untier(app)
    assert (outcome.made, outcome.kept, outcome.rows) == ((), ("public.p1", "public.p0"), 0)
    assert seam.states(connection, EVENTS) == {"p0": "hot", "p1": "hot", "p2": "hot"}
    assert value(connection, "select count(*) from pg_trigger where tgname like 'modak_capture%'") == 0
    assert lake_rows(app, connection) == []
    assert delta(connection) == []
    expected = sorted([(1, 10, "a"), (2, 20, "corrected"), (7, 70, "late"), *ROWS_OF_E[2:]])
    assert selected(connection) == selected(connection, "public.events_hot") == expected
    assert oids == value(
        connection, "select array_agg(inhrelid order by inhrelid) from pg_inherits where inhparent = 'public.events_hot'::regclass"
    )
    connection.execute("update public.events_hot set val = 'silent' where id = 1")
    assert value(connection, "select count(*) from modak.captured") == 0
    nothing_left_over(connection)


@pytest.mark.distributed
def test_a_copy_that_is_not_the_lakes_is_refused(app: App, connection: Connection, gateway: RunningGateway) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    tier(app)
    connection.execute("alter table public.p0 disable trigger all")
    connection.execute("update public.p0 set val = 'behind our back' where id = 1")
    connection.execute("alter table public.p0 enable trigger all")
    with pytest.raises(ContentDiffers, match="differ in 1 rows"):
        untier(app)
    assert line(connection) == (200, 1)
    assert connection.execute("select count(*) as n from modak.op_log where op_kind = 'untier'").fetchone() == {"n": 0}


@pytest.mark.distributed
def test_one_stands_and_one_is_gone(app: App, connection: Connection, gateway: RunningGateway) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    tier(app, upto=100)
    events.drop_tiered(app)
    tier(app)
    outcome = untier(app)
    assert (outcome.made, outcome.kept, outcome.rows) == (("public.p0: as it was",), ("public.p1",), 2)
    assert selected(connection) == selected(connection, "public.events_hot") == ROWS_OF_E
    assert lake_rows(app, connection) == []


def test_rows_below_every_partition_get_one(cold: App, connection: Connection) -> None:
    connection.execute("insert into public.events values (8, -130, 'older'), (9, -40, 'old')")
    outcome = untier(cold)
    assert outcome.made[:2] == ("public.events_minus_200: as long as its neighbour", "public.events_minus_100: as long as its neighbour")
    assert line(connection) == (-200, 3)
    expected = sorted([(8, -130, "older"), (9, -40, "old"), *ROWS_OF_E])
    assert selected(connection, "public.events_hot") == expected
    assert value(connection, "select count(*) from public.events_spill") == 0


def test_a_name_that_was_taken_meanwhile(cold: App, connection: Connection) -> None:
    connection.execute("create table public.p0 (mine int)")
    assert untier(cold).made[0] == "public.p0_2: as it was"
    assert selected(connection, "public.events_hot") == ROWS_OF_E
    assert value(connection, "select count(*) from public.p0") == 0


def test_late_rows_after_everything_came_back_are_folded_and_seen(cold: App, connection: Connection) -> None:
    """The cold side has no foreign table by then; the fold brings one."""
    untier(cold)
    connection.execute("insert into public.events values (9, -5, 'late')")
    fold(cold)
    assert lake_rows(cold, connection) == [(9, -5, "late")]
    assert selected(connection)[-1] == (9, -5, "late")


def pin(connection: Connection) -> int:
    row = connection.execute(
        "insert into modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at) "
        "select table_id, lake_snapshot_id, tier_key_hi, now() + interval '15 minutes' from modak.cutline returning pin_id"
    ).fetchone()
    assert row is not None
    return int(row["pin_id"])


def test_a_pin_that_holds_corrections_forbids_it(cold: App, connection: Connection) -> None:
    connection.execute("update public.events set val = 'corrected' where id = 2")
    pin(connection)
    with pytest.raises(Pinned):
        untier(cold)
    assert line(connection) == (200, 1)
    connection.execute("delete from modak.read_pins")
    untier(cold)
    assert selected(connection)[1] == (2, 20, "corrected")


def test_a_pin_that_comes_between_commit_and_publication(cold: App, connection: Connection, at_point: Callable[..., None]) -> None:
    at_point("untier.after_commit", lambda: pin(connection))
    with pytest.raises(Pinned):
        untier(cold)
    assert line(connection) == (200, 1)
    assert seam.read(cold, EVENTS) == ALL
    # Still pinned: the next pass of any job gives the operation up, and its commit goes.
    assert any("abandoned" in told for told in fold(cold).resumed)
    nothing_left_over(connection)
    assert value(connection, "select to_regclass('public.p0') is null")
    connection.execute("delete from modak.read_pins")
    assert untier(cold).rows == 3
    assert seam.read(cold, EVENTS) == ALL


def test_a_strangers_snapshot_is_not_built_over(cold: App, connection: Connection, at_point: Callable[..., None]) -> None:
    table = tables.get(connection, EVENTS)
    spark = cold.spark(profiles.get(connection, None))
    at_point("untier.after_copy", lambda: spark.sql(f"insert into modak.{table.lake_table_ref} values (99, 50, 'stranger')").collect())
    with pytest.raises(ForeignSnapshot):
        untier(cold)
    assert connection.execute("select phase from modak.op_log where op_kind = 'untier'").fetchone() == {"phase": "abandoned"}
    nothing_left_over(connection)
    assert seam.read(cold, EVENTS) == ALL
    with pytest.raises(ForeignSnapshot):
        untier(cold)


def test_a_constraint_that_cold_rows_break_is_named(cold: App, connection: Connection) -> None:
    connection.execute("update public.events set val = null where id = 3")
    fold(cold)
    connection.execute("alter table public.events_hot alter column val set not null")
    with pytest.raises(Refused, match='null value in column "val"') as refused:
        untier(cold)
    assert refused.value.hint is not None
    assert line(connection)[0] == 200
    nothing_left_over(connection)
    assert value(connection, "select to_regclass('public.p0') is null")
    connection.execute("update public.events set val = 'mended' where id = 3")
    untier(cold)
    assert selected(connection, "public.events_hot")[2] == (3, 110, "mended")


def test_a_partition_below_the_line_that_is_not_ours_is_refused(cold: App, connection: Connection) -> None:
    connection.execute("create table public.mine partition of public.events_hot for values from (0) to (50)")
    with pytest.raises(Refused, match="stands below the cut-line"):
        untier(cold)
    connection.execute("drop table public.mine")
    assert untier(cold).rows == 3


def test_a_partition_that_appears_meanwhile_stops_it(cold: App, connection: Connection, at_point: Callable[..., None]) -> None:
    at_point(
        "untier.after_copy",
        lambda: connection.execute("create table public.mine partition of public.events_hot for values from (0) to (50)"),
    )
    with pytest.raises(Exception, match="a partition appeared"):
        untier(cold)
    connection.execute("drop table public.mine")
    # The next pass finds the filled partitions and attaches them.
    assert any("adopted" in told for told in fold(cold).resumed)
    assert seam.read(cold, EVENTS) == ALL


def test_t_falls_by_nobody_elses_word(cold: App, connection: Connection) -> None:
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="move back"):
        connection.execute("update modak.cutline set tier_key_hi = 100")
    untier(cold, key=100)
    operation = value(connection, "select op_id from modak.op_log where op_kind = 'untier'")
    connection.execute("select set_config('modak.untier', %s, false)", [operation])
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="move back"):
        connection.execute("update modak.cutline set tier_key_hi = 0")
    assert line(connection)[0] == 100


def test_a_reader_in_the_way_is_named_and_the_next_pass_goes_on(cold: App, connection: Connection, dsn: str) -> None:
    with psycopg.connect(dsn, application_name="long-report") as reader:
        reader.execute("select count(*) from public.events").fetchone()
        with pytest.raises(LockNotAvailable, match="long-report"):
            untier(cold, lock_attempts=2)
        assert seam.read(cold, EVENTS) == ALL
    assert any("adopted" in told for told in untier(cold).resumed)
    assert line(connection) == (0, 2)
    assert selected(connection, "public.events_hot") == ROWS_OF_E
    assert len(seam.data_commits(cold, EVENTS)) == 2


@pytest.mark.distributed
def test_a_heap_that_was_kept_has_everything_once(app: App, connection: Connection, gateway: RunningGateway) -> None:
    events.create(connection)
    put_under_modak(app, connection, keep_heap=True)
    tier(app)
    connection.execute("insert into public.events values (9, -40, 'late'), (10, 30, 'late')")
    connection.execute("update public.events_hot set val = 'in place' where id = 1")
    fold(app)
    connection.execute("insert into public.events values (11, -41, 'later')")
    expected = sorted([(1, 10, "in place"), *ROWS_OF_E[1:], (9, -40, "late"), (10, 30, "late"), (11, -41, "later")])
    outcome = untier(app)
    assert (outcome.kept, outcome.made) == (("public.p1", "public.p0"), ("public.events_minus_100: as long as its neighbour",))
    assert selected(connection) == selected(connection, "public.events_hot") == expected
    assert value(connection, "select count(*) from public.events_spill") == 0
    assert value(connection, "select count(*) from pg_trigger where tgname like 'modak_capture%'") == 0
    assert (lake_rows(app, connection), delta(connection)) == ([], [])


@pytest.mark.parametrize(
    ("kind", "bound", "cold_keys", "hot_key"),
    [
        ("bigint", "100", ["-9223372036854775808", "-7", "10"], "150"),
        ("integer", "100", ["-2147483648", "10"], "150"),
        ("date", "2025-02-01", ["4713-01-01 BC", "2025-01-05"], "2025-02-07"),
        ("timestamptz", "2025-02-01 00:00+00", ["0044-03-15 BC", "2025-01-05"], "2025-02-07"),
    ],
)
def test_a_first_partition_without_a_lower_bound_comes_back(
    app: App, connection: Connection, gateway: RunningGateway, kind: str, bound: str, cold_keys: list[str], hot_key: str
) -> None:
    connection.execute(f"""
        create table public.events (id bigint, k {kind}, primary key (id, k)) partition by range (k);
        create table public.first partition of public.events for values from (minvalue) to ('{bound}');
        create table public.last partition of public.events for values from ('{bound}') to (maxvalue)
    """)
    for number, key in enumerate([*cold_keys, hot_key]):
        connection.execute(f"insert into public.events values ({number}, '{key}')")
    before = connection.execute("select id, k::text as k from public.events order by id").fetchall()
    register_table(
        connection, app.lake(profiles.get(connection, None)), EVENTS, Options(tier_key="k", lag="0" if "int" in kind else "0 days")
    )
    tier(app)
    events.drop_tiered(app)
    connection.execute("update public.events set id = id + 10 where id = 0")
    connection.execute("update public.events set id = id - 10 where id = 10")
    outcome = untier(app)
    assert (outcome.made, outcome.rows, outcome.cold_left) == (("public.first: as it was",), len(cold_keys), False)
    assert connection.execute("select id, k::text as k from public.events order by id").fetchall() == before
    assert connection.execute("select id, k::text as k from public.events_hot order by id").fetchall() == before
    nothing_left_over(connection)
