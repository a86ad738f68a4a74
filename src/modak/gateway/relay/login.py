"""A client proves to Postgres who it is, and the gateway only carries the messages: it stores no password and decides about nobody.

What Postgres says about the client holds for the gateway's address, not for the client's. Where that makes a difference (no password
asked at all, a password in the clear) the client must be on this machine, or its own connection encrypted.
"""

from __future__ import annotations

from typing import Final

from modak.errors import ModakError
from modak.gateway.channel import Channel, Disconnected
from modak.gateway.relay.backend import Backend
from modak.gateway.relay.endpoint import Endpoint, is_loopback
from modak.gateway.wire.messages import (
    AUTH_CLEARTEXT,
    AUTH_MD5,
    AUTH_OK,
    AUTH_SASL,
    AUTH_SASL_CONTINUE,
    AUTH_SASL_FINAL,
    PROTOCOL_3_0,
    Authentication,
    Message,
    ProtocolError,
    StartupMessage,
    authentication_sasl,
    backend_key_data,
    parse_authentication,
    parse_error,
    parse_password,
    parse_sasl_initial,
    parse_sasl_response,
)

_MECHANISM: Final = "SCRAM-SHA-256"
_OFF: Final = frozenset({"0", "f", "false", "n", "no", "of", "off"})


class LoginRefused(Disconnected):
    """Postgres refused the client, which has heard so in Postgres's own words: there is nothing more to tell it."""

    code = "login_refused"
    sqlstate = "28000"


class AuthenticationUnsupported(ModakError):
    """Postgres wants a proof that cannot pass through the gateway."""

    code = "authentication_unsupported"
    sqlstate = "28000"


class ReplicationUnsupported(ModakError):
    code = "replication_unsupported"
    sqlstate = "0A000"


def database_of(startup: StartupMessage, endpoint: Endpoint) -> str | None:
    """The database a client gets: its own choice, else that of the gateway's DSN."""
    return startup.parameters.get("database") or endpoint.database


async def login(
    channel: Channel, startup: StartupMessage, dsn: str, pid: int, secret: bytes, *, encrypted: bool = False, trust: bool = False
) -> Backend:
    """From the start-up packet to the first ReadyForQuery, all of which the client gets. ``pid`` and ``secret`` are the gateway's own key.

    ``encrypted`` says whether the client's connection is; ``trust`` admits whomever Postgres admits unasked. A LoginRefused was told to
    the client already; any other ModakError is for the caller to tell. NegotiateProtocolVersion is the caller's as well.
    """
    if startup.parameters.get("replication", "off").lower() not in _OFF:
        hint = "connect to Postgres itself for replication"
        raise ReplicationUnsupported("the gateway does not relay replication connections", hint=hint)
    backend = Backend(Endpoint.of(dsn))
    await backend.connect(plain=_better_plain(backend.endpoint, encrypted))
    try:
        await backend.send(_startup(startup, backend.endpoint).encode())
        await _Authentication(channel, backend, encrypted=encrypted, trust=trust).run()
        await _greeting(channel, backend, pid, secret)
    except BaseException:
        await backend.close()
        raise
    return backend


def _better_plain(endpoint: Endpoint, encrypted: bool) -> bool:
    """A client that speaks TLS swears that the server offered no channel binding; a Postgres that speaks TLS too calls that an attack.

    On one machine nothing is gained by the second encryption, so it is left out unless the DSN demands it.
    """
    return encrypted and all(address.local for address in endpoint.addresses)


def _startup(startup: StartupMessage, endpoint: Endpoint) -> StartupMessage:
    kept = {name: value for name, value in startup.parameters.items() if not name.startswith("_pq_.") and name != "replication"}
    database = database_of(startup, endpoint)
    return StartupMessage(PROTOCOL_3_0, kept | ({"database": database} if database else {}))


