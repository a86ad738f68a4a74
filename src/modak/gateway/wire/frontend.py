"""What a client sends after the start-up. Each message is a value that a server parses and a relay can encode again."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from modak.gateway.wire.codec import Message, ProtocolError, Reader, cstring

TEXT: Final = 0
BINARY: Final = 1

Kind = Literal[b"S", b"P"]


def _uint16s(numbers: tuple[int, ...]) -> bytes:
    return struct.pack(f"!{len(numbers) + 1}H", len(numbers), *numbers)


def format_at(formats: tuple[int, ...], index: int) -> int:
    """The format of one parameter or result column: no codes mean text, one code is for all, else each has its own.

    Text for an index past the codes: the client asked for fewer columns than the statement yields, which the caller refuses
    where he knows the number of columns.
    """
    if len(formats) == 1:
        return formats[0]
    return formats[index] if index < len(formats) else TEXT


@dataclass(frozen=True)
class Query:
    sql: str

    def encode(self) -> bytes:
        return Message(b"Q", cstring(self.sql)).encode()


@dataclass(frozen=True)
class Parse:
    """``oids`` may be shorter than the list of parameters, and 0 stands for "find out"."""

    name: str
    sql: str
    oids: tuple[int, ...] = ()

    def encode(self) -> bytes:
        count = struct.pack("!H", len(self.oids))
        return Message(b"P", cstring(self.name) + cstring(self.sql) + count + struct.pack(f"!{len(self.oids)}I", *self.oids)).encode()


@dataclass(frozen=True)
class Bind:
    portal: str
    statement: str
    formats: tuple[int, ...] = ()
    values: tuple[bytes | None, ...] = field(default=(), repr=False)
    result_formats: tuple[int, ...] = ()

    def encode(self) -> bytes:
        parts = [cstring(self.portal), cstring(self.statement), _uint16s(self.formats), struct.pack("!H", len(self.values))]
        for value in self.values:
            parts.append(b"\xff\xff\xff\xff" if value is None else struct.pack("!i", len(value)) + value)
        parts.append(_uint16s(self.result_formats))
        return Message(b"B", b"".join(parts)).encode()


@dataclass(frozen=True)
class Describe:
    """``kind`` is ``S`` for a statement, ``P`` for a portal."""

    kind: Kind
    name: str

    def encode(self) -> bytes:
        return Message(b"D", self.kind + cstring(self.name)).encode()


@dataclass(frozen=True)
class Execute:
    """``max_rows`` of 0 (or less, as Postgres takes it) means all."""

    portal: str
    max_rows: int = 0

    def encode(self) -> bytes:
        return Message(b"E", cstring(self.portal) + struct.pack("!i", self.max_rows)).encode()


@dataclass(frozen=True)
class Close:
    kind: Kind
    name: str

    def encode(self) -> bytes:
        return Message(b"C", self.kind + cstring(self.name)).encode()


@dataclass(frozen=True)
class Sync:
    def encode(self) -> bytes:
        return Message(b"S", b"").encode()


@dataclass(frozen=True)
class Flush:
    def encode(self) -> bytes:
        return Message(b"H", b"").encode()


@dataclass(frozen=True)
class Terminate:
    def encode(self) -> bytes:
        return Message(b"X", b"").encode()


@dataclass(frozen=True)
class CopyData:
    data: bytes = field(repr=False)

    def encode(self) -> bytes:
        return Message(b"d", self.data).encode()


@dataclass(frozen=True)
class CopyDone:
    def encode(self) -> bytes:
        return Message(b"c", b"").encode()


@dataclass(frozen=True)
class CopyFail:
    reason: str

    def encode(self) -> bytes:
        return Message(b"f", cstring(self.reason)).encode()


@dataclass(frozen=True)
class FunctionCall:
    """The old fast path, which libpq's large objects still take. Nothing here looks inside: it is for the relay."""

    body: bytes = field(repr=False)

    def encode(self) -> bytes:
        return Message(b"F", self.body).encode()


@dataclass(frozen=True)
class Password:
    password: str = field(repr=False)

    def encode(self) -> bytes:
        return Message(b"p", cstring(self.password)).encode()


