"""Folding corrections into the lake, case by case, on the fixture table E: T = 200, three cold rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests import events, seam
from tests.events import EVENTS, ROWS, fold, put_under_modak, tier
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.support import at_failpoint

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.jobs import fold as fold_module
from modak.jobs import tier as tier_module
from modak.jobs.foreign import ForeignSnapshot

pytestmark = [pytest.mark.spark, pytest.mark.inline]

ALL = {str(row[0]): row for row in ROWS}


@pytest.fixture
def cold(app: App, connection: Connection, gateway: RunningGateway) -> App:
    """E after its first pass, its two cold partitions gone from the heap."""
    events.create(connection)
    put_under_modak(app, connection)
    with inlined():
        tier(app)
        events.drop_tiered(app)
    return app


def lake_rows(app: App, connection: Connection) -> list[tuple[Any, ...]]:
    """What the lake holds at S, without the delta, as another engine reads it."""
    table = tables.get(connection, EVENTS)
    snapshot = tables.published_snapshot(connection, table.table_id)
    scan = app.lake(profiles.get(connection, None)).load(table.lake_table_ref).scan(snapshot_id=snapshot)
    return sorted(tuple(row.values()) for row in scan.to_arrow().to_pylist())


def through_name(connection: Connection) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in connection.execute("select id, event_time, val from public.events order by id").fetchall()]


def delta(connection: Connection) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values()) for row in connection.execute("select pk, op, tier_key, old_tier_key from modak.delta order by pk").fetchall()
    ]


@pytest.mark.distributed
def test_corrections_become_part_of_the_lake(cold: App, connection: Connection) -> None:
    connection.execute("update public.events set val = 'corrected' where id = 2")
    connection.execute("delete from public.events where id = 3")
    before = through_name(connection)
    outcome = fold(cold)
    assert (outcome.corrections, outcome.commits, outcome.rows_deleted, outcome.rows_written) == (2, 1, 2, 1)
    assert lake_rows(cold, connection) == [(1, 10, "a"), (2, 20, "corrected")]
    assert delta(connection) == []
    line = connection.execute("select * from modak.cutline").fetchone()
    assert line is not None
    assert (line["tier_key_hi"], line["lake_snapshot_id"], line["revision"]) == (200, 2, 1)
    operation = connection.execute("select * from modak.op_log where op_kind = 'compaction'").fetchone()
    assert operation is not None
    assert (operation["phase"], operation["snapshot"]) == ("advanced", 2)
    assert line["lake_props"]["metadata_location"] == operation["details"]["metadata_location"]
    stamps = seam.data_commits(cold, EVENTS)
    assert [stamp["modak.op-kind"] for stamp in stamps] == ["tiering", "compaction"]
    assert stamps[1]["modak.op-id"] == operation["op_id"]
    assert connection.execute("select count(*) as n from modak.folded").fetchone() == {"n": 0}
    assert through_name(connection) == before == [(1, 10, "a"), (2, 20, "corrected"), (4, 210, "hot"), (5, 220, "hot")]


@pytest.mark.parametrize("key", [("id",), ("id", "event_time")])
def test_a_tombstone_without_an_image(app: App, connection: Connection, gateway: RunningGateway, key: tuple[str, ...]) -> None:
    """Somebody else's may have none: its encoded key says which row it is."""
    events.create(connection)
    put_under_modak(app, connection, primary_key=key)
    tier(app)
    connection.execute("update public.events set val = 'corrected' where id = 2")
    pk = "3" if len(key) == 1 else f"3{chr(31)}110"
    connection.execute("insert into modak.delta (table_id, pk, op, tier_key) select table_id, %s, 1, 110 from modak.tables", [pk])
    before = through_name(connection)
    assert fold(app).rows_deleted == 2
    assert lake_rows(app, connection) == [(1, 10, "a"), (2, 20, "corrected")]
    assert delta(connection) == []
    assert through_name(connection) == before == [(1, 10, "a"), (2, 20, "corrected"), (4, 210, "hot"), (5, 220, "hot")]


