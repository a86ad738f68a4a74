"""Answers to postgres_fdw: every column is a text."""

from __future__ import annotations

from collections.abc import Sequence

from modak.gateway.wire.messages import FieldDescription, command_complete, data_row, row_description

_TEXT_OID = 25


def columns(count: int) -> bytes:
    return description([f"c{place}" for place in range(count)])


def description(names: Sequence[str]) -> bytes:
    return row_description([FieldDescription(name, type_oid=_TEXT_OID, type_size=-1) for name in names])


def rows(names: Sequence[str], found: Sequence[Sequence[str]], tag: str) -> list[bytes | memoryview]:
    return [description(names), *(data_row([value.encode() for value in row]) for row in found), command_complete(tag)]
