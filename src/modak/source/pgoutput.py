"""The logical replication stream as Postgres's own plugin ``pgoutput`` writes it: bytes in, messages out. Pure.

Protocol version 1: a transaction arrives whole, after its commit. Values are text in the client's encoding, which is UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from modak.core.changes import UNCHANGED, Row, Value
from modak.errors import ModakError

_COUNT = struct.Struct("!H")
_SIZE = struct.Struct("!I")
_BEGIN = struct.Struct("!QqI")
_COMMIT = struct.Struct("!BQQq")
_COLUMN = struct.Struct("!Ii")
_TRUNCATE = struct.Struct("!IB")
_MESSAGE = struct.Struct("!BQ")
# Postgres counts from the year 2000.
_EPOCH_SECONDS = 946_684_800


class StreamError(ModakError):
    """The stream says something this decoder does not know; guessing would lose rows."""

    code = "stream"


@dataclass(frozen=True, slots=True)
class Begin:
    """``final_lsn`` is where the transaction's commit record starts."""

    final_lsn: int
    timestamp_us: int  # since 2000-01-01
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """``end_lsn`` is the end of the commit record: what a reader of everything up to here may confirm."""

    commit_lsn: int
    end_lsn: int
    timestamp_us: int

    @property
    def time(self) -> float:
        """Seconds since 1970."""
        return self.timestamp_us / 1_000_000 + _EPOCH_SECONDS


@dataclass(frozen=True, slots=True)
class StreamColumn:
    name: str
    type_oid: int
    modifier: int
    is_key: bool = False  # part of the replica identity


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """Comes before a table's first change, and again after every change of its shape."""

    oid: int
    schema: str
    name: str
    identity: str  # pg_class.relreplident
    columns: tuple[StreamColumn, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    oid: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """``old`` is the whole former row if ``is_whole``, else its identity columns with None elsewhere; None: the identity stayed."""

    oid: int
    new: Row
    old: Row | None = None
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    oid: int
    old: Row
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that says nothing about rows: a type's name, where a change came from, a message of an application."""

    kind: str


Message = Begin | Commit | RelationMessage | Insert | Update | Delete | Truncate | Skipped


def decode(payload: bytes) -> Message:
    """One message. Raises StreamError if it is not a whole message of a kind that is known."""
    decoder = _DECODERS.get(payload[:1])
    if decoder is None:
        raise StreamError(f"the stream has a message of an unknown kind {payload[:1]!r}", hint="this server is newer than Modak knows")
    try:
        return decoder(payload)
    except (struct.error, IndexError, ValueError) as cause:
        raise StreamError(f"a message of kind {payload[:1]!r} in the stream cannot be read") from cause


def _begin(payload: bytes) -> Begin:
    return Begin(*_BEGIN.unpack_from(payload, 1))


def _commit(payload: bytes) -> Commit:
    _, commit_lsn, end_lsn, timestamp = _COMMIT.unpack_from(payload, 1)
    return Commit(commit_lsn, end_lsn, timestamp)


def _relation(payload: bytes) -> RelationMessage:
    (oid,) = _SIZE.unpack_from(payload, 1)
    schema, place = _text(payload, 5)
    name, place = _text(payload, place)
    identity = chr(payload[place])
    (count,) = _COUNT.unpack_from(payload, place + 1)
    place += 3
    columns = []
    for _ in range(count):
        flags = payload[place]
        column, place = _text(payload, place + 1)
        type_oid, modifier = _COLUMN.unpack_from(payload, place)
        place += _COLUMN.size
        columns.append(StreamColumn(column, type_oid, modifier, bool(flags & 1)))
    # An empty schema stands for pg_catalog.
    return RelationMessage(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _insert(payload: bytes) -> Insert:
    _expect(payload, 5, b"N")
    new, _ = _row(payload, 6)
    return Insert(_oid(payload), new)


def _update(payload: bytes) -> Update:
    kind, old, place = payload[5:6], None, 5
    if kind in (b"K", b"O"):
        old, place = _row(payload, 6)
    _expect(payload, place, b"N")
    new, _ = _row(payload, place + 1)
    return Update(_oid(payload), new, old, kind == b"O")


def _delete(payload: bytes) -> Delete:
    kind = payload[5:6]
    if kind not in (b"K", b"O"):
        raise ValueError(kind)
    old, _ = _row(payload, 6)
    return Delete(_oid(payload), old, kind == b"O")


def _truncate(payload: bytes) -> Truncate:
    count, _ = _TRUNCATE.unpack_from(payload, 1)
    return Truncate(struct.unpack_from(f"!{count}I", payload, 6))


def _skipped(payload: bytes) -> Skipped:
    return Skipped({b"Y": "type", b"O": "origin", b"M": "message"}[payload[:1]])


def _oid(payload: bytes) -> int:
    oid: int = _SIZE.unpack_from(payload, 1)[0]
    return oid


def _expect(payload: bytes, place: int, kind: bytes) -> None:
    if payload[place : place + 1] != kind:
        raise ValueError(f"{kind!r} expected at {place}")


def _text(payload: bytes, place: int) -> tuple[str, int]:
    end = payload.index(b"\0", place)
    return payload[place:end].decode(), end + 1


def _row(payload: bytes, place: int) -> tuple[Row, int]:
    (count,) = _COUNT.unpack_from(payload, place)
    place += 2
    values: list[Value] = []
    for _ in range(count):
        kind = payload[place]
        if kind == 0x74:  # t
            (size,) = _SIZE.unpack_from(payload, place + 1)
            end = place + 5 + size
            if end > len(payload):
                raise ValueError("a value ends beyond its message")
            values.append(payload[place + 5 : end])
            place = end
        elif kind == 0x6E:  # n
            values.append(None)
            place += 1
        elif kind == 0x75:  # u
            values.append(UNCHANGED)
            place += 1
        else:
            raise ValueError(f"a value of kind {kind:#x}")
    return tuple(values), place


_DECODERS: Mapping[bytes, Callable[[bytes], Message]] = MappingProxyType(
    {
        b"B": _begin,
        b"C": _commit,
        b"R": _relation,
        b"I": _insert,
        b"U": _update,
        b"D": _delete,
        b"T": _truncate,
        b"Y": _skipped,
        b"O": _skipped,
        b"M": _skipped,
    }
)
