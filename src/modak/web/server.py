"""The worker's HTTP server: uvicorn, with what it leaves open. Slow clients are given up, and every answer has our shape.

It ends in order: no new connections, bodies on their way are refused, what is complete is applied and answered, then everything closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.routing import Route

from modak.app import App
from modak.errors import MissingComponent
from modak.load import LoadOptions, lake_storage
from modak.load.group import GroupLimits, Loads
from modak.patience import Patience
from modak.tls import tls_context
from modak.web.api import Api
from modak.web.app import build
from modak.web.bodies import BodyLimits
from modak.web.console.guard import FORM_PATIENCE, Guard
from modak.web.console.pages import Console
from modak.web.console.query import Queries
from modak.web.console.rendering import LIVE_SECONDS
from modak.web.console.session import access
from modak.web.protocol import HEADER_SECONDS, connections_max, protocol
from modak.web.reports import Reports
from modak.web.stream_load import StreamLoad
from modak.worker.errands import Errands
from modak.worker.health import HealthCheck
from modak.worker.looking import looking
from modak.worker.metrics import Metrics
from modak.worker.samples import SAMPLE_SECONDS, Sampler, storage_of
from modak.worker.state import LoopState

# Rows of one batch at most; a file of a gigabyte has about so many.
ROWS_MAX = 20_000_000
_HEADER_BYTES_MAX = 64 * 1024
_GRACE_SECONDS = 30
_LOOKS_MAX = 4
_THREADS_MAX = 24


@dataclass
class HttpServer:
    """One server of one application. ``serve`` returns when ``stop`` was called and everything is answered.

    ``state`` is what the loop of the same process writes; without it the server runs no jobs.
    """

    app: App
    body_limits: BodyLimits | None = None
    group_limits: GroupLimits | None = None
    loads_max: int = 128
    form_patience: Patience = FORM_PATIENCE
    header_seconds: float = HEADER_SECONDS
    connections_max: int = field(default_factory=connections_max)
    sample_seconds: float = SAMPLE_SECONDS
    live_seconds: float = LIVE_SECONDS
    port: int = 0
    state: LoopState | None = None

    def __post_init__(self) -> None:
        look = looking(self.app)
        storages = storage_of(look, self.app.storage)
        self.sampler = Sampler(look, storages, seconds=self.sample_seconds)
        self.errands = Errands(self.app)
        self.metrics = Metrics(look, self.state, self.sampler.samples)
        settings = self.app.settings
        self.health = HealthCheck(look, self.state, self.sampler.samples, settings.cycle_seconds, lease_seconds=settings.lease_seconds)
        self.reports = Reports(look, storages, self.sampler.samples, self.state, self.errands)
        self.loads: Loads | None = None
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """From the event loop's own thread."""
        self._stop.set()

    async def serve(self, started: Callable[[], object] = lambda: None) -> None:
        settings = self.app.settings
        # More than the few of a small machine: whoever waits for Postgres in one of them must not hold up health.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS_MAX, "modak-http"))
        tls = tls_context(settings.http_cert, settings.http_key, "MODAK_HTTP")
        with _listen(*settings.http) as listening:
            self.port = listening.getsockname()[1]
            async with self._stream_load() as stream_load:
                self.sampler.start()
                try:
                    await self._run(listening, stream_load, tls, started)
                finally:
                    self.errands.stop()
                    await asyncio.to_thread(self.sampler.stop)

    async def _run(
        self, listening: socket.socket, stream_load: StreamLoad | None, tls: ssl.SSLContext | None, started: Callable[[], object]
    ) -> None:
        rest = self.app.rest_catalog()
        console, routes = self._console(is_tls=tls is not None)
        application = build(self.metrics, stream_load, self.health, routes, rest.build() if rest else None, console.missing)
        server = _Server(_config(application, protocol(self.header_seconds, self.connections_max), tls))
        running = asyncio.create_task(server.serve(sockets=[listening]))
        waiting = asyncio.create_task(self._stop.wait())
        started()
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if stream_load is not None:
            stream_load.stop()
        server.should_exit = True
        await running

    def _console(self, *, is_tls: bool) -> tuple[Console, list[Route]]:
        """The console and the API behind one door, sharing places: neither may take all of Postgres's connections."""
        settings = self.app.settings
        password = settings.console_password or ""
        guard = Guard(access(password, settings.http[0]), password, is_tls, self.form_patience)
        queries, places = Queries(self.app), asyncio.Semaphore(_LOOKS_MAX)
        api = Api(self.reports, queries, guard, self.health, places)
        console = Console(self.app, self.reports, queries, self.errands, guard, places, self.live_seconds)
        return console, [*api.routes(), *console.routes()]

    @contextlib.asynccontextmanager
    async def _stream_load(self) -> AsyncIterator[StreamLoad | None]:
        """The endpoint, where there is a token; closed when nobody asks any more."""
        settings = self.app.settings
        if not settings.load_token:
            yield None
            return
        dsn, storage = self.app.dsn, lake_storage(self.app.dsn, settings)
        folder = settings.data.absolute() / "scratch" / "load"
        folder.mkdir(parents=True, exist_ok=True)
        self.loads = loads = Loads(
            lambda table: LoadOptions(dsn, str(table), storage=storage, rows_max=ROWS_MAX, application="modak-http"),
            self.group_limits or GroupLimits(connections=settings.load_connections),
        )
        limits = self.body_limits or BodyLimits(bytes_max=settings.load_body_max)
        try:
            yield StreamLoad(loads, settings.load_token, self.metrics, folder, limits, self.loads_max)
        finally:
            await asyncio.to_thread(loads.close)


@contextlib.contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind, number)
    except OSError as cause:
        raise MissingComponent(f"cannot listen on {host}:{port}: {cause}", hint="set another address with MODAK_HTTP") from cause
    with listening:
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(1024)
        except OSError as cause:
            raise MissingComponent(f"cannot listen on {host}:{port}: {cause}", hint="set another address with MODAK_HTTP") from cause
        listening.setblocking(False)
        yield listening


def _config(application: Any, kind: type[asyncio.Protocol], tls: ssl.SSLContext | None) -> uvicorn.Config:
    config = uvicorn.Config(
        application,
        http=kind,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # Whoever could write the header could choose the address that wrong passwords are counted for.
        proxy_headers=False,
        h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
        # Ours ends a quiet connection, in whatever state it is.
        timeout_keep_alive=3600,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    config.load()
    config.ssl = tls
    return config


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the command that serves; uvicorn would raise them again at the end, and the exit code would not be 0."""
        yield
