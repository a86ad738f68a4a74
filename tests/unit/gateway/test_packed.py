"""Many values of one Bind, found by their places, against the reader that makes an object of each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modak.gateway.wire.codec import Message, ProtocolError
from modak.gateway.wire.frontend import Bind
from modak.gateway.wire.packed import Packed, columns, parse_packed

WIDTH = 4
values = st.one_of(st.none(), st.binary(max_size=3), st.just(b"\xff" * 4), st.binary(min_size=250, max_size=300), st.just(b""))
rows = st.lists(st.tuples(*[values] * WIDTH), min_size=1, max_size=12)


def message(given: list[tuple[bytes | None, ...]], copies: int = 1) -> Message:
    flat = tuple(value for row in given * copies for value in row)
    return Message(b"B", Bind("", "p1", values=flat).encode()[5:])


@settings(max_examples=200, deadline=None)
@given(batches=st.lists(rows, min_size=1, max_size=4))
def test_columns_are_the_values(batches: list[list[tuple[bytes | None, ...]]]) -> None:
    copies = 60
    packed = []
    for batch in batches:
        found = parse_packed(message(batch, copies))
        assert found is not None
        assert (found.portal, found.statement) == ("", "p1")
        packed.append(found.values)
    expected = [row for batch in batches for row in batch * copies]
    assert sum(map(len, packed)) == len(expected) * WIDTH
    assert list(zip(*(column.to_pylist() for column in columns(packed, WIDTH)), strict=True)) == expected


def test_other_messages_are_for_the_other_parser() -> None:
    few = message([(b"x",) * WIDTH])
    assert parse_packed(few) is None
    assert parse_packed(Message(b"Q", b"x" * 10_000)) is None
    binary = Bind("", "p1", formats=(1,), values=(b"1234",) * 400)
    assert parse_packed(Message(b"B", binary.encode()[5:])) is None
    one_large = Bind("", "p1", values=(b"x" * 100_000,))
    assert parse_packed(Message(b"B", one_large.encode()[5:])) is None


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 100])
def test_a_message_that_ends_too_soon_is_refused(cut: int) -> None:
    whole = message([(b"abc", None, b"", b"d")], 100)
    found = parse_packed(Message(b"B", whole.body[:-cut]))
    assert found is not None
    with pytest.raises(ProtocolError):
        columns([found.values], WIDTH)


@pytest.mark.parametrize("length", [b"\x80\x00\x00\x00", b"\xff\xff\xff\xfe", b"\x7f\xff\xff\xff"])
def test_a_length_that_cannot_be_is_refused(length: bytes) -> None:
    whole = message([(b"abc", None, b"", b"d")], 100)
    found = parse_packed(whole)
    assert found is not None
    at = found.values.first + 7  # the second value's
    broken = Packed(found.values.count, whole.body[:at] + length + whole.body[at + 4 :], found.values.first)
    with pytest.raises(ProtocolError):
        columns([broken], WIDTH)


def test_bytes_behind_the_values_are_refused() -> None:
    found = parse_packed(Message(b"B", message([(b"a",) * WIDTH], 100).body + b"\0\0"))
    assert found is not None
    with pytest.raises(ProtocolError):
        columns([found.values], WIDTH)