def test_one_that_expires_takes_its_row_along(app: App, connection: Connection, gateway: RunningGateway) -> None:
    """It lies below the retention line, and the lake's row above it."""
    events.create(connection)
    put_under_modak(app, connection, lake_retention="100")
    tier(app)
    connection.execute("insert into modak.delta (table_id, pk, op, tier_key) select table_id, '3', 1, 40 from modak.tables")
    assert events.retain(app).retention_line == 100
    assert delta(connection) == []
    assert through_name(connection) == [(4, 210, "hot"), (5, 220, "hot")]
    assert lake_rows(app, connection) == []


def test_spark_reads_the_folded_lake(cold: App, connection: Connection) -> None:
    connection.execute("update public.events set val = val || '!' where id < 4")
    fold(cold)
    connection.execute("delete from public.events where id = 1")
    fold(cold)
    table = tables.get(connection, EVENTS)
    spark = cold.spark(profiles.get(connection, None))
    rows = spark.sql(f"select * from modak.{table.lake_table_ref} order by id").collect()
    assert [tuple(row) for row in rows] == [(2, 20, "b!"), (3, 110, "c!")]


def test_nothing_to_fold_leaves_no_trace(cold: App, connection: Connection) -> None:
    assert fold(cold).commits == 0
    assert len(seam.data_commits(cold, EVENTS)) == 1
    assert connection.execute("select count(*) as n from modak.op_log where op_kind = 'compaction'").fetchone() == {"n": 0}


def test_a_correction_made_meanwhile_survives(cold: App, connection: Connection, at_point: Callable[..., None], dsn: str) -> None:
    connection.execute("update public.events set val = 'first' where id = 2")

    def correct() -> None:
        with psycopg.connect(dsn, autocommit=True) as client:
            client.execute("update public.events set val = 'second' where id = 2")
            assert client.execute("select val from public.events where id = 2").fetchone() == ("second",)

    at_point("fold.after_files", correct)
    assert fold(cold).corrections == 0
    assert lake_rows(cold, connection)[1] == (2, 20, "first")
    assert through_name(connection)[1] == (2, 20, "second")
    assert fold(cold).corrections == 1
    assert lake_rows(cold, connection)[1] == (2, 20, "second")
    assert through_name(connection)[1] == (2, 20, "second")


@pytest.mark.parametrize(
    ("again", "row"), [("event_time = 60", (2, 60, "b")), ("event_time = 20", (2, 20, "b")), ("val = 'x'", (2, 150, "x"))]
)
def test_a_row_that_moves_and_is_corrected_again_meanwhile(
    cold: App, connection: Connection, at_point: Callable[..., None], dsn: str, again: str, row: tuple[int, int, str]
) -> None:
    """The newer correction knows where the lake had the row before the fold moved it."""
    connection.execute("update public.events set event_time = 150 where id = 2")

    def correct() -> None:
        with psycopg.connect(dsn, autocommit=True) as client:
            client.execute(f"update public.events set {again} where id = 2")

    at_point("fold.after_files", correct)
    fold(cold)
    assert lake_rows(cold, connection) == [(1, 10, "a"), (2, 150, "b"), (3, 110, "c")]
    assert through_name(connection)[:3] == [(1, 10, "a"), row, (3, 110, "c")]
    assert fold(cold).rows_deleted == 1
    assert lake_rows(cold, connection) == through_name(connection)[:3] == [(1, 10, "a"), row, (3, 110, "c")]


@pytest.mark.distributed
def test_batches_are_bounded_and_the_oldest_go_first(cold: App, connection: Connection) -> None:
    connection.execute("insert into public.events select n, n % 200, 'late ' || n from generate_series(1000, 3499) n")
    outcome = fold(cold, batch_rows=1000)
    assert (outcome.corrections, outcome.commits) == (2500, 3)
    versions = connection.execute(
        "select (details->>'upto_version')::bigint as v from modak.op_log where op_kind = 'compaction' order by started_at"
    ).fetchall()
    assert [row["v"] for row in versions] == sorted(row["v"] for row in versions)
    assert len(lake_rows(cold, connection)) == 2503
    assert delta(connection) == []
    assert connection.execute("select count(*) as n from public.events").fetchone() == {"n": 2505}


