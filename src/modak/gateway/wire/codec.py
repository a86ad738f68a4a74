"""Framing: bytes off a socket become messages, in whatever chunks they arrive; plus the bounded reader that every parser uses."""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Final, NamedTuple

from modak.errors import ModakError

# Postgres's own bound for the packet that comes before anybody has proven who he is.
STARTUP_BYTES_MAX: Final = 10_000
# Consumed bytes stay in the buffer up to here: moving the rest down after every small message would be quadratic.
_COMPACT_BYTES: Final = 64 * 1024

_LENGTH = struct.Struct("!I")
_INT16 = struct.Struct("!h")
_UINT16 = struct.Struct("!H")
_INT32 = struct.Struct("!i")
_UINT32 = struct.Struct("!I")


class ProtocolError(ModakError):
    """The peer does not speak the protocol.

    From a ``Decoder`` it ends the connection: nothing that follows can be trusted to be framed. From a parser the framing is intact, so
    the session may answer with the error and go on at the next Sync, as Postgres does.
    """

    code = "protocol"
    sqlstate = "08P01"


class InvalidText(ProtocolError):
    """Text that is not UTF-8, or that holds a NUL."""

    code = "invalid_text"
    sqlstate = "22021"


class UnsupportedProtocol(ProtocolError):
    """A major version of the protocol that we do not speak."""

    code = "unsupported_protocol"
    sqlstate = "0A000"


class Message(NamedTuple):
    """One message; the tag is one byte, or empty for the packets of a start-up."""

    tag: bytes
    body: bytes

    def encode(self) -> bytes:
        return self.tag + _LENGTH.pack(len(self.body) + 4) + self.body


class Decoder:
    """Cuts a stream into messages. Both directions are framed alike; only a client's first packets have no tag.

    ``limit`` bounds the length word, which counts itself: a peer cannot make us wait for, or hold, more than that per message.
    Whoever feeds bounds the rest: stop reading while ``buffered`` is high.
    """

    def __init__(self, limit: int, *, startup: bool = False) -> None:
        self._limit = limit
        self._startup = startup
        self._buffer = bytearray()
        self._at = 0

    def allow(self, limit: int) -> None:
        """Another limit, for a peer that has said who it is."""
        self._limit = limit

    @property
    def buffered(self) -> int:
        """Bytes fed and not yet handed out."""
        return len(self._buffer) - self._at

    def expect_startup(self, *, encrypted: bool = False) -> None:
        """The next packet has no tag again: SSLRequest or GSSENCRequest was answered.

        After a yes (``encrypted``) nothing may be left over: those bytes came in the clear, and somebody in between could have put them
        there to be taken for the client's (CVE-2021-23214).
        """
        if encrypted and self.buffered:
            raise ProtocolError("unencrypted data after a request for encryption", bytes=self.buffered)
        self._startup = True

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        if self._at == len(self._buffer):
            self._buffer.clear()
            self._at = 0
        elif self._at > _COMPACT_BYTES and self._at > len(self._buffer) // 2:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def next(self) -> Message | None:
        """The next whole message; None until more is fed. After a ProtocolError it keeps raising."""
        if self._startup:
            return self._next_startup()
        end = self._end_of_message(self._at)
        if end is None:
            return None
        at, self._at = self._at, end
        return Message(bytes(self._buffer[at : at + 1]), bytes(self._buffer[at + 5 : end]))

    def next_run(self, tags: Container[int]) -> bytes:
        """All whole messages at the head whose tag (as a number, ``ord(b"D")``) is among these, still encoded.

        A relay hands rows through with this: a thousand small messages cost one slice instead of a thousand objects.
        """
        if self._startup:
            return b""
        start = at = self._at
        while at < len(self._buffer) and self._buffer[at] in tags and (end := self._end_of_message(at)) is not None:
            at = end
        self._at = at
        return bytes(self._buffer[start:at])

    def take(self) -> bytearray:
        """Everything that is buffered, as it came, for the caller to keep; what it has no use for it feeds again."""
        taken = self._buffer[self._at :] if self._at else self._buffer
        self._buffer, self._at = bytearray(), 0
        return taken

    def _end_of_message(self, at: int) -> int | None:
        if len(self._buffer) - at < 5:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, at + 1)
        if not 4 <= length <= self._limit:
            raise ProtocolError("invalid message length", tag=bytes(self._buffer[at : at + 1]), length=length, limit=self._limit)
        end: int = at + 1 + length
        return end if end <= len(self._buffer) else None

    def _next_startup(self) -> Message | None:
        if self.buffered < 4:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._at)
        limit = min(self._limit, STARTUP_BYTES_MAX)
        # The shortest packet is the length and a code.
        if not 8 <= length <= limit:
            raise ProtocolError("invalid length of startup packet", length=length, limit=limit)
        if self.buffered < length:
            return None
        at, self._at = self._at, self._at + length
        self._startup = False
        return Message(b"", bytes(self._buffer[at + 4 : self._at]))


