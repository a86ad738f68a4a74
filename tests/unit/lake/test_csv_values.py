"""CSV of COPY as Arrow columns; what Arrow does not read is read value by value, to the same."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest

from modak.errors import ValueRefused
from modak.lake.csv_values import read_csv

KINDS = ["long", "boolean", "string", "binary", "uuid", "date", "timestamptz", "double", "decimal(12,3)"]
ROW = b'0000,1,t,"a""\nb",00ff,6b86b273-ff34-fce1-9d6b-804eff5a3f57,2024-02-29,2024-01-01 10:00:00.5,-Infinity,12.345\n'
NOTHING = b"0000,,,,,,,,,\n"
KEY = bytes.fromhex("6b86b273ff34fce19d6b804eff5a3f57")
MOMENT = datetime.datetime(2024, 1, 1, 10, 0, 0, 500000, tzinfo=datetime.UTC)
VALUES = [1, True, 'a"\nb', b"\x00\xff", KEY, datetime.date(2024, 2, 29), MOMENT, float("-inf"), Decimal("12.345")]


def read(block: bytes, kinds: list[str]) -> list[list[Any]]:
    found = read_csv(block, [f"a{place}" for place in range(len(kinds))], kinds)
    return [list(row.values()) for row in found.to_pylist()]


@pytest.mark.parametrize("rows", [1, 3])
def test_every_kind(rows: int) -> None:
    assert read((ROW + NOTHING) * rows, KINDS) == [VALUES, [None] * 9] * rows


def test_a_year_that_arrow_does_not_read_changes_nothing_else() -> None:
    far = ROW.replace(b"2024-01-01 10", b"12024-01-01 10")
    found = read_csv(ROW + far, list("abcdefghi"), KINDS)
    assert found.column(6).cast("int64").to_pylist() == [1704103200500000, 317273623200500000]
    assert found.slice(0, 1).drop_columns(["g"]).to_pylist() == found.slice(1).drop_columns(["g"]).to_pylist()


def test_one_column_of_nothing_and_of_the_empty_text() -> None:
    assert read(b'0000,\n0000,""\n0000, \n0000,\\N\n', ["string"]) == [[None], [""], [" "], ["\\N"]]


@pytest.mark.parametrize(("value", "kind"), [(b"infinity", "timestamptz"), (b"NaN", "decimal(12,3)"), (b"1.5", "int")])
def test_what_does_not_fit_is_refused(value: bytes, kind: str) -> None:
    with pytest.raises(ValueRefused):
        read(b"0000," + value + b"\n", [kind])
