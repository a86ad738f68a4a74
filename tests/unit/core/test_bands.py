"""Bands are those of the lake's own partitions: the lowest key that falls into the same one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.bands import band_start
from modak.core.tier_key import MICROSECONDS_PER_DAY, TierKeyType
from modak.lake.layout import partition_numbers

DAYS = st.integers(-800_000, 3_000_000)
MOMENTS = st.builds(lambda day, rest: day * MICROSECONDS_PER_DAY + rest, DAYS, st.integers(0, MICROSECONDS_PER_DAY - 1))
WIDTHS = st.integers(1, 2**31 - 1).map(str)


def check(key: int, layout: str, key_type: TierKeyType) -> None:
    start = band_start(key, layout, key_type)
    keys = np.array([start - 1, start, key], dtype=np.int64)
    before, first, same = partition_numbers(keys, layout, is_date=key_type is TierKeyType.DATE).tolist()
    assert start <= key
    assert before < first == same


@given(key=st.integers(-(2**62), 2**62), layout=WIDTHS)
def test_of_integers(key: int, layout: str) -> None:
    check(key, layout, TierKeyType.BIGINT)


@given(key=MOMENTS, layout=st.sampled_from(["hour", "day", "month", "year"]))
def test_of_moments(key: int, layout: str) -> None:
    check(key, layout, TierKeyType.TIMESTAMPTZ)


@given(key=DAYS, layout=st.sampled_from(["day", "month", "year"]))
def test_of_dates(key: int, layout: str) -> None:
    check(key, layout, TierKeyType.DATE)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("none", "2026-07-31 23:59:59.999999+00"),
        ("hour", "2026-07-31 23:00:00+00"),
        ("day", "2026-07-31 00:00:00+00"),
        ("month", "2026-07-01 00:00:00+00"),
        ("year", "2026-01-01 00:00:00+00"),
    ],
)
def test_one_moment(layout: str, expected: str) -> None:
    key_type = TierKeyType.TIMESTAMPTZ
    assert key_type.encode(band_start(key_type.decode("2026-07-31 23:59:59.999999+00"), layout, key_type)) == expected
