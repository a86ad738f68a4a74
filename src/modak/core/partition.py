"""A heap partition and its life cycle. The table ``ALLOWED`` is the truth; the catalog's check and the diagram follow it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from modak.errors import IllegalTransition, ValueRefused


class PartitionState(enum.StrEnum):
    HOT = "hot"
    SEALING = "sealing"
    TIERING = "tiering"
    TIERED = "tiered"
    DROPPED = "dropped"


ALLOWED: Mapping[PartitionState, frozenset[PartitionState]] = MappingProxyType(
    {
        PartitionState.HOT: frozenset({PartitionState.SEALING}),
        # Abandoning leads back to hot as long as readers still take the rows from the heap.
        PartitionState.SEALING: frozenset({PartitionState.TIERING, PartitionState.HOT}),
        PartitionState.TIERING: frozenset({PartitionState.TIERED, PartitionState.HOT}),
        # Untier brings a copy that still stands back as it is.
        PartitionState.TIERED: frozenset({PartitionState.DROPPED, PartitionState.HOT}),
        PartitionState.DROPPED: frozenset(),
    }
)


@dataclass(frozen=True)
class Meaning:
    """Who puts a partition into a state, and what everyone may rely on while it is there."""

    set_by: str
    guarantees: str


MEANINGS: Mapping[PartitionState, Meaning] = MappingProxyType(
    {
        PartitionState.HOT: Meaning(
            "register or the cycle that first sees the partition; tiering when it gives up; untier, when it moves T below it",
            "the heap holds the only copy, and no trigger of ours stands on the partition",
        ),
        PartitionState.SEALING: Meaning(
            "tiering, once the policy finds the partition due",
            "the capture trigger stands or is about to; reads and writes go to the heap as before",
        ),
        PartitionState.TIERING: Meaning(
            "tiering, when the capture trigger stands and earlier writers are gone",
            "every write from now on is captured; the lake may hold a copy that no reader sees",
        ),
        PartitionState.TIERED: Meaning(
            "tiering, in the transaction that moves T above the partition",
            "the lake at S with the delta is the truth; the heap copy serves only readers of an older cut-line",
        ),
        PartitionState.DROPPED: Meaning(
            "reclaim, after pins and running transactions let go of the older cut-line",
            "the heap copy is gone, and the catalog row remains as history",
        ),
    }
)


def check(old: PartitionState, new: PartitionState) -> None:
    """Refuse a change of state that ``ALLOWED`` does not list; staying in a state is no change and refused too."""
    if new not in ALLOWED[old]:
        legal = ", ".join(state for state in PartitionState if state in ALLOWED[old]) or "nothing: it is final"
        raise IllegalTransition("illegal change of a partition's state", hint=f"from {old} to: {legal}", old=old, new=new)


def diagram() -> str:
    """The life cycle as a Mermaid state diagram."""
    edges = [f"    {old} --> {new}" for old in PartitionState for new in PartitionState if new in ALLOWED[old]]
    ends = [f"    {state} --> [*]" for state in PartitionState if not ALLOWED[state]]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {PartitionState.HOT}", *edges, *ends])


@dataclass(frozen=True)
class Partition:
    """A partition of a heap with its half-open range of canonical tier keys, ``[lower, upper)``."""

    schema: str
    name: str
    lower: int
    upper: int
    state: PartitionState
    rows: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        # An empty range is real: both bounds of a partition past int64 are clamped to KEY_MAX.
        if self.lower > self.upper:
            raise ValueRefused("a partition ends below its start", partition=self.name, lower=self.lower, upper=self.upper)

    def contains(self, key: int) -> bool:
        return self.lower <= key < self.upper

    def moved_to(self, state: PartitionState) -> Partition:
        """The same partition in its next state."""
        check(self.state, state)
        return replace(self, state=state)
