"""Bands of the lake's layout: the ranges of tier keys that its partitions hold. What begins a band never cuts one of its files."""

from __future__ import annotations

from modak.core.tier_key import KEY_MIN, MICROSECONDS_PER_DAY, TierKeyType, civil_to_days, days_to_civil

_MICROSECONDS_PER_HOUR = 3_600_000_000


def band_start(key: int, layout: str, key_type: TierKeyType) -> int:
    """The lowest key of the band that ``key`` lies in; without a layout every key is a band of its own."""
    if layout == "none":
        return key
    if layout.isdigit():
        return max(KEY_MIN, key - key % int(layout))
    if layout == "hour":
        return max(KEY_MIN, key - key % _MICROSECONDS_PER_HOUR)
    is_date = key_type is TierKeyType.DATE
    day = _first_day(key if is_date else key // MICROSECONDS_PER_DAY, layout)
    return day if is_date else max(KEY_MIN, day * MICROSECONDS_PER_DAY)


def _first_day(day: int, layout: str) -> int:
    if layout == "day":
        return day
    year, month, _ = days_to_civil(day)
    return civil_to_days(year, month if layout == "month" else 1, 1)
