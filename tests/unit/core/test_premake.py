"""Premake: the ranges to create ahead of the newest key."""

from __future__ import annotations

import pytest

from modak.core.partition import Partition, PartitionState
from modak.core.premake import ahead, following
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType
from modak.errors import Refused


def part(name: str, lower: int, upper: int, state: PartitionState = PartitionState.HOT) -> Partition:
    return Partition("public", name, lower, upper, state)


def test_open_ends_and_dropped_partitions_ask_for_nothing() -> None:
    assert ahead([part("all", KEY_MIN, KEY_MAX)], 3, 5, TierKeyType.BIGINT) == []
    assert ahead([part("top", 0, KEY_MAX)], 3, 5, TierKeyType.BIGINT) == []
    assert ahead([part("gone", 0, 100, PartitionState.DROPPED)], 3, 5, TierKeyType.BIGINT) == []
    assert ahead([part("p", 0, 100)], 0, 5, TierKeyType.BIGINT) == []


def test_the_end_of_a_type_is_the_end() -> None:
    assert ahead([part("p", 32_000, 32_500)], 3, 32_100, TierKeyType.SMALLINT) == []


def _range(text: str, end: str, key_type: TierKeyType = TierKeyType.TIMESTAMPTZ) -> Partition:
    return Partition("public", "p", key_type.decode(text), key_type.decode(end), PartitionState.HOT)


@pytest.mark.parametrize(
    ("low", "high", "next_high"),
    [
        ("2025-11-01 00:00:00+00", "2025-12-01 00:00:00+00", "2026-01-01 00:00:00+00"),
        ("2024-01-01 00:00:00+00", "2024-02-01 00:00:00+00", "2024-03-01 00:00:00+00"),
        ("2024-01-01 00:00:00+00", "2025-01-01 00:00:00+00", "2026-01-01 00:00:00+00"),
        ("2025-10-01 00:00:00+00", "2026-01-01 00:00:00+00", "2026-04-01 00:00:00+00"),
        ("2025-10-01 00:00:00+00", "2025-10-02 00:00:00+00", "2025-10-03 00:00:00+00"),
        ("2025-10-01 06:00:00+00", "2025-10-01 07:00:00+00", "2025-10-01 08:00:00+00"),
    ],
)
def test_the_next_range_is_as_long_in_the_calendar(low: str, high: str, next_high: str) -> None:
    key = TierKeyType.TIMESTAMPTZ
    assert following(_range(low, high), key) == (key.decode(high), key.decode(next_high))


def test_ahead_fills_what_is_missing_and_nothing_twice() -> None:
    parts = [part("p0", 0, 100), part("p1", 100, 200)]
    assert ahead(parts, 2, 150, TierKeyType.BIGINT) == [(200, 300), (300, 400)]
    assert ahead([*parts, part("other", 200, 300)], 2, 150, TierKeyType.BIGINT) == [(300, 400)]
    assert ahead([*parts, part("a", 200, 300), part("b", 300, 400)], 2, 150, TierKeyType.BIGINT) == []
    assert ahead(parts, 2, None, TierKeyType.BIGINT) == []
    with pytest.raises(Refused, match="200"):
        ahead([*parts, part("across", 250, 350)], 2, 150, TierKeyType.BIGINT)
