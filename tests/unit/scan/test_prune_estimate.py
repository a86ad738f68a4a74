"""What the planner is told: near the truth for ranges and keys, and never nothing where something may be."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.tier_key import TierKeyType
from modak.scan.estimate import estimate, share_of_one
from modak.scan.predicate import Predicate
from modak.scan.prune import KeyRange
from modak.scan.snapshot import DataFile, DeleteFile, Field, Snapshot

FIELDS = (
    Field(1, "id", "long", True),
    Field(2, "ts", "timestamptz", True),
    Field(3, "status", "int", False),
    Field(4, "name", "string", False),
    Field(5, "price", "decimal(10,2)", False),
    Field(6, "ratio", "double", False),
)
ROWS = 100_000
DAY = 86_400_000_000


def _long(number: int, size: int = 8) -> bytes:
    return number.to_bytes(size, "little", signed=True)


def _file(day: int, **given: Any) -> DataFile:
    """A day of rows with keys of its own, five statuses, and prices from 0 to 100."""
    values: dict[str, Any] = {
        "path": f"/{day}",
        "location": f"/{day}",
        "rows": ROWS,
        "bytes": 1_000_000,
        "sequence_number": 1,
        "spec_id": 0,
        "partition": (),
        "lower": {1: _long(day * ROWS), 2: _long(day * DAY), 3: _long(1, 4), 4: b"aa", 5: b"\x00", 6: struct.pack("<d", -math.inf)},
        "upper": {
            1: _long((day + 1) * ROWS - 1),
            2: _long((day + 1) * DAY - 1),
            3: _long(5, 4),
            4: b"zz",
            5: (10_000).to_bytes(2, "big"),
            6: struct.pack("<d", float(day)),
        },
        "nulls": {1: 0, 2: 0, 3: 0, 4: ROWS // 2, 5: 0},
        "nans": {},
        "row_groups": 1,
    }
    return DataFile(**(values | given))


TABLE = Snapshot("uuid", 1, 1, FIELDS, {0: ()}, 0, tuple(_file(day) for day in range(50)))


def _ts(key: int) -> str:
    return TierKeyType.TIMESTAMPTZ.encode(key)


@pytest.mark.parametrize(
    ("predicates", "rows", "files"),
    [
        ([], 50 * ROWS, 50),
        ([Predicate("id", "=", ("2050123",))], 1, 1),
        ([Predicate("id", "in", ("1", "200000", "4000000"))], 3, 3),
        ([Predicate("ts", ">=", (_ts(10 * DAY),)), Predicate("ts", "<", (_ts(12 * DAY),))], 2 * ROWS, 2),
        ([Predicate("ts", ">=", (_ts(10 * DAY + DAY // 4),)), Predicate("ts", "<", (_ts(10 * DAY + DAY // 2),))], ROWS / 4, 1),
        ([Predicate("status", "=", ("3",))], 10 * ROWS, 50),
        ([Predicate("status", "in", ("3", "4"))], 20 * ROWS, 50),
        ([Predicate("status", "<", ("3",)), Predicate("ts", "<", (_ts(DAY),))], ROWS * 0.5, 1),
        ([Predicate("price", "<", ("25",))], 12.5 * ROWS, 50),
        ([Predicate("name", "is null")], 25 * ROWS, 50),
        ([Predicate("name", "is not null")], 25 * ROWS, 50),
    ],
)
def test_estimates_come_near(predicates: list[Predicate], rows: float, files: int) -> None:
    found = estimate(TABLE, predicates, primary_key=("id",))
    assert found.files == files
    assert found.bytes == files * 1_000_000
    assert rows * 0.8 <= found.rows <= rows * 1.25


def test_a_key_of_several_columns_is_unique_as_a_whole() -> None:
    both = [Predicate("id", "=", ("5",)), Predicate("status", "in", ("1", "2"))]
    assert estimate(TABLE, both, primary_key=("id", "status")).rows <= 2
    half = estimate(TABLE, [Predicate("status", "=", ("1",))], primary_key=("id", "status"))
    assert half.rows > 1000


def test_equality_on_an_unknown_column_is_neither_one_row_nor_all() -> None:
    found = estimate(TABLE, [Predicate("name", "=", ("bob",))])
    assert 50 <= found.rows <= 25 * ROWS / 100


def test_a_value_that_comes_later_finds_what_a_value_finds() -> None:
    for column, values in (("id", ("2050123",)), ("status", ("3",))):
        known = estimate(TABLE, [Predicate(column, "=", values)])
        rows, files = share_of_one(TABLE, column)
        assert known.rows * 0.8 <= rows * 50 * ROWS <= known.rows * 1.25
        assert round(files * 50) == known.files
    assert share_of_one(TABLE, "absent") == (1 / 200, 1.0)


def test_the_key_range_counts_as_a_condition() -> None:
    found = estimate(TABLE, [], keys=KeyRange("ts", 0, DAY // 2))
    assert (found.files, round(found.rows, -3)) == (1, ROWS // 2)


def test_deletes_are_not_counted() -> None:
    deleted = DeleteFile("/d", "/d", ROWS // 2, 100, "/0")
    table = Snapshot("uuid", 1, 1, FIELDS, {0: ()}, 0, (_file(0, deletes=(deleted,)),))
    assert estimate(table, []).rows == ROWS // 2


def test_nothing_survives_nothing_comes() -> None:
    found = estimate(TABLE, [Predicate("id", "=", ("-1",))], primary_key=("id",))
    assert (found.rows, found.bytes, found.files) == (0, 0, 0)


def test_width_is_of_the_columns_asked_for() -> None:
    assert estimate(TABLE, [], columns=["id", "status"]).width == 12
    assert estimate(TABLE, []).width == 8 + 8 + 4 + 32 + 8 + 8


@given(
    st.lists(
        st.builds(
            Predicate,
            st.sampled_from(["id", "status", "price", "name", "ratio", "absent"]),
            st.sampled_from(["=", "<", "<=", ">", ">=", "in"]),
            st.tuples(
                st.one_of(st.integers(-(10**7), 10**7).map(str), st.text(max_size=3), st.sampled_from(["NaN", "Infinity", "-Infinity"]))
            ),
        ),
        max_size=4,
    )
)
def test_any_conditions_give_between_one_row_and_all(predicates: list[Predicate]) -> None:
    found = estimate(TABLE, predicates, primary_key=("id",))
    assert (found.rows == 0) == (found.files == 0)
    assert 0 <= found.rows <= 50 * ROWS


@pytest.mark.parametrize("asked", ["5", "1e20", "1e30"])
def test_one_large_number_is_a_range_too(asked: str) -> None:
    """A step more is still the same number."""
    bounds = {6: struct.pack("<d", 1e20)}
    large = Snapshot("uuid", 1, 1, FIELDS, {0: ()}, 0, (_file(1, lower=bounds, upper=bounds, nulls={6: 0}),))
    for operator in (">=", "<", ">"):
        assert estimate(large, [Predicate("ratio", operator, (asked,))]).rows >= 0
