"""Maintenance on the fixture table E after many small commits: fewer files, the same rows for every reader."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo
from tests import events, seam
from tests.events import EVENTS, drop_tiered, fold, maintain, put_under_modak, tier
from tests.gateways import RunningGateway
from tests.support import rows, run_cli, value

from modak.app import App
from modak.catalog import overview, profiles, tables
from modak.cli.main import main
from modak.connection import Connection, connect
from modak.core.schedule import Job
from modak.duckdb import pinned_relation
from modak.errors import LockNotAvailable
from modak.jobs import context as job_context
from modak.jobs import maintain as upkeep
from modak.jobs import sweep
from modak.load import LoadClient, LoadOptions, LoadRequest, lake_storage
from modak.registration import policy
from modak.worker import work

pytestmark = [pytest.mark.spark, pytest.mark.inline]


def set_policy(connection: Connection, **wanted: str) -> None:
    pairs = {f"maintenance.{key}": text for key, text in wanted.items()}
    policy.change(connection, tables.get(connection, EVENTS), pairs)


@pytest.fixture
def worn(app: App, connection: Connection, gateway: RunningGateway) -> App:
    """E after three folds: a file for each of them in the lake, and deletes in most; three small files are enough to pack."""
    events.create(connection)
    put_under_modak(app, connection)
    connection.execute("insert into public.events select n, 100 + n % 100, 'x' || n from generate_series(1000, 1099) n")
    tier(app)
    drop_tiered(app)
    for number in range(3):
        connection.execute("update public.events set val = 'round ' || %s where id = %s", [number, 1000 + number % 2])
        connection.execute("insert into public.events values (%s, 130, 'late')", [2000 + number])
        connection.execute("delete from public.events where id = %s", [1050 + number])
        fold(app)
    set_policy(connection, small_files="3")
    return app


def lake_table(app: App, connection: Connection) -> Any:
    return app.lake(profiles.get(connection, None)).load(tables.get(connection, EVENTS).lake_table_ref)


def files(app: App, connection: Connection) -> tuple[int, int]:
    """Data and delete files of the current snapshot."""
    found = lake_table(app, connection).inspect.files().to_pylist()
    return sum(file["content"] == 0 for file in found), sum(file["content"] == 1 for file in found)


def through_name(connection: Connection) -> list[tuple[Any, ...]]:
    return rows(connection, "select id, event_time, val from public.events order by id")


def through_port(app: App, gateway: RunningGateway) -> list[tuple[Any, ...]]:
    with psycopg.connect(conninfo.make_conninfo(app.dsn, host="127.0.0.1", port=gateway.port)) as client:
        return client.execute("select id, event_time, val from public.events order by id").fetchall()


def on_disk(app: App, connection: Connection) -> set[str]:
    folder = Path("/" + lake_table(app, connection).location().removeprefix("file:").lstrip("/"))
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_small_and_worn_files_become_few_and_every_reader_sees_the_same(worn: App, connection: Connection, gateway: RunningGateway) -> None:
    before, revision = through_name(connection), value(connection, "select revision from modak.cutline")
    assert files(worn, connection) == (5, 4)
    outcome = maintain(worn)
    assert files(worn, connection) == (2, 0)
    assert (outcome.files_rewritten, outcome.files_written, outcome.commits) == (4, 1, 1)
    assert through_name(connection) == through_port(worn, gateway) == before
    assert seam.read(worn, EVENTS) == {str(row[0]): row for row in before}
    with pinned_relation(worn.dsn, "public.events") as relation:
        assert sorted(relation.fetchall()) == sorted(before)

    # The commit says that it changed no rows, and the rows are in the order of their keys.
    snapshot = lake_table(worn, connection).current_snapshot()
    assert snapshot.summary.operation.value == "replace"
    assert snapshot.sequence_number == outcome.snapshot == value(connection, "select lake_snapshot_id from modak.cutline")
    assert int(snapshot.summary["total-records"]) == 3 + 100
    assert value(connection, "select revision from modak.cutline") == revision
    journal = rows(connection, "select phase, details->>'step' from modak.op_log where op_kind = 'maintenance'")
    assert journal == [("advanced", "compact")]
    scan = lake_table(worn, connection).scan(row_filter="event_time >= 100").to_arrow()
    keys = list(zip(scan["event_time"].to_pylist(), scan["id"].to_pylist(), strict=True))
    assert keys == sorted(keys)

    again = maintain(worn)
    assert (again.commits, again.files_rewritten, again.snapshots_expired, again.snapshot) == (0, 0, 0, None)
    assert value(connection, "select count(*) from modak.op_log where op_kind = 'maintenance'") == 1


def test_a_dry_run_and_passes_that_are_off_change_nothing(worn: App, connection: Connection) -> None:
    before = on_disk(worn, connection), value(connection, "select count(*) from modak.op_log")
    outcome = maintain(worn, dry_run=True)
    assert (outcome.files_rewritten, outcome.dry_run) == (4, True)
    assert (on_disk(worn, connection), value(connection, "select count(*) from modak.op_log")) == before
    set_policy(connection, compact="off", expire="off")
    assert maintain(worn).commits == 0
    assert (on_disk(worn, connection), value(connection, "select count(*) from modak.op_log")) == before


def test_a_file_whose_rows_are_all_deleted_leaves_no_replacement(worn: App, connection: Connection) -> None:
    maintain(worn)
    connection.execute("delete from public.events where event_time < 100")
    fold(worn)
    outcome = maintain(worn)
    assert (outcome.files_rewritten, outcome.files_written) == (1, 0)
    assert files(worn, connection) == (1, 0)
    assert value(connection, "select count(*) from public.events where event_time < 100") == 0


def test_splintered_deletes_are_joined(worn: App, connection: Connection) -> None:
    maintain(worn)
    set_policy(connection, deleted_percent="90", small_files="100", delete_files="2")
    for number in (1060, 1061, 1062):
        connection.execute("delete from public.events where id = %s", [number])
        fold(worn)
    before = through_name(connection)
    assert files(worn, connection) == (2, 3)
    assert maintain(worn).deletes_joined == 3
    assert files(worn, connection) == (2, 1)
    assert through_name(connection) == before


def test_manifests_are_merged(worn: App, connection: Connection, gateway: RunningGateway) -> None:
    set_policy(connection, compact="on", small_files="1000", deleted_percent="100", delete_files="1000", manifests="4")
    before, table = through_name(connection), lake_table(worn, connection)
    count = len(table.current_snapshot().manifests(table.io))
    outcome = maintain(worn)
    table = lake_table(worn, connection)
    left = table.current_snapshot().manifests(table.io)
    assert outcome.manifests_merged == count == 7
    # One of data, one of deletes.
    assert len(left) == 2
    assert through_name(connection) == through_port(worn, gateway) == before
    assert maintain(worn).manifests_merged == 0


def expiring(connection: Connection, **more: str) -> None:
    set_policy(connection, snapshots="1", snapshot_age="0 seconds", **more)
    release(connection)


def release(connection: Connection) -> None:
    """The gateway holds what it read for a while longer."""
    connection.execute("delete from modak.read_pins where holder = 'gateway'")


def test_snapshots_expire_with_their_files(worn: App, connection: Connection, gateway: RunningGateway) -> None:
    expiring(connection)
    before, rows_before = on_disk(worn, connection), through_name(connection)
    release(connection)
    outcome = maintain(worn)
    table = lake_table(worn, connection)
    assert len(table.metadata.snapshots) == 1
    assert outcome.snapshots_expired == 4
    after = on_disk(worn, connection)
    data = {name for name in after if name.startswith("data/")}
    assert len(data) == 2
    assert outcome.files_removed >= len({name for name in before if name.startswith("data/")} - data)
    assert through_name(connection) == through_port(worn, gateway) == rows_before
    connection.execute("update public.events set val = 'on' where id = 1001")
    fold(worn)
    assert value(connection, "select val from public.events where id = 1001") == "on"


def test_a_pin_keeps_its_snapshot(worn: App, connection: Connection) -> None:
    expiring(connection)
    with pinned_relation(worn.dsn, "public.events") as relation:
        before = sorted(relation.fetchall())
        release(connection)
        outcome = maintain(worn)
        assert outcome.snapshots_expired == 3
        assert outcome.held_by is not None
        connection.execute("delete from public.events where id = 2")
        assert sorted(relation.fetchall()) == before
    release(connection)
    assert maintain(worn).snapshots_expired == 1


def test_an_old_transaction_keeps_what_it_sees(worn: App, connection: Connection) -> None:
    expiring(connection)
    with connect(worn.dsn) as reader:
        reader.execute("set transaction isolation level repeatable read")
        before = rows(reader, "select id, event_time, val from public.events order by id")
        release(connection)
        outcome = maintain(worn)
        assert outcome.snapshots_expired == 3
        assert "session" in (outcome.held_by or "")
        assert rows(reader, "select id, event_time, val from public.events order by id") == before
    release(connection)
    assert maintain(worn).snapshots_expired == 1


def test_age_number_and_tags_keep_snapshots(worn: App, connection: Connection) -> None:
    set_policy(connection, snapshots="1")
    assert maintain(worn).snapshots_expired == 0
    table = lake_table(worn, connection)
    oldest = min(table.metadata.snapshots, key=lambda one: one.sequence_number)
    table.manage_snapshots().create_tag(oldest.snapshot_id, "audit").commit()
    set_policy(connection, snapshots="2", snapshot_age="0 seconds")
    release(connection)
    assert maintain(worn).snapshots_expired == 5 - 2 - 1
    assert lake_table(worn, connection).scan(snapshot_id=oldest.snapshot_id).to_arrow().num_rows == 103


def test_old_metadata_files_go_but_not_one_that_readers_open(worn: App, connection: Connection) -> None:
    expiring(connection)
    maintain(worn)
    published = value(connection, "select lake_props->>'metadata_location' from modak.cutline")
    folder = Path("/" + published.removeprefix("file:").lstrip("/")).parent
    stray = folder / "00000-forgotten.metadata.json"
    stray.write_text("{}")
    os.utime(stray, (time.time() - 100, time.time() - 100))
    maintain(worn)
    assert not stray.exists()
    assert (folder / Path(published).name).exists()


def old_file(app: App, connection: Connection, name: str) -> Path:
    folder = Path("/" + lake_table(app, connection).location().removeprefix("file:").lstrip("/")) / "data"
    path = folder / name
    path.write_bytes(b"left behind")
    os.utime(path, (time.time() - 10 * 86_400, time.time() - 10 * 86_400))
    return path


def test_orphans_go_only_when_somebody_asks(worn: App, connection: Connection) -> None:
    stray = old_file(worn, connection, "stray.parquet")
    staged = old_file(worn, connection, "staged.parquet")
    connection.execute(
        "insert into modak.load_labels (table_id, label, state, tier_key_lo, tier_key_hi, staged_files) "
        "select table_id, 'l', 'staged', 1, 2, array[%s] from modak.cutline",
        [f"file://{staged}"],
    )
    assert maintain(worn).orphans_removed == 0
    assert stray.exists()
    assert maintain(worn, orphans=True, dry_run=True).orphans_removed == 1
    assert stray.exists()
    assert maintain(worn, orphans=True).orphans_removed == 1
    assert not stray.exists()
    assert staged.exists()
    young = old_file(worn, connection, "young.parquet")
    os.utime(young)
    set_policy(connection, orphans="on")
    assert maintain(worn).orphans_removed == 0
    assert young.exists()


def test_orphans_are_nobodys_work_in_progress(
    worn: App, connection: Connection, at_point: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load's files are there before its label, however long it takes, and an operation's before its commit."""
    op_id = value(
        connection,
        "insert into modak.op_log (table_id, op_kind, phase, details) select table_id, 'compaction', 'flushing', '{}' "
        "from modak.cutline returning op_id",
    )
    old_file(worn, connection, f"{op_id}-0-abc.parquet")
    swept = []

    def sweep_now() -> None:
        for path in folder.rglob("load-*"):
            os.utime(path, (time.time() - 10 * 86_400, time.time() - 10 * 86_400))
        with worn.job(EVENTS) as job:
            swept.append(sweep.orphans(job, older_than=timedelta(0)))

    folder = Path("/" + lake_table(worn, connection).location().removeprefix("file:").lstrip("/"))
    at_point("load.after_files", sweep_now)
    options = LoadOptions(worn.dsn, "public.events", spool_threshold=0, storage=lake_storage(worn.dsn, worn.settings))
    monkeypatch.setattr(sweep, "LOADS_SECONDS_MAX", 0.0)
    with LoadClient(options) as client:
        staged = client.load(LoadRequest("long", [{"id": 5000, "event_time": 50, "val": "staged"}]))
    assert (staged.state, swept) == ("staged", [0])
    assert all(Path(path.removeprefix("file://")).exists() for path in staged.staged_files)
    connection.execute("delete from modak.load_labels")
    connection.execute("update modak.op_log set phase = 'abandoned' where op_id = %s", [op_id])
    sweep_now()
    assert swept == [0, 2]