@dataclass(frozen=True)
class SASLInitialResponse:
    mechanism: str
    data: bytes | None = field(repr=False)

    def encode(self) -> bytes:
        data = struct.pack("!i", -1) if self.data is None else struct.pack("!i", len(self.data)) + self.data
        return Message(b"p", cstring(self.mechanism) + data).encode()


@dataclass(frozen=True)
class SASLResponse:
    data: bytes = field(repr=False)

    def encode(self) -> bytes:
        return Message(b"p", self.data).encode()


FrontendMessage = (
    Query | Parse | Bind | Describe | Execute | Close | Sync | Flush | Terminate | CopyData | CopyDone | CopyFail | FunctionCall
)


def parse_frontend(message: Message) -> FrontendMessage:
    """Any message of a running session. The answers to an authentication request share one tag and have parsers of their own."""
    parse = _PARSERS.get(message.tag)
    if parse is None:
        raise ProtocolError(f"unexpected frontend message type {message.tag!r}")
    name, body = parse
    reader = Reader(message.body, name)
    found = body(reader)
    reader.done()
    return found


def parse_password(message: Message) -> Password:
    reader = _authentication(message, "password")
    found = Password(reader.verbatim())
    reader.done()
    return found


def parse_sasl_initial(message: Message) -> SASLInitialResponse:
    reader = _authentication(message, "SASLInitialResponse")
    mechanism = reader.text()
    length = reader.int32()
    found = SASLInitialResponse(mechanism, None if length == -1 else reader.take(length))
    reader.done()
    return found


def parse_sasl_response(message: Message) -> SASLResponse:
    return SASLResponse(_authentication(message, "SASLResponse").rest())


def _authentication(message: Message, what: str) -> Reader:
    if message.tag != b"p":
        raise ProtocolError(f"expected {what}, got message type {message.tag!r}")
    return Reader(message.body, what)


def _parse(reader: Reader) -> Parse:
    name, sql = reader.text(), reader.text()
    return Parse(name, sql, reader.numbers("I", reader.uint16()))


def _bind(reader: Reader) -> Bind:
    portal, statement = reader.text(), reader.text()
    formats = _formats(reader)
    values = reader.values(reader.uint16())
    if len(formats) > 1 and len(formats) != len(values):
        raise ProtocolError("bind message has a wrong number of parameter formats", formats=len(formats), parameters=len(values))
    return Bind(portal, statement, formats, values, _formats(reader))


def _formats(reader: Reader) -> tuple[int, ...]:
    formats = reader.numbers("h", reader.uint16())
    if not {TEXT, BINARY}.issuperset(formats):
        raise ProtocolError("unsupported format code in bind message", codes=sorted(set(formats) - {TEXT, BINARY}))
    return formats


def _target(reader: Reader) -> tuple[Kind, str]:
    kind = reader.take(1)
    if kind == b"S":
        return b"S", reader.text()
    if kind == b"P":
        return b"P", reader.text()
    raise ProtocolError("neither a statement nor a portal is named", kind=kind)


_PARSERS: Final[Mapping[bytes, tuple[str, Callable[[Reader], FrontendMessage]]]] = {
    b"Q": ("Query", lambda reader: Query(reader.text())),
    b"P": ("Parse", _parse),
    b"B": ("Bind", _bind),
    b"D": ("Describe", lambda reader: Describe(*_target(reader))),
    b"E": ("Execute", lambda reader: Execute(reader.text(), reader.int32())),
    b"C": ("Close", lambda reader: Close(*_target(reader))),
    b"S": ("Sync", lambda _: Sync()),
    b"H": ("Flush", lambda _: Flush()),
    b"X": ("Terminate", lambda _: Terminate()),
    b"d": ("CopyData", lambda reader: CopyData(reader.rest())),
    b"c": ("CopyDone", lambda _: CopyDone()),
    b"f": ("CopyFail", lambda reader: CopyFail(reader.text())),
    b"F": ("FunctionCall", lambda reader: FunctionCall(reader.rest())),
}
