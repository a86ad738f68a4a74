"""Where Postgres listens and how the gateway gets there: a libpq DSN turned into sockets, with or without TLS."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from psycopg import conninfo, pq

from modak.errors import ConnectionFailed, UsageError
from modak.gateway.wire.messages import SSLRequest

log = logging.getLogger("modak.gateway")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CONNECT_SECONDS_MAX: Final = 15.0
_SSLMODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SOCKET_FOLDERS: Final = ("/var/run/postgresql", "/tmp")  # noqa: S108 - where libpq looks too


@dataclass(frozen=True)
class Address:
    """A host and port, or the folder of a Unix socket as libpq writes it."""

    host: str
    port: int

    @property
    def unix(self) -> bool:
        return self.host.startswith(("/", "@"))

    @property
    def socket_path(self) -> str:
        path = f"{self.host}/.s.PGSQL.{self.port}"
        return "\0" + path[1:] if path.startswith("@") else path

    @property
    def local(self) -> bool:
        return self.unix or is_loopback(self.host)


@dataclass(frozen=True)
class Endpoint:
    """The gateway's way to Postgres. Users and passwords of the DSN are not for here: clients bring their own."""

    addresses: tuple[Address, ...]
    database: str | None
    sslmode: str = "prefer"
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None
    connect_seconds_max: float = CONNECT_SECONDS_MAX

    @classmethod
    def of(cls, dsn: str) -> Endpoint:
        # What the DSN leaves open comes from where libpq takes it, so that we reach the same server as the rest of Modak.
        given = {option.keyword.decode(): option.val.decode() for option in pq.Conninfo.get_defaults() if option.val}
        try:
            given |= {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
        except psycopg.ProgrammingError as cause:
            raise ConnectionFailed("the DSN cannot be read", hint="write it as postgresql://user@host:port/database") from cause
        if given["sslmode"] not in _SSLMODES:
            raise UsageError("unknown sslmode in the DSN", hint=f"one of {', '.join(_SSLMODES)}", sslmode=given["sslmode"])
        return cls(
            addresses=_addresses(given),
            database=given.get("dbname"),
            sslmode=given["sslmode"],
            sslrootcert=given.get("sslrootcert"),
            sslcert=given.get("sslcert"),
            sslkey=given.get("sslkey"),
            connect_seconds_max=_seconds(given.get("connect_timeout")),
        )

    async def open(self, *, plain: bool = False) -> tuple[Address, Streams]:
        """The first address that answers. ``plain`` leaves TLS out where the sslmode does not demand it."""
        for address in self.addresses:
            try:
                return address, await self.open_at(address, plain=plain)
            except (OSError, ssl.SSLError, EOFError, TimeoutError) as cause:
                log.warning("Postgres at %s port %s cannot be reached: %s", address.host, address.port, cause or type(cause).__name__)
        raise ConnectionFailed("the gateway cannot reach Postgres", hint="check that the server runs and that the gateway's DSN names it")

    async def open_at(self, address: Address, *, plain: bool = False) -> Streams:
        async with asyncio.timeout(self.connect_seconds_max):
            if address.unix:
                return await asyncio.open_unix_connection(address.socket_path)
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if self._wants_tls(plain):
                    await self._encrypt(reader, writer, address)
            except BaseException:
                writer.transport.abort()
                raise
        return reader, writer

    def _wants_tls(self, plain: bool) -> bool:
        demanded = self.sslmode not in ("disable", "allow", "prefer")
        return demanded or (self.sslmode == "prefer" and not plain)

    async def _encrypt(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address) -> None:
        writer.write(SSLRequest().encode())
        # Asked for two: a byte that comes along with the answer was not sent by the server of the TLS session (CVE-2021-23222).
        answer = await reader.read(2)
        if answer == b"S":
            await writer.start_tls(self._context(), server_hostname=address.host)
        elif answer != b"N":
            raise ConnectionError(f"unexpected answer to a request for TLS: {answer!r}")
        elif self.sslmode != "prefer":
            raise ConnectionError(f"the server does not support TLS, but sslmode is {self.sslmode}")

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # As in libpq: a root certificate that somebody took care to name is used, even if only "require" was said.
        verified = self.sslmode.startswith("verify-") or (self.sslmode == "require" and self.sslrootcert is not None)
        context.check_hostname = self.sslmode == "verify-full"
        context.verify_mode = ssl.CERT_REQUIRED if verified else ssl.CERT_NONE
        if verified and self.sslrootcert and self.sslrootcert != "system":
            context.load_verify_locations(self.sslrootcert)
        elif verified:
            context.load_default_certs()
        if self.sslcert:
            context.load_cert_chain(self.sslcert, self.sslkey)
        return context


def is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _addresses(given: dict[str, str]) -> tuple[Address, ...]:
    ports = given["port"].split(",")
    hosts = (given.get("hostaddr") or given.get("host") or _default_host(ports[0])).split(",")
    if len(ports) not in (1, len(hosts)):
        raise UsageError("the DSN names a different number of hosts and ports", hosts=len(hosts), ports=len(ports))
    pairs = zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=True)
    return tuple(Address(host or "localhost", int(port or 5432)) for host, port in pairs)


def _default_host(port: str) -> str:
    found = [folder for folder in _SOCKET_FOLDERS if Path(folder, f".s.PGSQL.{port}").exists()]
    return found[0] if found else "localhost"


def _seconds(timeout: str | None) -> float:
    return float(timeout) if timeout and int(timeout) > 0 else CONNECT_SECONDS_MAX