def test_what_a_given_up_operation_left_goes_by_itself(worn: App, connection: Connection) -> None:
    op_id = value(
        connection,
        "insert into modak.op_log (table_id, op_kind, phase, details) select table_id, 'compaction', 'abandoned', '{}' "
        "from modak.cutline returning op_id",
    )
    left = old_file(worn, connection, f"{op_id}-0-abc.parquet")
    with worn.job(EVENTS) as job:
        assert sweep.sweep_abandoned(job) == 0
        assert sweep.sweep_abandoned(job, older_than=timedelta(0)) == 1
        assert sweep.sweep_abandoned(job, older_than=timedelta(0)) == 0
    assert not left.exists()


def test_the_lake_is_told_about(worn: App, connection: Connection) -> None:
    set_policy(connection, compact="off", small_files="2")
    maintain(worn)
    stats, warnings = rows(connection, "select stats, warnings from modak.lake_stats")[0]
    assert stats["files"] == files(worn, connection)[0]
    assert stats["snapshots"] == 4
    assert any("small" in warning for warning in warnings)
    set_policy(connection, compact="on")
    maintain(worn)
    stats, warnings, chosen = rows(connection, "select stats, warnings, policy from modak.lake_stats")[0]
    assert (stats["files"], stats["delete_files"], stats["rows"], warnings) == (2, 0, 103, [])
    assert chosen["small_files"] == 2


