"""Maintenance of decoupled tables: fewer files, manifests and snapshots, the same rows, and nobody is in anybody's way."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.decoupling import EVERY_TYPE, Client, House, contents, house, make
from tests.gateway.test_decoupled_sql import ROW
from tests.lake_upkeep import EAGER, EVENTS, PLAIN, aged, fill, live_files, maintain, old, on_disk, set_properties, wait_for

from modak.embedded.postgres import Cluster
from modak.errors import CommitUnknown, LockNotAvailable
from modak.failpoints import armed
from modak.gateway.decoupled import committing
from modak.jobs import maintain_decoupled as maintaining
from modak.jobs.maintain import MaintainOutcome
from modak.jobs.maintain_decoupled import maintain_decoupled
from modak.lake import commits
from modak.mesh import Bakery

pytestmark = [pytest.mark.spark, pytest.mark.inline]


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("maintained"), f"decoupled_maintained_{os.getpid()}") as made:
        yield made


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client() as connection:
        yield connection
        connection.execute("rollback")
        connection.execute("select modak.drop_iceberg_table('public', t.table_name, true) from modak.decoupled t")
        connection.execute("drop table if exists twin")


def test_files_become_few_and_the_rows_are_the_same(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    fill(client, 12)
    client.execute("update events set v = -1 where id in (3, 4)")
    client.execute("delete from events where id = 5")
    before = contents(client, "events", "id")
    would = maintain(world, dry_run=True)
    assert would.dry_run
    assert would.files_rewritten == 13
    assert len(live_files(world)) == 13
    done = maintain(world)
    # A file of which the only row is deleted leaves none behind.
    assert (done.files_rewritten, done.files_written, done.commits) == (13, 1, 1)
    assert len(live_files(world)) == 1
    assert contents(client, "events", "id") == before
    assert world.lake_table("public.events").current_snapshot().summary.operation.value == "replace"
    assert maintain(world) == MaintainOutcome()
    # And it is a table like before.
    client.execute("update events set v = 7 where id = 3; delete from events where id = 0; insert into events values (99, 9, 'new')")
    assert client.execute("select count(*), sum(v) filter (where id = 3) from events").fetchone() == (11, 7)


@pytest.mark.parametrize("partition_by", [None, ["day(moment)", "bucket(4, id)"]])
def test_every_type_is_what_it_was(world: House, client: Client, partition_by: list[str] | None) -> None:
    make(client, "events", EVERY_TYPE, partition_by)
    client.execute(f"create table twin ({', '.join(f'{name} {kind}' for name, kind in EVERY_TYPE)})")  # type: ignore[arg-type]
    set_properties(world, **{"modak.maintenance.small_files": "2"})
    for number in range(5):
        client.execute("insert into twin " + ROW.format(first=10 * number + 1, last=10 * number + 10))  # type: ignore[arg-type]
        client.execute("insert into events " + ROW.format(first=10 * number + 1, last=10 * number + 10))  # type: ignore[arg-type]
    for table in ("events", "twin"):
        client.execute(f"delete from {table} where id % 7 = 0")  # type: ignore[arg-type]
    done = maintain(world)
    assert done.files_written < done.files_rewritten
    assert contents(client, "events", "id") == contents(client, "twin", "id")
    assert maintain(world).files_rewritten == 0


def test_manifests_are_merged_and_snapshots_go_before_their_files(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    set_properties(world, **EAGER, **{"modak.maintenance.compact": "on"})
    fill(client, 20)
    files, metadata = on_disk(world), on_disk(world, "metadata")
    # The oldest transaction of the database is younger than a minute, and the margin is one.
    assert maintain(world).snapshots_expired == 0
    aged(world)
    done = maintain(world)
    assert done.snapshots_expired >= 18
    assert len(world.lake_table("public.events").snapshots()) == 1
    assert done.files_removed == 0
    assert files <= on_disk(world)
    noted = client.execute("select count(*) from modak.lake_leftovers").fetchone()
    assert noted is not None
    assert noted[0] >= 20
    old(client)
    removed = maintain(world)
    assert removed.files_removed == noted[0]
    assert not files & on_disk(world)
    assert not {name for name in metadata if name.startswith("snap-")} & on_disk(world, "metadata")
    assert client.execute("select count(*) from modak.lake_leftovers").fetchone() == (0,)
    assert client.execute("select count(*), count(distinct id) from events").fetchone() == (20, 20)
    # Manifests of files that are gone go with the next commit; many of few files are merged.
    fill(client, 5, first=20)
    assert maintain(world).manifests_merged == 6
    table = world.lake_table("public.events")
    assert len(table.current_snapshot().manifests(table.io)) == 1
    assert table.scan().to_arrow().num_rows == 25


def test_commits_merge_manifests_by_themselves(world: House, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "_MANIFESTS_MAX", 5)
    make(client, "events", PLAIN)
    counts = []
    for number in range(30):
        fill(client, 1, first=number)
        if number % 4 == 3:
            client.execute("update events set v = v + 100 where id = %s", [number - 1])
        if number % 7 == 6:
            client.execute("delete from events where id = %s", [number - 2])
        table = world.lake_table("public.events")
        counts.append(len(table.current_snapshot().manifests(table.io)))
    assert max(counts) <= 8
    assert min(counts[10:]) <= 4
    gone, changed = {number - 2 for number in range(30) if number % 7 == 6}, {number - 1 for number in range(30) if number % 4 == 3}
    expected = [(number, number % 5 + 100 * (number in changed)) for number in range(30) if number not in gone]
    assert client.execute("select id, v from events order by id").fetchall() == expected
    assert sorted(world.lake_table("public.events").scan().to_arrow().column("id").to_pylist()) == [key for key, _ in expected]
    # Older snapshots are what they were.
    table = world.lake_table("public.events")
    rows = [table.scan(snapshot_id=one.snapshot_id).to_arrow().num_rows for one in table.snapshots()]
    assert rows[-1] == len(expected)
    assert all(abs(later - earlier) <= 1 for earlier, later in itertools.pairwise(rows))


def test_of_very_many_snapshots_the_newest_stay(world: House, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintaining, "SNAPSHOTS_MAX", 4)
    make(client, "events", PLAIN)
    set_properties(world, **{"modak.maintenance.snapshots": "2", "modak.maintenance.compact": "off"})
    fill(client, 9)
    aged(world, seconds=120)
    # Younger than ten minutes, older than any transaction.
    assert maintain(world).snapshots_expired == 5
    assert len(world.lake_table("public.events").snapshots()) == 4
    set_properties(world, **{"history.expire.max-snapshot-age-ms": "3600000"})
    fill(client, 4, first=9)
    aged(world, seconds=120)
    assert maintain(world).snapshots_expired == 0
    assert client.execute("select count(*) from events").fetchone() == (13,)


def test_a_transaction_keeps_what_it_may_read(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    set_properties(world, **EAGER)
    fill(client, 10)
    with world.client(autocommit=False) as reader:
        reader.execute("set transaction isolation level repeatable read")
        assert reader.execute("select count(*) from events").fetchone() == (10,)
        fill(client, 10, first=10)
        aged(world)
        assert maintain(world).files_rewritten == 20
        old(client)
        maintain(world)
        assert reader.execute("select count(*), sum(id) from events").fetchone() == (10, 45)


def test_what_others_wrote_meanwhile_is_not_lost(world: House, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were changed while they were written anew stay as they are, and what was written for them goes."""
    monkeypatch.setattr(maintaining, "_TURN_FILES", 0)
    make(client, "events", PLAIN)
    fill(client, 12)
    changed = threading.Event()

    def change() -> None:
        with world.client() as other:
            other.execute("update events set note = 'changed' where id = 3")
            other.execute("insert into events values (100, 0, 'added')")
        changed.set()

    with armed("maintain_decoupled.after_files", change):
        done = maintain(world)
    assert changed.is_set()
    assert (done.files_rewritten, done.commits) == (0, 0)
    assert client.execute("select note from events where id = 3").fetchone() == ("changed",)
    assert client.execute("select count(*) from events").fetchone() == (13,)
    known = {file.file_path.rpartition("/")[2] for file in live_files(world)}
    assert known == {name for name in on_disk(world) if "delete" not in name}
    # Rows that were only added are in nobody's way.
    with armed("maintain_decoupled.after_files", lambda: fill(client, 1, first=200)):
        done = maintain(world)
    assert done.commits == 1
    assert client.execute("select count(*) from events").fetchone() == (14,)
    assert len(live_files(world)) == 2


