"""pgbench at full speed over mirrored tables: at every moment the balances agree, and in the end the contents are equal."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from tests.mirroring import heap_rows, lake_rows, pump, start

from modak.app import App
from modak.connection import Connection
from modak.core.table import Name
from modak.duckdb import pinned_relations
from modak.embedded.server_binaries import find_server_binaries

pytestmark = pytest.mark.inline
World = tuple[App, Connection]
# table: its key, the column that its rows age by, the column that must sum up to the same everywhere
TABLES = {
    "pgbench_accounts": ("aid", "aid", "abalance"),
    "pgbench_branches": ("bid", "bid", "bbalance"),
    "pgbench_tellers": ("tid", "tid", "tbalance"),
    "pgbench_history": ("hid", "mtime", "delta"),
}
# What pgbench makes and runs, for a server that came without it.
SCHEMA = """
create table pgbench_accounts (aid int primary key, bid int, abalance int, filler char(84));
create table pgbench_branches (bid int primary key, bbalance int, filler char(88));
create table pgbench_tellers (tid int primary key, bid int, tbalance int, filler char(84));
create table pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
insert into pgbench_accounts select i, 1, 0, '' from generate_series(1, 10000) i;
insert into pgbench_branches values (1, 0, null), (2, 0, null);
insert into pgbench_tellers select i, 1, 0 from generate_series(1, 20) i;
"""
STATEMENTS = (
    "update pgbench_accounts set abalance = abalance + %(delta)s where aid = %(aid)s",
    "select abalance from pgbench_accounts where aid = %(aid)s",
    "update pgbench_tellers set tbalance = tbalance + %(delta)s where tid = %(tid)s",
    "update pgbench_branches set bbalance = bbalance + %(delta)s where bid = %(bid)s",
    "insert into pgbench_history (tid, bid, aid, delta, mtime) values (%(tid)s, %(bid)s, %(aid)s, %(delta)s, now())",
)


def create(app: App, connection: Connection) -> str | None:
    """The tables, mirrored; returns where pgbench is, None if this server came without it."""
    pgbench = find_server_binaries().bin_dir / "pgbench"
    if pgbench.exists():
        subprocess.run([str(pgbench), "-i", "-q", "-s", "1", "-d", app.dsn], check=True, capture_output=True, timeout=60)
    else:
        connection.execute(SCHEMA)
    # A mirror needs a key; pgbench names the columns that it writes.
    connection.execute("alter table pgbench_history add column hid bigserial primary key")
    for name, (_, tier_key, _) in TABLES.items():
        start(app, connection, Name("public", name), tier_key)
    return str(pgbench) if pgbench.exists() else None


def work(dsn: str, seconds: float, seed: int) -> None:
    chance, until = random.Random(seed), time.monotonic() + seconds
    with psycopg.connect(dsn) as connection:
        while time.monotonic() < until:
            given = {"aid": chance.randint(1, 10_000), "tid": chance.randint(1, 10), "bid": 1, "delta": chance.randint(-5000, 5000)}
            with connection.transaction():
                for statement in STATEMENTS:
                    connection.execute(statement, given)


def load(dsn: str, pgbench: str | None, seconds: float) -> None:
    if pgbench is not None:
        command = [pgbench, "-n", "-c", "4", "-j", "1", "-T", str(int(seconds)), "-d", dsn]
        subprocess.run(command, check=True, capture_output=True, timeout=seconds + 60)
        return
    workers = [threading.Thread(target=work, args=(dsn, seconds, seed)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def contents(rows: list[dict[str, Any]], key: str) -> list[list[Any]]:
    """char(n) has no blanks at its end in the lake."""
    ordered = sorted(rows, key=lambda row: row[key])
    return [[value.rstrip() if isinstance(value, str) else value for value in row.values()] for row in ordered]


def sums(app: App) -> set[Any]:
    names = [f"public.{name}" for name in TABLES]
    with pinned_relations(app.dsn, names, settings=app.settings) as relations:
        found = [
            relations[f"public.{name}"].aggregate(f"coalesce(sum({column}), 0)::bigint").fetchone()
            for name, (_, _, column) in TABLES.items()
        ]
    return {row[0] for row in found if row}


@pytest.mark.parametrize("seconds", [4, pytest.param(180, marks=pytest.mark.soak)])
def test_tpcb(mirrored: World, seconds: int) -> None:
    app, connection = mirrored
    pgbench = create(app, connection)
    running = threading.Thread(target=load, args=(app.dsn, pgbench, seconds))
    running.start()
    try:
        while running.is_alive():
            assert not pump(app, connection).parked
            assert len(sums(app)) == 1, "accounts, branches, tellers and history are of different moments"
    finally:
        running.join()
    pump(app, connection)
    done = pump(app, connection)
    assert (done.changes, done.failed) == (0, {}), "everything is followed"
    for name, (key, _, _) in TABLES.items():
        lake, heap = lake_rows(app, connection, Name("public", name)), heap_rows(connection, Name("public", name))
        assert contents(lake, key) == contents(heap, key)
    row = connection.execute("select count(*) as n, sum(delta) as moved from pgbench_history").fetchone()
    assert row is not None
    assert row["n"] > 0
    assert sums(app) == {int(Decimal(row["moved"]))}
