"""A mirrored table that sheds old partitions (SCENARIOS 77, 80): the lake keeps their rows, and it reads and writes like a tiered one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg.rows import tuple_row
from tests.gateways import RunningGateway
from tests.mirroring import copy, frontier, lake_rows, pump, start

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.core.table import Name
from modak.duckdb import pinned_relation
from modak.errors import ModakError, Refused
from modak.failpoints import FailpointError, armed
from modak.jobs import resume
from modak.jobs import shed as shedding
from modak.jobs.ingest import ingest
from modak.load import LoadClient, LoadOptions, LoadRequest
from modak.registration.policy import change
from modak.registration.unregister import unregister

pytestmark = pytest.mark.inline
T = Name("public", "events")
World = tuple[App, Connection]


def create(connection: Connection, rows: int = 400) -> None:
    connection.execute("create table events (id bigint, at bigint not null, note text, primary key (id, at)) partition by range (at)")
    for lower in range(0, 600, 100):
        connection.execute(f"create table events_{lower} partition of events for values from ({lower}) to ({lower + 100})")
    connection.execute(f"insert into events select i, i, 'n' || i from generate_series(1, {rows} - 1) i")


def line(connection: Connection) -> int:
    return tables.cutline(connection, tables.get(connection, T).table_id).tier_key_hi


def in_lake(app: App, connection: Connection) -> dict[int, str]:
    return {row["id"]: row["note"] for row in lake_rows(app, connection, T)}


def test_partitions_leave_and_the_lake_keeps_their_rows(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T, "at", heap_retention="200", width="100", surface="view")
    assert line(connection) == 0
    connection.execute("update events set note = 'changed' where id = 5")
    done = pump(app, connection)
    assert (done.failed, done.parked) == ({}, {})
    # 399 - 200: the partition [0, 100) is due, and [100, 200) is not.
    assert done.shed == ["public.events_0"]
    assert done.dropped == ["public.events_0"]
    assert line(connection) == 100
    assert connection.execute("select to_regclass('events_0') as name").fetchone() == {"name": None}
    assert len(in_lake(app, connection)) == 399
    assert in_lake(app, connection)[5] == "changed"
    # The stream goes on, and the next partition follows in its time.
    connection.execute("insert into events values (450, 450, 'new')")
    connection.execute("update events_hot set note = 'hot' where id = 150")
    done = pump(app, connection)
    assert (done.shed, done.parked) == (["public.events_100"], {})
    assert (in_lake(app, connection)[450], in_lake(app, connection)[150]) == ("new", "hot")
    assert len(in_lake(app, connection)) == 400
    before = frontier(connection, T) or 0
    connection.execute("delete from events_hot where id = 300")
    done = pump(app, connection)
    assert (done.shed, done.parked, done.failed) == ([], {}, {})
    assert 300 not in in_lake(app, connection)
    assert (frontier(connection, T) or 0) > before


def shed(app: App, connection: Connection, surface: str = "view") -> None:
    """The state most tests begin with: T stands at 200, and [0, 200) is in the lake only."""
    create(connection)
    start(app, connection, T, "at", heap_retention="199", width="100", surface=surface)
    pump(app, connection)
    assert line(connection) == 200


@pytest.fixture
def served(mirrored: World) -> Iterator[World]:
    """With a gateway, which cold rows are read through."""
    app, connection = mirrored
    running = RunningGateway(app)
    running.start()
    try:
        yield app, connection
    finally:
        running.stop()


def test_a_copy_made_anew_keeps_what_is_only_in_the_lake(served: World) -> None:
    app, connection = served
    shed(app, connection)
    connection.execute('select modak_upsert(\'events\', \'{"id": 7, "at": 7, "note": "corrected"}\')')
    connection.execute("truncate events_300")
    assert list(pump(app, connection).parked) == ["public.events"]
    connection.execute("insert into events values (301, 301, 'after')")
    connection.execute("insert into events_hot values (1000, 50, 'late')")
    copy(app, T, again=True)
    # The spill's row is a correction, and no copy takes it for a row of the heap.
    assert sorted(in_lake(app, connection)) == [*range(1, 300), 301]
    done = pump(app, connection)
    assert (done.parked, done.failed, done.corrections) == ({}, {}, 2)
    # The fold took the spill's row out of the heap, which the stream tells as a delete.
    assert pump(app, connection).changes == 0
    assert (in_lake(app, connection)[7], in_lake(app, connection)[1000]) == ("corrected", "late")


def test_corrections_below_the_line_are_folded_by_the_pump(served: World) -> None:
    app, connection = served
    shed(app, connection)
    for statement in (
        'select modak_upsert(\'events\', \'{"id": 3, "at": 3, "note": "three"}\')',
        "select modak_delete('events', '{\"id\": 4, \"at\": 4}')",
        "insert into events values (2000, 120, 'late')",
        'select modak_upsert(\'events\', \'{"id": 350, "at": 350, "note": "hot"}\')',
        "insert into events values (501, 501, 'new')",
        "delete from events_hot where id = 351",
    ):
        connection.execute(statement)
    done = pump(app, connection)
    assert (done.parked, done.failed) == ({}, {})
    found = in_lake(app, connection)
    assert (found[3], found[2000], found[350], found[501]) == ("three", "late", "hot", "new")
    assert 4 not in found
    assert 351 not in found
    assert done.corrections == 3
    # Nothing is left to say: not by the stream, not by corrections.
    done = pump(app, connection)
    assert (done.commits, done.corrections) == (0, 0)
    assert in_lake(app, connection) == found


def test_writes_to_a_sealed_partition_are_not_lost(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They commit after the lake's F and before T moves, in every way a row can change."""
    app, connection = mirrored
    create(connection)
    start(app, connection, T, "at", heap_retention="199", width="100", surface="heap")
    advance = shedding.advance

    def late(*arguments: Any) -> list[str]:
        # A worker that looks for what a crash left must not take this for it.
        with app.job(T) as job:
            assert resume.resume_all(job) == ()
        connection.execute("update events set note = 'late' where id = 1")
        connection.execute("delete from events where id = 2")
        connection.execute("insert into events values (3000, 3, 'late')")
        connection.execute("update events set at = 350 where id = 10")
        connection.execute("update events set at = 11 where id = 360")
        return advance(*arguments)

    monkeypatch.setattr("modak.jobs.shed.advance", late)
    done = pump(app, connection)
    monkeypatch.undo()
    assert (done.shed, done.failed, done.parked) == (["public.events_0", "public.events_100"], {}, {})
    pump(app, connection)
    found = {row["id"]: (row["at"], row["note"]) for row in lake_rows(app, connection, T)}
    assert (found[1], found[3000], found[10], found[360]) == ((1, "late"), (3, "late"), (350, "n10"), (11, "n360"))
    assert 2 not in found
    assert len(found) == 399


