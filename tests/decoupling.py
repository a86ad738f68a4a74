"""A database with a gateway for tests of decoupled tables, and what they have in common."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from modak.app import App
from modak.core.profile import Profile
from modak.embedded.postgres import Cluster
from modak.settings import load
from tests.gateways import RunningGateway

Client = psycopg.Connection[tuple[Any, ...]]

EVERY_TYPE = [
    ("id", "bigint"),
    ("small", "smallint"),
    ("whole", "integer"),
    ("real_", "real"),
    ("double_", "double precision"),
    ("price", "numeric(12,3)"),
    ("flag", "boolean"),
    ("note", "text"),
    ("short", "varchar(8)"),
    ("padded", "char(10)"),
    ("raw", "bytea"),
    ("key", "uuid"),
    ("day", "date"),
    ("clock", "time"),
    ("local_", "timestamp"),
    ("moment", "timestamptz"),
    ("span", "interval"),
    ("doc", "json"),
    ("tree", "jsonb"),
]


@dataclass
class House:
    app: App
    dsn: str
    gateway: RunningGateway

    def client(self, **options: Any) -> Client:
        return psycopg.connect(self.dsn, **{"autocommit": True, **options})

    def lake_table(self, ref: str) -> Any:
        return self.app.lake(Profile("default")).load(ref)


@contextmanager
def house(cluster: Cluster, template: str, folder: Any, name: str) -> Iterator[House]:
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template)))
    dsn = cluster.dsn(name)
    app = App(load({"HOME": os.environ.get("HOME", "/")}, dsn=dsn, data=str(folder)))
    running = RunningGateway(app)
    running.start()
    try:
        yield House(app, dsn, running)
    finally:
        running.stop()
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def make(
    client: Client, name: str, columns: Sequence[tuple[str, str]], partition_by: Sequence[str] | None = None, *, schema: str = "public"
) -> None:
    given = json.dumps([{"name": column, "type": kind, "not_null": column == "id"} for column, kind in columns])
    partitions = list(partition_by) if partition_by else None
    client.execute("select modak.create_iceberg_table(%s, %s, %s, %s)", [schema, name, given, partitions])


def contents(client: Client, name: str, order: str = "1") -> list[tuple[Any, ...]]:
    """Every value by its text, which is what two tables must agree on."""
    return client.execute(f"select t::text from {name} t order by {order}, 1").fetchall()  # type: ignore[arg-type]
