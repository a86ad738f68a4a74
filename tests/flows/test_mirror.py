"""Mirrored tables: the lake follows the heap (SCENARIOS 68, 71 to 74, 76)."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import Any

import pytest
from tests.mirroring import frontier, lake_rows, problem, pump, same, start, state

from modak.app import App
from modak.catalog import mirrors, tables
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import LakeError
from modak.failpoints import FailpointError, armed
from modak.jobs import mirror
from modak.jobs.context import JobContext
from modak.jobs.mirroring import alone
from modak.jobs.mirroring.files import make
from modak.scan.values_of_keys import values_at
from modak.source import replication
from modak.source.pgoutput import StreamError
from modak.worker.loop import Loop
from modak.worker.metrics import Metrics

pytestmark = pytest.mark.inline
T = Name("public", "items")
World = tuple[App, Connection]


def create(connection: Connection, rows: int = 3) -> None:
    connection.execute("create table items (id bigint primary key, at timestamptz not null, note text)")
    moment = "timestamptz '2026-01-01' + i * interval '1 hour'"
    connection.execute(f"insert into items select i, {moment}, 'n' || i from generate_series(1, {rows}) i")


def test_rows_are_copied_and_changes_follow(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    done = start(app, connection, T)
    assert (done.rows, frontier(connection, T)) == (3, done.lsn)
    same(app, connection, T)
    connection.execute("insert into items values (4, now(), 'new')")
    connection.execute("update items set note = 'changed' where id = 2")
    connection.execute("delete from items where id = 1")
    passed = pump(app, connection)
    assert (passed.transactions, passed.changes, passed.commits) == (3, 3, 1)
    same(app, connection, T)
    first = frontier(connection, T)
    connection.execute("insert into items values (5, now(), 'later')")
    assert pump(app, connection).rows_deleted == 0
    same(app, connection, T)
    assert (frontier(connection, T) or 0) > (first or 0)


def test_unrelated_traffic_moves_the_frontier(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    connection.execute("create table other (n int)")
    connection.execute("insert into other select generate_series(1, 10000)")
    before = frontier(connection, T)
    assert pump(app, connection).commits == 0
    assert (frontier(connection, T) or 0) > (before or 0)
    row = connection.execute(
        "select pg_current_wal_lsn() - confirmed_flush_lsn as n from pg_replication_slots where not temporary"
    ).fetchone()
    assert row is not None
    assert row["n"] < 100_000


def test_keys_and_tier_keys_move(mirrored: World) -> None:
    app, connection = mirrored
    create(connection, 20)
    start(app, connection, T, "at", width="day")
    connection.execute("update items set id = id + 100 where id <= 3")
    connection.execute("update items set at = at + interval '40 days' where id = 5")
    connection.execute("update items set id = 1 where id = 103")
    with connection.transaction():
        connection.execute("delete from items where id = 7")
        connection.execute("insert into items values (7, '2026-03-01', 'again')")
        connection.execute("insert into items values (8888, now(), 'gone')")
        connection.execute("delete from items where id = 8888")
    pump(app, connection)
    same(app, connection, T)


def test_rolled_back_work_and_savepoints(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    with connection.transaction():
        connection.execute("insert into items values (10, now(), 'kept')")
        connection.execute("savepoint a")
        connection.execute("update items set note = 'undone'")
        connection.execute("rollback to a")
        connection.execute("update items set note = 'done' where id = 1")
    connection.execute("begin")
    connection.execute("delete from items")
    connection.execute("rollback")
    pump(app, connection)
    same(app, connection, T)


def test_a_large_value_that_stays_is_kept(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("create table items (id bigint primary key, n int, note text, raw bytea)")
    connection.execute("alter table items alter note set storage external, alter raw set storage external")
    connection.execute(
        "insert into items select i, 0, repeat(i::text, 9000), decode(repeat('ab', 5000), 'hex') from generate_series(1, 4) i"
    )
    start(app, connection, T)
    connection.execute("update items set n = n + 1 where id < 4")
    connection.execute("update items set id = 40, n = 7 where id = 4")
    pump(app, connection)
    same(app, connection, T)
    with connection.transaction():
        connection.execute("update items set note = repeat('z', 9000) where id = 1")
        connection.execute("update items set n = 5, id = 11 where id = 1")
        connection.execute("update items set n = 6 where id = 11")
        connection.execute("insert into items values (1, 1, repeat('q', 9000), null)")
    pump(app, connection)
    same(app, connection, T)


def test_large_values_that_stay_are_read_in_slices(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows keep one: what is in memory at a time is bounded by bytes."""
    app, connection = mirrored
    connection.execute("create table items (id bigint primary key, n int, note text, raw bytea)")
    connection.execute("alter table items alter note set storage external, alter raw set storage external")
    connection.execute(
        "insert into items select i, 0, case when i % 7 > 0 then repeat(i::text, 3000) end, decode(repeat('ab', 5000), 'hex')"
        " from generate_series(1, 3000) i"
    )
    start(app, connection, T)
    connection.execute("update items set n = 1 where id % 3 = 0")
    pump(app, connection)  # some rows of the copy are gone now
    sizes: list[int] = []

    def measured(*rest: Any) -> Any:
        for numbers, values in values_at(*rest, slice_bytes=1_000_000):
            sizes.append(sum(value.nbytes for value in values))
            yield numbers, values

    monkeypatch.setattr("modak.jobs.mirroring.files.values_at", measured)
    connection.execute("update items set n = 2, raw = case when id % 2 = 0 then raw else decode(repeat('cd', 4000), 'hex') end")
    connection.execute("update items set id = -id where id <= 100")
    done = pump(app, connection)
    assert not done.parked
    assert len(sizes) > 20
    assert max(sizes) <= 1_000_000
    same(app, connection, T)


