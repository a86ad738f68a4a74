"""Dumps, restores, copies and recoveries to a point in time: what the views show stays, and Modak goes on from there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests import restoring
from tests.inline import inlined
from tests.restoring import EVENTS, NAMES, app_of, apply, codes, gateway_of, look, run_tier, seen
from tests.support import rows, value

from modak.app import App
from modak.catalog import profiles, tables
from modak.catalog.migrate import migrate
from modak.cli.main import main
from modak.connection import Connection, connect
from modak.embedded.postgres import Cluster
from modak.errors import DatabaseMoved, LakeTaken, Refused
from modak.failpoints import FailpointError, armed
from modak.jobs.fold import fold
from modak.lake import owner
from modak.lake.commits import change, roll_back
from modak.lake.owner import Owner
from modak.registration import rekey
from modak.registration.rekey import Move
from modak.registration.unregister import drop_forgotten_lake, unregister

pytestmark = pytest.mark.inline

POINTS = [
    pytest.param("reconcile.in_numbers", marks=pytest.mark.soak),
    "reconcile.before_numbers",
    "reconcile.after_numbers",
    pytest.param("reconcile.after_lake", marks=pytest.mark.soak),
    "reconcile.after_table",
    pytest.param("reconcile.after_leaving", marks=pytest.mark.soak),
    "reconcile.before_claim",
]


@dataclass(frozen=True)
class Original:
    """A database that was dumped, and what its views showed then. ``restored`` is a database made from the dump, not reconciled yet, and
    ``frozen`` a copy by Postgres itself; tests work on copies of these two."""

    app: App
    file: Path
    folder: Path
    shown: list[list[tuple[Any, ...]]]
    restored: str
    frozen: str


@pytest.fixture(scope="module")
def original(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    folder, name = tmp_path_factory.mktemp("original"), f"original_{os.getpid()}"
    _create(cluster, name, template)
    _create(cluster, f"{name}_restored", "template0")
    app = app_of(cluster.dsn(name), folder / "data")
    with inlined(), gateway_of(app), connect(app.dsn, autocommit=True) as connection:
        restoring.build(app, connection)
        restoring.correct(connection)
        shown = restoring.contents(connection)
        restoring.dump(app.dsn, folder / "dump")
    restoring.restore(cluster.dsn(f"{name}_restored"), folder / "dump")
    restoring.end_sessions(app.dsn)
    _create(cluster, f"{name}_frozen", name)
    yield Original(app, folder / "dump", folder / "data", shown, f"{name}_restored", f"{name}_frozen")
    for made in (name, f"{name}_restored", f"{name}_frozen"):
        _drop(cluster, made)


def _create(cluster: Cluster, name: str, template: str) -> None:
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template)))


def _drop(cluster: Cluster, name: str) -> None:
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def restored(original: Original, new_database: Callable[..., str]) -> App:
    return app_of(new_database(original.restored), original.folder)


def goes_on(app: App, shown: list[list[tuple[Any, ...]]]) -> None:
    """The table is as it was, takes writes in both tiers by every way, tiers, folds, and is what it should be afterwards."""
    with gateway_of(app), connect(app.dsn, autocommit=True) as connection:
        assert restoring.contents(connection) == shown
        connection.execute("create table public.twin as select * from public.events")
        for name in ("public.events", "public.twin"):
            connection.execute(f"update {name} set val = 'again' where id in (4, 31, 1000)")
            connection.execute(f"delete from {name} where id in (6, 32)")
            connection.execute(f"insert into {name} values (1001, 66, 'later', 1), (1002, 366, 'new', 2)")
        image = '{"id": 8, "event_time": 80, "val": "by function"}'
        assert value(connection, "select public.modak_upsert('public.events', %s)", image) == "cold"
        connection.execute("update public.twin set val = 'by function' where id = 8")
        connection.execute('insert into "Odd ""schema"" x"."it\'s" ("Zeit", "say ""x"" y") values (\'2026-02-20 00:00+00\', 7)')
        assert value(connection, 'select max("the key") from "Odd ""schema"" x"."it\'s"') == 41
        connection.execute("create table public.events_4 partition of public.events_hot for values from (400) to (500)")
        for name in ("public.events", "public.twin"):
            connection.execute(f"insert into {name} values (1003, 410, 'pushes', 3)")
        assert run_tier(app, EVENTS, drop=True) > 0
        with app.job(EVENTS) as job:
            assert fold(job).waiting is None
        assert value(connection, "select count(*) from modak.delta d join modak.tables t using (table_id) where table_name = 'events'") == 0
        different = """(table public.events except all table public.twin) union all (table public.twin except all table public.events)"""
        assert rows(connection, different) == []
    assert codes(look(app)) == set()


def test_a_dump_in_another_database(original: Original, restored: App) -> None:
    for name in NAMES:
        with pytest.raises(DatabaseMoved), restored.job(name):
            pass
    found = look(restored)
    assert codes(found) == {"moved", "gateway", "pins", "numbers"} or codes(found) == {"moved", "gateway", "numbers"}
    assert found.needs_owner
    with restored.connection() as connection:
        assert value(connection, "select count(*) from modak.problems where job = 'owner' and code = 'database_moved'") == len(NAMES)
    with pytest.raises(Refused, match="only one can"):
        apply(restored)
    assert look(restored) == found
    done = apply(restored, "this")
    assert done.findings == ()
    goes_on(restored, original.shown)
    with pytest.raises(LakeTaken), original.app.job(EVENTS):
        pass
    assert apply(original.app, "this").findings == ()
    with original.app.job(EVENTS):
        pass


def test_a_dump_in_another_cluster(original: Original, tmp_path: Path) -> None:
    other = Cluster.start(tmp_path / "other", options={"fsync": "off"})
    try:
        _create(other, "came", "template0")
        with psycopg.connect(other.dsn("came"), autocommit=True) as admin:  # no dump of one database has roles
            admin.execute("create role modak_reader; create role modak_writer; create role modak_worker")
        restoring.restore(other.dsn("came"), original.file)
        app = app_of(other.dsn("came"), original.folder)
        assert apply(app, "this").findings == ()
        goes_on(app, original.shown)
    finally:
        other.stop("immediate")
    apply(original.app, "this")


def test_a_worker_asks_the_lake_now_and_then(original: Original, restored: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jobs believe for some seconds what the last one saw; commands ask each time, and another claim of its own is another question."""
    apply(original.app, "this")
    worker, asked, read = app_of(original.app.dsn, original.folder), [0], owner.read

    def counted(*given: Any) -> Owner | None:
        asked[0] += 1
        return read(*given)

    monkeypatch.setattr(owner, "read", counted)
    for expected in (1, 1, 1):
        with worker.job(EVENTS, epoch=1):
            assert asked == [expected]
    apply(restored, "this")
    before = asked[0]
    with worker.job(EVENTS, epoch=1):
        assert asked == [before]
    with pytest.raises(LakeTaken), worker.job(EVENTS):
        pass
    monkeypatch.setattr(worker._owners(), "seconds", 0.0)
    with pytest.raises(LakeTaken), worker.job(EVENTS, epoch=1):
        pass
    monkeypatch.setattr(worker._owners(), "seconds", 1e9)
    apply(original.app, "this")
    before = asked[0]
    with worker.job(EVENTS, epoch=1):
        assert asked == [before + 1]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_step(original: Original, restored: App, point: str) -> None:
    with armed(point), pytest.raises(FailpointError):
        apply(restored, "this")
    for name in NAMES:
        with pytest.raises((DatabaseMoved, LakeTaken)), restored.job(name):
            pass
    assert apply(restored, "this").findings == ()
    assert seen(restored) == original.shown
    with restored.job(EVENTS):
        pass


