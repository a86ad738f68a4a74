"""A world whose lake is remote: an object store behind a proxy that can fail, and a REST catalog behind another one where asked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg

from modak.app import App
from modak.catalog import profiles
from modak.catalog.migrate import migrate
from modak.connection import Connection, connect
from modak.core.profile import Profile
from modak.embedded.postgres import Cluster
from modak.settings import load
from tests.faults import FaultProxy
from tests.gateways import RunningGateway
from tests.loading import World
from tests.object_store import BUCKET, SECRET_KEY, ObjectStore

REFERENCE = "COLD"


@dataclass(frozen=True)
class RemoteWorld(World):
    store: ObjectStore
    proxy: FaultProxy
    prefix: str
    catalog: FaultProxy | None = None

    @property
    def port_dsn(self) -> str:
        return psycopg.conninfo.make_conninfo(self.dsn, host="127.0.0.1", port=self.gateway.port)


@contextlib.contextmanager
def remote_world(
    cluster: Cluster, name: str, folder: Path, store: ObjectStore, proxy: FaultProxy, catalog: FaultProxy | None = None
) -> Iterator[RemoteWorld]:
    """A migrated database whose default profile lies in the store, and a gateway for it."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(f'create database "{name}"')
    dsn = cluster.dsn(name)
    with connect(dsn, autocommit=True) as connection:
        migrate(connection)
        use_store(connection, store, proxy, name, catalog)
    cache = {key: os.environ[key] for key in ("MODAK_CACHE", "XDG_CACHE_HOME", "HOME") if key in os.environ}
    # A REST catalog also wants to know who asks: by OAuth2, whose secret is as secret as the store's.
    credentials = store.credentials if catalog is None else {**store.credentials, "credential": f"modak:{SECRET_KEY}"}
    settings = replace(load(cache, dsn=dsn, data=str(folder / "data")), credentials={REFERENCE: credentials})
    app = App(settings)
    gateway = RunningGateway(app)
    try:
        gateway.start()
        yield RemoteWorld(app, dsn, gateway, store, proxy, name, catalog)
    finally:
        gateway.stop()
        with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
            admin.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s and not active", [name])
            admin.execute(f'drop database if exists "{name}" with (force)')


def use_store(connection: Connection, store: ObjectStore, proxy: FaultProxy, prefix: str, catalog: FaultProxy | None) -> None:
    config = store.config(proxy.url)
    if catalog is None:
        profile = Profile("default", f"s3://{BUCKET}/{prefix}", config, REFERENCE, True)
    else:
        profile = Profile("default", "", {**config, "catalog": catalog.url}, REFERENCE, True)
    profiles.save(connection, profile)
