"""The copy and the pump die at every point between two steps, and the next ones end where they would have (SCENARIOS 69, 70, 71)."""

from __future__ import annotations

import pytest
from tests import deaths
from tests.mirroring import copy, frontier, heap_rows, lake_rows, pump, same, start

from modak.app import App
from modak.catalog import mirrors, tables
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import LockNotAvailable
from modak.failpoints import FailpointError, armed
from modak.jobs.mirroring.alone import alone

pytestmark = pytest.mark.inline
T = Name("public", "items")
World = tuple[App, Connection]

COPY_POINTS = [
    "copy.after_slot", "copy.after_journal", "copy.before_files", "copy.after_files", "copy.after_commit", "copy.in_publish",
    "copy.after_publish", "copy.before_end",
]  # fmt: skip
PUMP_POINTS = [
    "mirror.after_journal", "mirror.after_files", "mirror.after_commit", "mirror.in_publish", "mirror.after_publish",
    "mirror.before_confirm",
]  # fmt: skip


def create(connection: Connection, rows: int = 400) -> None:
    connection.execute("create table items (id bigint primary key, n int, note text)")
    connection.execute("alter table items alter note set storage external")
    connection.execute(f"insert into items select i, 0, repeat('n' || i, 700) from generate_series(1, {rows}) i")


@pytest.mark.parametrize("point", COPY_POINTS)
def test_the_copy_dies_and_goes_on(mirrored: World, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows below and above the place where it died are changed meanwhile."""
    app, connection = mirrored
    create(connection)
    # Two chunks a wave, of one page each.
    monkeypatch.setattr("modak.jobs.initial_copy.WAVES_CHUNKS_PER_CORE", 1)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MIN", 8192)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MAX", 8192)
    with armed(point), pytest.raises(FailpointError):
        start(app, connection, T)
    assert frontier(connection, T) is None
    assert pump(app, connection).copying == ["public.items"]
    before = mirrors.find_copy(connection, tables.get(connection, T).table_id)
    with connection.transaction():
        connection.execute("update items set n = 1 where id in (1, 2, 399, 400)")
        connection.execute("update items set id = id + 1000 where id in (5, 395)")
        connection.execute("insert into items values (5, 5, 'another five'), (2000, 0, 'late')")
        connection.execute("delete from items where id in (7, 390)")
        connection.execute("update items set id = 7, n = 7 where id = 8")
    done = copy(app, T)
    if point == "copy.after_publish" and before is not None:
        assert done.resumed > 0
    assert done.rows <= 400 if done.resumed else True
    same(app, connection, T)
    connection.execute("update items set n = n + 1 where id = 1005")
    pump(app, connection)
    same(app, connection, T)
    assert frontier(connection, T) is not None


@pytest.mark.parametrize("last", ["update items set n = 9 where id % 5 = 0", "truncate items"])
def test_a_copy_that_dies_while_it_heals(mirrored: World, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = mirrored
    create(connection, 60)
    monkeypatch.setattr("modak.jobs.initial_copy.WAVES_CHUNKS_PER_CORE", 1)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MIN", 8192)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MAX", 8192)
    monkeypatch.setattr("modak.jobs.mirroring.heal.PART_KEYS", 5)
    with armed("copy.after_publish"), pytest.raises(FailpointError):
        start(app, connection, T)
    connection.execute("update items set n = n + 1 where id % 3 = 0")
    connection.execute("update items set id = 1000 where id = 1")
    with armed("copy.after_heal"), pytest.raises(FailpointError):
        copy(app, T)
    connection.execute(last)
    copy(app, T)
    same(app, connection, T)
    connection.execute("insert into items values (5000, 1, 'more')")
    pump(app, connection)
    same(app, connection, T)


def test_a_table_that_was_rewritten_is_copied_from_the_start(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = mirrored
    create(connection)
    monkeypatch.setattr("modak.jobs.initial_copy.WAVES_CHUNKS_PER_CORE", 1)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MIN", 8192)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MAX", 8192)
    with armed("copy.after_publish"), pytest.raises(FailpointError):
        start(app, connection, T)
    connection.execute("delete from items where id % 3 = 0")
    connection.execute("vacuum full items")
    assert copy(app, T).resumed == 0
    pump(app, connection)
    same(app, connection, T)


def partitioned(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that died after its first wave."""
    connection.execute("create table items (id bigint primary key, n int, note text) partition by range (id)")
    connection.execute("create table p1 partition of items for values from (0) to (1000)")
    connection.execute("alter table p1 alter note set storage external")
    connection.execute("insert into items select i, 0, repeat('n' || i, 700) from generate_series(1, 60) i")
    monkeypatch.setattr("modak.jobs.initial_copy.WAVES_CHUNKS_PER_CORE", 1)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MIN", 8192)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MAX", 8192)
    with armed("copy.after_publish"), pytest.raises(FailpointError):
        start(app, connection, T)


MEANWHILE = {
    "the slot": ["select pg_drop_replication_slot(slot_name) from pg_replication_slots where not temporary", "{}"],
    "the slot for a while": [
        "{}",
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where not temporary",
        "select pg_create_logical_replication_slot('modak_' || oid, 'pgoutput') from pg_database where datname = current_database()",
    ],
    "its entry in the publication": ["alter publication modak drop table items", "{}", "alter publication modak add table items"],
    "a partition that was not there": [
        "create table p2 (id bigint not null, n int, note text)",
        "insert into p2 values (1500, 1, 'brought')",
        "alter table items attach partition p2 for values from (1000) to (2000)",
    ],
    "a partition for a while": [
        "alter table items detach partition p1",
        "update p1 set n = 5 where id in (1, 60)",
        "alter table items attach partition p1 for values from (0) to (1000)",
    ],
}


