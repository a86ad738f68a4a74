"""The decoder against messages built by hand, and against messages built by rule."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.changes import UNCHANGED, Row
from modak.source import pgoutput
from modak.source.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    RelationMessage,
    Skipped,
    StreamColumn,
    StreamError,
    Truncate,
    Update,
    decode,
)


def row_bytes(row: Row) -> bytes:
    parts = [struct.pack("!H", len(row))]
    for value in row:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            assert isinstance(value, bytes)
            parts.append(b"t" + struct.pack("!I", len(value)) + value)
    return b"".join(parts)


def relation_bytes(message: RelationMessage) -> bytes:
    columns = b"".join(
        bytes([column.is_key]) + column.name.encode() + b"\0" + struct.pack("!Ii", column.type_oid, column.modifier)
        for column in message.columns
    )
    head = b"R" + struct.pack("!I", message.oid) + message.schema.encode() + b"\0" + message.name.encode() + b"\0"
    return head + message.identity.encode() + struct.pack("!H", len(message.columns)) + columns


rows = st.lists(st.none() | st.just(UNCHANGED) | st.binary(max_size=40), max_size=8).map(tuple)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
oids = st.integers(0, 2**32 - 1)
columns = st.builds(StreamColumn, names, oids, st.integers(-1, 2**31 - 1), st.booleans())


def test_transaction() -> None:
    assert decode(b"B" + struct.pack("!QqI", 7, -5, 99)) == Begin(7, -5, 99)
    assert decode(b"C" + struct.pack("!BQQq", 0, 7, 11, -5)) == Commit(7, 11, -5)


@given(st.builds(RelationMessage, oids, names, names, st.sampled_from("dnfi"), st.lists(columns, max_size=6).map(tuple)))
def test_relation(message: RelationMessage) -> None:
    assert decode(relation_bytes(message)) == message


def test_a_relation_of_the_system_has_no_schema_in_the_stream() -> None:
    message = decode(relation_bytes(RelationMessage(1, "", "pg_am", "n", ())))
    assert isinstance(message, RelationMessage)
    assert message.schema == "pg_catalog"


@given(oids, rows, rows, st.sampled_from([None, b"K", b"O"]))
def test_changes_of_rows(oid: int, new: Row, old: Row, kind: bytes | None) -> None:
    head = struct.pack("!I", oid)
    assert decode(b"I" + head + b"N" + row_bytes(new)) == Insert(oid, new)
    before = b"" if kind is None else kind + row_bytes(old)
    expected = Update(oid, new, None if kind is None else old, kind == b"O")
    assert decode(b"U" + head + before + b"N" + row_bytes(new)) == expected
    if kind is not None:
        assert decode(b"D" + head + kind + row_bytes(old)) == Delete(oid, old, kind == b"O")


@given(st.lists(oids, max_size=5).map(tuple), st.integers(0, 3))
def test_truncate(tables: tuple[int, ...], flags: int) -> None:
    assert decode(b"T" + struct.pack("!IB", len(tables), flags) + struct.pack(f"!{len(tables)}I", *tables)) == Truncate(tables)


@pytest.mark.parametrize(("payload", "kind"), [(b"Y\0\0\0\1a\0b\0", "type"), (b"O" + b"\0" * 8 + b"x\0", "origin"), (b"M\0", "message")])
def test_what_says_nothing_about_rows(payload: bytes, kind: str) -> None:
    assert decode(payload) == Skipped(kind)


@pytest.mark.parametrize("payload", [b"", b"Z123", b"S\0\0"])
def test_an_unknown_message_is_loud(payload: bytes) -> None:
    with pytest.raises(StreamError):
        decode(payload)


@given(rows.filter(lambda row: any(row)), st.data())
def test_a_message_that_was_cut_is_loud(new: Row, data: st.DataObject) -> None:
    whole = b"I" + struct.pack("!I", 1) + b"N" + row_bytes(new)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(StreamError):
        decode(whole[:cut])


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    with contextlib.suppress(StreamError):
        decode(payload)


def test_a_binary_value_was_not_asked_for() -> None:
    with pytest.raises(StreamError):
        pgoutput.decode(b"I\0\0\0\1N\0\1b\0\0\0\1x")
