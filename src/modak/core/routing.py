"""Where a row that is being written goes, by its tier key and the cut-line that the writer holds locked."""

from __future__ import annotations

import enum

from modak.core.cutline import Cutline, Side


class Route(enum.StrEnum):
    HEAP = "heap"
    DELTA = "delta"
    HEAP_AND_DELTA = "heap_and_delta"  # keep-heap: both copies are kept true
    REFUSED_EXPIRED = "refused_expired"  # below R: retention would purge the row unseen


def route(key: int, cutline: Cutline, *, keep_heap: bool = False, mirrored: bool = False) -> Route:
    """The place of a row with this key.

    ``mirrored`` means a heap that is complete. A mirrored table that has shed partitions writes like a tiered one: leave
    the flag off for it, and its cut-line at the drop boundary decides.
    """
    side = cutline.side(key)
    if side is Side.EXPIRED:
        return Route.REFUSED_EXPIRED
    if side is Side.HOT or mirrored:
        return Route.HEAP
    return Route.HEAP_AND_DELTA if keep_heap else Route.DELTA
