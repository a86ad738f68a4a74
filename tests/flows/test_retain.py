"""Retention on the fixture table E: T = 200, cold rows at 10, 20 and 110, kept for 100: R comes to stand at 100."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo
from tests import events, seam
from tests.commands import Modak
from tests.events import EVENTS, drop_tiered, fold, put_under_modak, retain, tier
from tests.gateways import RunningGateway
from tests.support import reclaim_all, rows, run_cli, value

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.core.tier_key import TierKeyType
from modak.duckdb import pinned_relation
from modak.jobs import retain as retention
from modak.jobs import tier as tiering
from modak.jobs import verify
from modak.jobs.foreign import ForeignSnapshot
from modak.registration.register import register

pytestmark = [pytest.mark.spark, pytest.mark.inline]

LEFT = [(3, 110, "c"), (4, 210, "hot"), (5, 220, "hot")]


@pytest.fixture
def tiered(app: App, connection: Connection, gateway: RunningGateway) -> App:
    """E after its first pass; the heap copies of p0 and p1 still stand."""
    events.create(connection)
    put_under_modak(app, connection, lake_retention="100")
    tier(app)
    return app


@pytest.fixture
def cold(tiered: App) -> App:
    drop_tiered(tiered)
    return tiered


def lake_rows(app: App, connection: Connection, name: Name = EVENTS) -> list[tuple[Any, ...]]:
    table = tables.get(connection, name)
    snapshot = tables.published_snapshot(connection, table.table_id)
    scan = app.lake(profiles.get(connection, None)).load(table.lake_table_ref).scan(snapshot_id=snapshot)
    return sorted(tuple(row.values()) for row in scan.to_arrow().to_pylist())


def through_name(connection: Connection) -> list[tuple[Any, ...]]:
    return rows(connection, "select id, event_time, val from public.events order by id")


def through_port(app: App, gateway: RunningGateway) -> list[tuple[Any, ...]]:
    with psycopg.connect(conninfo.make_conninfo(app.dsn, host="127.0.0.1", port=gateway.port)) as client:
        return client.execute("select id, event_time, val from public.events order by id").fetchall()


def delta(connection: Connection) -> list[tuple[Any, ...]]:
    return rows(connection, "select pk, op, tier_key, old_tier_key from modak.delta order by pk")


def line(connection: Connection) -> tuple[Any, ...]:
    return rows(connection, "select tier_key_hi, lake_snapshot_id, retention_line, revision from modak.cutline")[0]


def commits(app: App) -> list[str]:
    return [stamps["modak.op-kind"] for stamps in seam.data_commits(app, EVENTS)]


def pin(connection: Connection, *, holds_delta: bool = True) -> None:
    connection.execute(
        "insert into modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, holds_delta) "
        "select table_id, lake_snapshot_id, tier_key_hi, %s from modak.cutline",
        [holds_delta],
    )


def stage(connection: Connection, label: str, low: int) -> None:
    connection.execute(
        "insert into modak.load_labels (table_id, label, state, tier_key_lo, tier_key_hi) select table_id, %s, 'staged', %s, 199 "
        "from modak.cutline",
        [label, low],
    )


def test_rows_expire_from_the_lake_and_from_every_read(cold: App, connection: Connection, gateway: RunningGateway) -> None:
    outcome = retain(cold)
    assert (outcome.retention_line, outcome.files, outcome.rows, outcome.snapshot) == (100, 1, 2, 2)
    assert line(connection) == (200, 2, 100, 1)
    assert lake_rows(cold, connection) == [(3, 110, "c")]
    assert through_name(connection) == through_port(cold, gateway) == LEFT
    assert seam.read(cold, EVENTS) == {str(row[0]): row for row in LEFT}
    assert seam.states(connection, EVENTS) == {"p1": "dropped", "p2": "hot"}
    stamps = seam.data_commits(cold, EVENTS)[-1]
    assert (stamps["modak.op-kind"], stamps["modak.op-id"], stamps["modak.retention-line"]) == ("retention", outcome.op_id, "100")
    journal = rows(connection, "select phase, snapshot, details->>'new_retention_line' from modak.op_log where op_kind = 'retention'")
    assert journal == [("advanced", 2, "100")]


def test_a_second_run_does_nothing(cold: App, connection: Connection) -> None:
    retain(cold)
    before = line(connection)
    outcome = retain(cold)
    assert (outcome.retention_line, outcome.files, outcome.rows, outcome.snapshot, outcome.op_id) == (100, 0, 0, None, None)
    assert line(connection) == before
    assert commits(cold) == ["tiering", "retention"]
    assert value(connection, "select count(*) from modak.op_log where op_kind = 'retention'") == 1


def test_r_follows_t(cold: App, connection: Connection) -> None:
    retain(cold)
    connection.execute("create table public.p3 partition of public.events_hot for values from (300) to (400)")
    connection.execute("insert into public.events values (6, 330, 'new')")
    tier(cold)
    drop_tiered(cold)
    outcome = retain(cold)
    assert (outcome.retention_line, outcome.files, outcome.rows) == (200, 1, 1)
    assert through_name(connection) == [(4, 210, "hot"), (5, 220, "hot"), (6, 330, "new")]


def test_a_reader_that_fetches_corrections_later_defers_it(cold: App, connection: Connection) -> None:
    pin(connection)
    outcome = retain(cold)
    assert outcome.waiting is not None
    assert "pin" in outcome.waiting
    assert line(connection) == (200, 1, None, 0)
    assert commits(cold) == ["tiering"]
    assert value(connection, "select count(*) from modak.op_log where op_kind = 'retention'") == 0
    connection.execute("update modak.read_pins set expires_at = now() - interval '1 second' where holds_delta")
    assert retain(cold).retention_line == 100
    assert lake_rows(cold, connection) == [(3, 110, "c")]


def test_a_pin_between_commit_and_publication(cold: App, connection: Connection, at_point: Callable[..., None]) -> None:
    connection.execute("update public.events set val = 'corrected' where id = 1")
    at_point("retain.after_commit", lambda: pin(connection))
    before = through_name(connection)
    assert retain(cold).waiting is not None
    assert line(connection) == (200, 1, None, 0)
    assert through_name(connection) == before
    # The pin is still there: the next pass gives the operation up, and takes its commit out of the lake.
    outcome = retain(cold)
    assert any("abandoned" in done for done in outcome.resumed)
    assert through_name(connection) == before
    connection.execute("delete from modak.read_pins where holds_delta")
    assert retain(cold).retention_line == 100
    assert through_name(connection) == LEFT


def test_other_readers_keep_what_they_pinned(cold: App, connection: Connection, dsn: str) -> None:
    """Their lake snapshot stays, and their corrections are those of the Postgres snapshot they read S in."""
    connection.execute("update public.events set val = 'corrected' where id = 1")
    seen = [(1, 10, "corrected"), (2, 20, "b"), *LEFT]
    query = "select id, event_time, val from public.events order by id"
    with psycopg.connect(dsn) as client, pinned_relation(dsn, "public.events", settings=cold.settings) as pinned:
        client.execute("set transaction isolation level repeatable read")
        assert client.execute(query).fetchall() == seen
        pin(connection, holds_delta=False)
        assert retain(cold).corrections == 1
        assert through_name(connection) == LEFT
        assert client.execute(query).fetchall() == seen
        assert pinned.order("id").fetchall() == seen
        with pytest.raises(psycopg.errors.SerializationFailure):
            client.execute("update public.events set val = 'too late' where id = 1")


def test_r_stays_below_a_staged_load(cold: App, connection: Connection) -> None:
    stage(connection, "low", 99)
    assert retain(cold).retention_line == 0
    assert line(connection) == (200, 1, 0, 0)
    assert len(lake_rows(cold, connection)) == 3
    connection.execute("update modak.load_labels set state = 'committed'")
    stage(connection, "high", 100)
    assert retain(cold).retention_line == 100
    # Expired rows do not come back, whatever is staged later.
    connection.execute("delete from modak.load_labels")
    stage(connection, "low again", 5)
    assert retain(cold).retention_line == 100


def test_a_load_that_is_staged_between(cold: App, connection: Connection, at_point: Callable[..., None]) -> None:
    at_point("retain.after_commit", lambda: stage(connection, "low", 50))
    outcome = retain(cold)
    assert outcome.waiting is not None
    assert "staged" in outcome.waiting
    assert line(connection) == (200, 1, None, 0)
    assert retain(cold).retention_line == 0
    assert len(lake_rows(cold, connection)) == 3


def test_corrections_below_r_are_purged_and_others_kept(cold: App, connection: Connection) -> None:
    connection.execute("update public.events set val = 'corrected' where id in (1, 3)")
    connection.execute("delete from public.events where id = 2")
    connection.execute("insert into public.events values (10, 30, 'late'), (11, 130, 'late')")
    assert [row[0] for row in delta(connection)] == ["1", "10", "11", "2", "3"]
    outcome = retain(cold)
    assert (outcome.files, outcome.corrections) == (1, 3)
    assert delta(connection) == [("11", 0, 130, None), ("3", 0, 110, None)]
    assert rows(connection, "select id from public.events_spill order by id") == [(3,), (11,)]
    assert through_name(connection) == [(3, 110, "corrected"), (4, 210, "hot"), (5, 220, "hot"), (11, 130, "late")]
    fold(cold)
    assert lake_rows(cold, connection) == [(3, 110, "corrected"), (11, 130, "late")]


def test_a_row_that_moved_up_keeps_its_image(cold: App, connection: Connection) -> None:
    connection.execute("update public.events set event_time = 150 where id = 1")
    connection.execute("update public.events set event_time = 250 where id = 2")
    assert delta(connection) == [("1", 0, 150, 10), ("2", 1, 20, None)]
    retain(cold)
    assert delta(connection) == [("1", 0, 150, None)]
    expected = [(1, 150, "a"), (2, 250, "b"), *LEFT]
    assert through_name(connection) == expected
    fold(cold)
    assert lake_rows(cold, connection) == [(1, 150, "a"), (3, 110, "c")]
    assert through_name(connection) == expected


def test_a_row_that_moved_down_does_not_rise_again(cold: App, connection: Connection) -> None:
    connection.execute("update public.events set event_time = 30 where id = 3")
    outcome = retain(cold)
    assert (outcome.files, outcome.corrections) == (1, 1)
    assert delta(connection) == []
    assert lake_rows(cold, connection) == []
    assert through_name(connection) == LEFT[1:]


def test_a_late_row_that_replaced_one_elsewhere(cold: App, connection: Connection) -> None:
    """The key alone identifies a row here, and nobody looked where the lake has it."""
    connection.execute("insert into public.events values (3, 40, 'instead')")
    retain(cold)
    assert delta(connection) == []
    assert lake_rows(cold, connection) == []
    assert through_name(connection) == LEFT[1:]


@pytest.mark.parametrize("when", ["too many to look up", "after the look-up"])
@pytest.mark.parametrize(
    ("statements", "left"),
    [
        (["update public.events set event_time = 30 where id = 3"], [("3", 1, 110, None)]),
        (["update public.events set event_time = 30 where id = 3", "delete from public.events where id = 3"], [("3", 1, 110, None)]),
        (["insert into public.events values (3, 40, 'instead')"], [("3", 1, 100, None)]),
        (["insert into public.events values (3, 40, 'instead')", "delete from public.events where id = 3"], [("3", 1, 100, None)]),
    ],
    ids=["moved down", "moved down and deleted", "replaced elsewhere", "replaced and deleted"],
)
def test_what_was_not_looked_up_leaves_a_tombstone(
    cold: App,
    connection: Connection,
    dsn: str,
    at_point: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    statements: list[str],
    left: list[tuple[Any, ...]],
) -> None:
    def correct() -> None:
        with psycopg.connect(dsn, autocommit=True) as client:
            for statement in statements:
                client.execute(statement)

    if when == "after the look-up":
        at_point("retain.after_commit", correct)
    else:
        correct()
        monkeypatch.setattr(retention, "STRAYED_MAX", 0)
    version = value(connection, "select max(version) from modak.delta")
    retain(cold)
    assert delta(connection) == left
    assert rows(connection, "select payload from modak.delta") == [({"id": 3},)]
    assert version is None or value(connection, "select version from modak.delta") == version
    assert through_name(connection) == LEFT[1:]
    fold(cold)
    assert delta(connection) == []
    assert lake_rows(cold, connection) == []


def test_a_key_with_the_tier_key_in_it(app: App, connection: Connection, gateway: RunningGateway) -> None:
    """Then the key says where its row is, and nothing has to be looked up."""
    events.create(connection)
    put_under_modak(app, connection, lake_retention="100", primary_key=("id", "event_time"))
    tier(app)
    drop_tiered(app)
    connection.execute("insert into public.events values (3, 40, 'another row'), (1, 150, 'another row')")
    connection.execute("update public.events set event_time = 160 where id = 2")
    retain(app)
    assert [(row[1], row[2]) for row in delta(connection)] == [(0, 150), (0, 160)]
    assert through_name(connection) == [(1, 150, "another row"), (2, 160, "b"), *LEFT]


def test_writes_below_r_are_refused(cold: App, connection: Connection) -> None:
    retain(cold)
    for statement in (
        "insert into public.events values (1, 10, 'again')",
        "insert into public.events_hot values (1, 10, 'again')",
        "update public.events set event_time = 99 where id = 3",
        "update public.events set event_time = 99 where id = 4",
        "update public.events_hot set event_time = 99 where id = 4",
    ):
        with pytest.raises(psycopg.errors.DatetimeFieldOverflow, match="below the retention line") as refused:
            connection.execute(statement)
        assert refused.value.diag.message_hint is not None
    with (
        pytest.raises(psycopg.errors.DatetimeFieldOverflow, match="below the retention line"),
        connection.cursor().copy("copy public.events from stdin") as copy,
    ):
        copy.write_row((9, 99, "copied"))
    assert connection.execute("update public.events set val = 'x' where id = 1").rowcount == 0
    assert connection.execute("delete from public.events where id = 2").rowcount == 0
    assert through_name(connection) == LEFT
    assert delta(connection) == []
    connection.execute("insert into public.events values (9, 100, 'at the line')")
    assert delta(connection) == [("9", 0, 100, None)]


def test_heap_copies_that_still_stand(tiered: App, connection: Connection) -> None:
    """Readers, writers, verify and reclaim agree that what lies below R is over, though p0 is not dropped yet."""
    connection.execute("update public.events_hot set val = 'corrected' where id in (1, 3)")
    retain(tiered)
    left = [(3, 110, "corrected"), *LEFT[1:]]
    assert through_name(connection) == left
    assert delta(connection) == [("3", 0, 110, None)]
    assert value(connection, "select count(*) from public.p0") == 2
    for statement in (
        "insert into public.events values (8, 50, 'x')",
        "insert into public.p0 values (8, 50, 'x')",
        "update public.events_hot set val = 'x' where id = 1",
        "update public.p0 set event_time = 60 where id = 1",
        "update public.events set event_time = 50 where id = 3",
    ):
        with pytest.raises(psycopg.errors.DatetimeFieldOverflow, match="below the retention line"):
            connection.execute(statement)
    connection.execute("delete from public.events_hot where id = 1")
    assert delta(connection) == [("3", 0, 110, None)]
    with tiered.job(EVENTS) as job:
        assert verify.verify(job, repair=True).differences == ()
    assert delta(connection) == [("3", 0, 110, None)]
    assert drop_tiered(tiered).dropped == ("public.p0", "public.p1")
    assert retain(tiered).files == 0
    assert seam.states(connection, EVENTS) == {"p1": "dropped", "p2": "hot"}
    assert through_name(connection) == left


def test_verify_looks_above_r_in_a_partition_that_lies_across_it(app: App, connection: Connection, gateway: RunningGateway) -> None:
    events.create(connection)
    put_under_modak(app, connection, lake_retention="150", width="50")
    connection.execute("insert into public.events values (6, 60, 'above')")
    tier(app)
    assert retain(app).retention_line == 50
    with app.job(EVENTS) as job:
        found = verify.verify(job)
    assert (found.rows, found.differences) == (2, ())
    connection.execute("alter table public.p0 disable trigger user")
    connection.execute("update public.p0 set val = 'tampered'")
    with app.job(EVENTS) as job:
        assert [difference.key for difference in verify.verify(job).differences] == ["6"]


def test_deletes_by_position_go_with_their_file(cold: App, connection: Connection) -> None:
    connection.execute("update public.events set val = 'corrected' where id in (1, 3)")
    fold(cold)
    lake = cold.lake(profiles.get(connection, None))
    assert len(lake.load("public.events").inspect.delete_files()) == 2
    outcome = retain(cold)
    assert (outcome.files, outcome.rows) == (2, 2)
    assert len(lake.load("public.events").inspect.delete_files()) == 1
    assert lake_rows(cold, connection) == [(3, 110, "corrected")]
    assert through_name(connection) == [(3, 110, "corrected"), *LEFT[1:]]


def test_a_file_that_lies_across_r(cold: App, connection: Connection) -> None:
    """The lake's own layout is coarser than what the catalog says: somebody partitioned it anew."""
    connection.execute("insert into public.events values (6, 160, 'above'), (7, 149, 'below'), (8, 150, 'at')")
    connection.execute("update public.events set val = 'corrected' where id = 3")
    fold(cold)
    connection.execute("""update modak.tables set partition_scheme = '{"width": 50}', lake_retention_lag = '50'""")
    outcome = retain(cold)
    assert (outcome.retention_line, outcome.files, outcome.rows) == (150, 2, 4)
    assert lake_rows(cold, connection) == [(6, 160, "above"), (8, 150, "at")]
    assert through_name(connection) == [(4, 210, "hot"), (5, 220, "hot"), (6, 160, "above"), (8, 150, "at")]
    assert retain(cold).op_id is None
    assert len(commits(cold)) == 3


