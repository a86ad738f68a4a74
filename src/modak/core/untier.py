"""Which partitions bring cold rows back: down to where T moves, which ranges need a new one, and which stand already. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from modak.core.cutline import Cutline
from modak.core.partition import Partition, PartitionState
from modak.core.policy import Period, periods
from modak.core.premake import preceding
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType
from modak.errors import Problem, Refused, UsageError

# More partitions than these for one range that nothing is known of would be nobody's wish: then it gets one.
BANDS_MAX = 366


class Origin(enum.StrEnum):
    """Why a partition gets the bounds it gets."""

    KNOWN = "as it was"
    NEIGHBOUR = "as long as its neighbour"
    WHOLE = "one for the whole range"


@dataclass(frozen=True)
class Band:
    """A range that needs a partition; ``name`` is what the one was called that stood there."""

    lower: int
    upper: int
    origin: Origin
    name: tuple[str, str] | None = None


@dataclass(frozen=True)
class UntierPlan:
    """T's new place, the ranges without a partition from there to the old one, and the partitions that stand in between."""

    tier_key_hi: int
    bands: tuple[Band, ...] = ()
    standing: tuple[Partition, ...] = ()

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The bands, with neighbours made one."""
        return merged((band.lower, band.upper) for band in self.bands)


def merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for lower, upper in sorted(ranges):
        if found and lower <= found[-1][1]:
            found[-1] = (found[-1][0], max(upper, found[-1][1]))
        else:
            found.append((lower, upper))
    return tuple(found)


def plan(partitions: Iterable[Partition], line: Cutline, key_type: TierKeyType, *, wanted: int | None, lowest: int | None) -> UntierPlan:
    """``wanted`` is where T should go, None for as far as there are cold rows; ``lowest`` is the lowest key among them, None without any.

    T goes to the lower end of the partition that holds ``wanted``, and never below what is cold or has expired.
    """
    known = list(partitions)
    below = list(periods(part for part in known if part.state in (PartitionState.TIERED, PartitionState.DROPPED)))
    target = _target(below, line, key_type, wanted, lowest)
    if target >= line.tier_key_hi:
        return UntierPlan(line.tier_key_hi)
    floor = KEY_MIN if line.retention_line is None else line.retention_line
    neighbour = next((part for part in known if part.lower == line.tier_key_hi and part.lower < part.upper), None)
    bands: list[Band] = []
    standing: list[Partition] = []
    reached = line.tier_key_hi
    for period in reversed(below):
        if period.upper <= target:
            break
        bands += _fill(period.upper, reached, period.upper, neighbour or period.partitions[0], key_type)
        if _stands(period):
            _refuse_expired(period, floor, key_type)
            standing += period.partitions
        else:
            bands.append(_as_it_was(period, floor))
        neighbour, reached = period.partitions[0], max(period.lower, floor)
    if reached > target:
        closed = max((period.upper for period in below if period.upper <= target), default=floor)
        bands += _fill(max(closed, floor), reached, target, neighbour, key_type)
        reached = min((band.lower for band in bands), default=reached)
    return UntierPlan(reached, tuple(sorted(bands, key=lambda band: band.lower)), tuple(standing))


def _target(below: Sequence[Period], line: Cutline, key_type: TierKeyType, wanted: int | None, lowest: int | None) -> int:
    if wanted is not None and wanted > line.tier_key_hi:
        raise UsageError(
            "this key is hot already: it lies above the cut-line",
            hint=f"rows below {key_type.encode_bound(line.tier_key_hi)} are cold",
            key=key_type.encode_bound(wanted),
        )
    bottom = min([period.lower for period in below] + ([lowest] if lowest is not None else []), default=line.tier_key_hi)
    target = bottom if wanted is None else max(wanted, bottom)
    return target if line.retention_line is None else max(target, line.retention_line)


def _stands(period: Period) -> bool:
    states = {partition.state for partition in period.partitions}
    if len(states) == 1:
        return states == {PartitionState.TIERED}
    gone = [part.name for part in period.partitions if part.state is PartitionState.DROPPED]
    there = [part.name for part in period.partitions if part.state is PartitionState.TIERED]
    problem = Problem("half_dropped", f"{', '.join(there)} stand, {', '.join(gone)} are gone", "let `modak tier` drop the rest first")
    raise Refused("partitions of one period are in different places", [problem], hint="nothing was changed")


def _refuse_expired(period: Period, floor: int, key_type: TierKeyType) -> None:
    if period.lower < floor:
        name, line = period.partitions[0].name, key_type.encode_bound(floor)
        raise Refused(
            f"partition {name} stands across the retention line {line}: a part of it has expired",
            hint="let `modak tier` drop it first, or bring back what lies above it with --from",
            partition=name,
        )


def _as_it_was(period: Period, floor: int) -> Band:
    only = period.partitions[0] if len(period.partitions) == 1 else None
    return Band(max(period.lower, floor), period.upper, Origin.KNOWN, (only.schema, only.name) if only else None)


def _fill(lower: int, upper: int, target: int, like: Partition | None, key_type: TierKeyType) -> list[Band]:
    """Bands from ``upper`` down to the one that holds ``target``, none of them below ``lower``."""
    if lower >= upper:
        return []
    whole = [Band(max(lower, target) if lower == KEY_MIN else lower, upper, Origin.WHOLE)]
    if like is None or like.lower == KEY_MIN or like.upper == KEY_MAX:
        return whole
    found: list[Band] = []
    end = upper
    while end > max(target, lower):
        start = max(preceding(end, like, key_type), lower)
        found.append(Band(start, end, Origin.NEIGHBOUR))
        end = start
        if len(found) > BANDS_MAX:
            return whole
    return found
