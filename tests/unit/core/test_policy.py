"""What is due: the scenarios by number, then properties over random layouts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.cutline import Cutline
from modak.core.lag import Lag
from modak.core.partition import Partition, PartitionState
from modak.core.policy import check_contiguous, partitions_due, periods, reclaimable, retention_line
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType
from modak.errors import Refused

BIGINT = TierKeyType.BIGINT


def part(name: str, lower: int, upper: int, state: PartitionState = PartitionState.HOT) -> Partition:
    return Partition("public", name, lower, upper, state)


P0, P1, P2 = part("p0", 0, 100), part("p1", 100, 200), part("p2", 200, 300)
E = [P2, P0, P1]


def due(partitions: list[Partition], cutline: Cutline, max_key: int | None, lag: int, upto: int | None = None) -> list[Partition]:
    return partitions_due(partitions, cutline, max_key, Lag(number=lag), BIGINT, upto)


@pytest.mark.parametrize(
    ("max_key", "lag", "expected"),
    [(250, 100, [P0]), (250, 0, [P0, P1]), (None, 0, []), (300, 0, [P0, P1, P2]), (299, 0, [P0, P1]), (200, 100, [P0]), (199, 100, [])],
)
def test_the_lag_counts_from_the_highest_key(max_key: int | None, lag: int, expected: list[Partition]) -> None:
    assert due(E, Cutline(0), max_key, lag) == expected


def test_partitions_below_t_are_ignored_whatever_their_state() -> None:
    assert due([replace(P0, state=PartitionState.TIERED), P1, P2], Cutline(100), 250, 0) == [P1]
    assert due(E, Cutline(300), 10**6, 0) == []


def test_bound_order_not_name_order() -> None:
    newer, older = part("a_newer", 100, 200), part("b_older", 0, 100)
    assert due([newer, older], Cutline(0), 1000, 0) == [older, newer]


def test_a_range_without_a_partition_is_no_obstacle() -> None:
    assert due([P0, P2], Cutline(0), 10**6, 0) == [P0, P2]
    assert due([P1, P2], Cutline(0), 10**6, 0) == [P1, P2]
    check_contiguous([P0, P2], Cutline(0), [P0, P2])
    with pytest.raises(Refused, match="p1"):
        check_contiguous([P0, P2], Cutline(0), [P0, P1, P2])


def test_a_partition_across_t_stops_the_selection() -> None:
    assert due([part("late", 0, 300), P1], Cutline(100), 10**6, 0) == []


def test_upto_replaces_the_lag() -> None:
    assert due(E, Cutline(0), None, 10**6, upto=200) == [P0, P1]
    assert due(E, Cutline(0), 250, 0, upto=199) == [P0]


def test_an_open_end_never_gets_due_and_an_open_start_may() -> None:
    first, last = part("first", KEY_MIN, 0), part("last", 300, KEY_MAX)
    assert due([last, first, *E], Cutline(KEY_MIN), KEY_MAX, 0) == [first, P0, P1, P2]
    assert due([last], Cutline(300), KEY_MAX, 0, upto=KEY_MAX) == []
    assert due([P0, part("far", KEY_MAX, KEY_MAX)], Cutline(0), 500, 0) == [P0]


def test_regions_of_a_period_go_together() -> None:
    regions = [part(f"{region}_{lower}", lower, lower + 100) for region in ("us", "eu") for lower in (0, 100)]
    assert [one.name for one in due(regions, Cutline(0), 150, 0)] == ["eu_0", "us_0"]
    assert len(due(regions, Cutline(0), 250, 0)) == 4


def test_unequal_regions_wait_for_the_longest() -> None:
    months, quarter = [part("eu_0", 0, 100), part("eu_1", 100, 200), part("eu_2", 200, 300)], part("us_0", 0, 300)
    assert due([*months, quarter], Cutline(0), 299, 0) == []
    assert len(due([*months, quarter], Cutline(0), 300, 0)) == 4


def test_calendar_lags() -> None:
    key_type = TierKeyType.TIMESTAMPTZ
    bounds = [key_type.decode(f"2026-{month:02}-01 00:00:00+00") for month in (1, 2, 3, 4)]
    months = [part(f"m{index}", *pair) for index, pair in enumerate(itertools.pairwise(bounds))]
    lag = Lag.parse("1 mon", key_type)
    for moment, count in (("2026-03-31 23:59:59+00", 1), ("2026-04-01 00:00:00+00", 2), ("2026-02-28 00:00:00+00", 0)):
        assert partitions_due(months, Cutline(bounds[0]), key_type.decode(moment), lag, key_type) == months[:count]


layouts = st.lists(
    st.builds(lambda number, lower, width: part(f"p{number}", lower, lower + width), st.integers(0, 99), *[st.integers(0, 12)] * 2),
    max_size=8,
    unique_by=lambda one: one.name,
)


@given(partitions=layouts, t=st.integers(0, 12), line=st.integers(0, 26))
def test_t_can_pass_whatever_is_due(partitions: list[Partition], t: int, line: int) -> None:
    selected = due(partitions, Cutline(t), line, 0)
    check_contiguous(selected, Cutline(t), partitions)
    new_t = max((one.upper for one in selected), default=t)
    assert new_t <= max(line, t)
    assert selected == sorted(selected, key=lambda one: (one.lower, one.upper, one.name))
    if selected:
        assert not [one for one in partitions if one.lower < new_t < one.upper], "nothing may stand across the new T"
        moved = {key for one in selected for key in range(one.lower, one.upper)}
        stays = {key for one in partitions if one not in selected for key in range(one.lower, one.upper)}
        assert not stays & set(range(t, new_t)), "every key that T passes is moved"
        assert moved <= set(range(t, new_t))


@given(partitions=layouts, t=st.integers(0, 12), line=st.integers(0, 26))
def test_nothing_due_is_left_behind(partitions: list[Partition], t: int, line: int) -> None:
    """The furthest legal T, found by trying every key, is the one that the policy reaches."""

    def legal(end: int) -> bool:
        above = [one for one in partitions if one.upper > t and one.lower < one.upper]
        straddled = any(one.lower < edge < one.upper for one in above for edge in (t, end))
        return not straddled and any(one.upper == end for one in above)

    furthest = max((end for end in range(t, line + 1) if legal(end)), default=t)
    selected = due(partitions, Cutline(t), line, 0)
    assert max((one.upper for one in selected), default=t) == furthest


@given(partitions=layouts)
def test_periods_divide_the_partitions(partitions: list[Partition]) -> None:
    found = list(periods(partitions))
    assert sorted(one.name for period in found for one in period.partitions) == sorted(
        one.name for one in partitions if one.lower < one.upper
    )
    assert all(before.upper <= after.lower for before, after in itertools.pairwise(found))


@pytest.mark.parametrize(
    ("selected", "t", "code", "words"),
    [
        ([P1], 0, "hole", "[0, 100)"),
        ([P0, P2], 0, "hole", "[100, 200)"),
        ([P0], 100, "below_cutline", "p0"),
        ([part("last", 0, KEY_MAX)], 0, "unbounded", "last"),
    ],
)
def test_a_selection_that_does_not_follow_t_is_refused(selected: list[Partition], t: int, code: str, words: str) -> None:
    with pytest.raises(Refused) as caught:
        check_contiguous(selected, Cutline(t))
    assert [problem.code for problem in caught.value.problems] == [code]
    assert words in str(caught.value)


def test_a_region_left_out_is_refused() -> None:
    eu, us = part("eu", 0, 100), part("us", 0, 100)
    with pytest.raises(Refused, match=r"us \[0, 100\) is left out"):
        check_contiguous([eu], Cutline(0), [eu, us])
    check_contiguous([eu, us], Cutline(0), [eu, us, P1])
    check_contiguous([], Cutline(50), [P0])
    check_contiguous([P0], Cutline(0), [P0, part("without_keys", 50, 50)])


def test_a_hole_in_time_is_named_in_dates() -> None:
    with pytest.raises(Refused, match=r"\[1970-01-01, 1970-01-11\)"):
        check_contiguous([part("p", 10, 20)], Cutline(0), key_type=TierKeyType.DATE)


TIERED = [replace(P0, state=PartitionState.TIERED), replace(P1, state=PartitionState.TIERED)]


def test_reclaim_waits_for_pins_and_for_its_own_lag() -> None:
    line = Cutline(200)
    assert reclaimable([*reversed(TIERED), P2], line) == TIERED
    assert reclaimable(TIERED, line, oldest_pinned=0) == []
    assert reclaimable(TIERED, line, oldest_pinned=100) == TIERED[:1]
    assert reclaimable(TIERED, line, oldest_pinned=10**6) == TIERED
    assert reclaimable(TIERED, line, max_key=250, lag=Lag(number=100)) == TIERED[:1]
    assert reclaimable(TIERED, line, max_key=None, lag=Lag(number=0)) == []
    assert reclaimable(TIERED, line, keep_heap=True) == []


def test_reclaim_touches_only_tiered_partitions_below_t() -> None:
    others = [replace(P0, state=state) for state in PartitionState if state is not PartitionState.TIERED]
    assert reclaimable(others, Cutline(200)) == []
    assert reclaimable(TIERED, Cutline(100)) == TIERED[:1]


@pytest.mark.parametrize(
    ("t", "max_key", "lag", "staged", "expected"),
    [
        (200, 220, 100, None, 100),
        (200, 10**9, 100, None, 100),
        (200, 220, 50, None, 100),
        (200, 220, 100, 99, 0),
        (200, 220, 100, 150, 100),
        (900, 220, 100, None, 100),
        (200, 220, 250, None, -100),
        (200, None, 100, None, None),
    ],
)
def test_the_retention_line_lags_behind_t_on_a_band(
    t: int, max_key: int | None, lag: int, staged: int | None, expected: int | None
) -> None:
    assert retention_line(Cutline(t), max_key, Lag(number=lag), layout="100", lowest_staged=staged) == expected


def test_the_retention_line_stays_where_it_is_rather_than_fall() -> None:
    assert retention_line(Cutline(200, retention_line=100), 220, Lag(number=199), layout="100") == 100
    assert retention_line(Cutline(200, retention_line=100), None, Lag(number=0), layout="100") == 100
    assert retention_line(Cutline(200, retention_line=100), 220, Lag(number=50), layout="100", lowest_staged=30) == 100


def test_a_line_below_every_key_is_none() -> None:
    assert retention_line(Cutline(KEY_MIN), 0, Lag(number=5), layout="100") is None
    assert retention_line(Cutline(0, retention_line=-7), 0, Lag(number=KEY_MAX), layout="100") == -7
    assert retention_line(Cutline(0), 0, Lag(months=12 * 9_999), key_type=TierKeyType.DATE) is None


def test_a_cut_line_sent_ahead_over_empty_partitions_expires_nothing_more() -> None:
    parts = [part("p0", 0, 100), part("p1", 100, 200), part("ahead", 200, 1000)]
    full = retention_line(Cutline(200), 150, Lag(number=100), layout="100", partitions=parts)
    assert full == 100
    assert retention_line(Cutline(1000), 150, Lag(number=100), layout="100", partitions=parts) == full
    # The newest row's partition counts whole: T stands at its end when everything is cold.
    assert retention_line(Cutline(200), 101, Lag(number=100), layout="100", partitions=parts) == full
    assert retention_line(Cutline(200), 101, Lag(number=100), layout="100") == 0
    assert retention_line(Cutline(1000), 201, Lag(number=100), layout="100", partitions=parts) == 900


@pytest.mark.parametrize(
    ("layout", "expected"), [("none", "2026-02-28"), ("day", "2026-02-28"), ("month", "2026-02-01"), ("year", "2026-01-01")]
)
def test_a_calendar_retention_line_begins_a_band(layout: str, expected: str) -> None:
    key_type = TierKeyType.DATE
    line = retention_line(Cutline(key_type.decode("2026-03-31")), KEY_MAX, Lag(months=1), layout=layout, key_type=key_type)
    assert line == key_type.decode(expected)


@given(
    t=st.integers(-300, 300), room=st.none() | st.integers(0, 300), newest=st.integers(-300, 300), lag=st.integers(0, 300),
    width=st.sampled_from(["none", "1", "7", "100"]), staged=st.none() | st.integers(-300, 300),
    borders=st.lists(st.integers(-300, 300), unique=True).map(sorted),
)  # fmt: skip
def test_the_retention_line_keeps_its_promises(
    t: int, room: int | None, newest: int, lag: int, width: str, staged: int | None, borders: list[int]
) -> None:
    current = Cutline(t, retention_line=None if room is None else t - room)
    parts = [part(f"p{lower}", lower, upper) for lower, upper in itertools.pairwise(borders)]
    line = retention_line(current, newest, Lag(number=lag), layout=width, lowest_staged=staged, partitions=parts)
    assert line is not None
    assert line <= t
    if line == current.retention_line:
        return
    assert current.retention_line is None or line > current.retention_line
    end = next((one.upper for one in parts if one.contains(newest)), newest + 1)
    assert line <= min(t, end) - lag
    assert staged is None or line <= staged
    assert width == "none" or line % int(width) == 0