def test_numbers_that_change_places(original: Original, restored: App) -> None:
    """The old number of each table is the new one of the next."""
    with restored.connection() as connection:
        listed = [tables.get(connection, name) for name in NAMES]
        numbers = [rekey.moved_to(connection, table) for table in listed]
        assert all(numbers)
        with connection.transaction():
            references = rekey._loosen(connection)
            for table, number in zip(listed, [*numbers[1:], numbers[0]], strict=True):
                connection.execute(f"alter table modak.delta detach partition modak.delta_{table.table_id}")
                rekey._rename(connection, str(table.table_id), str(number))
                rekey._renumber(connection, references, table.table_id, number or 0)
                connection.execute(f"update modak.delta_{number} set table_id = {number}")
                connection.execute(f"alter table modak.delta attach partition modak.delta_{number} for values in ({number})")
            rekey._tighten(connection, references)
    assert apply(restored, "this").findings == ()
    assert seen(restored) == original.shown


def test_a_copy_that_leaves_the_lake_alone(original: Original, new_database: Callable[..., str]) -> None:
    copy = app_of(new_database(original.frozen), original.folder)
    apply(original.app, "this")
    # A copy by CREATE DATABASE keeps every number.
    assert "numbers" not in codes(look(copy))
    with pytest.raises(DatabaseMoved), copy.job(EVENTS):
        pass
    assert apply(copy, "other").findings == ()
    assert seen(copy) == original.shown
    with pytest.raises(DatabaseMoved, match="leaves the lake"), copy.job(EVENTS):
        pass
    with copy.connection() as connection, pytest.raises(DatabaseMoved):
        unregister(connection, copy.lake(profiles.get(connection, None)), tables.get(connection, EVENTS), drop_lake=True)
    with copy.connection() as connection:
        connection.execute("delete from modak.tables where table_name = 'events'")
        with pytest.raises(DatabaseMoved):
            drop_forgotten_lake(connection, copy.lake(profiles.get(connection, None)), EVENTS)
    with original.app.job(EVENTS):
        pass


