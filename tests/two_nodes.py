"""Two databases with a gateway each that share one catalog: the first has it embedded, the second reaches it by REST."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from modak.app import App
from modak.core.profile import Profile
from modak.embedded.postgres import Cluster
from modak.settings import load
from tests.decoupling import House
from tests.gateways import RunningGateway
from tests.serving import RunningHttp

TOKEN = "a-token-of-the-first-one"
Session = psycopg.Connection[tuple[Any, ...]]


@dataclass
class Pair:
    first: House
    second: House

    def lake_table(self, ref: str) -> Any:
        return self.first.app.lake(Profile("default")).load(ref)

    def is_there(self, ref: str) -> bool:
        return self.first.app.lake(Profile("default")).find(ref) is not None


@contextmanager
def two_nodes(cluster: Cluster, template: str, folder: Path, name: str) -> Iterator[Pair]:
    home = {"HOME": os.environ.get("HOME", "/")}
    with ExitStack() as stack:
        houses = []
        for number in (1, 2):
            database = f"{name}_{number}"
            _make(cluster, template, database, stack)
            dsn = cluster.dsn(database)
            given = dict(home)
            if houses:
                server = RunningHttp(App(replace(houses[0].app.settings, rest_token=TOKEN)))
                stack.callback(server.stop)
                with psycopg.connect(dsn, autocommit=True) as connection:
                    connection.execute("update modak.storage_profiles set credential_ref = 'SHARED' where is_default")
                given |= {"MODAK_CATALOG": f"http://127.0.0.1:{server.port}/iceberg", "MODAK_CREDENTIALS_SHARED": f"token={TOKEN}"}
            app = App(load(given, dsn=dsn, data=str(folder / str(number))))
            running = RunningGateway(app)
            running.start()
            stack.callback(running.stop)
            houses.append(House(app, dsn, running))
        yield Pair(*houses)


def _make(cluster: Cluster, template: str, database: str, stack: ExitStack) -> None:
    def drop() -> None:
        with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
            admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(database)))

    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {} template {}").format(sql.Identifier(database), sql.Identifier(template)))
    stack.callback(drop)