class Reader:
    """Reads a body from front to back. Whatever is missing or left over is a ProtocolError; no other exception comes out."""

    def __init__(self, body: bytes, what: str) -> None:
        self._body = body
        self._what = what
        self._at = 0

    @property
    def at(self) -> int:
        """How much has been read."""
        return self._at

    def _number(self, form: struct.Struct) -> int:
        at = self._at
        self._need(form.size)
        self._at = at + form.size
        number: int = form.unpack_from(self._body, at)[0]
        return number

    def int16(self) -> int:
        return self._number(_INT16)

    def uint16(self) -> int:
        return self._number(_UINT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def uint32(self) -> int:
        return self._number(_UINT32)

    def numbers(self, kind: str, count: int) -> tuple[int, ...]:
        """``count`` numbers of one struct kind: ``h`` or ``I``."""
        form = struct.Struct(f"!{count}{kind}")
        at = self._at
        self._need(form.size)
        self._at = at + form.size
        return form.unpack_from(self._body, at)

    def take(self, count: int) -> bytes:
        if count < 0:
            raise ProtocolError(f"negative length in {self._what}", length=count)
        at = self._at
        self._need(count)
        self._at = at + count
        return self._body[at : self._at]

    def values(self, count: int) -> tuple[bytes | None, ...]:
        """``count`` length-prefixed values; a length of -1 is NULL. Written out: an INSERT over postgres_fdw carries 65,535 of these."""
        body, at, end = self._body, self._at, len(self._body)
        found: list[bytes | None] = []
        for _ in range(count):
            if end - at < 4:
                raise self.truncated()
            (length,) = _INT32.unpack_from(body, at)
            at += 4
            if length == -1:
                found.append(None)
                continue
            if length < -1:
                raise ProtocolError(f"negative length in {self._what}", length=length)
            if end - at < length:
                raise self.truncated()
            found.append(body[at : at + length])
            at += length
        self._at = at
        return tuple(found)

    def rest(self) -> bytes:
        at, self._at = self._at, len(self._body)
        return self._body[at:]

    def cstring(self) -> bytes:
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise ProtocolError(f"unterminated string in {self._what}")
        at, self._at = self._at, end + 1
        return self._body[at:end]

    def text(self) -> str:
        """A string of the client's. Only UTF-8 is spoken: the gateway reports that as client_encoding."""
        raw = self.cstring()
        try:
            return raw.decode()
        except UnicodeDecodeError as cause:
            raise InvalidText(f"invalid byte sequence for encoding UTF8 in {self._what}", byte=hex(raw[cause.start])) from cause

    def verbatim(self) -> str:
        """A string that must come out again as the same bytes (see ``cstring`` below), in whatever encoding it is."""
        return self.cstring().decode(errors="surrogateescape")

    def done(self) -> None:
        if self._at != len(self._body):
            raise ProtocolError(f"trailing data in {self._what}", bytes=len(self._body) - self._at)

    def truncated(self) -> ProtocolError:
        return ProtocolError(f"{self._what} message is truncated", bytes=len(self._body))

    def _need(self, count: int) -> None:
        if len(self._body) - self._at < count:
            raise self.truncated()


def cstring(text: str) -> bytes:
    """Text as it stands on the wire. A NUL inside would end it early and turn the rest into something else, so it is refused."""
    raw = text.encode(errors="surrogateescape")
    if b"\0" in raw:
        raise InvalidText("a string on the wire cannot hold a NUL", text=ascii(text[:80]))
    return raw + b"\0"
