"""Postgres stops at once and comes back: gateway and worker go on with it, and nobody restarts them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.adopting import shown
from tests.gateways import RunningGateway
from tests.loading import make
from tests.support import value

from modak.app import App
from modak.connection import connect
from modak.embedded.postgres import Cluster
from modak.settings import load
from modak.worker.loop import Loop

pytestmark = pytest.mark.inline

BEFORE = {1: (10, "a"), 2: (20, "b"), 3: (110, "c"), 4: (210, "hot"), 5: (220, "hot")}


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except psycopg.Error:
            if time.monotonic() > until:
                raise
        assert time.monotonic() < until
        time.sleep(0.2)


def test_postgres_comes_back(own_cluster: Cluster, tmp_path: Path) -> None:
    dsn = own_cluster.dsn()
    app = App(load({}, dsn=dsn, data=str(tmp_path / "data"), cache=str(tmp_path / "cache")))
    gateway, stop = RunningGateway(app), threading.Event()
    worker = threading.Thread(target=Loop(app, stop, 0.1).run, daemon=True)
    gateway.start()
    try:
        with connect(dsn, autocommit=True) as connection:
            make(app, connection, "pairs")
        worker.start()
        through_port = psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", port=gateway.port)
        assert count(dsn) == count(through_port) == 5

        own_cluster.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(through_port, connect_timeout=10)
        assert Cluster.start(tmp_path / "own").dsn() == dsn

        eventually(lambda: count(dsn) == 5)
        eventually(lambda: count(through_port) == 5)
        with connect(dsn, autocommit=True) as connection:
            connection.execute("create table public.pairs_3 partition of public.pairs_hot for values from (300) to (400)")
            connection.execute("insert into public.pairs values (6, 310, 'newer', 6)")
            # The worker that stood still has become the leader again.
            eventually(lambda: value(connection, "select tier_key_hi from modak.cutline") == 300)
            assert shown(connection, "pairs") == BEFORE | {6: (310, "newer")}
    finally:
        stop.set()
        worker.join(60)
        gateway.stop()
    assert not worker.is_alive()


def count(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as session:
        row = session.execute("select count(*) from public.pairs").fetchone()
        assert row is not None
        return int(row[0])