LONG = [pytest.param(point, marks=pytest.mark.soak) for point in ("tier.after_seal", "tier.in_advance", "reclaim.in_drop")]


@pytest.mark.parametrize("point", ["shed.after_seal", "shed.before_advance", "shed.after_advance", *LONG])
def test_it_dies_and_goes_on(mirrored: World, point: str) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T, "at", heap_retention="199", width="100", surface="heap")
    connection.execute("update events set note = 'before' where id in (1, 150, 350)")
    with armed(point), pytest.raises(FailpointError):
        pump(app, connection)
    assert line(connection) == (200 if point in ("shed.after_advance", "reclaim.in_drop") else 0)
    connection.execute("update events set note = 'between' where id in (2, 151, 351)")
    connection.execute("delete from events where id in (3, 152, 352)")
    connection.execute("insert into events values (4000, 40, 'between')")
    for _ in range(2):
        done = pump(app, connection)
        assert (done.failed, done.parked) == ({}, {})
    assert line(connection) == 200
    found = in_lake(app, connection)
    assert [found[key] for key in (1, 150, 350, 2, 151, 351, 4000)] == [*["before"] * 3, *["between"] * 4]
    assert len(found) == 397
    assert connection.execute("select to_regclass('events_0') as a, to_regclass('events_100') as b").fetchone() == {"a": None, "b": None}