def test_a_pass_that_was_under_way(original: Original, new_database: Callable[..., str], tmp_path: Path) -> None:
    """Its commit is in the lake and not published. What is written after the restore counts by this server's transactions."""
    source = app_of(new_database(original.frozen), original.folder)
    apply(source, "this")
    with source.connection() as connection:
        connection.execute("create table public.events_4 partition of public.events_hot for values from (400) to (500)")
        connection.execute("insert into public.events_hot values (1003, 410, 'pushes', 3)")
    with armed("tier.before_advance"), pytest.raises(FailpointError):
        run_tier(source, EVENTS, drop=False)
    restoring.dump(source.dsn, tmp_path / "dump")
    app = app_of(new_database("template0"), original.folder)
    restoring.restore(app.dsn, tmp_path / "dump")
    with app.connection() as connection:
        connection.execute("update public.events_hot set val = 'after the restore' where id = 25")
    assert "operation" in codes(look(app))
    assert apply(app, "this").findings == ()
    with app.connection() as connection:
        assert value(connection, "select count(*) from modak.captured") == 0
        assert value(connection, "select count(*) from modak.op_log where phase = 'abandoned'") == 1
    assert run_tier(app, EVENTS, drop=True) > 0
    with gateway_of(app), connect(app.dsn, autocommit=True) as connection:
        assert value(connection, "select val from public.events where id = 25") == "after the restore"
        assert value(connection, "select count(*) from public.events") == len(original.shown[0]) + 1


@pytest.fixture
def owned(original: Original, new_database: Callable[..., str]) -> Iterator[App]:
    """A copy whose lake tables are copies as well, so that they may be broken."""
    app = app_of(new_database(original.frozen), original.folder)
    apply(app, "this")
    yield app
    apply(original.app, "this")


def _iceberg(connection: Connection) -> str:
    return str(value(connection, "select metadata_location from modak_lake.iceberg_tables where table_name = 'events'"))


def _point_to(connection: Connection, location: str) -> None:
    connection.execute("update modak_lake.iceberg_tables set metadata_location = %s where table_name = 'events'", [location])