def test_a_copy_starts_over_where_keys_were_not_named(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = mirrored
    create(connection, 60)
    connection.execute("alter table items add column code int not null default 0")
    connection.execute("update items set code = id")
    connection.execute("create unique index by_code on items (code)")
    monkeypatch.setattr("modak.jobs.initial_copy.WAVES_CHUNKS_PER_CORE", 1)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MIN", 8192)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MAX", 8192)
    with armed("copy.after_publish"), pytest.raises(FailpointError):
        start(app, connection, T)
    connection.execute("alter table items replica identity using index by_code")
    connection.execute("update items set id = id + 1000 where id in (1, 60)")
    connection.execute("alter table items replica identity default")
    copy(app, T)
    same(app, connection, T)


def test_a_copy_starts_over_where_a_partition_did_not_name_keys(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = mirrored
    connection.execute("create table items (id bigint primary key, code int not null, note text) partition by range (id)")
    connection.execute("create table p1 partition of items for values from (0) to (1000)")
    connection.execute("alter table p1 alter note set storage external")
    connection.execute("insert into items select i, i, repeat('n' || i, 700) from generate_series(1, 60) i")
    connection.execute("create unique index by_code on p1 (code)")
    monkeypatch.setattr("modak.jobs.initial_copy.WAVES_CHUNKS_PER_CORE", 1)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MIN", 8192)
    monkeypatch.setattr("modak.jobs.initial_copy.CHUNK_BYTES_MAX", 8192)
    with armed("copy.after_publish"), pytest.raises(FailpointError):
        start(app, connection, T)
    connection.execute("alter table p1 replica identity using index by_code")
    connection.execute("update items set id = id + 500 where id in (1, 60)")
    connection.execute("alter table p1 replica identity default")
    copy(app, T)
    same(app, connection, T)


@pytest.mark.parametrize("what", MEANWHILE)
def test_a_copy_starts_over_where_the_stream_has_not_told(mirrored: World, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = mirrored
    partitioned(app, connection, monkeypatch)
    for statement in MEANWHILE[what]:
        connection.execute(statement.format("update items set n = 5 where id in (1, 60)"))
    if what == "the slot":
        connection.execute("delete from items where id = 2")
    copy(app, T)
    same(app, connection, T)
    connection.execute("update items set n = 6 where id = 3")
    pump(app, connection)
    same(app, connection, T)


def test_a_copy_goes_on_with_partitions_that_the_stream_knows(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = mirrored
    partitioned(app, connection, monkeypatch)
    connection.execute("create table p2 partition of items for values from (1000) to (2000)")
    connection.execute("insert into items values (1500, 1, 'new')")
    assert copy(app, T).resumed > 0
    same(app, connection, T)


def test_a_copy_that_goes_on_waits_for_the_pump(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readers of one slot would throw each other out."""
    app, connection = mirrored
    partitioned(app, connection, monkeypatch)
    connection.execute("delete from items where id = 1")
    with alone(connection):
        monkeypatch.setattr("modak.jobs.mirroring.heal.STREAM_SECONDS_MAX", 0.0)
        with pytest.raises(LockNotAvailable, match="another process reads the stream"):
            copy(app, T)
    copy(app, T)
    same(app, connection, T)


def change(connection: Connection) -> None:
    connection.execute("insert into items select i, 1, 'new' from generate_series(1001, 1010) i")
    with connection.transaction():
        connection.execute("update items set n = n + 1 where id % 2 = 0")
        connection.execute("update items set id = 2000 where id = 3")
        connection.execute("delete from items where id = 4")
        connection.execute("insert into items values (4, 4, 'four again')")


@pytest.mark.parametrize("bytes_max", [2_000, 100_000_000], ids=["parts", "whole"])
@pytest.mark.parametrize("point", PUMP_POINTS)
def test_the_pump_dies_and_replays(mirrored: World, point: str, bytes_max: int) -> None:
    app, connection = mirrored
    create(connection, 20)
    start(app, connection, T)
    before = frontier(connection, T)
    change(connection)
    with armed(point), pytest.raises(FailpointError):
        pump(app, connection, bytes_max=bytes_max)
    if point in ("mirror.after_journal", "mirror.after_files", "mirror.after_commit", "mirror.in_publish"):
        # Whatever the lake holds by now, readers see the table as it was.
        assert frontier(connection, T) == before
        assert len(lake_rows(app, connection, T)) == 20
    connection.execute("update items set n = 100 where id = 1")
    pump(app, connection)
    same(app, connection, T)
    assert len(heap_rows(connection, T)) == 30


@pytest.mark.parametrize("point", ["mirror.after_files", "mirror.after_commit", "mirror.in_publish", "mirror.before_confirm"])
def test_the_process_is_killed(mirrored: World, point: str) -> None:
    app, connection = mirrored
    create(connection, 20)
    start(app, connection, T)
    change(connection)
    deaths.killed_worker(app.settings, app.dsn, None, point, "mirror")
    pump(app, connection)
    same(app, connection, T)
    assert not pump(app, connection).commits


def test_columns_change_and_the_pump_dies(mirrored: World) -> None:
    """The lake's columns are ahead of its rows then; the replay must not bring them back."""
    app, connection = mirrored
    create(connection, 5)
    start(app, connection, T)
    connection.execute("insert into items values (10, 1, 'old shape')")
    connection.execute("alter table items add column new text")
    connection.execute("alter table items alter column n type bigint")
    connection.execute("alter table items rename column note to remark")
    connection.execute("insert into items values (11, 5000000000, 'new shape', 'valued')")
    for point in ("mirror.after_journal", "mirror.after_commit", "mirror.in_publish"):
        with armed(point), pytest.raises(FailpointError):
            pump(app, connection)
    pump(app, connection)
    same(app, connection, T)