def test_what_cannot_shed_is_refused(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("create table events (id bigint primary key, at bigint not null)")
    with pytest.raises(Refused, match="not partitioned"):
        start(app, connection, T, "at", heap_retention="100")
    with pytest.raises(Refused, match="lacks the tier key"):
        start(app, connection, T, "at", heap_retention="100")


def test_it_becomes_an_ordinary_table_again(mirrored: World) -> None:
    app, connection = mirrored
    shed(app, connection)
    lake = app.lake(profiles.get(connection, None))
    done = unregister(connection, lake, tables.get(connection, T), drop_lake=False)
    assert (done.found, done.cold_rows) == (True, 399)
    row = connection.execute("select count(*) as n, min(at) as low from events").fetchone()
    assert row == {"n": 200, "low": 200}
    left = connection.execute(
        "select (select count(*) from pg_replication_slots) + (select count(*) from pg_publication where pubname <> 'modak_mesh') as n"
    ).fetchone()
    assert left == {"n": 0}


def everything(connection: Connection, name: str) -> list[Any]:
    return connection.execute(f"select * from {name} order by id").fetchall()  # type: ignore[arg-type]


@pytest.mark.parametrize("surface", ["view", pytest.param("heap", marks=pytest.mark.soak)])
def test_it_reads_and_writes_like_a_tiered_table(served: World, surface: str) -> None:
    """Every statement goes to a plain twin as well; view, gateway's port and pinned readers say the same at every moment."""
    app, connection = served
    shed(app, connection, surface)
    name = "events" if surface == "view" else "events_all"
    connection.execute("create table twin as select i::bigint as id, i::bigint as at, 'n' || i as note from generate_series(1, 399) i")
    for number, statement in enumerate(
        (
            "update {} set note = 'cold' where id in (3, 110)",
            "delete from {} where id in (4, 350)",
            "insert into {} values (5000, 30, 'late'), (5001, 360, 'new')",
            "update {} set at = 380 where id = 20",
            "update {} set at = 20 where id = 370",
            "update {} set note = note || '!' where id in (20, 370, 5000, 5001, 110, 399)",
            "insert into {} values (599, 599, 'the newest')",
        )
    ):
        for table in (name, "twin"):
            connection.execute(statement.format(table))  # type: ignore[arg-type]
        assert everything(connection, name) == everything(connection, "twin")
        if number % 2:
            done = pump(app, connection)
            assert (done.failed, done.parked) == ({}, {})
            assert everything(connection, name) == everything(connection, "twin")
    for _ in range(2):
        pump(app, connection)
    # 599 - 199: one more partition of what was there, all but empty by now.
    assert line(connection) == 400
    assert everything(connection, name) == everything(connection, "twin")
    assert sorted((row["id"], row["at"], row["note"]) for row in lake_rows(app, connection, T)) == sorted(
        (row["id"], row["at"], row["note"]) for row in everything(connection, "twin")
    )
    with pinned_relation(app.dsn, str(T), settings=app.settings) as table:
        row = table.aggregate('count(*), sum("at")::bigint').fetchone()
    assert row == connection.cursor(row_factory=tuple_row).execute("select count(*), sum(at)::bigint from twin").fetchone()


def test_loads_go_to_the_heap(mirrored: World) -> None:
    """SCENARIOS 87: a mirror whose heap is complete takes every row there, and they reach the lake by the stream."""
    app, connection = mirrored
    connection.execute("create table events (id bigint primary key, at bigint not null, note text)")
    connection.execute("insert into events values (1, 1, 'one')")
    start(app, connection, T, "at")
    with LoadClient(LoadOptions(app.dsn, str(T))) as client:
        rows = [{"id": 1, "at": 10, "note": "again"}, {"id": 2, "at": -5, "note": "two"}]
        first = client.load(LoadRequest("a", rows))
        assert (first.hot_rows, first.delta_rows, first.replay) == (2, 0, False)
        assert client.load(LoadRequest("a", rows)).replay
    pump(app, connection)
    assert in_lake(app, connection) == {1: "again", 2: "two"}


def test_a_policy_lets_a_mirror_shed(served: World) -> None:
    app, connection = served
    create(connection)
    start(app, connection, T, "at", width="100")
    connection.execute("update events set note = 'before' where id = 1")
    table = change(connection, tables.get(connection, T), {"heap_retention": "199"})
    assert (table.has_seam, table.heap_name) == (True, "events_hot")
    done = pump(app, connection)
    assert (done.shed, done.failed, done.parked) == (["public.events_0", "public.events_100"], {}, {})
    row = connection.execute("select count(*) as n, min(note) filter (where id = 1) as first from events").fetchone()
    assert row == {"n": 399, "first": "before"}
    change(connection, tables.get(connection, T), {"heap_retention": ""})
    connection.execute("insert into events values (599, 599, 'new')")
    assert pump(app, connection).shed == []


def test_files_come_in_below_the_line_only(mirrored: World, tmp_path: Path) -> None:
    """SCENARIOS 80: and not at all into a mirror whose heap is complete."""
    app, connection = mirrored
    for name, rows in (("below", [(10_000, 10), (1, 1)]), ("above", [(10_001, 350)])):
        columns = {"id": [id for id, _ in rows], "at": [at for _, at in rows], "note": ["file"] * len(rows)}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    create(connection)
    start(app, connection, T, "at", width="100")
    with app.job(T) as job, pytest.raises(Refused, match="takes no files"):
        ingest(job, [str(tmp_path / "below.parquet")], "parquet")
    change(connection, tables.get(connection, T), {"heap_retention": "199"})
    pump(app, connection)
    with app.job(T) as job, pytest.raises(ModakError, match=r"350|cut-line"):
        ingest(job, [str(tmp_path / "above.parquet")], "parquet")
    with app.job(T) as job:
        assert ingest(job, [str(tmp_path / "below.parquet")], "parquet").rows == 2
    connection.execute("update events_hot set note = 'hot' where id = 300")
    done = pump(app, connection)
    assert (done.parked, done.failed) == ({}, {})
    found = in_lake(app, connection)
    assert (found[10_000], found[1], found[300], len(found)) == ("file", "file", "hot", 400)


def test_columns_follow_in_both_tiers(served: World) -> None:
    """By the stream to the lake, and then to the view; a default is in cold rows too."""
    app, connection = served
    shed(app, connection)
    for statement in ("add column extra int default 3", "rename column note to remark"):
        connection.execute(f"alter table events_hot {statement}")
        connection.execute("insert into events_hot select coalesce(max(id), 0) + 1, 501, 'new', 9 from events_hot")
        done = pump(app, connection)
        assert (done.parked, done.failed) == ({}, {})
    connection.execute("update events set extra = 4 where id = 6")
    assert pump(app, connection).corrections == 1
    rows = connection.execute("select remark, extra from events where id in (5, 6, 250, 400) order by id").fetchall()
    assert [tuple(row.values()) for row in rows] == [("n5", 3), ("n6", 4), ("n250", 3), ("new", 9)]