def test_strays_of_a_file_that_lies_across_r(cold: App, connection: Connection) -> None:
    """Rows that go for two reasons, one file of deletes."""
    connection.execute("insert into public.events values (6, 160, 'strays'), (7, 149, 'below'), (8, 150, 'at')")
    fold(cold)
    connection.execute("update public.events set event_time = 30 where id = 6")
    connection.execute("""update modak.tables set partition_scheme = '{"width": 50}', lake_retention_lag = '50'""")
    retain(cold)
    assert lake_rows(cold, connection) == [(8, 150, "at")]
    assert delta(connection) == []
    assert through_name(connection) == [(4, 210, "hot"), (5, 220, "hot"), (8, 150, "at")]


def test_r_alone_moves_where_nothing_stands_below(cold: App, connection: Connection) -> None:
    connection.execute("update modak.tables set lake_retention_lag = '250'")
    outcome = retain(cold)
    assert (outcome.retention_line, outcome.files, outcome.snapshot) == (-100, 0, None)
    assert line(connection) == (200, 1, -100, 0)
    assert commits(cold) == ["tiering"]
    with pytest.raises(psycopg.errors.DatetimeFieldOverflow):
        connection.execute("insert into public.events values (9, -101, 'x')")


def test_everything_is_cold(cold: App, connection: Connection) -> None:
    """Then the lake's newest row says where time has come to; partitions ahead of it do not count."""
    connection.execute("create table public.p9 partition of public.events_hot for values from (900) to (1000)")
    tier(cold, upto=1000)
    drop_tiered(cold)
    assert line(connection)[0] == 1000
    outcome = retain(cold)
    assert (outcome.retention_line, outcome.rows) == (200, 3)
    assert through_name(connection) == LEFT[1:]


