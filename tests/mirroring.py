"""A cluster whose stream can be read, mirrored tables on it, and what their lake holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from psycopg import sql

from modak.app import App
from modak.catalog import mirrors, profiles, tables
from modak.catalog.migrate import migrate
from modak.connection import Connection, connect
from modak.core.registration import Options
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.jobs import initial_copy, mirror
from modak.jobs.initial_copy import CopyOutcome
from modak.jobs.mirroring.outcome import Limits, MirrorOutcome
from modak.registration.register import register
from modak.settings import load
from modak.source import replication
from modak.source.spill import identifier

OPTIONS = {"wal_level": "logical", "fsync": "off", "full_page_writes": "off", "max_connections": "60", "max_replication_slots": "20"}
ITEMS = Name("public", "items")


def start(app: App, connection: Connection, name: Name, tier_key: str = "id", *, surface: str = "heap", **options: Any) -> CopyOutcome:
    """Register a table as mirrored, and copy it."""
    chosen = Options(tier_key=tier_key, mode="mirrored", surface=surface, **options)
    profile = profiles.get(connection, None)
    register(connection, app.lake(profile), name, chosen, profile=profile.name)
    return copy(app, name)


def copy(app: App, name: Name, **options: Any) -> CopyOutcome:
    with app.job(name) as job:
        # The tasks run here, so Spark need not be there.
        return initial_copy.copy(replace(job, spark=lambda: cast(Any, None)), **options)


def pump(app: App, connection: Connection, *, upto: int | None = None, **limits: int) -> MirrorOutcome:
    return mirror.mirror(connection, app.dsn, partial(app.job, in_a_row=True), limits=Limits(**limits), upto=upto)


def lake_rows(app: App, connection: Connection, name: Name, *, exact: bool = False) -> list[dict[str, Any]]:
    """What a reader of the published S sees, through PyIceberg: another implementation than the one that wrote it."""
    table = tables.get(connection, name)
    snapshot = tables.published_snapshot(connection, table.table_id)
    if snapshot is None:
        return []
    lake = app.lake(profiles.get(connection, table.storage_profile)).load(table.lake_table_ref)
    found = lake.scan(snapshot_id=snapshot).to_arrow()
    for place, field in enumerate(found.schema):
        if exact and pa.types.is_temporal(field.type):  # Python's own years end at 1 and 9999
            number = pa.int32() if pa.types.is_date(field.type) else pa.int64()
            found = found.set_column(place, field.name, found.column(place).cast(number))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def heap_rows(connection: Connection, name: Name) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(sql.SQL("select * from {}").format(identifier(name))).fetchall()]


def same(app: App, connection: Connection, name: Name, key: str = "id") -> None:
    """The lake at S is the heap as it is now: to be called when nobody writes."""
    lake = sorted(lake_rows(app, connection, name), key=lambda row: str(row[key]))
    heap = sorted(heap_rows(connection, name), key=lambda row: str(row[key]))
    assert lake == heap


def run(app: App, connection: Connection, *statements: str, name: Name = ITEMS) -> None:
    """What the statements do is followed, and nothing is parked over it."""
    for statement in statements:
        connection.execute(statement)
    done = pump(app, connection)
    assert (done.parked, done.failed) == ({}, {})
    same(app, connection, name)


def frontier(connection: Connection, name: Name) -> int | None:
    return tables.cutline(connection, tables.get(connection, name).table_id).replicated_lsn


def state(connection: Connection, name: Name) -> mirrors.Mirror:
    return mirrors.get(connection, tables.get(connection, name).table_id)


def problem(connection: Connection, name: Name) -> str:
    row = connection.execute(
        "select message from modak.problems where table_id = %s and job = 'mirror'", [tables.get(connection, name).table_id]
    ).fetchone()
    return str(row["message"]) if row else ""


_TEMPLATE = "mirrored_template"


@pytest.fixture(scope="session")
def logical(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster.start(tmp_path_factory.mktemp("logical") / "postgres", options=OPTIONS)
    with connect(started.dsn(), autocommit=True) as admin:
        admin.execute(f"create database {_TEMPLATE}")
    with connect(started.dsn(_TEMPLATE)) as connection:
        migrate(connection)
    yield started
    started.stop("immediate")


@pytest.fixture
def mirrored(logical: Cluster, tmp_path: Path) -> Iterator[tuple[App, Connection]]:
    """A database of its own; its slot goes with the test."""
    with connect(logical.dsn(), autocommit=True) as admin:
        admin.execute(f"create database mirrored template {_TEMPLATE}")
        try:
            with connect(logical.dsn("mirrored"), autocommit=True) as connection:
                connection.execute("set search_path = public")
                cache = {name: os.environ[name] for name in ("MODAK_CACHE", "HOME", "XDG_CACHE_HOME") if name in os.environ}
                yield App(load(cache, dsn=logical.dsn("mirrored"), data=str(tmp_path / "data"))), connection
        finally:
            # A stream that was closed just now is noticed a moment later.
            for row in admin.execute("select slot_name from pg_replication_slots where database = 'mirrored'").fetchall():
                replication.free_slot(admin, row["slot_name"], 20.0)
            admin.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = 'mirrored' and not active")
            admin.execute("drop database if exists mirrored with (force)")
