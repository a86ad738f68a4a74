"""Which partitions to create ahead of the data, so that new rows never fall into the DEFAULT partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modak.core.partition import Partition, PartitionState
from modak.core.tier_key import TierKeyType
from modak.errors import Problem, Refused, UsageError

Range = tuple[int, int]


def premake(
    partitions: Iterable[Partition],
    width: int,
    headroom: int,
    max_key: int | None,
    key_type: TierKeyType = TierKeyType.BIGINT,
) -> list[Range]:
    """The ranges to create so that ``headroom`` bands of ``width`` stand above the band of the highest key.

    ``partitions`` are those of one RANGE parent: where a LIST level divides the table, ask once per region. Bands go on
    from the bounds that are there, whatever number those start from.
    """
    if width <= 0 or headroom < 0:
        raise UsageError("premake needs a positive width and a headroom of zero or more", width=width, headroom=headroom)
    standing = sorted((one for one in partitions if one.state is not PartitionState.DROPPED), key=lambda one: (one.lower, one.upper))
    if max_key is None or not standing:
        return []
    start = _end_of_band(standing, width, max_key, key_type)
    bands = [(lower, lower + width) for lower in (start + width * step for step in range(headroom))]
    # Below the lowest partition lies the lake, above the type's end nothing.
    possible = [band for band in bands if band[0] >= standing[0].lower and band[1] <= key_type.maximum]
    return _missing(standing, possible, key_type)


def _end_of_band(standing: Sequence[Partition], width: int, max_key: int, key_type: TierKeyType) -> int:
    holder = next((partition for partition in standing if partition.contains(max_key)), None)
    if holder is None and max_key >= standing[0].lower:
        raise _in_default(standing, max_key, key_type)
    # Below every partition means that the rows went cold; the bands then end where the heap begins.
    anchor = standing[0].lower if holder is None else holder.upper
    return anchor - (anchor - 1 - max_key) // width * width


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


def _in_default(standing: Sequence[Partition], max_key: int, key_type: TierKeyType) -> Refused:
    top = max(partition.upper for partition in standing)
    return Refused(
        "the highest row lies in no partition of its own",
        hint="create a partition for it and move it out of DEFAULT; premake goes on from there",
        key=key_type.encode_bound(max_key),
        partitions_end=key_type.encode_bound(top),
    )


def _shown(bounds: Range, key_type: TierKeyType) -> str:
    return f"[{key_type.encode_bound(bounds[0])}, {key_type.encode_bound(bounds[1])})"