def test_what_is_changed_all_the_time_is_written_while_writers_wait(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    fill(client, 12)
    client.execute("delete from events where id in (1, 2)")

    def change() -> None:
        with world.client() as other:
            other.execute("update events set v = v + 1000 where id = 3")

    def die() -> None:
        raise RuntimeError("killed")

    with armed("maintain_decoupled.after_files", change), armed("maintain_decoupled.in_turn", die), pytest.raises(RuntimeError):
        maintain(world)
    # Two files without rows were nobody's, and went; the others stay, and the turn is free.
    assert len(live_files(world)) == 11
    assert client.execute("select v from events where id = 3").fetchone() == (1003,)
    with armed("maintain_decoupled.after_files", change):
        done = maintain(world)
    assert done.files_written == 1
    assert len(live_files(world)) == 1
    assert client.execute("select count(*), max(v) from events").fetchone() == (10, 2003)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_whose_answer_got_lost_keeps_its_files(
    world: House, client: Client, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    make(client, "events", PLAIN)
    fill(client, 9)
    before, change = contents(client, "events", "id"), commits.change
    late: list[Callable[[], Any]] = []

    def lost(*given: Any, **named: Any) -> Any:
        late.append(lambda: change(*given, **named))
        raise CommitUnknown("nobody knows")

    with monkeypatch.context() as patch:
        patch.setattr(commits, "change", lost)
        with pytest.raises(CommitUnknown):
            maintain(world)
    assert len(on_disk(world)) == 10
    if arrives:
        late[0]()
        assert len(live_files(world)) == 1
    assert contents(client, "events", "id") == before
    assert maintain(world).files_written == (0 if arrives else 1)
    assert contents(client, "events", "id") == before


def test_a_commit_in_doubt_is_not_built_upon(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    fill(client, 12)
    stamp = world.lake_table("public.events").current_snapshot().summary.additional_properties["modak.commit-id"]
    wait_for(lambda: client.execute("select count(*) from modak.lake_commits").fetchone() == (0,))
    client.execute("insert into modak.lake_commits (commit_id, xid, changes) values (%s, pg_current_xact_id()::text, '[]')", [stamp])
    try:
        done = maintain(world)
        assert done.commits == 0
        assert "doubt" in str(done.held_by)
        assert len(live_files(world)) == 12
    finally:
        client.execute("delete from modak.lake_commits")
    assert maintain(world).commits == 1


def test_it_takes_its_turn(world: House, client: Client) -> None:
    make(client, "events", PLAIN)
    fill(client, 12)
    name = str(world.lake_table("public.events").metadata.table_uuid)
    bakery = Bakery(world.dsn)
    try:
        with bakery.claim(name), world.app.decoupled_job(EVENTS, wait_seconds=10) as context:
            assert context is not None
            with pytest.raises(LockNotAvailable, match="too long"):
                maintain_decoupled(replace(context, turn_seconds=1.0))
    finally:
        bakery.close()
    assert len(live_files(world)) == 12
    assert {file.file_path.rpartition("/")[2] for file in live_files(world)} == on_disk(world)
    assert maintain(world).files_written == 1


def test_writers_and_maintenance_side_by_side(world: House, client: Client) -> None:
    """A ledger of what was acknowledged: every row is there once, with its last value."""
    make(client, "events", PLAIN)
    set_properties(world, **EAGER, **{"modak.maintenance.small_files": "2"})
    stop, ledger, lock, failed = threading.Event(), dict[int, int](), threading.Lock(), list[Exception]()

    def write(number: int) -> None:
        try:
            with world.client() as own:
                step = 0
                while not stop.is_set():
                    key, value = number * 1000 + step % 40, step
                    try:
                        known = key in ledger
                        if known:
                            changed = own.execute("update events set v = %s where id = %s", [value, key]).rowcount
                            assert changed == 1
                        else:
                            own.execute("insert into events values (%s, %s, 'x')", [key, value])
                    except psycopg.errors.SerializationFailure:
                        continue
                    with lock:
                        ledger[key] = value
                    step += 1
        except Exception as cause:  # noqa: BLE001 - told below
            failed.append(cause)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    passes, committed, until = 0, 0, time.monotonic() + 8
    while time.monotonic() < until:
        committed += maintain(world).commits
        passes += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed, failed
    assert committed > 0
    rows = dict(client.execute("select id, v from events").fetchall())
    assert client.execute("select count(*) from events").fetchone() == (len(rows),)
    assert rows == ledger
    assert client.execute("select count(*) from modak.kept_commits").fetchone() == (0,)