def test_a_large_value_with_the_whole_row_in_the_stream(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("create table items (id bigint primary key, n int, note text)")
    connection.execute("alter table items alter note set storage external, replica identity full")
    connection.execute("insert into items values (1, 0, repeat('a', 9000))")
    start(app, connection, T)
    connection.execute("update items set n = 1")
    connection.execute("update items set id = 2")
    pump(app, connection)
    same(app, connection, T)


def test_truncate_in_its_place(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    with connection.transaction():
        connection.execute("update items set note = 'before'")
        connection.execute("truncate items")
        connection.execute("insert into items values (1, now(), 'after')")
    pump(app, connection)
    assert [row["note"] for row in lake_rows(app, connection, T)] == ["after"]
    connection.execute("truncate items")
    pump(app, connection)
    assert lake_rows(app, connection, T) == []


def test_a_giant_transaction_goes_in_parts_that_nobody_sees(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    before = state(connection, T)
    with connection.transaction():
        connection.execute("insert into items select i, now(), 'big' || i from generate_series(100, 199) i")
        connection.execute("update items set note = 'changed' where id % 2 = 0")
        connection.execute("delete from items where id = 150")
    done = pump(app, connection, bytes_max=20 * 250)
    assert done.commits > 3
    same(app, connection, T)
    assert state(connection, T).applied_lsn > before.applied_lsn
    row = connection.execute("select count(*) as n from modak.op_log where op_kind = 'mirror' and phase = 'advanced'").fetchone()
    assert row is not None
    assert row["n"] == 1


def test_several_tables_share_the_slot_and_a_later_one_joins(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    connection.execute("create table more (a int, b text, n int, primary key (b, a))")
    connection.execute("insert into more values (1, 'x', 0), (2, 'y', 0)")
    connection.execute("insert into items values (9, now(), 'while the other comes')")
    other = Name("public", "more")
    start(app, connection, other, "a")
    connection.execute("update more set n = 1 where a = 1")
    connection.execute("update more set b = 'z' where a = 2")
    connection.execute("delete from items where id = 1")
    pump(app, connection)
    same(app, connection, T)
    same(app, connection, other, "a")
    assert frontier(connection, T) == frontier(connection, other)
    row = connection.execute("select count(*) as n from pg_replication_slots where not temporary").fetchone()
    assert row is not None
    assert row["n"] == 1


def test_partitions_with_columns_in_another_order(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("create table items (id bigint, at int, note text, primary key (id, at)) partition by range (at)")
    connection.execute("create table p1 partition of items for values from (0) to (100)")
    connection.execute("create table p2 (note text, gone int, at int not null, id bigint not null)")
    connection.execute("alter table p2 drop column gone")
    connection.execute("alter table items attach partition p2 for values from (100) to (200)")
    connection.execute("create table rest partition of items default")
    connection.execute("insert into items select i, i, 'n' || i from generate_series(1, 250, 7) i")
    start(app, connection, T, "at", width="100")
    same(app, connection, T)
    connection.execute("update items set at = at + 100 where at < 50")
    connection.execute("insert into items values (1000, 150, 'direct'), (1001, 5, 'direct')")
    connection.execute("insert into p2 (id, at, note) values (1002, 160, 'by the partition')")
    connection.execute("delete from items where id = 8")
    connection.execute("create table p3 partition of items for values from (1000) to (2000)")
    connection.execute("insert into items values (2000, 1500, 'new partition')")
    done = pump(app, connection)
    assert not done.parked
    same(app, connection, T)
    connection.execute("truncate items")
    connection.execute("insert into items values (1, 1, 'again')")
    pump(app, connection)
    assert not pump(app, connection).parked
    same(app, connection, T)


def test_a_failing_table_holds_no_other_back_and_catches_up(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = mirrored
    create(connection)
    connection.execute("create table more (id int primary key)")
    other = Name("public", "more")
    start(app, connection, T)
    start(app, connection, other)

    def fails(context: JobContext, *rest: Any) -> Any:
        if context.table.name == T:
            raise LakeError("the warehouse is away")
        return make(context, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("modak.jobs.mirroring.apply.make", fails)
        for number in range(3):
            connection.execute("insert into items values (%s, now(), 'waits')", [100 + number])
            connection.execute("insert into more values (%s)", [number])
            done = pump(app, connection)
            assert (list(done.failed), done.parked) == (["public.items"], {})
            same(app, connection, other)
        assert len(lake_rows(app, connection, T)) == 3
        assert "away" in problem(connection, T)
    pump(app, connection)
    same(app, connection, T)
    assert problem(connection, T) == ""


def test_a_reader_that_hangs_is_evicted(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCENARIOS 96: it reads the slot, and the session that held the pump's lock for it is gone."""
    monkeypatch.setattr(alone, "EVICT_SECONDS", 0.2)
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    table = tables.get(connection, T)
    with contextlib.closing(replication.Stream(app.dsn, str(table.slot_name), str(table.publication_name), 0)):
        connection.execute("insert into items values (4, now(), 'new')")
        assert not pump(app, connection).failed
        same(app, connection, T)


def test_a_slow_batch_is_not_taken_for_a_dead_reader(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("alter database mirrored set wal_sender_timeout = '1s'")
    opened = replication._connect(app.dsn, "modak-test")
    try:
        assert opened.exec_(b"show wal_sender_timeout").get_value(0, 0) == b"0"
    finally:
        opened.finish()


def test_what_a_failing_pass_published_is_confirmed_by_the_next(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if that fails too: else a pass that never ends well keeps WAL for ever."""
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    connection.execute("insert into items values (4, now(), 'new')")
    with armed("mirror.before_confirm"), pytest.raises(FailpointError):
        pump(app, connection)
    place = frontier(connection, T)
    name = str(tables.get(connection, T).slot_name)
    before = replication.free_slot(connection, name, 10.0)
    assert before is not None
    assert before.confirmed < (place or 0)

    def broken(found: bytes) -> None:
        raise StreamError("nothing that is known")

    monkeypatch.setattr(mirror, "decode", broken)
    connection.execute("insert into items values (5, now(), 'newer')")
    with pytest.raises(StreamError):
        pump(app, connection)
    after = replication.free_slot(connection, name, 10.0)
    assert after is not None
    assert after.confirmed == place


def test_a_worker_that_was_replaced_moves_no_frontier(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    before = frontier(connection, T)
    connection.execute("create table other (n int)")
    done = mirror.mirror(connection, app.dsn, app.job, epoch=-1)
    assert "does not lead" in done.failed["public.items"]
    connection.execute("insert into items values (4, now(), 'new')")
    done = mirror.mirror(connection, app.dsn, functools.partial(app.job, epoch=-1))
    assert "does not lead" in done.failed["public.items"]
    assert (frontier(connection, T), problem(connection, T)) == (before, "")
    pump(app, connection)
    same(app, connection, T)


def test_the_worker_follows(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    stop = threading.Event()
    loop = Loop(app, stop, 0.1)
    worker = threading.Thread(target=loop.run)
    worker.start()
    try:
        for number in range(3):
            connection.execute("insert into items values (%s, now(), 'followed')", [10 + number])
            until = time.monotonic() + 20
            while len(lake_rows(app, connection, T)) < 4 + number and time.monotonic() < until:
                time.sleep(0.1)
    finally:
        stop.set()
        worker.join()
    same(app, connection, T)
    page = Metrics(app.connection, loop.state).text().decode()
    assert 'modak_mirror_changes_total{table="public.items"} 3.0' in page
    assert 'modak_mirror_rows_total{table="public.items",what="written"} 3.0' in page
    assert 'modak_mirror_parked{table="public.items"} 0.0' in page
    assert 'modak_mirror_lag_bytes{table="public.items"}' in page


def test_how_late_the_lake_is(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By when its last transaction committed, however lately F moved; and not at all where nothing came since."""
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    times = [replication.server_time(connection)]
    for number in (10, 11):
        connection.execute("insert into items values (%s, now(), 'one by one')", [number])
        times.append(replication.server_time(connection))

    confirmed = []

    def stops(*_: Any) -> None:
        """At its second time: a pass confirms when it begins, and then after each batch."""
        confirmed.append(True)
        if len(confirmed) > 1:
            raise replication.SlotFailed("the server went away")

    with monkeypatch.context() as patch:
        patch.setattr("modak.jobs.mirror._Pump._confirm", stops)
        with pytest.raises(replication.SlotFailed):
            pump(app, connection, changes_max=1)
    row = connection.execute("select extract(epoch from as_of)::float8 as time from modak.mirrors").fetchone()
    assert row is not None
    assert times[0] <= row["time"] <= times[1]
    connection.execute("update modak.mirrors set as_of = now() - interval '1 hour'")
    assert mirrors.lags(connection)[0]["lag_seconds"] >= 3600
    connection.execute("update modak.mirrors set applied_lsn = applied_lsn + (1::bigint << 40)")
    assert mirrors.lags(connection)[0]["lag_seconds"] == 0
