"""Partitions made ahead of the data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.partition import Partition, PartitionState
from modak.core.premake import premake
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType
from modak.errors import Refused, UsageError


def part(name: str, lower: int, upper: int, state: PartitionState = PartitionState.HOT) -> Partition:
    return Partition("public", name, lower, upper, state)


P0, P1 = part("p0", 0, 100), part("p1", 100, 200)


def test_the_headroom_stands_above_the_band_of_the_highest_row() -> None:
    assert premake([P1, P0], 100, 2, 150) == [(200, 300), (300, 400)]
    assert premake([P1, P0], 100, 2, 199) == [(200, 300), (300, 400)]
    assert premake([P1, P0], 100, 2, 99) == [(200, 300)]
    assert premake([P1, P0], 100, 0, 150) == []


def test_an_empty_or_undivided_table_is_left_alone() -> None:
    assert premake([P0, P1], 100, 2, None) == []
    assert premake([], 100, 2, 150) == []


@given(offset=st.integers(-500, 500), width=st.integers(1, 50), headroom=st.integers(0, 5), key=st.integers(0, 99))
def test_a_second_run_makes_nothing_and_the_headroom_is_there(offset: int, width: int, headroom: int, key: int) -> None:
    first = part("first", offset, offset + 100)
    made = [part(f"made{lower}", lower, upper) for lower, upper in premake([first], width, headroom, offset + key)]
    assert premake([first, *made], width, headroom, offset + key) == []
    covered = {value for one in (first, *made) for value in range(one.lower, one.upper)}
    assert set(range(offset + key, offset + key + headroom * width + 1)) <= covered
    assert all(one.upper - one.lower == width for one in made)
    assert len(covered) == 100 + len(made) * width, "made ranges overlap nothing"


def test_bands_go_on_from_the_bounds_that_are_there() -> None:
    assert premake([part("odd", 7, 57)], 50, 1, 20) == [(57, 107)]


def test_cover_under_another_name_or_in_pieces_is_accepted() -> None:
    assert premake([P0, P1, part("by_hand", 200, 300)], 100, 2, 150) == [(300, 400)]
    assert premake([P0, P1, part("first_half", 200, 250), part("second_half", 250, 300)], 100, 1, 150) == []
    assert premake([P0, P1, part("large", 200, 1000)], 100, 5, 150) == []
    assert premake([P0, P1, part("ahead", 300, 400)], 100, 2, 150) == [(200, 300)]


def test_an_open_partition_covers_all() -> None:
    assert premake([P0, P1, part("rest", 200, KEY_MAX)], 100, 3, 150) == []
    assert premake([part("all", KEY_MIN, KEY_MAX)], 100, 3, 150) == []


def test_a_partial_overlap_is_reported_with_both_ranges() -> None:
    with pytest.raises(Refused) as caught:
        premake([P0, P1, part("by_hand", 250, 350)], 100, 2, 150)
    first, second = map(str, caught.value.problems)
    assert "[200, 300)" in first
    assert "by_hand [250, 350)" in first
    assert "[300, 400)" in second


def test_a_hole_between_two_pieces_is_a_partial_overlap() -> None:
    with pytest.raises(Refused, match=r"left .* and right"):
        premake([P0, P1, part("left", 200, 220), part("right", 240, 300)], 100, 1, 150)


@pytest.mark.parametrize("max_key", [200, 100_000, 450])
def test_a_row_in_default_is_reported(max_key: int) -> None:
    with pytest.raises(Refused, match="lies in no partition"):
        premake([P0, P1, part("far", 500, 600)] if max_key == 450 else [P0, P1], 100, 2, max_key)


def test_ranges_are_shown_in_the_words_of_the_key() -> None:
    with pytest.raises(Refused, match=r"\[1970-01-31, 1970-03-02\) is covered in part by odd \[1970-02-10, 1970-02-20\)"):
        premake([part("first", 0, 30), part("odd", 40, 50)], 30, 1, 5, TierKeyType.DATE)


def test_rows_that_all_went_cold_do_not_bring_old_ranges_back() -> None:
    dropped = part("p0", 0, 100, PartitionState.DROPPED)
    assert premake([dropped, P1], 100, 3, 50) == [(200, 300), (300, 400)]
    assert premake([part("p5", 500, 600)], 100, 2, 50) == []
    with pytest.raises(Refused, match="in part by short"):
        premake([part("short", 500, 550)], 100, 1, 450)


def test_nothing_is_made_past_the_end_of_the_type() -> None:
    top = part("top", 32_600, 32_700)
    assert premake([top], 100, 3, 32_650, TierKeyType.SMALLINT) == []
    assert premake([top], 50, 3, 32_650, TierKeyType.SMALLINT) == [(32_700, 32_750)]
    assert premake([top], 67, 3, 32_650, TierKeyType.SMALLINT) == [(32_700, 32_767)]


@pytest.mark.parametrize(("width", "headroom"), [(0, 1), (-5, 1), (10, -1)])
def test_senseless_numbers_are_refused(width: int, headroom: int) -> None:
    with pytest.raises(UsageError):
        premake([P0], width, headroom, 5)
