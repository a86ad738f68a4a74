"""What a server sends: builders for the gateway's own answers. All return bytes ready for the socket."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from modak.errors import ModakError, Refused
from modak.gateway.wire.codec import Message, cstring

Status = Literal[b"I", b"T", b"E"]

AUTH_OK: Final = 0
AUTH_CLEARTEXT: Final = 3
AUTH_MD5: Final = 5
AUTH_SASL: Final = 10
AUTH_SASL_CONTINUE: Final = 11
AUTH_SASL_FINAL: Final = 12


@dataclass(frozen=True)
class FieldDescription:
    """One result column. ``table_oid`` and ``column`` are 0 unless it comes straight from a table."""

    name: str
    table_oid: int = 0
    column: int = 0
    type_oid: int = 25
    type_size: int = -1
    typmod: int = -1
    format: int = 0


def _letter(letter: str) -> dict[str, str]:
    return {"letter": letter}


@dataclass(frozen=True)
class ErrorFields:
    """The fields of an error or a notice; the protocol's letter stands beside each. Positions count characters from 1."""

    severity: str = field(default="ERROR", metadata=_letter("V"))
    sqlstate: str = field(default="XX000", metadata=_letter("C"))
    message: str = field(default="", metadata=_letter("M"))
    detail: str | None = field(default=None, metadata=_letter("D"))
    hint: str | None = field(default=None, metadata=_letter("H"))
    position: str | None = field(default=None, metadata=_letter("P"))
    internal_position: str | None = field(default=None, metadata=_letter("p"))
    internal_query: str | None = field(default=None, metadata=_letter("q"))
    where: str | None = field(default=None, metadata=_letter("W"))
    schema: str | None = field(default=None, metadata=_letter("s"))
    table: str | None = field(default=None, metadata=_letter("t"))
    column: str | None = field(default=None, metadata=_letter("c"))
    datatype: str | None = field(default=None, metadata=_letter("d"))
    constraint: str | None = field(default=None, metadata=_letter("n"))
    file: str | None = field(default=None, metadata=_letter("F"))
    line: str | None = field(default=None, metadata=_letter("L"))
    routine: str | None = field(default=None, metadata=_letter("R"))

    @classmethod
    def of(cls, error: ModakError, *, severity: str = "ERROR") -> Self:
        """An error of ours in Postgres's words: what is the message, where is the detail, next is the hint."""
        where = [", ".join(f"{name}={value}" for name, value in error.facts.items())]
        problems = [str(problem) for problem in error.problems] if isinstance(error, Refused) else []
        detail = "\n".join(line for line in where + problems if line)
        return cls(severity=severity, sqlstate=error.sqlstate, message=error.message, detail=detail or None, hint=error.hint)


LETTERS: Final[Mapping[str, str]] = {name: entry.metadata["letter"] for name, entry in ErrorFields.__dataclass_fields__.items()}


def authentication(kind: int, payload: bytes = b"") -> bytes:
    return Message(b"R", struct.pack("!I", kind) + payload).encode()


def authentication_ok() -> bytes:
    return authentication(AUTH_OK)


def authentication_cleartext() -> bytes:
    return authentication(AUTH_CLEARTEXT)


def authentication_sasl(mechanisms: Sequence[str]) -> bytes:
    return authentication(AUTH_SASL, b"".join(cstring(mechanism) for mechanism in mechanisms) + b"\0")


def authentication_sasl_continue(data: bytes) -> bytes:
    return authentication(AUTH_SASL_CONTINUE, data)


def authentication_sasl_final(data: bytes) -> bytes:
    return authentication(AUTH_SASL_FINAL, data)


def parameter_status(name: str, value: str) -> bytes:
    return Message(b"S", cstring(name) + cstring(value)).encode()


def backend_key_data(pid: int, secret: bytes) -> bytes:
    """To a client of protocol 3.0 the secret is exactly four bytes; 3.2 takes up to 256."""
    return Message(b"K", struct.pack("!I", pid) + secret).encode()


def ready_for_query(status: Status) -> bytes:
    """Idle, in a transaction, or in a failed one."""
    return Message(b"Z", status).encode()


def row_description(fields: Sequence[FieldDescription]) -> bytes:
    parts = [struct.pack("!H", len(fields))]
    for one in fields:
        numbers = struct.pack("!IhIhih", one.table_oid, one.column, one.type_oid, one.type_size, one.typmod, one.format)
        parts.append(cstring(one.name) + numbers)
    return Message(b"T", b"".join(parts)).encode()


def data_row(values: Sequence[bytes | None]) -> bytes:
    """One row, for the small answers; results of DuckDB go through ``rows``."""
    parts = [b"\xff\xff\xff\xff" if value is None else struct.pack("!i", len(value)) + value for value in values]
    return Message(b"D", struct.pack("!H", len(values)) + b"".join(parts)).encode()


def parameter_description(oids: Sequence[int]) -> bytes:
    return Message(b"t", struct.pack(f"!H{len(oids)}I", len(oids), *oids)).encode()


def command_complete(tag: str) -> bytes:
    return Message(b"C", cstring(tag)).encode()


def empty_query() -> bytes:
    return Message(b"I", b"").encode()


def parse_complete() -> bytes:
    return Message(b"1", b"").encode()


def bind_complete() -> bytes:
    return Message(b"2", b"").encode()


def close_complete() -> bytes:
    return Message(b"3", b"").encode()


def no_data() -> bytes:
    return Message(b"n", b"").encode()


def portal_suspended() -> bytes:
    return Message(b"s", b"").encode()


def error_response(fields: ErrorFields) -> bytes:
    return Message(b"E", _error_body(fields)).encode()


def notice_response(fields: ErrorFields) -> bytes:
    return Message(b"N", _error_body(fields)).encode()


def copy_out_response(formats: Sequence[int], *, binary: bool = False) -> bytes:
    """``formats`` has one code per column; ``binary`` is that of the whole stream."""
    return _copy_response(b"H", formats, binary)


def copy_in_response(formats: Sequence[int], *, binary: bool = False) -> bytes:
    return _copy_response(b"G", formats, binary)


def copy_data(data: bytes) -> bytes:
    return Message(b"d", data).encode()


def copy_done() -> bytes:
    return Message(b"c", b"").encode()


def _copy_response(tag: bytes, formats: Sequence[int], binary: bool) -> bytes:
    return Message(tag, struct.pack(f"!BH{len(formats)}H", binary, len(formats), *formats)).encode()


def _error_body(fields: ErrorFields) -> bytes:
    # S is the severity in the server's language, V the one programs look at; ours are the same.
    parts = [b"S" + _printable(fields.severity)]
    for name, letter in LETTERS.items():
        value = getattr(fields, name)
        if value is not None:
            parts.append(letter.encode() + _printable(value))
    return b"".join(parts) + b"\0"


def _printable(text: str) -> bytes:
    """Reporting an error must not fail over the text of the error, which may quote anything."""
    try:
        raw = text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raw = text.encode(errors="backslashreplace")
    return raw.replace(b"\0", b"\\0") + b"\0"