def test_the_lake_is_ahead(original: Original, owned: App, new_database: Callable[..., str]) -> None:
    """As with an Iceberg catalog of its own: the database goes back to an earlier point, and the lake's catalog does not."""
    name = psycopg.conninfo.conninfo_to_dict(owned.dsn)["dbname"]
    restoring.end_sessions(owned.dsn)
    earlier = app_of(new_database(str(name)), original.folder)
    with owned.connection() as connection:
        connection.execute("create table public.events_4 partition of public.events_hot for values from (400) to (500)")
        connection.execute("insert into public.events_hot values (1003, 410, 'pushes', 3)")
        assert run_tier(owned, EVENTS, drop=True)
        with owned.job(EVENTS) as job:
            assert fold(job).commits
        later = _iceberg(connection)
    with earlier.connection() as connection:
        _point_to(connection, later)
    found = look(earlier)
    assert "lake_ahead" in codes(found)
    assert apply(earlier, "this").findings == ()
    assert seen(earlier) == original.shown
    goes_on(earlier, original.shown)


def test_the_lakes_catalog_is_behind(original: Original, owned: App) -> None:
    with owned.connection() as connection:
        before = _iceberg(connection)
        older = value(connection, "select previous_metadata_location from modak_lake.iceberg_tables where table_name = 'events'")
        assert older
        _point_to(connection, older)
        assert codes(look(owned)) == {"catalog_ahead"}
        assert apply(owned).findings == ()
        assert _iceberg(connection) == before
    assert seen(owned) == original.shown


def test_somebody_rolled_the_lake_back(original: Original, owned: App) -> None:
    with owned.connection() as connection:
        lake = owned.lake(profiles.get(connection, None)).load("public.events")
        assert lake.current_snapshot() is not None
        roll_back(lake, None)
        assert codes(look(owned)) == {"lake_rolled_back"}
        assert apply(owned).findings == ()
    assert seen(owned) == original.shown


def test_the_published_metadata_file_is_gone(original: Original, owned: App) -> None:
    with owned.connection() as connection:
        lake = owned.lake(profiles.get(connection, None)).load("public.events")
        with lake.transaction() as later:
            later.set_properties({"note": "a metadata file later than the published one"})
        props = (
            "select lake_props ->> 'metadata_location' from modak.cutline join modak.tables using (table_id) where table_name like 'events'"
        )
        published = value(connection, props)
        aside = _path(published).rename(_path(published).with_suffix(".aside"))
        try:
            assert codes(look(owned)) == {"pointer"}
            assert apply(owned).findings == ()
            assert seen(owned) == original.shown
        finally:
            aside.rename(_path(published))


def test_what_only_a_backup_can_bring_back(original: Original, owned: App) -> None:
    """Files of S are gone, then the metadata: reconcile says so, changes nothing, and is content when they are back."""
    with owned.connection() as connection:
        lake = owned.lake(profiles.get(connection, None)).load("public.events")
        folder = _path(lake.location())
        for part, code, said in (("data", "missing_files", "are gone"), ("metadata", "lake_unreadable", "cannot be read")):
            aside = (folder / part).rename(folder / f"{part}_aside")
            try:
                (found,) = look(owned).findings
                assert (found.code, found.action, found.table) == (code, None, "public.events")
                assert said in found.what
                assert codes(apply(owned)) == {code}
            finally:
                shutil.rmtree(folder / part, ignore_errors=True)
                aside.rename(folder / part)
    assert codes(look(owned)) == set()
    assert seen(owned) == original.shown


def _path(location: str) -> Path:
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def test_a_strangers_commit_is_left_to_a_person(owned: App) -> None:
    with owned.connection() as connection:
        lake = owned.lake(profiles.get(connection, None)).load("public.events")
        change(lake, {"engine-name": "somebody"})
        assert codes(look(owned)) == {"foreign"}
        assert codes(apply(owned)) == {"foreign"}


