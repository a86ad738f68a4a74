"""The gateway as a service: its parts put together, started and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from modak.catalog import profiles
from modak.connection import connect
from modak.errors import MissingComponent, ModakError
from modak.gateway.advice import Advice
from modak.gateway.analytics.interceptor import LakeInterceptor
from modak.gateway.analytics.relations import Relations
from modak.gateway.channel import Channel
from modak.gateway.decoupled.following import follow_peers
from modak.gateway.decoupled.sweeping import sweep_next
from modak.gateway.decoupled.world import World
from modak.gateway.dialect.functions import register_functions
from modak.gateway.fdw import login as fdw_login
from modak.gateway.fdw import presence
from modak.gateway.fdw.authority import Authority
from modak.gateway.fdw.residue import Residue
from modak.gateway.fdw.scan import ColdScans
from modak.gateway.fdw.session import FdwSession, Lake
from modak.gateway.fdw.whole import WholeQueries
from modak.gateway.lookout import Lookout
from modak.gateway.native import Rewriter
from modak.gateway.pins import Pins
from modak.gateway.relay.bulk import BulkInserts
from modak.gateway.relay.login import database_of, login
from modak.gateway.relay.session import RelaySession
from modak.gateway.server import Limits, Server, Session
from modak.gateway.tending import Tender
from modak.gateway.wire.messages import StartupMessage
from modak.gateway.wire.scram import ScramError
from modak.lake.storage import Storage
from modak.mesh.bakery import Bakery
from modak.scan.engine import Engine
from modak.scan.table import ColdTables
from modak.tls import tls_context

log = logging.getLogger("modak.gateway")

# A Postgres that does not answer must not hold up the end of its gateway.
_FAREWELL_SECONDS = 5
_FOLLOW_SECONDS = 2.0
_SETTLE_SECONDS = 2.0
_SWEEP_SECONDS = 10.0
_LEARN_SECONDS = 1.0
_BINARY_COLLATIONS = ("C", "POSIX", "C.UTF-8", "C.utf8", "ucs_basic")


@dataclass(frozen=True)
class Options:
    """What a gateway is told. ``address_for_postgres`` is how Postgres reaches it, where that is not where it listens."""

    host: str
    port: int
    temp_directory: Path
    address_for_postgres: str | None = None
    memory_limit: str = "2GB"
    threads: int = 2
    limits: Limits = field(default_factory=Limits)
    certificate: Path | None = None
    key: Path | None = None
    new_password: bool = False  # agree with Postgres on another password, whatever there is


class Gateway:
    """``watched``: a process beside this one tells Postgres if this one is killed. Not for a gateway on a thread of somebody else's."""

    def __init__(self, dsn: str, storages: Callable[[str], Storage], options: Options, *, watched: bool = True) -> None:
        self._dsn = dsn
        self.watched = watched
        self.lookout: Lookout | None = None
        self._options = options
        self._storages = storages
        self._stack = contextlib.ExitStack()
        self._presence = presence.Presence(None, None)
        self.port = options.port

    async def start(self) -> None:
        options = self._options
        self._server = Server(
            for_postgres=self._open_postgres,
            for_people=self._open_people,
            limits=options.limits,
            tls=tls_context(options.certificate, options.key, "MODAK_GATEWAY"),
        )
        await asyncio.to_thread(self._assemble)
        self.port = await self._server.start(options.host, options.port)
        host, port = _address(options.address_for_postgres, options.host, self.port)
        self._presence = await asyncio.to_thread(self._announce, host, port)
        if self.watched and self._presence.since is not None:
            self.lookout = Lookout(self._dsn, self._presence.since)

    async def stop(self) -> None:
        # First, so that nothing is planned any more that needs us.
        await asyncio.to_thread(self._depart)
        await self._server.stop()
        await asyncio.to_thread(self._stack.close)

    def _assemble(self) -> None:
        options = self._options
        self._engine = Engine(
            self._known_storages(),
            memory_limit=options.memory_limit,
            threads=options.threads,
            temp_directory=options.temp_directory,
            # More profiles may come.
            remote=True,
        )
        self._stack.callback(self._engine.close)
        register_functions(self._engine.cursor())
        executor = ThreadPoolExecutor(options.limits.connections, thread_name_prefix="modak-gateway")
        self._stack.callback(lambda: executor.shutdown(wait=False, cancel_futures=True))
        self._relations = Relations(self._dsn, self._storage)
        self._stack.callback(self._relations.close)
        # Also while nobody asks: a table that was tiered meanwhile must not be taken for a hot one by the first who comes.
        follower = Tender("following the catalog", self._relations.refresh, _FOLLOW_SECONDS)
        self._stack.callback(follower.close)
        pins = Pins(self._dsn)
        self._stack.callback(pins.close)
        tables, collation_is_c = ColdTables(self._engine), self._collation_is_c()
        scans = ColdScans(self._relations, tables, collation_is_c=collation_is_c)
        self._interceptor = LakeInterceptor(self._relations, tables, pins, self._dsn, executor, collation_is_c=collation_is_c)
        self._rewriter = Rewriter(self._relations)
        self._advice = Advice(self._relations)
        self._stack.callback(self._interceptor.close)
        self._executor = executor
        whole = WholeQueries(self._dsn, self._interceptor, executor)
        decoupled = World(self._dsn, tables, self._storage, Bakery(self._dsn), collation_is_c)
        self._stack.callback(decoupled.close)
        self.decoupled = decoupled
        self._bulk = BulkInserts(decoupled, executor)
        # What a gateway before this one, or a lake that did not answer, left open.
        settler = Tender("settling", decoupled.settled.settle_all, _SETTLE_SECONDS)
        self._stack.callback(settler.close)
        neighbour = Tender("following the peers' tables", lambda: follow_peers(decoupled), _FOLLOW_SECONDS)
        self._stack.callback(neighbour.close)
        sweeper = Tender("sweeping", lambda: sweep_next(decoupled), _SWEEP_SECONDS)
        self._stack.callback(sweeper.close)
        learner = Tender("keeping moments", decoupled.moments.learn, _LEARN_SECONDS)
        self._stack.callback(learner.close)
        residue, authority = Residue(self._dsn, scans.relation), Authority(decoupled.access_token)
        self._lake = Lake(self._engine, scans, pins, residue, whole, decoupled, executor, authority)

    def _known_storages(self) -> list[Storage]:
        """A profile whose credentials this process lacks is missed when somebody reads its tables."""
        with connect(self._dsn, autocommit=True) as connection:
            names = [profile.name for profile in profiles.listing(connection)]
        found = []
        for name in names:
            with contextlib.suppress(MissingComponent):
                found.append(self._storages(name))
        return found

    def _storage(self, profile: str) -> Storage:
        storage = self._storages(profile)
        self._engine.use(storage)
        return storage

    def _collation_is_c(self) -> bool:
        with connect(self._dsn, autocommit=True) as connection:
            row = connection.execute(
                "select datcollate, datlocprovider::text as provider from pg_database where datname = current_database()"
            ).fetchone()
        # Postgres 17 has a provider of its own (b), whose C.UTF-8 orders by bytes as libc's does.
        return row is not None and row["datcollate"] in _BINARY_COLLATIONS and row["provider"] in ("c", "b")

    def _announce(self, host: str, port: int) -> presence.Presence:
        with connect(self._dsn, autocommit=True) as connection:
            return presence.announce(connection, host, port, new_password=self._options.new_password)

    def _depart(self) -> None:
        since = self._presence.since
        if since is None:
            return
        try:
            with connect(self._dsn, autocommit=True, connect_timeout=_FAREWELL_SECONDS) as connection:
                presence.depart(connection, since)
        except (psycopg.Error, ModakError) as cause:
            log.warning("Postgres was not told that its gateway stops: %s", cause)
            return  # the lookout has more time to try
        if self.lookout is not None:
            self.lookout.dismiss()

    async def _open_postgres(self, channel: Channel, startup: StartupMessage, pid: int, secret: bytes) -> Session:
        verifier = self._presence.verifier
        if verifier is None:
            raise ScramError("this database has no password for its gateway yet", hint="start a gateway on the primary once")
        await fdw_login.login(channel, verifier, pid, secret)
        return FdwSession(channel, self._lake)

    async def _open_people(self, channel: Channel, startup: StartupMessage, pid: int, secret: bytes) -> Session:
        backend = await login(channel, startup, self._dsn, pid, secret, encrypted=channel.is_encrypted)
        # The lake is that of one database; a client of another one is only relayed.
        is_ours = database_of(startup, backend.endpoint) == backend.endpoint.database
        if not is_ours:
            return RelaySession(channel, backend, None, self._executor)
        return RelaySession(channel, backend, self._interceptor, self._executor, self._rewriter, self._bulk, self._advice.given)


def _address(given: str | None, host: str, port: int) -> tuple[str, int]:
    """How Postgres reaches us: as told, with our own port where only a host was told."""
    if given is None:
        return ("127.0.0.1" if host in ("0.0.0.0", "::", "") else host), port  # noqa: S104
    name, _, number = given.rpartition(":")
    return (name, int(number)) if name and number.isdigit() else (given, port)
