"""A physical standby reads both tiers through its own Postgres, and writes nothing."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo
from tests import events
from tests.gateways import RunningGateway

from modak.app import App
from modak.catalog.migrate import migrate
from modak.connection import connect
from modak.embedded.postgres import Cluster
from modak.embedded.server_binaries import find_server_binaries
from modak.settings import load

pytestmark = [pytest.mark.spark, pytest.mark.inline]

READ = "select id, event_time, val from public.events order by id"


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster.start(tmp_path / "primary", options={"fsync": "off", "wal_level": "replica", "hot_standby_feedback": "on"})
    yield cluster
    cluster.stop("immediate")


@pytest.fixture
def app(primary: Cluster, tmp_path: Path) -> App:
    with connect(primary.dsn()) as connection:
        migrate(connection)
    cache = {key: os.environ[key] for key in ("MODAK_CACHE", "XDG_CACHE_HOME") if key in os.environ}
    return App(load({"HOME": os.environ.get("HOME", "/"), **cache}, dsn=primary.dsn(), data=str(tmp_path / "data")))


@pytest.fixture
def standby(primary: Cluster, app: App, tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "standby"
    folder.mkdir(mode=0o700)
    backup = find_server_binaries().bin_dir / "pg_basebackup"
    if not backup.exists():
        pytest.fail("pg_basebackup is missing beside the server's programs")
    command = [str(backup), "-d", primary.dsn(), "-D", str(folder / "data"), "-R", "-X", "stream", "-c", "fast"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    shutil.copy(primary.folder / "cluster.json", folder / "cluster.json")
    cluster = Cluster.start(folder, options={"fsync": "off"})
    yield cluster
    cluster.stop("immediate")


def caught_up(primary: Cluster, standby: psycopg.Connection[tuple[object, ...]]) -> None:
    with psycopg.connect(primary.dsn(), autocommit=True) as connection:
        position = connection.execute("select pg_current_wal_lsn()::text").fetchall()[0][0]
    deadline = time.monotonic() + 30
    while not standby.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", [position]).fetchall()[0][0]:
        assert time.monotonic() < deadline, "the standby does not follow"
        time.sleep(0.1)


def test_it_reads_both_tiers_and_refuses_writes(app: App, primary: Cluster, standby: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with connect(primary.dsn(), autocommit=True) as connection:
        events.create(connection)
        events.put_under_modak(app, connection)
        gateway = RunningGateway(app)
        gateway.start()
        try:
            events.tier(app)
            connection.execute("update public.events set val = 'corrected' where id = 2")
            connection.execute("delete from public.events where id = 3")
            expected = [tuple(row.values()) for row in connection.execute(READ).fetchall()]
            assert len(expected) == 4
            connection.execute('select modak.create_iceberg_table(\'public\', \'lake_only\', \'[{"name": "id", "type": "int"}]\')')
            connection.execute("insert into public.lake_only values (1), (2)")
            with psycopg.connect(standby.dsn(), autocommit=True) as reader:
                caught_up(primary, reader)
                assert reader.execute(READ).fetchall() == expected
                assert reader.execute("select val from public.events where id = 2").fetchall() == [("corrected",)]
                for statement in (
                    "insert into public.events values (7, 50, 'x')",
                    "insert into public.events values (7, 250, 'x')",
                    "update public.events set val = 'x' where id = 1",
                    "delete from public.events where id = 1",
                    "insert into public.lake_only values (3)",
                    "delete from public.lake_only",
                    'select modak.create_iceberg_table(\'public\', \'new_one\', \'[{"name": "id", "type": "int"}]\')',
                    "select modak.drop_iceberg_table('public', 'lake_only')",
                ):
                    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                        reader.execute(statement)
                assert reader.execute(READ).fetchall() == expected
                assert reader.execute("select sum(id) from public.lake_only").fetchall() == [(3,)]
            read_on_the_port(App(replace(app.settings, dsn=standby.dsn())), expected, caplog)
        finally:
            gateway.stop()


def read_on_the_port(app: App, expected: list[tuple[object, ...]], caplog: pytest.LogCaptureFixture) -> None:
    """A gateway of the standby's own, which can write neither pins nor where it is."""
    gateway = RunningGateway(app)
    gateway.start()
    try:
        port = conninfo.make_conninfo(app.dsn, host="127.0.0.1", port=gateway.port)
        with psycopg.connect(port) as people, caplog.at_level(logging.DEBUG, "modak.gateway"):
            for level in (psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ):
                people.isolation_level, people.read_only = level, True
                assert people.execute(READ).fetchall() == people.execute(READ).fetchall() == expected
                people.rollback()
        assert not [record.getMessage() for record in caplog.records if "left to Postgres" in record.getMessage()]
    finally:
        gateway.stop()
