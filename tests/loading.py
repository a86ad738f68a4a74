"""Tables of every kind that loads treat differently, with cold rows in each, and what an upsert must make of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
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
from modak.load import Loader, LoadOptions, open_session
from modak.registration.register import register
from modak.settings import load
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.support import reclaim_all

TABLE = """
    create table public.{name} (id bigint not null, event_time bigint not null, val text, n int default 7{more})
        partition by range (event_time)
"""
ROWS = [(1, 10, "a", 1), (2, 20, "b", 2), (3, 110, "c", 3), (4, 210, "hot", 4), (5, 220, "hot", 5)]
PAIR = ", primary key (id, event_time)"
NUMBERED = ", seq bigint generated always as identity, twice bigint generated always as (n * 2) stored" + PAIR

# name: (what follows the columns, the registered key, whether tiered partitions are dropped, further options)
KINDS: dict[str, tuple[str, tuple[str, ...], bool, dict[str, Any]]] = {
    "pairs": (PAIR, ("id", "event_time"), True, {}),  # the key says the tier
    "events": (PAIR, ("id",), True, {}),  # a key has to be looked for in both tiers
    "standing": (PAIR, ("id", "event_time"), False, {}),  # tiered partitions that are not dropped yet
    "moving": (PAIR, ("id",), False, {}),
    "whole": (PAIR, ("id",), True, {"surface": "heap"}),
    "strict": (PAIR, ("id", "event_time"), True, {"check_cold_keys": True}),
    "strictest": (PAIR, ("id",), True, {"check_cold_keys": True}),
    "kept": (PAIR, ("id", "event_time"), False, {"keep_heap": True}),
    "bare": ("", ("id", "event_time"), True, {}),  # no index at all
    "barest": ("", ("id",), True, {}),
    "numbered": (NUMBERED, ("id", "event_time"), True, {}),
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """T = 200 everywhere. Tests roll back what they do."""

    app: App
    dsn: str
    gateway: RunningGateway


@contextlib.contextmanager
def world(
    cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory, kinds: Sequence[str] = tuple(KINDS)
) -> Iterator[World]:
    name = f"loading_{os.getpid()}_{tmp_path_factory.mktemp('world').name}"
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template)))
    dsn = cluster.dsn(name)
    cache = {key: os.environ[key] for key in ("MODAK_CACHE", "XDG_CACHE_HOME") if key in os.environ}
    app = App(load({"HOME": os.environ.get("HOME", "/"), **cache}, dsn=dsn, data=str(tmp_path_factory.mktemp("data"))))
    running = RunningGateway(app)
    try:
        running.start()
        with inlined(), connect(dsn, autocommit=True) as connection:
            for kind in kinds:
                make(app, connection, kind)
        yield World(app, dsn, running)
    finally:
        running.stop()
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def make(app: App, connection: Connection, name: str) -> None:
    more, key, dropped, options = KINDS[name]
    connection.execute(TABLE.format(name=name, more=more))
    for number in range(3):
        bounds = f"from ({number * 100}) to ({number * 100 + 100})"
        connection.execute(f"create table public.{name}_{number} partition of public.{name} for values {bounds}")
    for row in ROWS:
        connection.execute(f"insert into public.{name} (id, event_time, val, n) values (%s, %s, %s, %s)", row)
    profile, table = profiles.get(connection, None), Name("public", name)
    wanted = Options(tier_key="event_time", primary_key=key, lag="0", width="100", **options)
    register(connection, app.lake(profile), table, wanted, profile=profile.name)
    with app.job(table) as job:
        assert tier(job).rows == 3
        if dropped:
            reclaim_all(job)


@contextlib.contextmanager
def loading(dsn: str, table: str, **options: Any) -> Iterator[tuple[Connection, Loader]]:
    """A loader inside a transaction that is rolled back."""
    connection, loader = open_session(LoadOptions(dsn, f"public.{table}", **options))
    with contextlib.closing(connection), connection.transaction(force_rollback=True):
        yield connection, loader


def content(connection: Connection, table: str) -> list[dict[str, Any]]:
    """What the two-tier view shows."""
    view = f"{table}_all" if table == "whole" else table
    return sorted(connection.execute(f"select * from public.{view}").fetchall(), key=lambda row: (row["id"], row["event_time"]))


class Model:
    """What rows a table must have after upserts by its key: given columns are set, others kept, or defaulted where the row is new."""

    def __init__(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._key = KINDS[table][1]
        self._numbered = table == "numbered"
        self.rows = {self._of(row): dict(row) for row in rows}

    def _of(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._key)

    def load(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            known = self.rows.get(self._of(row), {"val": None, "n": 7})
            self.rows[self._of(row)] = {**known, **row}

    def matches(self, found: Sequence[Mapping[str, Any]]) -> bool:
        """A number of an identity column is the table's own business where the row is new, and stays where it is not."""
        shown = {self._of(row): row for row in found}
        if len(shown) != len(found) or shown.keys() != self.rows.keys():
            return False
        return all(shown[key].items() >= self._expected(row).items() for key, row in self.rows.items())

    def _expected(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {**row, "twice": None if row["n"] is None else row["n"] * 2} if self._numbered else dict(row)
