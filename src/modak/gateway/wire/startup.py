"""The packets before the first tagged message: encryption requests, cancel requests, and the start-up itself, both ways."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from modak.gateway.wire.codec import Message, ProtocolError, Reader, UnsupportedProtocol, cstring

PROTOCOL_3_0: Final = 3 << 16
PROTOCOL_3_2: Final = 3 << 16 | 2

# Codes in the place of a version, with a major number that no version will ever have.
_CANCEL: Final = 1234 << 16 | 5678
_SSL: Final = 1234 << 16 | 5679
_GSSENC: Final = 1234 << 16 | 5680
_SECRET_BYTES_MIN: Final = 4  # protocol 3.0: always four
_SECRET_BYTES_MAX: Final = 256


def _packet(code: int, rest: bytes = b"") -> bytes:
    return Message(b"", struct.pack("!I", code) + rest).encode()


@dataclass(frozen=True)
class SSLRequest:
    """May we speak TLS? The answer is one bare byte, ``S`` or ``N``, and then comes another untagged packet."""

    def encode(self) -> bytes:
        return _packet(_SSL)


@dataclass(frozen=True)
class GSSENCRequest:
    """May we encrypt by GSSAPI? The answer is ``G`` or ``N``."""

    def encode(self) -> bytes:
        return _packet(_GSSENC)


@dataclass(frozen=True)
class CancelRequest:
    """Stop what that session does. Comes on a connection of its own, which is closed without an answer."""

    pid: int
    secret: bytes = field(repr=False)

    def encode(self) -> bytes:
        return _packet(_CANCEL, struct.pack("!I", self.pid) + self.secret)


@dataclass(frozen=True)
class StartupMessage:
    """Who wants which database, and the settings to begin with. Of a name that comes twice the last value counts, as in Postgres.

    Bytes that are not UTF-8 survive a round trip, so what a client sent reaches Postgres unchanged.
    """

    version: int
    parameters: Mapping[str, str]

    @property
    def minor(self) -> int:
        return self.version & 0xFFFF

    @property
    def protocol_options(self) -> tuple[str, ...]:
        """The protocol extensions asked for. There are none that anybody knows, so all of them are to be declined."""
        return tuple(name for name in self.parameters if name.startswith("_pq_."))

    def encode(self) -> bytes:
        pairs = b"".join(cstring(name) + cstring(value) for name, value in self.parameters.items())
        return _packet(self.version, pairs + b"\0")


StartupPacket = SSLRequest | GSSENCRequest | CancelRequest | StartupMessage


def parse_startup(message: Message) -> StartupPacket:
    reader = Reader(message.body, "startup packet")
    code = reader.uint32()
    if code == _CANCEL:
        return _cancel(reader)
    if code in (_SSL, _GSSENC):
        reader.done()
        return SSLRequest() if code == _SSL else GSSENCRequest()
    if code >> 16 != 3:
        raise UnsupportedProtocol(f"unsupported frontend protocol {code >> 16}.{code & 0xFFFF}: the gateway supports 3.0 and later minors")
    parameters: dict[str, str] = {}
    while name := reader.verbatim():
        parameters[name] = reader.verbatim()
    reader.done()
    return StartupMessage(code, parameters)


def _cancel(reader: Reader) -> CancelRequest:
    request = CancelRequest(reader.uint32(), reader.rest())
    if not _SECRET_BYTES_MIN <= len(request.secret) <= _SECRET_BYTES_MAX:
        raise ProtocolError("invalid length of the key in a cancel request", bytes=len(request.secret))
    return request


def negotiate_protocol_version(options: Sequence[str], *, version: int = PROTOCOL_3_0) -> bytes:
    """What we speak instead. The documentation says "minor version"; Postgres sends, and libpq reads, the whole number."""
    names = b"".join(cstring(name) for name in options)
    return Message(b"v", struct.pack("!II", version, len(options)) + names).encode()


def negotiation(startup: StartupMessage, *, newest: int = PROTOCOL_3_0) -> bytes | None:
    """The NegotiateProtocolVersion to send before authentication; None if the client asked for nothing that we lack.

    libpq takes an answer that grants everything for an error, hence the None.
    """
    if startup.version <= newest and not startup.protocol_options:
        return None
    return negotiate_protocol_version(startup.protocol_options, version=min(startup.version, newest))
