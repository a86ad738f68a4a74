"""Who answers a query over mirrored tables: the heap, which is always right, or the lake at a moment that the session accepts."""

from __future__ import annotations

import re

HEAP, LAKE, HYBRID = "heap", "lake", "hybrid"
WAIT_SECONDS = 5.0
_WAIT = re.compile(r"(\d{1,6})\s*(ms|s)?")


def wait_seconds(text: str) -> float:
    """What modak.mirrored_wait says: a number of milliseconds, or one with its unit. Anything else is the default."""
    found = _WAIT.fullmatch(text.strip())
    if found is None:
        return WAIT_SECONDS
    return int(found[1]) * (1.0 if found[2] == "s" else 0.001)
