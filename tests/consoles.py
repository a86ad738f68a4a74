"""A database with something to look at, a gateway, and the console of a worker beside them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql

from modak.app import App
from modak.catalog import console_login, profiles
from modak.connection import Connection, connect
from modak.core.registration import Options
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.jobs.tier import TierOutcome, tier
from modak.registration.register import register
from modak.settings import load
from modak.worker.state import LoopState
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.serving import RunningHttp, until
from tests.support import reclaim_all

PASSWORD = "a long password, and a secret"
ORDERS, READINGS = Name("public", "orders"), Name("public", "readings")
_MONTHS = [f"2026-{month:02}-01" for month in range(1, 11)]
_ORDERS = """
    create table public.orders (
        id bigint not null, placed_at timestamptz not null, customer text, amount numeric(12,2), note text, primary key (id, placed_at)
    ) partition by range (placed_at)
"""
_READINGS = """
    create table public.readings (id bigint not null, step bigint not null, value double precision, primary key (id, step))
        partition by range (step)
"""
_numbers = itertools.count(1)


@dataclass
class Shop:
    """Orders of nine months, cold until ``lag`` behind the newest, and readings by number. ``state`` is what a loop would write."""

    app: App
    gateway: RunningGateway
    state: LoopState

    @property
    def dsn(self) -> str:
        return self.app.dsn

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        with connect(self.dsn, autocommit=True) as opened:
            yield opened

    @contextlib.contextmanager
    def serving(self, *, password: str | None = PASSWORD, host: str = "127.0.0.1", **more: Any) -> Iterator[RunningHttp]:
        settings = replace(self.app.settings, console_password=password, gateway=("127.0.0.1", self.gateway.port), **more)
        running = RunningHttp(App(settings), None, host, state=self.state, sample_seconds=1.0, live_seconds=0.5)
        try:
            yield running
        finally:
            running.stop()

    def tier(self, name: Name, **options: Any) -> TierOutcome:
        with inlined(), self.app.job(name) as job, self.state.job(str(name), "tiering"):
            outcome = tier(job, **options)
            reclaim_all(job)
        self.state.cycle_at = datetime.now(UTC)
        return outcome


@contextlib.contextmanager
def shop(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory, rows: int = 9000) -> Iterator[Shop]:
    name = f"console_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template)))
    cache = {key: os.environ[key] for key in ("MODAK_CACHE", "XDG_CACHE_HOME") if key in os.environ}
    app = App(load({"HOME": os.environ.get("HOME", "/"), **cache}, dsn=cluster.dsn(name), data=str(tmp_path_factory.mktemp("data"))))
    now = datetime.now(UTC)
    state = LoopState(is_leader=True, epoch=1, since=now, cycle_at=now)
    made = Shop(app, RunningGateway(app), state)
    try:
        made.gateway.start()
        with made.connection() as connection:
            made.app = App(replace(app.settings, console_dsn=console_login.make(connection, PASSWORD)))
            _fill(app, connection, rows)
        made.tier(ORDERS)
        with made.connection() as connection:
            connection.execute("update public.orders set note = 'corrected' where id % 400 = 7")
        yield made
    finally:
        made.gateway.stop()
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            row = connection.execute("select 'modak_console_' || oid from pg_database where datname = %s", [name]).fetchone()
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
            connection.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(row[0] if row else "")))


@pytest.fixture(scope="module")
def made(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(cluster, template, tmp_path_factory, rows=900) as found:
        yield found


@pytest.fixture(scope="module")
def http(made: Shop) -> Iterator[RunningHttp]:
    with made.serving() as running:
        until(lambda: running.server.sampler.samples.latest("public.orders"))
        yield running


def _fill(app: App, connection: Connection, rows: int) -> None:
    connection.execute(_ORDERS)
    for lower, upper in itertools.pairwise(_MONTHS):
        part = "orders_" + lower[:7].replace("-", "_")
        connection.execute(f"create table public.{part} partition of public.orders for values from ('{lower}+00') to ('{upper}+00')")
    connection.execute(
        f"""insert into public.orders
            select n, timestamptz '2026-01-01 00:00+00' + n * interval '260 days' / {rows},
                   'customer ' || n % 97, n % 500 + 0.25, md5(n::text)
              from generate_series(0, {rows - 1}) n"""
    )
    connection.execute(_READINGS)
    for number in range(4):
        bounds = f"from ({number * 1000}) to ({number * 1000 + 1000})"
        connection.execute(f"create table public.readings_{number} partition of public.readings for values {bounds}")
    connection.execute("insert into public.readings select n, n, n / 7.0 from generate_series(0, 3499) n")
    lake, profile = app.lake(profiles.get(connection, None)), "default"
    register(connection, lake, ORDERS, Options(tier_key="placed_at", primary_key=("id", "placed_at"), lag="3 months"), profile=profile)
    register(connection, lake, READINGS, Options(tier_key="step", primary_key=("id", "step"), lag="1000", width="1000"), profile=profile)