def test_somebody_who_may_not_is_told_so(original: Original, restored: App) -> None:
    with restored.connection() as connection:
        connection.execute("grant usage on schema modak, modak_lake to pg_monitor; grant all on all tables in schema modak to pg_monitor")
        connection.execute("set role pg_monitor")
        listed = [tables.get(connection, name) for name in NAMES]
        moves = [Move(table, rekey.moved_to(connection, table) or 0, {}) for table in listed]
        with pytest.raises(Refused, match="nothing was changed"):
            rekey.rekey(connection, moves)


def test_columns_that_cannot_be_told_apart(original: Original, restored: App) -> None:
    """A rename that the lake has not followed yet: a restore does not tell it from a drop and an add."""
    with restored.connection() as connection:
        connection.execute("alter table public.events_hot rename column val to value")
        with pytest.raises(Refused, match="which is which"):
            apply(restored, "this")
        connection.execute("alter table public.events_hot rename column value to val")
    assert apply(restored, "this").findings == ()
    assert seen(restored) == original.shown


def test_the_command(original: Original, restored: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MODAK_DSN", restored.dsn)
    monkeypatch.setenv("MODAK_DATA", str(original.folder))

    def ran(*arguments: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as done:
            main(["reconcile", *arguments])
        return (done.value.code, *capsys.readouterr())

    code, out, _ = ran("--json")
    assert code == 3
    assert {"moved", "numbers"} <= {one["code"] for one in json.loads(out)["findings"]}
    code, _, err = ran("--apply")
    assert (code, "--owner this" in err) == (1, True)
    code, out, _ = ran("--apply", "--owner", "this")
    assert (code, "fit each other" in out) == (0, True)


def test_recovery_to_a_point_in_time(tmp_path: Path) -> None:
    """A base backup, archived WAL, and a server that stops replaying before a later pass moved the line."""
    archive = tmp_path / "archive"
    archive.mkdir()
    archive.chmod(0o777)
    options = {"archive_mode": "on", "archive_command": f'cp %p "{archive}/%f"', "max_wal_senders": "4", "fsync": "off"}
    first = Cluster.start(tmp_path / "first", options=options)
    second: Cluster | None = None
    try:
        app = app_of(first.dsn(), tmp_path / "data")
        with connect(app.dsn, autocommit=True) as connection:
            with connection.transaction():
                migrate(connection)
            restoring.build(app, connection)
            data = tmp_path / "second" / "data"
            data.parent.mkdir()
            restoring.run("pg_basebackup", f"--dbname={first.dsn()}", f"--pgdata={data}", "--wal-method=none", "--checkpoint=fast")
            with gateway_of(app):
                restoring.correct(connection)
                shown = restoring.contents(connection)
            connection.execute("select pg_create_restore_point('here')")
            connection.execute("create table public.events_4 partition of public.events_hot for values from (400) to (500)")
            connection.execute("insert into public.events_hot values (1003, 410, 'pushes', 3)")
            run_tier(app, EVENTS, drop=True)
            with app.job(EVENTS) as job:
                fold(job)
            connection.execute("select pg_switch_wal()")
        first.stop("fast")
        shutil.copy(tmp_path / "first" / "cluster.json", tmp_path / "second" / "cluster.json")
        (data / "recovery.signal").touch()
        _give_like(tmp_path / "first", tmp_path / "second")
        target = {"restore_command": f'cp "{archive}/%f" %p', "recovery_target_name": "here", "recovery_target_action": "promote"}
        second = Cluster.start(tmp_path / "second", options={**target, "fsync": "off"})
        recovered = app_of(second.dsn(), tmp_path / "data")
        assert codes(look(recovered)) == set()
        goes_on(recovered, shown)
    finally:
        first.stop("immediate")
        if second is not None:
            second.stop("immediate")


def _give_like(like: Path, folder: Path) -> None:
    """The server's files belong to whom it runs as."""
    owner = (like / "data").stat()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