def test_the_command_line(worn: App, connection: Connection) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_cli(worn.dsn, *arguments, data=worn.settings.data)

    before = run("--json", "maintain", "public.events", "--dry-run")
    assert json.loads(before.stdout)[0]["dry_run"] is True
    requested = run("--json", "maintain", "public.events", "--request")
    assert json.loads(requested.stdout)[0]["done"] is False
    assert value(connection, "select count(*) from modak.maintenance_requests") == 1
    assert run("maintain", "public.events", "--request", "--orphans").returncode == 2
    assert run("maintain", "public.nothing").returncode == 1


def test_two_at_once_take_turns(worn: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAK_DSN", worn.dsn)
    monkeypatch.setenv("MODAK_DATA", str(worn.settings.data))
    tried, locked = threading.Event(), job_context._locked

    def noted(*given: Any) -> bool:
        mine = locked(*given)
        if not mine:
            tried.set()
        return mine

    with ThreadPoolExecutor(1) as pool:
        with worn.job(EVENTS) as job:
            monkeypatch.setattr(job_context, "_locked", noted)
            other = pool.submit(main, ["maintain", "public.events"])
            assert tried.wait(60)
            assert upkeep.maintain(job).commits > 0
        with pytest.raises(SystemExit) as ended:
            other.result(60)
    assert ended.value.code == 0


def test_whoever_does_not_wait_is_told(worn: App) -> None:
    with worn.job(EVENTS), pytest.raises(LockNotAvailable):
        maintain(worn)


def test_a_request_outlives_a_worker_that_is_killed(worn: App, connection: Connection, at_point: Callable[..., None]) -> None:
    asked = overview.request_maintenance(connection, tables.get(connection, EVENTS).table_id)
    left = "select requested_at from modak.maintenance_requests"
    with worn.job(EVENTS) as job:
        at_point("maintain.after_journal", job.connection.close)
        with pytest.raises(psycopg.OperationalError):
            work.run(Job.MAINTAIN, job)
    assert rows(connection, left) == [(asked,)]
    with worn.job(EVENTS) as job:
        at_point("maintain.after_publish", lambda: overview.request_maintenance(connection, job.table_id))
        work.run(Job.MAINTAIN, job)
        # Somebody asked again while it was at work: that is another one.
        assert value(connection, left) > asked
        work.run(Job.MAINTAIN, job)
    assert rows(connection, left) == []
