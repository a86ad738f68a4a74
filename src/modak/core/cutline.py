"""The cut-line of a table: T divides heap from lake, S is the lake version that belongs to T, R is where history ends.

Nothing here moves backwards, but for T when cold rows are brought back into the heap, which is an operation of its own. A reader that saw
one cut-line may rely on every later one holding at least as much in the lake, or in the heap from its T on.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from modak.errors import CutlineRegression, Refused


class Side(enum.StrEnum):
    """Where a key lies."""

    HOT = "hot"  # at or above T: the heap
    COLD = "cold"  # below T: the lake at S, corrected by the delta
    EXPIRED = "expired"  # below R: nowhere any more


@dataclass(frozen=True)
class Cutline:
    """``snapshot`` is None until the lake has its first commit, ``retention_line`` until something expired, and
    ``replicated_lsn`` for tables that are not mirrored."""

    tier_key_hi: int
    snapshot: int | None = None
    retention_line: int | None = None
    replicated_lsn: int | None = None

    def __post_init__(self) -> None:
        # Above T the heap is the truth, and retention only ever deletes from the lake.
        if self.retention_line is not None and self.retention_line > self.tier_key_hi:
            raise Refused("the retention line cannot pass the cut-line", line=self.retention_line, tier_key_hi=self.tier_key_hi)

    def side(self, key: int) -> Side:
        if key >= self.tier_key_hi:
            return Side.HOT
        if self.retention_line is not None and key < self.retention_line:
            return Side.EXPIRED
        return Side.COLD


def advance(current: Cutline, *, tier_key_hi: int, snapshot: int | None) -> Cutline:
    """The next cut-line. T alone moves past empty partitions, S alone with a fold; when neither moves, ``current`` returns."""
    if tier_key_hi < current.tier_key_hi:
        raise CutlineRegression("T would move backwards", current=current.tier_key_hi, wanted=tier_key_hi)
    if _is_older(snapshot, current.snapshot):
        raise CutlineRegression("S would move backwards", current=current.snapshot, wanted=snapshot or "none")
    if (tier_key_hi, snapshot) == (current.tier_key_hi, current.snapshot):
        return current
    return replace(current, tier_key_hi=tier_key_hi, snapshot=snapshot)


def bring_back(current: Cutline, *, tier_key_hi: int, snapshot: int | None) -> Cutline:
    """The cut-line after untier: T lower than before, S as new or newer, and R still at or below T."""
    if tier_key_hi > current.tier_key_hi:
        raise CutlineRegression("untier does not raise T", current=current.tier_key_hi, wanted=tier_key_hi)
    if _is_older(snapshot, current.snapshot):
        raise CutlineRegression("S would move backwards", current=current.snapshot, wanted=snapshot or "none")
    return replace(current, tier_key_hi=tier_key_hi, snapshot=snapshot)


def retire(current: Cutline, line: int) -> Cutline:
    """The cut-line after the lake dropped everything below ``line``; at the present line, ``current`` returns."""
    if current.retention_line is not None and line < current.retention_line:
        raise CutlineRegression("R would move backwards", current=current.retention_line, wanted=line)
    return current if line == current.retention_line else replace(current, retention_line=line)


def _is_older(snapshot: int | None, current: int | None) -> bool:
    return current is not None and (snapshot is None or snapshot < current)
