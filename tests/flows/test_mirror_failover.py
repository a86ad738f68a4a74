"""A standby is promoted: mirrors say so, wait, and are followed again after `modak resync`."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.mirroring import OPTIONS, copy, problem, pump, same, start

from modak.app import App
from modak.catalog.migrate import migrate
from modak.connection import connect
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.embedded.server_binaries import find_server_binaries
from modak.settings import load

pytestmark = [pytest.mark.inline, pytest.mark.soak]
T = Name("public", "items")


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster.start(tmp_path / "primary", options=OPTIONS)
    yield cluster
    cluster.stop("immediate")


def standby_of(primary: Cluster, folder: Path) -> Cluster:
    folder.mkdir(mode=0o700)
    backup = find_server_binaries().bin_dir / "pg_basebackup"
    if not backup.exists():
        pytest.fail("pg_basebackup is missing beside the server's programs")
    command = [str(backup), "-d", primary.dsn(), "-D", str(folder / "data"), "-R", "-X", "stream", "-c", "fast"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    shutil.copy(primary.folder / "cluster.json", folder / "cluster.json")
    return Cluster.start(folder, options=OPTIONS)


def caught_up(primary: Cluster, standby: Cluster) -> None:
    with psycopg.connect(primary.dsn(), autocommit=True) as one, psycopg.connect(standby.dsn(), autocommit=True) as other:
        position = one.execute("select pg_current_wal_lsn()::text").fetchall()[0][0]
        deadline = time.monotonic() + 30
        while not other.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", [position]).fetchall()[0][0]:
            assert time.monotonic() < deadline, "the standby does not follow"
            time.sleep(0.1)


def app_on(cluster: Cluster, folder: Path) -> App:
    cache = {key: os.environ[key] for key in ("MODAK_CACHE", "HOME", "XDG_CACHE_HOME") if key in os.environ}
    return App(load(cache, dsn=cluster.dsn(), data=str(folder / "data")))


def test_a_promoted_standby(primary: Cluster, tmp_path: Path) -> None:
    app = app_on(primary, tmp_path)
    with connect(primary.dsn(), autocommit=True) as connection:
        migrate(connection)
        connection.execute("create table public.items (id int primary key, note text)")
        connection.execute("insert into public.items select i, 'n' || i from generate_series(1, 100) i")
        start(app, connection, T)
        standby = standby_of(primary, tmp_path / "standby")
        try:
            connection.execute("insert into public.items values (1000, 'everywhere')")
            pump(app, connection)
            caught_up(primary, standby)
            # What the standby never hears of: its catalog does not know this commit of the lake.
            with psycopg.connect(standby.dsn(), autocommit=True) as other:
                other.execute("alter system set primary_conninfo = ''")
                other.execute("select pg_reload_conf()")
                while other.execute("select count(*) from pg_stat_wal_receiver").fetchall()[0][0]:
                    time.sleep(0.05)
            connection.execute("insert into public.items values (2000, 'lost with the primary')")
            pump(app, connection)
            primary.stop("immediate")
            with psycopg.connect(standby.dsn(), autocommit=True) as other:
                other.execute("select pg_promote()")
            _goes_on(standby, tmp_path)
        finally:
            standby.stop("immediate")


def _goes_on(standby: Cluster, folder: Path) -> None:
    app = app_on(standby, folder)
    with connect(standby.dsn(), autocommit=True) as connection:
        connection.execute("insert into public.items values (3000, 'new primary')")
        assert list(pump(app, connection).parked) == ["public.items"]
        assert "a standby was promoted (timeline 1, now 2)" in problem(connection, T)
        copy(app, T, again=True)
        same(app, connection, T)
        connection.execute("update public.items set note = 'goes on' where id = 3000")
        assert pump(app, connection).changes == 1
        same(app, connection, T)
