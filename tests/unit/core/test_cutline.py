"""T, S and R only ever rise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.cutline import Cutline, advance, retire
from modak.errors import CutlineRegression, Refused

START = Cutline(tier_key_hi=200, snapshot=7, retention_line=50, replicated_lsn=9)


@pytest.mark.parametrize(("tier_key_hi", "snapshot"), [(300, 8), (300, 7), (200, 8)], ids=["flush", "all empty", "fold"])
def test_steps_forward(tier_key_hi: int, snapshot: int) -> None:
    assert advance(START, tier_key_hi=tier_key_hi, snapshot=snapshot) == Cutline(tier_key_hi, snapshot, 50, 9)


@pytest.mark.parametrize(("tier_key_hi", "snapshot"), [(199, 8), (300, 6), (300, None), (199, 7), (200, 6)])
def test_steps_back_are_refused(tier_key_hi: int, snapshot: int | None) -> None:
    with pytest.raises(CutlineRegression, match="none" if snapshot is None else "wanted=[0-9]"):
        advance(START, tier_key_hi=tier_key_hi, snapshot=snapshot)


def test_standing_still_returns_the_same_object() -> None:
    assert advance(START, tier_key_hi=200, snapshot=7) is START
    assert retire(START, 50) is START


def test_the_first_commit_and_an_empty_pass_before_it() -> None:
    fresh = Cutline(0)
    assert advance(fresh, tier_key_hi=100, snapshot=None) == Cutline(100)
    assert advance(fresh, tier_key_hi=100, snapshot=0) == Cutline(100, 0)
    assert advance(fresh, tier_key_hi=0, snapshot=0) == Cutline(0, 0)


optional = st.none() | st.integers(-3, 3)


@given(start=st.tuples(st.integers(-3, 3), optional), end=st.tuples(st.integers(-3, 3), optional))
def test_an_advance_is_accepted_exactly_when_both_parts_are_monotonic(start: tuple[int, int | None], end: tuple[int, int | None]) -> None:
    before, after = (-10 if snapshot is None else snapshot for snapshot in (start[1], end[1]))
    monotonic = start[0] <= end[0] and before <= after
    try:
        result = advance(Cutline(*start), tier_key_hi=end[0], snapshot=end[1])
    except CutlineRegression:
        assert not monotonic
    else:
        assert monotonic
        assert result == Cutline(*end)


def test_the_retention_line_rises_up_to_t_and_no_further() -> None:
    assert retire(START, 200) == Cutline(200, 7, 200, 9)
    assert retire(Cutline(200), -5).retention_line == -5
    with pytest.raises(CutlineRegression):
        retire(START, 49)
    with pytest.raises(Refused):
        retire(START, 201)
    with pytest.raises(Refused):
        Cutline(200, retention_line=201)


@pytest.mark.parametrize(
    ("key", "side"), [(200, "hot"), (201, "hot"), (199, "cold"), (50, "cold"), (49, "expired"), (-(10**18), "expired")]
)
def test_sides(key: int, side: str) -> None:
    assert START.side(key) == side


def test_without_a_retention_line_nothing_is_expired() -> None:
    assert Cutline(200).side(-(10**18)) == "cold"
    assert Cutline(0, retention_line=0).side(-1) == "expired"
