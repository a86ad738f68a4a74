"""The gateway, killed at every named point of a commit: the next one settles what it left, and Postgres and the lake agree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.decoupling import Client, House, house, make
from tests.gateways import RunningGateway
from tests.ports import free_ports

from modak.app import App
from modak.core.profile import Profile
from modak.embedded.postgres import Cluster
from modak.lake.listing import files_below
from modak.settings import load

POINTS = ["decoupled.after_journal", "decoupled.after_files", "decoupled.after_create", "decoupled.after_lake_commit"]


@pytest.fixture
def world(cluster: Cluster, template: str, tmp_path: Path) -> Iterator[House]:
    with house(cluster, template, tmp_path, "decoupled_crash") as made:
        yield made


@contextmanager
def doomed(world: House, points: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A gateway in a process of its own, which dies at the point, and its port."""
    [port] = free_ports(1)
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ},
        "MODAK_DSN": world.dsn,
        "MODAK_DATA": str(world.app.settings.data),
        "MODAK_GATEWAY": f"127.0.0.1:{port}",
        "MODAK_FAILPOINTS": points,
    }
    process = subprocess.Popen([sys.executable, "-m", "modak.cli.main", "gateway"], env=environment, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        with world.client() as client:
            while not _is_there(client, port):
                assert time.monotonic() < until
                time.sleep(0.1)
        yield process, port
    finally:
        process.kill()
        process.wait()


def settled(client: Client) -> None:
    until = time.monotonic() + 60
    while client.execute("select 1 from modak.lake_commits").fetchone() is not None:
        assert time.monotonic() < until
        time.sleep(0.05)


def _is_there(client: Client, port: int) -> bool:
    options = client.execute("select srvoptions from pg_foreign_server where srvname = 'modak_gateway'").fetchone()
    return options is not None and f"port={port}" in options[0] and "use_remote_estimate=true" in options[0]


@pytest.mark.parametrize("point", POINTS)
def test_the_gateway_is_killed(world: House, point: str) -> None:
    with world.client() as client:
        make(client, "account", [("id", "bigint"), ("balance", "bigint")])
        client.execute("create table beside (id bigint)")
        client.execute("insert into account values (1, 10)")
    world.gateway.stop()
    with doomed(world, f"{point}=kill") as (process, _), world.client(autocommit=False) as victim:
        victim.execute("insert into account values (2, 20)")
        victim.execute("update account set balance = 0 where id = 1")
        victim.execute("insert into beside values (2)")
        if point == "decoupled.after_create":
            make(victim, "fresh", [("id", "bigint")])
        with pytest.raises(psycopg.Error):
            victim.commit()
        assert process.wait(30) == -signal.SIGKILL
    world.gateway.start()
    with world.client() as client:
        # At once, and not only when the lake has been put right.
        assert client.execute("select * from account").fetchall() == [(1, 10)]
        settled(client)
        assert client.execute("select * from beside").fetchall() == []
        client.execute("insert into account values (3, 30)")
        assert client.execute("select * from account order by 1").fetchall() == [(1, 10), (3, 30)]
    table = world.lake_table("public.account")
    assert len(table.snapshots()) == 2
    assert table.scan().to_arrow().num_rows == 2
    assert len(list(files_below(table.location() + "/data", {}))) == 2
    assert not world.app.lake(Profile("default")).catalog.table_exists("public.fresh")


@pytest.mark.parametrize("point", ["decoupled.before_confirm", "decoupled.before_forget"])
def test_the_gateway_is_killed_when_postgres_has_committed(world: House, point: str) -> None:
    """What was acknowledged stays, and a drop that was not finished is."""
    with world.client() as client:
        make(client, "account", [("id", "bigint"), ("balance", "bigint")])
        make(client, "old", [("id", "bigint")])
        client.execute("insert into account values (1, 10)")
    world.gateway.stop()
    with doomed(world, f"{point}=kill") as (process, _), world.client(autocommit=False) as victim:
        victim.execute("update account set balance = 11")
        victim.execute("select modak.drop_iceberg_table('public', 'old', purge => true)")
        victim.commit()
        assert process.wait(30) == -signal.SIGKILL
    world.gateway.start()
    with world.client() as client:
        assert client.execute("select * from account").fetchall() == [(1, 11)]
        settled(client)
        assert client.execute("select * from account").fetchall() == [(1, 11)]
        assert client.execute("select to_regclass('old')").fetchone() == (None,)
        assert client.execute("select count(*) from modak.kept_commits").fetchone() == (0,)
    assert world.lake_table("public.account").scan().to_arrow().to_pylist() == [{"id": 1, "balance": 11}]
    assert not world.app.lake(Profile("default")).catalog.table_exists("public.old")


@pytest.mark.parametrize("synchronous", ["on", "off"])
def test_the_server_dies_right_after_a_commit(own_cluster: Cluster, tmp_path: Path, synchronous: str) -> None:
    """Together with the gateway, which has not noted yet that it is settled. Nothing else of the transaction is Postgres's own."""
    app = App(load({"HOME": os.environ.get("HOME", "/")}, dsn=own_cluster.dsn(), data=str(tmp_path / "data")))
    world = House(app, own_cluster.dsn(), RunningGateway(app))
    world.gateway.start()
    with world.client() as client:
        make(client, "account", [("id", "bigint")])
        # So that nobody else brings the commit to disk soon.
        client.execute("alter system set wal_writer_delay = '10s'")
        client.execute("select pg_reload_conf()")
    world.gateway.stop()
    with doomed(world, "decoupled.before_confirm=kill") as (process, _), world.client(autocommit=False) as victim:
        victim.execute(f"set synchronous_commit = {synchronous}")  # type: ignore[arg-type]
        victim.execute("insert into account values (1)")
        victim.commit()
        own_cluster.stop("immediate")
        process.kill()
    restarted = Cluster.start(tmp_path / "own")
    app = App(load({"HOME": os.environ.get("HOME", "/")}, dsn=restarted.dsn(), data=str(tmp_path / "data")))
    again = House(app, restarted.dsn(), RunningGateway(app))
    again.gateway.start()
    with again.client() as client:
        settled(client)
        assert client.execute("select * from account").fetchall() == [(1,)]
        assert client.execute("select count(*) from modak.kept_commits").fetchone() == (0,)
    again.gateway.stop()


def test_the_gateway_is_killed_with_bulk_rows_and_a_truncate(world: House) -> None:
    """It fails, and dies once more while it takes back what it did: the next one does, files of bulk rows included."""
    with world.client() as client:
        for name in ("account", "loaded"):
            make(client, name, [("id", "bigint"), ("balance", "bigint")])
            client.execute(f"insert into {name} values (1, 10)")  # type: ignore[arg-type]
    world.gateway.stop()
    with doomed(world, "decoupled.after_lake_commit=raise,decoupled.before_undo=kill") as (process, port):
        dsn = make_conninfo(world.dsn, host="127.0.0.1", port=port)
        with psycopg.connect(dsn, prepare_threshold=None) as victim:
            victim.execute("insert into loaded select n, n from generate_series(1, 250000) n")
            victim.execute("truncate account")
            victim.execute("insert into account values (2, 20)")
            with pytest.raises(psycopg.Error):
                victim.commit()
        assert process.wait(30) == -signal.SIGKILL
    folder = f"{world.lake_table('public.loaded').location()}/data"
    assert len(list(files_below(folder, {}))) > 1
    world.gateway.start()
    with world.client() as client:
        settled(client)
        for name in ("account", "loaded"):
            assert client.execute(f"select * from {name}").fetchall() == [(1, 10)]  # type: ignore[arg-type]
            assert len(world.lake_table(f"public.{name}").snapshots()) == 1
    assert len(list(files_below(folder, {}))) == 1
