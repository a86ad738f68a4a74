"""A Bind with many values, as an INSERT of postgres_fdw is one: known by their places, without an object for each of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from modak.gateway.wire.codec import Message, ProtocolError, Reader

# With fewer values, objects are as fast.
VALUES_MIN: Final = 200
_LENGTH = struct.Struct("!i")
_NULL = -1


@dataclass(frozen=True)
class Packed:
    """Values in text form. They are looked at by ``columns`` only, which is the larger part of the work."""

    count: int
    body: bytes = field(repr=False)
    first: int

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class PackedBind:
    portal: str
    statement: str
    values: Packed = field(repr=False)


def parse_packed(message: Message, values_min: int = VALUES_MIN) -> PackedBind | None:
    """None for any other message, and for one that has fewer values or some that are not text."""
    if message.tag != b"B" or len(message.body) < 4 * values_min:
        return None
    reader = Reader(message.body, "Bind")
    portal, statement = reader.text(), reader.text()
    if reader.uint16():
        return None
    count = reader.uint16()
    return PackedBind(portal, statement, Packed(count, message.body, reader.at)) if count >= values_min else None


def columns(messages: Sequence[Packed], width: int) -> list[Any]:
    """Binary arrays of every ``width``-th value, of all messages. ProtocolError where one is not what its head says."""
    data = b"".join(one.body for one in messages)
    starts, ends, base = list[int](), list[int](), 0
    for one in messages:
        starts += _places(data, base + one.first, base + len(one.body), one.count)
        ends.append(len(starts) - 1)
        base += len(one.body)
    places, octets = np.array(starts, dtype=np.int64), np.frombuffer(data, np.uint8)
    lengths = np.delete(np.diff(places, append=0) - 4, ends)
    firsts = np.delete(places, ends)
    # Both an empty value and NULL take no room; NULL has a length of -1.
    (bare,) = np.nonzero(lengths == 0)
    if bare.size:
        told = sum(octets[firsts[bare] - 4 + place].astype(np.int64) << (24 - 8 * place) for place in range(4))
        if not np.isin(told, (0, 0xFFFFFFFF)).all():
            raise ProtocolError("negative length in Bind")
        lengths[bare[told != 0]] = _NULL
    return [_gathered(octets, firsts[place::width], lengths[place::width]) for place in range(width)]


def _places(data: bytes, at: int, end: int, count: int) -> list[int]:
    """Where the values of one message begin, and where one behind the last would.

    A length is behind the value before it, so there is no other way than step by step.
    """
    unpack = _LENGTH.unpack_from
    starts = [0] * (count + 1)
    try:
        for number in range(count):
            (length,) = unpack(data, at)
            at += 4
            starts[number] = at
            if length > 0:
                at += length
    except struct.error:
        at = end + 1
    if at > end:
        raise ProtocolError("Bind message is truncated", values=count)
    formats = Reader(data[at:end], "Bind")
    formats.numbers("h", formats.uint16())
    formats.done()
    starts[count] = at + 4
    return starts


def _gathered(octets: Any, starts: Any, lengths: Any) -> Any:
    """The bytes of some values, one behind the other, as Arrow keeps them."""
    sizes = np.maximum(lengths, 0)
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    total = int(offsets[-1])
    index = np.repeat(starts - offsets[:-1], sizes) + np.arange(total)
    present = lengths != _NULL
    bitmap = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    kind = pa.binary() if total < 1 << 31 else pa.large_binary()
    narrow = offsets.astype(np.int32) if total < 1 << 31 else offsets
    return pa.Array.from_buffers(kind, len(sizes), [bitmap, pa.py_buffer(narrow), pa.py_buffer(octets[index])])
