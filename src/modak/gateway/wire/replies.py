"""What the relay must read of Postgres's answers. The rest passes through unread.

Strings keep bytes that are not UTF-8 (as lone surrogates), so that a builder writes them out again unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from modak.gateway.wire.backend import AUTH_SASL, LETTERS, ErrorFields, FieldDescription, Status
from modak.gateway.wire.codec import Message, ProtocolError, Reader

_NAMES: Final = {letter: name for name, letter in LETTERS.items()}


@dataclass(frozen=True)
class Authentication:
    """A step of the server's; ``kind`` is one of the AUTH_ numbers, ``payload`` what follows it."""

    kind: int
    payload: bytes = field(repr=False)

    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms on offer."""
        if self.kind != AUTH_SASL:
            raise ProtocolError("not an offer of SASL mechanisms", kind=self.kind)
        reader = Reader(self.payload, "AuthenticationSASL")
        found = []
        while name := reader.verbatim():
            found.append(name)
        reader.done()
        return tuple(found)


@dataclass(frozen=True)
class BackendKeyData:
    pid: int
    secret: bytes = field(repr=False)


def parse_authentication(message: Message) -> Authentication:
    reader = _reader(message, b"R", "Authentication")
    return Authentication(reader.uint32(), reader.rest())


def parse_parameter_status(message: Message) -> tuple[str, str]:
    reader = _reader(message, b"S", "ParameterStatus")
    found = (reader.verbatim(), reader.verbatim())
    reader.done()
    return found


def parse_backend_key_data(message: Message) -> BackendKeyData:
    reader = _reader(message, b"K", "BackendKeyData")
    return BackendKeyData(reader.uint32(), reader.rest())


def parse_ready_for_query(message: Message) -> Status:
    status = _reader(message, b"Z", "ReadyForQuery").rest()
    known: tuple[Status, ...] = (b"I", b"T", b"E")
    for one in known:
        if status == one:
            return one
    raise ProtocolError("unknown transaction status in ReadyForQuery", status=status)


def parse_row_description(message: Message) -> tuple[FieldDescription, ...]:
    reader = _reader(message, b"T", "RowDescription")
    found = tuple(_field(reader) for _ in range(reader.uint16()))
    reader.done()
    return found


def parse_parameter_description(message: Message) -> tuple[int, ...]:
    reader = _reader(message, b"t", "ParameterDescription")
    found = reader.numbers("I", reader.uint16())
    reader.done()
    return found


def parse_data_row(message: Message) -> tuple[bytes | None, ...]:
    reader = _reader(message, b"D", "DataRow")
    found = reader.values(reader.uint16())
    reader.done()
    return found


def parse_command_complete(message: Message) -> str:
    reader = _reader(message, b"C", "CommandComplete")
    found = reader.verbatim()
    reader.done()
    return found


def parse_error(message: Message) -> ErrorFields:
    """An ErrorResponse or a NoticeResponse; fields that a later server adds are left out."""
    reader = _reader(message, b"N" if message.tag == b"N" else b"E", "ErrorResponse")
    found: dict[str, str] = {}
    while (letter := reader.take(1)) != b"\0":
        found[letter.decode("latin-1")] = reader.verbatim()
    reader.done()
    # Servers before 9.6 send no V.
    found.setdefault("V", found.get("S", "ERROR"))
    return ErrorFields(**{_NAMES[letter]: text for letter, text in found.items() if letter in _NAMES})


def _field(reader: Reader) -> FieldDescription:
    return FieldDescription(
        reader.verbatim(), reader.uint32(), reader.int16(), reader.uint32(), reader.int16(), reader.int32(), reader.int16()
    )


def _reader(message: Message, tag: bytes, what: str) -> Reader:
    if message.tag != tag:
        raise ProtocolError(f"expected {what}, got message type {message.tag!r}")
    return Reader(message.body, what)