def test_moves_are_deleted_where_the_lake_has_them(cold: App, connection: Connection) -> None:
    connection.execute("update public.events set event_time = 150 where id = 2")
    connection.execute("update public.events set event_time = 60 where id = 2")
    assert delta(connection) == [("2", 0, 60, 20)]
    fold(cold)
    assert lake_rows(cold, connection) == [(1, 10, "a"), (2, 60, "b"), (3, 110, "c")]
    connection.execute("update public.events set event_time = 250 where id = 2")
    connection.execute("update public.events set event_time = 130 where id = 5")
    fold(cold)
    assert lake_rows(cold, connection) == [(1, 10, "a"), (3, 110, "c"), (5, 130, "hot")]
    assert through_name(connection) == [(1, 10, "a"), (2, 250, "b"), (3, 110, "c"), (4, 210, "hot"), (5, 130, "hot")]


def test_a_cold_row_that_comes_into_a_partition_behind_its_copy(
    app: App, connection: Connection, gateway: RunningGateway, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy did not see it there, so the lake holds it where it was before."""
    events.create(connection)
    put_under_modak(app, connection)
    tier(app, upto=100)
    events.drop_tiered(app)

    def move() -> None:
        with psycopg.connect(dsn, autocommit=True) as client:
            client.execute("update public.events set event_time = 150 where id = 2")

    at_failpoint(monkeypatch, tier_module, "tier.after_files", move)
    tier(app, upto=200)
    assert through_name(connection)[1] == (2, 150, "b")
    connection.execute("delete from public.events where id = 2")
    fold(app)
    assert lake_rows(app, connection) == [(1, 10, "a"), (3, 110, "c")]
    assert through_name(connection)[:2] == [(1, 10, "a"), (3, 110, "c")]


def test_an_insert_of_a_known_key_elsewhere_replaces_it(cold: App, connection: Connection) -> None:
    """The key alone identifies a row here, so the lake's image may be in any partition."""
    connection.execute("insert into public.events values (2, 150, 'elsewhere')")
    expected = [(1, 10, "a"), (2, 150, "elsewhere"), (3, 110, "c")]
    assert through_name(connection)[:3] == expected
    fold(cold)
    assert lake_rows(cold, connection) == expected
    assert through_name(connection)[:3] == expected


def test_spilled_rows_leave_the_heap_with_their_fold(cold: App, connection: Connection) -> None:
    connection.execute("insert into public.events values (10, 30, 'late'), (11, 40, 'later')")
    assert connection.execute("select count(*) as n from public.events_spill").fetchone() == {"n": 2}
    fold(cold)
    assert connection.execute("select count(*) as n from public.events_spill").fetchone() == {"n": 0}
    assert delta(connection) == []
    assert lake_rows(cold, connection)[-2:] == [(10, 30, "late"), (11, 40, "later")]
    connection.execute("update public.events set val = 'again' where id = 10")
    connection.execute("delete from public.events where id = 11")
    fold(cold)
    assert lake_rows(cold, connection) == [(1, 10, "a"), (2, 20, "b"), (3, 110, "c"), (10, 30, "again")]


def pin(connection: Connection) -> int:
    row = connection.execute(
        "insert into modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at) "
        "select table_id, lake_snapshot_id, tier_key_hi, now() + interval '15 minutes' from modak.cutline returning pin_id"
    ).fetchone()
    assert row is not None
    return int(row["pin_id"])


def test_a_pin_keeps_corrections_where_they_are(cold: App, connection: Connection) -> None:
    connection.execute("update public.events set val = 'corrected' where id = 2")
    held = pin(connection)
    outcome = fold(cold)
    assert outcome.commits == 0
    assert outcome.waiting is not None
    assert "pin" in outcome.waiting
    assert len(seam.data_commits(cold, EVENTS)) == 1
    connection.execute("update modak.read_pins set expires_at = now() - interval '1 second' where pin_id = %s", [held])
    assert fold(cold).corrections == 1


def test_a_pin_that_comes_between_commit_and_publication(cold: App, connection: Connection, at_point: Callable[..., None]) -> None:
    connection.execute("update public.events set val = 'corrected' where id = 2")
    at_point("fold.after_commit", lambda: pin(connection))
    outcome = fold(cold)
    assert outcome.waiting is not None
    assert delta(connection) == [("2", 0, 20, None)]
    assert connection.execute("select lake_snapshot_id as s from modak.cutline").fetchone() == {"s": 1}
    # The pin is still there: the next pass gives the operation up and takes its commit out of the lake.
    assert any("abandoned" in line for line in fold(cold).resumed)
    assert seam.read(cold, EVENTS) == ALL | {"2": (2, 20, "corrected")}
    connection.execute("delete from modak.read_pins")
    assert fold(cold).corrections == 1
    assert lake_rows(cold, connection) == [(1, 10, "a"), (2, 20, "corrected"), (3, 110, "c")]
    assert seam.read(cold, EVENTS) == ALL | {"2": (2, 20, "corrected")}


def test_the_gateways_pins_hold_no_corrections(cold: App, connection: Connection) -> None:
    connection.execute("update public.events set val = 'corrected' where id = 2")
    through_name(connection)
    assert connection.execute("select count(*) as n from modak.read_pins where not holds_delta").fetchone() != {"n": 0}
    assert fold(cold).corrections == 1


def test_a_strangers_snapshot_is_not_built_over(cold: App, connection: Connection) -> None:
    table = tables.get(connection, EVENTS)
    spark = cold.spark(profiles.get(connection, None))
    spark.sql(f"insert into modak.{table.lake_table_ref} values (99, 50, 'stranger')").collect()
    connection.execute("update public.events set val = 'corrected' where id = 2")
    with pytest.raises(ForeignSnapshot):
        fold(cold)
    assert delta(connection) == [("2", 0, 20, None)]


def test_a_stranger_who_comes_during_the_fold_is_noticed(cold: App, connection: Connection, at_point: Callable[..., None]) -> None:
    table = tables.get(connection, EVENTS)
    spark = cold.spark(profiles.get(connection, None))
    connection.execute("update public.events set val = 'corrected' where id = 2")
    at_point("fold.after_files", lambda: spark.sql(f"insert into modak.{table.lake_table_ref} values (99, 50, 'stranger')").collect())
    with pytest.raises(ForeignSnapshot):
        fold(cold)
    assert seam.read(cold, EVENTS) == ALL | {"2": (2, 20, "corrected")}
    assert connection.execute("select phase from modak.op_log where op_kind = 'compaction'").fetchone() == {"phase": "abandoned"}


def test_a_tombstone_for_a_key_that_the_lake_never_had(cold: App, connection: Connection) -> None:
    connection.execute("insert into public.events values (10, 30, 'late')")
    connection.execute("delete from public.events where id = 10")
    outcome = fold(cold)
    assert (outcome.corrections, outcome.commits) == (1, 0)
    assert delta(connection) == []
    assert len(seam.data_commits(cold, EVENTS)) == 1


def test_only_touched_files_are_read(cold: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []
    run = fold_module._run

    def spy(context: Any, task: Any, batch: Any) -> Any:
        planned.append(sum(len(search.files) for search in task.searches))
        return run(context, task, batch)

    monkeypatch.setattr(fold_module, "_run", spy)
    connection.execute("update public.events set val = 'corrected' where id = 3")
    fold(cold)
    assert planned == [1]


def test_a_long_writer_delays_the_publication_only(cold: App, connection: Connection, dsn: str) -> None:
    connection.execute("update public.events set val = 'corrected' where id = 2")
    with psycopg.connect(dsn) as client:
        client.execute("update public.events set val = 'open' where id = 1")
        with pytest.raises(Exception, match="locks were not free"):
            fold(cold)
        client.rollback()
    assert seam.read(cold, EVENTS) == ALL | {"2": (2, 20, "corrected")}
    assert fold(cold).resumed
    assert lake_rows(cold, connection) == [(1, 10, "a"), (2, 20, "corrected"), (3, 110, "c")]