class _Authentication:
    """The exchange up to AuthenticationOk."""

    def __init__(self, channel: Channel, backend: Backend, *, encrypted: bool, trust: bool) -> None:
        self._channel = channel
        self._backend = backend
        self._encrypted = encrypted
        self._local = channel.peer == "local" or is_loopback(channel.peer.rpartition(":")[0])
        self._trust = trust
        self._challenged = False

    async def run(self) -> None:
        while (step := await self._step()).kind != AUTH_OK:
            await self._challenge(step)
            self._challenged = True
        self._check_unasked()
        await self._channel.send(Message(b"R", AUTH_OK.to_bytes(4, "big")).encode())

    async def _step(self) -> Authentication:
        while True:
            message = await self._backend.receive()
            if message.tag == b"R":
                return parse_authentication(message)
            await _pass_on(self._channel, message)

    async def _challenge(self, step: Authentication) -> None:
        if step.kind == AUTH_SASL:
            await self._sasl(step)
        elif step.kind == AUTH_SASL_CONTINUE:
            await self._ask(step)
            parse_sasl_response(message := await self._channel.receive())
            await self._backend.send(message.encode())
        elif step.kind == AUTH_SASL_FINAL:
            await self._ask(step)
        elif step.kind in (AUTH_MD5, AUTH_CLEARTEXT):
            await self._password(step)
        else:
            hint = "let pg_hba.conf ask for scram-sha-256 on connections that come from the gateway"
            raise AuthenticationUnsupported("Postgres asks for GSSAPI, SSPI or Kerberos, which the gateway cannot relay", hint=hint)

    async def _ask(self, step: Authentication) -> None:
        await self._channel.send(Message(b"R", step.kind.to_bytes(4, "big") + step.payload).encode())

    async def _sasl(self, step: Authentication) -> None:
        offered = step.mechanisms()
        if _MECHANISM not in offered:
            hint = "let pg_hba.conf ask for scram-sha-256 on connections that come from the gateway"
            raise AuthenticationUnsupported("Postgres asks for a SASL mechanism that the gateway cannot relay", hint=hint)
        # Not -PLUS: it binds the proof to one TLS connection, and there are two.
        await self._channel.send(authentication_sasl([_MECHANISM]))
        message = await self._channel.receive()
        chosen = parse_sasl_initial(message)
        if chosen.mechanism != _MECHANISM:
            raise ProtocolError("client selected an invalid SASL authentication mechanism")
        if len(offered) > 1 and (chosen.data or b"").startswith(b"y"):
            raise AuthenticationUnsupported(
                "both legs of the connection are encrypted, and Postgres would take the missing channel binding for an attack",
                hint="connect with channel_binding=disable",
            )
        await self._backend.send(message.encode())

    async def _password(self, step: Authentication) -> None:
        if step.kind == AUTH_CLEARTEXT and not (self._encrypted or self._local):
            raise AuthenticationUnsupported(
                "Postgres asks for a password in the clear, and this connection is not encrypted",
                hint="connect with sslmode=require, or let pg_hba.conf ask for scram-sha-256",
            )
        await self._ask(step)
        parse_password(message := await self._channel.receive())
        await self._backend.send(message.encode())

    def _check_unasked(self) -> None:
        """Trust, peer, ident and certificates are about who the gateway is, which says nothing about who its client is."""
        own_proof = self._backend.address.unix or self._backend.endpoint.sslcert is not None
        if self._challenged or self._trust or (self._local and not own_proof):
            return
        raise AuthenticationUnsupported(
            "Postgres asked the client for no proof of who it is, because it trusts the gateway's address",
            hint="let pg_hba.conf ask for scram-sha-256 on connections that come from the gateway",
        )


async def _greeting(channel: Channel, backend: Backend, pid: int, secret: bytes) -> None:
    while (message := await backend.receive()).tag != b"Z":
        if message.tag == b"K":
            await channel.send(backend_key_data(pid, secret))
        else:
            await _pass_on(channel, message)
    await channel.send(message.encode())


async def _pass_on(channel: Channel, message: Message) -> None:
    await channel.send(message.encode())
    if message.tag == b"E":
        raise LoginRefused(parse_error(message).message)
