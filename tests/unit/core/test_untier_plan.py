"""Where T goes when cold rows come back, and which partitions take them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.cutline import Cutline, bring_back
from modak.core.partition import Partition, PartitionState
from modak.core.tier_key import KEY_MIN, TierKeyType
from modak.core.untier import Band, Origin, UntierPlan, merged, plan
from modak.errors import CutlineRegression, Refused, UsageError

BIGINT = TierKeyType.BIGINT
LINE = Cutline(300, 7)


def part(lower: int, upper: int, state: str = "dropped", name: str | None = None) -> Partition:
    return Partition("public", name or f"p{lower}", lower, upper, PartitionState(state))


DROPPED = [part(0, 100), part(100, 200), part(200, 300), part(300, 400, "hot")]


def made(found: UntierPlan) -> list[tuple[int, int, str]]:
    return [(band.lower, band.upper, band.origin.name) for band in found.bands]


def test_everything_comes_back_as_it_was() -> None:
    found = plan(DROPPED, LINE, BIGINT, wanted=None, lowest=10)
    assert found.tier_key_hi == 0
    assert found.bands[0] == Band(0, 100, Origin.KNOWN, ("public", "p0"))
    assert made(found) == [(0, 100, "KNOWN"), (100, 200, "KNOWN"), (200, 300, "KNOWN")]
    assert found.standing == ()
    assert found.spans == ((0, 300),)


@pytest.mark.parametrize(("wanted", "line", "bands"), [(100, 100, 2), (150, 100, 2), (299, 200, 1), (-(10**9), 0, 3)])
def test_a_key_means_the_partition_that_holds_it(wanted: int, line: int, bands: int) -> None:
    found = plan(DROPPED, LINE, BIGINT, wanted=wanted, lowest=10)
    assert (found.tier_key_hi, len(found.bands)) == (line, bands)


def test_nothing_to_bring_back() -> None:
    assert plan([part(300, 400, "hot")], LINE, BIGINT, wanted=None, lowest=None) == UntierPlan(300)
    assert plan(DROPPED, LINE, BIGINT, wanted=300, lowest=10) == UntierPlan(300)


def test_a_hot_key_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="hot already"):
        plan(DROPPED, LINE, BIGINT, wanted=301, lowest=10)


def test_what_still_stands_needs_no_copy() -> None:
    parts = [part(0, 100), part(100, 200, "tiered"), part(200, 300, "tiered"), part(300, 400, "hot")]
    found = plan(parts, LINE, BIGINT, wanted=None, lowest=10)
    assert [one.name for one in found.standing] == ["p200", "p100"]
    assert made(found) == [(0, 100, "KNOWN")]
    assert plan(parts, LINE, BIGINT, wanted=100, lowest=10).bands == ()


def test_holes_and_what_lies_below_are_as_long_as_their_neighbour() -> None:
    found = plan([part(100, 200), part(300, 400, "hot")], LINE, BIGINT, wanted=None, lowest=-150)
    assert made(found) == [
        (-200, -100, "NEIGHBOUR"),
        (-100, 0, "NEIGHBOUR"),
        (0, 100, "NEIGHBOUR"),
        (100, 200, "KNOWN"),
        (200, 300, "NEIGHBOUR"),
    ]
    assert found.tier_key_hi == -200


def test_a_key_in_a_hole_brings_back_no_more_than_it_must() -> None:
    found = plan([part(0, 100), part(290, 300)], LINE, BIGINT, wanted=275, lowest=5)
    assert made(found) == [(270, 280, "NEIGHBOUR"), (280, 290, "NEIGHBOUR"), (290, 300, "KNOWN")]
    found = plan([part(0, 95), part(290, 300)], LINE, BIGINT, wanted=98, lowest=5)
    assert found.tier_key_hi == 95
    assert made(found)[0] == (95, 100, "NEIGHBOUR")


def test_months_are_months() -> None:
    dates = TierKeyType.DATE
    march, april, may = (dates.decode(f"2024-0{month}-01") for month in (3, 4, 5))
    known = [part(april, may), part(march, april)]
    found = plan(known, Cutline(may, 1), dates, wanted=None, lowest=dates.decode("2024-01-31"))
    assert [dates.encode(band.lower) for band in found.bands] == ["2024-01-01", "2024-02-01", "2024-03-01", "2024-04-01"]


def test_a_range_that_would_take_hundreds_gets_one() -> None:
    found = plan([part(290, 300)], LINE, BIGINT, wanted=None, lowest=-(10**6))
    assert made(found) == [(-(10**6), 290, "WHOLE"), (290, 300, "KNOWN")]


def test_without_anything_known_there_is_one() -> None:
    assert made(plan([], LINE, BIGINT, wanted=None, lowest=17)) == [(17, 300, "WHOLE")]
    open_end = [part(KEY_MIN, 100), part(100, 300)]
    assert made(plan(open_end, LINE, BIGINT, wanted=None, lowest=17))[0] == (KEY_MIN, 100, "KNOWN")


def test_what_has_expired_does_not_come_back() -> None:
    line = Cutline(300, 7, retention_line=150)
    found = plan(DROPPED, line, BIGINT, wanted=0, lowest=150)
    assert found.tier_key_hi == 150
    assert made(found) == [(150, 200, "KNOWN"), (200, 300, "KNOWN")]
    with pytest.raises(Refused, match="retention line"):
        plan([part(100, 300, "tiered")], line, BIGINT, wanted=None, lowest=150)


def test_regions_of_one_period_go_together() -> None:
    regions = [part(0, 100, name="eu_0"), part(0, 100, name="us_0"), part(100, 200, name="eu_1"), part(100, 150, name="us_1")]
    found = plan(regions, Cutline(200, 3), BIGINT, wanted=None, lowest=1)
    assert [(band.lower, band.upper, band.name) for band in found.bands] == [(0, 100, None), (100, 200, None)]
    mixed = [part(0, 100, name="eu_0"), part(0, 100, "tiered", "us_0")]
    with pytest.raises(Refused, match="us_0 stand, eu_0 are gone"):
        plan(mixed, Cutline(100, 3), BIGINT, wanted=None, lowest=1)


STATES = st.sampled_from(["dropped", "tiered"])


@given(
    bounds=st.lists(st.integers(-50, 300), min_size=2, max_size=8, unique=True),
    skipped=st.sets(st.integers(0, 6)),
    states=st.lists(STATES, min_size=8, max_size=8),
    wanted=st.none() | st.integers(-80, 300),
    lowest=st.none() | st.integers(-60, 299),
)
def test_bands_and_standing_partitions_cover_exactly_what_comes_back(
    bounds: list[int], skipped: set[int], states: list[str], wanted: int | None, lowest: int | None
) -> None:
    pairs = [pair for number, pair in enumerate(itertools.pairwise(sorted(bounds))) if number not in skipped]
    known = [part(lower, upper, state) for (lower, upper), state in zip(pairs, states, strict=False)]
    found = plan(known, LINE, BIGINT, wanted=wanted, lowest=lowest)
    ranges = sorted([(band.lower, band.upper) for band in found.bands] + [(one.lower, one.upper) for one in found.standing])
    assert all(lower < upper for lower, upper in ranges)
    assert all(one[1] == more[0] for one, more in itertools.pairwise(ranges))
    assert (ranges[0][0], ranges[-1][1]) == (found.tier_key_hi, 300) if ranges else found.tier_key_hi == 300
    bottom = min([one.lower for one in known] + ([] if lowest is None else [lowest]), default=300)
    assert found.tier_key_hi <= (bottom if wanted is None else max(wanted, bottom))
    for one in known:
        assert not one.lower < found.tier_key_hi < one.upper


def test_ranges_are_merged() -> None:
    assert merged([(5, 7), (0, 2), (2, 5), (9, 10)]) == ((0, 7), (9, 10))
    assert merged([]) == ()


def test_the_line_comes_back_with_a_snapshot_that_is_not_older() -> None:
    start = Cutline(200, 7, 50, 9)
    assert bring_back(start, tier_key_hi=100, snapshot=8) == Cutline(100, 8, 50, 9)
    assert bring_back(start, tier_key_hi=100, snapshot=7) == Cutline(100, 7, 50, 9)
    for tier_key_hi, snapshot in [(201, 8), (100, 6), (100, None)]:
        with pytest.raises(CutlineRegression):
            bring_back(start, tier_key_hi=tier_key_hi, snapshot=snapshot)
    with pytest.raises(Refused):
        bring_back(start, tier_key_hi=49, snapshot=8)
