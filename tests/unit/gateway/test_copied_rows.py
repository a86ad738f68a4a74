"""CopyData messages taken together are what they are one by one, wherever the bytes are cut."""

from __future__ import annotations

import random

import pytest

from modak.gateway.relay.copied import MARK, copied_rows


def message(body: bytes, tag: bytes = b"d") -> bytes:
    return tag + (len(body) + 4).to_bytes(4, "big") + body


def taken(data: bytes) -> tuple[bytes, bytes]:
    rows, rest = copied_rows(bytearray(data))
    return bytes(rows), bytes(rest)


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_cut_anywhere(seed: int) -> None:
    choice = random.Random(seed)
    letters = b"d\0ab\n" if seed % 2 else b"dab\n"
    bodies = [bytes(choice.choices(letters, k=choice.randint(0, 40))) for _ in range(50)]
    data = b"".join(map(message, bodies))
    end = choice.randint(0, len(data))
    rows, rest = taken(data[:end])
    count = next(place for place in range(51) if len(b"".join(map(message, bodies[:place]))) == end - len(rest))
    assert rows == b"".join(MARK + body for body in bodies[:count])
    assert rest == data[end - len(rest) : end]
    if not seed % 2:
        # Without zeros in the rows nothing stops it before the end.
        assert len(rest) < 45


def test_others_and_long_ones_are_left() -> None:
    long, end = message(b"x" * 70_000), message(b"", b"c")
    assert taken(message(b"a\n") + long) == (MARK + b"a\n", long)
    assert taken(long + message(b"a\n")) == (b"", long + message(b"a\n"))
    assert taken(message(b"a\n") + end) == (MARK + b"a\n", end)
    assert taken(end) == (b"", end)
    assert taken(b"") == (b"", b"")