def test_a_long_writer_delays_the_publication_only(cold: App, connection: Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as client:
        client.execute("update public.events set val = 'open' where id = 1")
        with pytest.raises(Exception, match="locks were not free"):
            retain(cold)
        assert line(connection) == (200, 1, None, 0)
        assert value(connection, "select count(*) from modak.problems where job = 'retain'") == 1
        client.commit()
    outcome = retain(cold)
    assert any("adopted" in done for done in outcome.resumed)
    assert (outcome.retention_line, outcome.files) == (100, 0)
    assert commits(cold) == ["tiering", "retention"]
    assert through_name(connection) == LEFT
    assert delta(connection) == []
    assert value(connection, "select count(*) from modak.problems") == 0


def test_a_strangers_snapshot_is_not_built_over(cold: App, connection: Connection) -> None:
    spark = cold.spark(profiles.get(connection, None))
    spark.sql("insert into modak.public.events values (99, 50, 'stranger')").collect()
    with pytest.raises(ForeignSnapshot):
        retain(cold)
    assert line(connection) == (200, 1, None, 0)


def test_accepted_rows_below_r_go_with_the_next_pass(cold: App, connection: Connection) -> None:
    retain(cold)
    spark = cold.spark(profiles.get(connection, None))
    spark.sql("insert into modak.public.events values (99, 50, 'stranger'), (98, 150, 'stranger')").collect()
    connection.execute("create table public.p3 partition of public.events_hot for values from (300) to (400)")
    connection.execute("update modak.tables set lake_retention_lag = '200'")
    tier(cold, upto=300, foreign_snapshots="accept")
    assert len(lake_rows(cold, connection)) == 5
    outcome = retain(cold)
    assert (outcome.retention_line, outcome.files, outcome.rows) == (100, 1, 1)
    assert [row[0] for row in lake_rows(cold, connection)] == [3, 4, 5, 98]


def test_a_referenced_row_that_expired_is_named(app: App, connection: Connection, gateway: RunningGateway) -> None:
    """A spilled row can be referenced; then it stays, with its correction, and other jobs go on."""
    events.create(connection)
    put_under_modak(app, connection, lake_retention="100", surface="heap")
    connection.execute("insert into public.events values (10, -500, 'late')")
    tier(app)
    connection.execute("create table public.notes (id bigint, at bigint, foreign key (id, at) references public.events)")
    connection.execute("insert into public.notes values (10, -500)")
    with pytest.raises(Exception, match="are referenced"):
        retain(app)
    assert line(connection) == (200, 1, None, 0)
    assert tier(app).resumed != ()
    connection.execute("delete from public.notes")
    assert retain(app).retention_line == 100


@pytest.mark.parametrize(
    ("kind", "bounds", "layout", "keep", "keys", "expected"),
    [
        ("smallint", ["0", "100", "200", "300"], "100", "100", ["5", "99", "100", "199", "250"], ["100", "199", "250"]),
        ("integer", ["-200", "-100", "0", "100"], "50", "50", ["-200", "-101", "-51", "-50", "0"], ["-50", "0"]),
        (
            "timestamptz",
            ["2025-11-01 00:00+00", "2025-12-01 00:00+00", "2026-01-01 00:00+00", "2026-02-01 00:00+00"],
            "month",
            "1 month",
            ["2025-11-30 23:59:59.999999+00", "2025-12-01 00:00+00", "2025-12-31 23:59:59+00", "2026-01-31 00:00+00"],
            ["2025-12-01 00:00+00", "2025-12-31 23:59:59+00", "2026-01-31 00:00+00"],
        ),
        (
            "timestamp",
            ["1969-12-31 00:00", "1970-01-01 00:00", "1970-01-02 00:00", "1970-01-03 00:00"],
            "hour",
            "30 hours",
            ["1969-12-31 17:59:59.999999", "1969-12-31 18:00", "1970-01-01 12:00", "1970-01-02 10:00"],
            ["1969-12-31 18:00", "1970-01-01 12:00", "1970-01-02 10:00"],
        ),
        (
            "date",
            ["0002-01-01 BC", "0001-01-01 BC", "0001-01-01", "0003-01-01"],
            "year",
            "8 months",
            ["0002-01-01 BC", "0002-12-31 BC", "0001-01-01 BC", "0001-12-31 BC", "0001-06-01"],
            ["0001-01-01 BC", "0001-12-31 BC", "0001-06-01"],
        ),
        (
            "date",
            ["2026-01-01", "2026-02-01", "2026-03-01", "2026-04-01"],
            "day",
            "10 days",
            ["2026-01-31", "2026-02-18", "2026-02-19", "2026-03-05"],
            ["2026-02-19", "2026-03-05"],
        ),
    ],
    ids=["smallint", "integer", "timestamptz", "timestamp", "date by year", "date by day"],
)
def test_tables_of_every_kind_of_key(
    app: App,
    connection: Connection,
    gateway: RunningGateway,
    kind: str,
    bounds: list[str],
    layout: str,
    keep: str,
    keys: list[str],
    expected: list[str],
) -> None:
    connection.execute("set timezone = 'UTC'")
    connection.execute(f"create table public.t (id int not null, k {kind} not null, primary key (id, k)) partition by range (k)")
    for number, (lower, upper) in enumerate(itertools.pairwise(bounds)):
        connection.execute(f"create table public.t{number} partition of public.t for values from ('{lower}') to ('{upper}')")
    for number, key in enumerate(keys):
        connection.execute(f"insert into public.t values ({number}, '{key}')")
    name, profile = Name("public", "t"), profiles.get(connection, None)
    lag = "0" if kind in ("smallint", "integer") else "0 days"
    chosen = Options(tier_key="k", primary_key=("id",), lag=lag, width=layout, lake_retention=keep)
    register(connection, app.lake(profile), name, chosen, profile=profile.name)
    with app.job(name) as job:
        tiering.tier(job)
        reclaim_all(job)
        outcome = retention.retain(job)
    decoded = tables.get(connection, name).key_type
    assert decoded is TierKeyType.from_pg(kind)
    assert outcome.retention_line is not None
    assert rows(connection, "select k::text from public.t order by id") == rows(
        connection, f"select k::{kind}::text from unnest(%s::text[]) with ordinality u(k, n) order by n", expected
    )
    assert outcome.rows == len(keys) - len(expected)
    with pytest.raises(psycopg.errors.DatetimeFieldOverflow, match="below the retention line"):
        connection.execute(f"insert into public.t values (99, '{keys[0]}')")
    line_text = decoded.encode(outcome.retention_line)
    connection.execute(f"insert into public.t values (99, '{line_text}')")


def test_the_command(cold: App, connection: Connection, dsn: str, tmp_path: Path) -> None:
    connection.execute("create table public.other (id bigint, at bigint, primary key (id, at)) partition by range (at)")
    connection.execute("create table public.other_0 partition of public.other for values from (0) to (10)")
    profile = profiles.get(connection, None)
    register(connection, cold.lake(profile), Name("public", "other"), Options(tier_key="at", primary_key=("id",)), profile=profile.name)

    def run(*arguments: str) -> Any:
        return run_cli(dsn, *arguments, data=tmp_path / "data")

    done = run("--json", "retain")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [entry["table"] for entry in found] == ["public.events"]
    assert {name: found[0][name] for name in ("retention_line", "retention", "files", "rows", "corrections", "snapshot", "waiting")} == {
        "retention_line": 100,
        "retention": "100",
        "files": 1,
        "rows": 2,
        "corrections": 0,
        "snapshot": 2,
        "waiting": None,
    }
    kept = run("retain", "public.other")
    assert kept.returncode == 0
    assert "lake_retention=" in kept.stderr
    pin(connection)
    connection.execute("update modak.tables set lake_retention_lag = '1' where table_name = 'events'")
    connection.execute("create table public.p3 partition of public.events_hot for values from (300) to (400)")
    tier(cold, upto=300)
    deferred = run("retain", "public.events")
    assert deferred.returncode == 0
    assert "pin" in deferred.stderr + deferred.stdout
    shown = run("status")
    assert next(row.split() for row in shown.stdout.splitlines() if "public.events" in row)[2:4] == ["300", "100"]


def test_a_table_that_keeps_its_rows(app: App, connection: Connection, modak: Modak) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    nothing = retain(app)
    assert (nothing.retention_line, nothing.files) == (None, 0)
    told = "no retention: its rows are kept for ever; `modak policy public.events lake_retention=…` says for how long"
    assert nothing.waiting == told
    assert f"public.events: {told}" in modak("retain", "public.events").err
