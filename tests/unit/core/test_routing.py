"""Where rows go, every flag on every side of the lines."""

from __future__ import annotations

import pytest

from modak.core.cutline import Cutline
from modak.core.routing import Route, route

LINES = Cutline(tier_key_hi=200, snapshot=1, retention_line=100)


@pytest.mark.parametrize(
    ("keep_heap", "mirrored", "cold"),
    [
        (False, False, Route.DELTA),
        (True, False, Route.HEAP_AND_DELTA),
        (False, True, Route.HEAP),
    ],
)
def test_every_side(keep_heap: bool, mirrored: bool, cold: Route) -> None:
    routes = {key: route(key, LINES, keep_heap=keep_heap, mirrored=mirrored) for key in (200, 10**18, 199, 100, 99)}
    assert routes == {200: Route.HEAP, 10**18: Route.HEAP, 199: cold, 100: cold, 99: Route.REFUSED_EXPIRED}


def test_without_a_retention_line_no_key_is_too_old() -> None:
    assert route(-(10**18), Cutline(0)) is Route.DELTA
