"""The body of a request: received completely, decompressed on the way, in memory while it is small and in a file beyond that.

Nothing of a load begins before its body is here, so no transaction ever waits for a network.
"""

from __future__ import annotations

import contextlib
import errno
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import zstandard
from starlette.requests import Request

from modak.patience import Patience, Slow, pieces
from modak.web.errors import Answer, busy, late

_PIECE_BYTES = 256 * 1024
# A few bytes of zstd may stand for 128 KiB: fed in small bites, none of them becomes much more than a piece.
_ZSTD_BITE_BYTES = 64
_ZSTD_WINDOW_MAX = 64 * 1024 * 1024


@dataclass(frozen=True)
class BodyLimits:
    """``memory_bytes`` of a body stay in memory; a client that sends nothing for ``idle_seconds`` is given up."""

    bytes_max: int = 2 * 1024**3
    memory_bytes: int = 1024 * 1024
    idle_seconds: float = 30.0
    seconds_max: float = 900.0

    @property
    def patience(self) -> Patience:
        return Patience(self.idle_seconds, self.seconds_max)


@dataclass(frozen=True)
class Body:
    """What was received; ``lines`` is how many line ends it has."""

    file: BinaryIO
    size: int
    lines: int

    def close(self) -> None:
        self.file.close()


class Unpacking(Protocol):
    """A content encoding being undone."""

    def feed(self, data: bytes) -> Iterator[bytes]: ...

    @property
    def is_complete(self) -> bool: ...


async def receive(request: Request, limits: BodyLimits, folder: Path) -> Body:
    unpacking = _unpacking(request)
    _check_length(request, limits)
    file = cast("BinaryIO", tempfile.SpooledTemporaryFile(max_size=limits.memory_bytes, dir=str(folder)))  # noqa: SIM115 - the load closes it
    try:
        size = lines = 0
        async for data in pieces(request.receive, limits.patience):
            for piece in _unpacked(unpacking, data):
                size += len(piece)
                lines += piece.count(b"\n")
                if size > limits.bytes_max:
                    raise _too_large(limits)
                file.write(piece)
        # A disk that is full must say so here, where it is answered, and not when the load begins to read.
        file.flush()
        if not unpacking.is_complete:
            raise Answer(400, "bad_encoding", "the body ends before its compressed data does", hint="was it sent completely?")
    except BaseException as cause:
        with contextlib.suppress(OSError):  # it tries once more to write what found no room
            file.close()
        if isinstance(cause, Slow):
            raise late(hint="send it without pauses, or make smaller batches") from cause
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise busy(
                503, "no_space", "there is no room for the body on the server", hint="make smaller batches, or load again later"
            ) from cause
        raise
    return Body(file, size, lines)


def _unpacked(unpacking: Unpacking, data: bytes) -> Iterator[bytes]:
    try:
        yield from unpacking.feed(data)
    except (zlib.error, zstandard.ZstdError) as cause:
        raise Answer(400, "bad_encoding", f"the body cannot be decompressed: {cause}", hint="is Content-Encoding right?") from cause


def _check_length(request: Request, limits: BodyLimits) -> None:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.bytes_max:
        raise _too_large(limits)


def _too_large(limits: BodyLimits) -> Answer:
    return Answer(
        413, "too_large", f"a body has {limits.bytes_max:,} bytes at most, decompressed", hint="make several batches, each with a label"
    )


class _Plain:
    is_complete = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data


class _Gzip:
    """Also several members one after the other, as ``cat a.gz b.gz`` makes them."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(31)
        self._started = False

    @property
    def is_complete(self) -> bool:
        return self._member.eof or not self._started

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(31)
            self._started = True
            yield self._member.decompress(data, _PIECE_BYTES)
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail


class _Zstd:
    """Several frames count as one body as well."""

    def __init__(self) -> None:
        self._frame = self._new()
        self._started = False

    @staticmethod
    def _new() -> zstandard.ZstdDecompressionObj:
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX).decompressobj()

    @property
    def is_complete(self) -> bool:
        return self._frame.eof or not self._started

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_BITE_BYTES):
            bite = data[start : start + _ZSTD_BITE_BYTES]
            while bite:
                if self._frame.eof:
                    self._frame = self._new()
                self._started = True
                yield self._frame.decompress(bite)
                bite = self._frame.unused_data if self._frame.eof else b""


_ENCODINGS: dict[str, Callable[[], Unpacking]] = {"": _Plain, "identity": _Plain, "gzip": _Gzip, "x-gzip": _Gzip, "zstd": _Zstd}


def _unpacking(request: Request) -> Unpacking:
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        raise Answer(
            415,
            "unsupported_encoding",
            f"content encoding {encoding[:50]!r} is not known",
            hint="gzip, zstd or none",
            headers={"Accept-Encoding": "gzip, zstd"},
        )
    return _ENCODINGS[encoding]()
