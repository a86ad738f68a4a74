"""One database with tiered tables for all tests of the gateway's reads: tiering costs a Spark job, reading does not."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.types.string import TextLoader
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.worlds import KEYS, World, build, build_large, correct

from modak.app import App
from modak.connection import connect
from modak.embedded.postgres import Cluster
from modak.settings import load


@pytest.fixture(scope="session")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    name = f"gateway_{os.getpid()}_{tmp_path_factory.mktemp('world').name}"
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template)))
    dsn = cluster.dsn(name)
    cache = {key: os.environ[key] for key in ("MODAK_CACHE", "XDG_CACHE_HOME") if key in os.environ}
    app = App(load({"HOME": os.environ.get("HOME", "/"), **cache}, dsn=dsn, data=str(tmp_path_factory.mktemp("data"))))
    running = RunningGateway(app)
    try:
        with inlined(), connect(dsn, autocommit=True) as connection:
            for key_type in KEYS:
                build(app, connection, key_type)
            build_large(app, connection)
        running.start()
        with connect(dsn, autocommit=True) as connection:
            for key_type in KEYS:
                correct(connection, key_type)
        yield World(app, dsn, running)
    finally:
        running.stop()
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def session(world: World) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A client of its own, with a time zone that is not UTC."""
    with psycopg.connect(world.dsn, autocommit=True, options="-c timezone=Europe/Berlin") as connection:
        connection.adapters.register_loader("date", TextLoader)  # Python has no dates before Christ
        yield connection


@pytest.fixture
def people(world: World) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A client of the gateway's own port."""
    dsn = psycopg.conninfo.make_conninfo(world.dsn, host="127.0.0.1", port=world.gateway.port)
    with psycopg.connect(dsn, autocommit=True, options="-c timezone=UTC") as connection:
        connection.adapters.register_loader("date", TextLoader)
        yield connection
