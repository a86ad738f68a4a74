"""The gateway's door: connections come in, say who they are, and become sessions of one of two kinds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from modak.errors import MissingComponent, ModakError
from modak.gateway.channel import Channel, Disconnected
from modak.gateway.fdw import login as fdw_login
from modak.gateway.wire.messages import (
    CancelRequest,
    ErrorFields,
    GSSENCRequest,
    SSLRequest,
    StartupMessage,
    error_response,
    negotiation,
    parse_startup,
)

log = logging.getLogger("modak.gateway")


class TooManyConnections(ModakError):
    code = "too_many_connections"
    sqlstate = "53300"


class Session(Protocol):
    async def run(self) -> None: ...

    def cancel(self) -> object: ...


# Makes a session of a client that has said who it is; authentication is part of it.
Opener = Callable[[Channel, StartupMessage, int, bytes], Awaitable[Session]]


@dataclass(frozen=True)
class Limits:
    connections: int = 200
    message_bytes: int = 256 * 1024 * 1024
    login_seconds: float = 60.0
    drain_seconds: float = 10.0


class Server:
    def __init__(self, *, for_postgres: Opener, for_people: Opener, limits: Limits, tls: ssl.SSLContext | None = None) -> None:
        self._for_postgres = for_postgres
        self._for_people = for_people
        self._limits = limits
        self._tls = tls
        self._sessions: dict[int, tuple[bytes, Session]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_pid = 1
        self._opening = 0  # clients that have said who they are and not proven it yet
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which is a free one for 0."""
        try:
            self._server = await asyncio.start_server(self._accept, host, port, backlog=256)
        except OSError as cause:
            raise MissingComponent(f"cannot listen on {host}:{port}: {cause}", hint="set another address with MODAK_GATEWAY") from cause
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """No new connections; running statements get a moment, then the rest is cut."""
        if self._server is not None:
            self._server.close()
        for _, session in list(self._sessions.values()):
            shutdown = getattr(session, "shutdown", None)
            if shutdown is not None:
                with contextlib.suppress(ModakError, OSError):
                    await shutdown()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._limits.drain_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        channel = Channel(reader, writer, self._limits.message_bytes, startup=True)
        try:
            await self._serve(channel)
        except Disconnected:
            pass
        except ModakError as error:
            log.info("connection from %s ended: %s", channel.peer, error)
            with contextlib.suppress(Disconnected):
                await channel.send(error_response(ErrorFields.of(error, severity="FATAL")))
        except TimeoutError:
            log.info("connection from %s did not log in in time", channel.peer)
        except Exception:
            log.exception("connection from %s failed", channel.peer)
        finally:
            self._tasks.discard(task)
            await channel.close()

    async def _serve(self, channel: Channel) -> None:
        async with asyncio.timeout(self._limits.login_seconds):
            startup = await self._startup(channel)
            if startup is None:
                return
            if len(self._sessions) + self._opening >= self._limits.connections:
                raise TooManyConnections(
                    "the gateway has no connection left", hint="raise MODAK_GATEWAY_CONNECTIONS", limit=self._limits.connections
                )
            pid, secret = self._next_pid, secrets.token_bytes(4)
            self._next_pid += 1
            is_postgres = startup.parameters.get("user") == fdw_login.USER
            self._opening += 1
            try:
                session = await (self._for_postgres if is_postgres else self._for_people)(channel, startup, pid, secret)
            finally:
                self._opening -= 1
        self._sessions[pid] = (secret, session)
        try:
            await session.run()
        finally:
            del self._sessions[pid]

    async def _startup(self, channel: Channel) -> StartupMessage | None:
        """Up to the packet that names the user; None for a cancel request, which has no answer."""
        while True:
            packet = parse_startup(await channel.receive())
            if isinstance(packet, SSLRequest):
                await channel.send(b"S" if self._tls else b"N")
                channel.decoder.expect_startup(encrypted=self._tls is not None)
                if self._tls:
                    await channel.encrypt(self._tls)
            elif isinstance(packet, GSSENCRequest):
                await channel.send(b"N")
                channel.decoder.expect_startup()
            elif isinstance(packet, CancelRequest):
                await self._cancel(packet)
                return None
            else:
                declined = negotiation(packet)
                if declined is not None:
                    await channel.send(declined)
                return packet

    async def _cancel(self, request: CancelRequest) -> None:
        found = self._sessions.get(request.pid)
        if found is not None and secrets.compare_digest(found[0], request.secret):
            outcome = found[1].cancel()
            if asyncio.iscoroutine(outcome):
                await outcome
