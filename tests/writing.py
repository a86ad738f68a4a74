"""Tiered tables beside plain twins, for tests of writing: what a statement does to the one it must do to the other."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection, connect
from modak.core.registration import Options
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.jobs.tier import tier
from modak.registration.register import register
from modak.settings import load
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.support import reclaim_all

Session = psycopg.Connection[tuple[Any, ...]]

# Keys that a careless encoding would mix up; each is a row of its own.
ODD_KEYS = ["", " ", "a\x1fb", "a\\", "\\\x1f", "it's", 'say "x"', "ünïcødé ☃", "a|b", "%s{}", "null", "NULL"]

EVENTS = """
    create table public.{name} (id bigint not null, event_time bigint not null, val text, n int default 7, primary key (id, event_time))
        partition by range (event_time)
"""
KEYS = """
    create table public.{name} (tenant bigint not null, device text not null, at timestamptz not null, reading numeric(10,2), tags text[],
        doubled numeric generated always as (reading * 2) stored, primary key (tenant, device, at)) partition by range (at)
"""


@dataclass(frozen=True)
class World:
    """``events`` (T = 200), ``keys`` (T = 2026-02-01), ``whole`` (the surface heap) and ``strict`` (cold keys are checked), each with a
    plain twin ``plain_…``. Tests roll back what they do."""

    app: App
    dsn: str
    gateway: RunningGateway


@contextlib.contextmanager
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    name = f"writing_{os.getpid()}_{tmp_path_factory.mktemp('world').name}"
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template)))
    dsn = cluster.dsn(name)
    cache = {key: os.environ[key] for key in ("MODAK_CACHE", "XDG_CACHE_HOME") if key in os.environ}
    app = App(load({"HOME": os.environ.get("HOME", "/"), **cache}, dsn=dsn, data=str(tmp_path_factory.mktemp("data"))))
    running = RunningGateway(app)
    try:
        running.start()
        with inlined(), connect(dsn, autocommit=True) as connection:
            for table, options in (("events", {}), ("whole", {"surface": "heap"}), ("strict", {"check_cold_keys": True})):
                _events(app, connection, table, **options)
            _keys(app, connection)
        yield World(app, dsn, running)
    finally:
        running.stop()
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def _events(app: App, connection: Connection, name: str, **options: Any) -> None:
    connection.execute(EVENTS.format(name=name))
    for number in range(3):
        bounds = f"from ({number * 100}) to ({number * 100 + 100})"
        connection.execute(f"create table public.{name}_{number} partition of public.{name} for values {bounds}")
    connection.execute(
        f"insert into public.{name} values (1, 10, 'a', 1), (2, 20, 'b', 2), (3, 110, 'c', 3), (4, 210, 'hot', 4), (5, 220, 'hot', 5)"
    )
    connection.execute(f"create table public.plain_{name} (like public.{name} including defaults, primary key (id))")
    connection.execute(f"insert into public.plain_{name} select * from public.{name}")
    _make_cold(app, connection, name, Options(tier_key="event_time", primary_key=("id",), lag="0", width="100", **options))


def _keys(app: App, connection: Connection) -> None:
    connection.execute(KEYS.format(name="keys"))
    for number, (lower, upper) in enumerate(itertools.pairwise(["2026-01-01", "2026-02-01", "2026-03-01"])):
        bounds = f"from ('{lower} 00:00+00') to ('{upper} 00:00+00')"
        connection.execute(f"create table public.keys_{number} partition of public.keys for values {bounds}")
    connection.execute("create table public.plain_keys (like public.keys including generated, primary key (tenant, device))")
    for number, device in enumerate(ODD_KEYS):
        for tenant, month in ((1, 1), (2, 2)):
            row = (tenant, device, f"2026-0{month}-{number + 1:02} 10:00+00", number, [device, "x"])
            for table in ("keys", "plain_keys"):
                connection.execute(f"insert into public.{table} values (%s, %s, %s, %s, %s)", row)
    _make_cold(app, connection, "keys", Options(tier_key="at", primary_key=("tenant", "device"), lag="1 day"))


def _make_cold(app: App, connection: Connection, table: str, options: Options) -> None:
    profile, name = profiles.get(connection, None), Name("public", table)
    register(connection, app.lake(profile), name, options, profile=profile.name)
    with app.job(name) as job:
        assert tier(job).rows
        reclaim_all(job)
