"""What is due now: lists in, lists out. Time is the data's own highest key, never a clock, so a pause moves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from modak.core.bands import band_start
from modak.core.cutline import Cutline
from modak.core.lag import Lag
from modak.core.partition import Partition, PartitionState
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType
from modak.errors import Problem, Refused


@dataclass(frozen=True)
class Period:
    """Partitions that T can only pass together, because their ranges overlap (one per region, as a rule)."""

    lower: int
    upper: int
    partitions: tuple[Partition, ...]


def periods(partitions: Iterable[Partition]) -> Iterator[Period]:
    """Group partitions by overlap, in the order of their bounds; partitions without a key in them are left out."""
    group: list[Partition] = []
    upper = KEY_MIN
    for partition in sorted(partitions, key=_bound_order):
        if partition.lower == partition.upper:
            continue
        if group and partition.lower >= upper:
            yield Period(group[0].lower, upper, tuple(group))
            group = []
        group.append(partition)
        upper = max(upper, partition.upper)
    if group:
        yield Period(group[0].lower, upper, tuple(group))


def partitions_due(
    partitions: Iterable[Partition],
    cutline: Cutline,
    max_key: int | None,
    lag: Lag,
    key_type: TierKeyType,
    upto: int | None = None,
) -> list[Partition]:
    """The partitions to tier now, in the order of their bounds and leaving none out from T on.

    A range without a partition is no obstacle: no row can be in it, and the publishing transaction sees to it that none comes.
    ``upto`` is a person's word and replaces the lag: then an empty table is no reason to wait.
    """
    line = upto if upto is not None else _line_behind(max_key, lag, key_type)
    if line is None:
        return []
    due: list[Partition] = []
    reached = cutline.tier_key_hi
    for period in periods(_above(partitions, reached)):
        if period.lower < reached or period.upper > line or period.upper == KEY_MAX:
            break
        due.extend(period.partitions)
        reached = period.upper
    return due


def check_contiguous(
    selected: Iterable[Partition],
    cutline: Cutline,
    partitions: Iterable[Partition] = (),
    key_type: TierKeyType = TierKeyType.BIGINT,
) -> None:
    """Refuse a selection that T could not pass whole: with a hole in it, or leaving out a partition that it would cross.

    ``partitions`` are all of the table; without them only the selection itself is looked at, and every hole may hide one.
    """
    chosen, known = frozenset(selected), list(partitions)
    if not chosen:
        return
    problems: list[Problem] = []
    reached = cutline.tier_key_hi
    for period in periods(chosen):
        problems += [found for found in _breaks(reached, period, key_type) if not (known and found.code == "hole")]
        reached = period.upper
    left_out = sorted(frozenset(_above(known, cutline.tier_key_hi)) - chosen, key=_bound_order)
    problems += [_crossed(partition, reached, key_type) for partition in left_out if partition.lower < reached]
    if problems:
        raise Refused("the partitions do not follow the cut-line one after the other", problems)


def reclaimable(
    partitions: Iterable[Partition],
    cutline: Cutline,
    *,
    oldest_pinned: int | None = None,
    max_key: int | None = None,
    lag: Lag | None = None,
    key_type: TierKeyType = TierKeyType.BIGINT,
    keep_heap: bool = False,
) -> list[Partition]:
    """The tiered partitions whose heap copy no pinned reader needs and the reclaim lag, if there is one, lets go."""
    lag_line = cutline.tier_key_hi if lag is None else _line_behind(max_key, lag, key_type)
    if keep_heap or lag_line is None:
        return []
    line = min(cutline.tier_key_hi, lag_line, cutline.tier_key_hi if oldest_pinned is None else oldest_pinned)
    tiered = (partition for partition in partitions if partition.state is PartitionState.TIERED)
    return sorted((partition for partition in tiered if partition.upper <= line), key=_bound_order)


def retention_line(
    cutline: Cutline,
    newest: int | None,
    lag: Lag,
    *,
    layout: str = "none",
    lowest_staged: int | None = None,
    key_type: TierKeyType = TierKeyType.BIGINT,
    partitions: Iterable[Partition] = (),
) -> int | None:
    """Where R may stand now: the lag behind the cut-line, where a band of the lake's layout begins, at or above where R stands.

    The lag counts from T and not from the newest row, so that one row dated far ahead cannot expire the whole lake; and not from a T
    that somebody sent ahead over empty partitions (``--upto``), but from the end of the partition with the newest row. A load that
    is staged holds R below its lowest key, since its rows would be refused otherwise. Nothing has expired where no row ever was.
    """
    if newest is None:
        return cutline.retention_line
    line = lag.before(min(cutline.tier_key_hi, _reached(newest, partitions)), key_type)
    if lowest_staged is not None:
        line = min(line, lowest_staged)
    line = band_start(line, layout, key_type)
    if line <= key_type.minimum:
        return cutline.retention_line
    return line if cutline.retention_line is None else max(line, cutline.retention_line)


def _reached(newest: int, partitions: Iterable[Partition]) -> int:
    """Where time has come to by the data: the end of the newest row's partition."""
    return max([newest + 1, *(partition.upper for partition in partitions if partition.lower <= newest)])


def _bound_order(partition: Partition) -> tuple[int, int, str, str]:
    return partition.lower, partition.upper, partition.schema, partition.name


def _above(partitions: Iterable[Partition], line: int) -> list[Partition]:
    """Those that still hold keys above the line; one whose bounds were clamped together holds none."""
    return [partition for partition in partitions if partition.upper > line and partition.lower < partition.upper]


def _line_behind(max_key: int | None, lag: Lag, key_type: TierKeyType) -> int | None:
    return None if max_key is None else lag.before(max_key, key_type)


def _breaks(reached: int, period: Period, key_type: TierKeyType) -> Iterator[Problem]:
    name = period.partitions[0].name
    first, second = key_type.encode_bound(reached), key_type.encode_bound(period.lower)
    if period.lower > reached:
        yield Problem("hole", f"nothing covers [{first}, {second}) below {name}", "select or create the partitions in between")
    if period.lower < reached:
        yield Problem("below_cutline", f"{name} starts at {second}, below {first}", "select partitions from the cut-line on")
    if period.upper == KEY_MAX:
        yield Problem("unbounded", f"{name} has no end", "T cannot pass an open partition: leave it out")


def _crossed(partition: Partition, line: int, key_type: TierKeyType) -> Problem:
    bounds = f"[{key_type.encode_bound(partition.lower)}, {key_type.encode_bound(partition.upper)})"
    message = f"{partition.name} {bounds} is left out but starts below {key_type.encode_bound(line)}"
    return Problem("left_out", message, "tier it in the same pass")
