"""Which partitions to create ahead of the data, so that new rows never fall into the DEFAULT partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from modak.core.partition import Partition, PartitionState
from modak.core.tier_key import KEY_MIN, MICROSECONDS_PER_DAY, TierKeyType, civil_to_days, days_to_civil
from modak.errors import Problem, Refused

Range = tuple[int, int]


def _missing(standing: Sequence[Partition], bands: Iterable[Range], key_type: TierKeyType) -> list[Range]:
    missing: list[Range] = []
    problems: list[Problem] = []
    for band in bands:
        overlapping = [one for one in standing if one.lower < band[1] and band[0] < one.upper]
        if not overlapping:
            missing.append(band)
        elif not _covers(overlapping, band):
            problems.append(_partial(overlapping, band, key_type))
    if problems:
        raise Refused("partitions stand across the ranges to create", problems)
    return missing


def _covers(overlapping: Sequence[Partition], band: Range) -> bool:
    reached = band[0]
    for partition in overlapping:
        if partition.lower > reached:
            return False
        reached = max(reached, partition.upper)
    return reached >= band[1]


def _partial(overlapping: Sequence[Partition], band: Range, key_type: TierKeyType) -> Problem:
    found = " and ".join(f"{one.name} {_shown((one.lower, one.upper), key_type)}" for one in overlapping)
    return Problem(
        "partial_overlap",
        f"{_shown(band, key_type)} is covered in part by {found}",
        "create the rest by hand or change the width",
    )


def _shown(bounds: Range, key_type: TierKeyType) -> str:
    return f"[{key_type.encode_bound(bounds[0])}, {key_type.encode_bound(bounds[1])})"


def following(partition: Partition, key_type: TierKeyType) -> Range:
    """The range right above a partition, as long as it is: in calendar months where it begins and ends with one."""
    months = _months(partition, key_type)
    if months is None:
        return partition.upper, partition.upper + (partition.upper - partition.lower)
    days = partition.upper // _day(key_type)
    year, month, _ = days_to_civil(days)
    total = year * 12 + month - 1 + months
    return partition.upper, civil_to_days(total // 12, total % 12 + 1, 1) * _day(key_type)


def preceding(upper: int, like: Partition, key_type: TierKeyType) -> int:
    """Where a range begins that ends at ``upper`` and is as long as a partition: in calendar months where both are on their first days."""
    months = _months(like, key_type)
    days, rest = divmod(upper, _day(key_type)) if months is not None else (0, 0)
    year, month, first = days_to_civil(days)
    if months is None or rest or first != 1:
        return max(KEY_MIN, upper - (like.upper - like.lower))
    total = year * 12 + month - 1 - months
    return civil_to_days(total // 12, total % 12 + 1, 1) * _day(key_type)


def ahead(partitions: Iterable[Partition], headroom: int, max_key: int | None, key_type: TierKeyType) -> list[Range]:
    """The ranges to create so that ``headroom`` of them stand above the partition of the highest key, each as long as that one."""
    standing = sorted((one for one in partitions if one.state is not PartitionState.DROPPED), key=lambda one: (one.lower, one.upper))
    if max_key is None or not standing or headroom <= 0:
        return []
    holder = next((one for one in standing if one.contains(max_key)), None)
    if holder is None or holder.upper >= key_type.maximum or holder.lower <= key_type.minimum:
        return []
    bands: list[Range] = []
    last = holder
    for _ in range(headroom):
        band = following(last, key_type)
        if band[1] > key_type.maximum:
            break
        bands.append(band)
        last = replace(last, lower=band[0], upper=band[1])
    return _missing(standing, bands, key_type)


def _day(key_type: TierKeyType) -> int:
    return 1 if key_type is TierKeyType.DATE else MICROSECONDS_PER_DAY


def _months(partition: Partition, key_type: TierKeyType) -> int | None:
    """How many whole calendar months (UTC) a partition spans; None if it does not begin and end with one."""
    if not key_type.is_time or partition.lower % _day(key_type) or partition.upper % _day(key_type):
        return None
    first, last = days_to_civil(partition.lower // _day(key_type)), days_to_civil(partition.upper // _day(key_type))
    if first[2] != 1 or last[2] != 1:
        return None
    return (last[0] - first[0]) * 12 + last[1] - first[1]
