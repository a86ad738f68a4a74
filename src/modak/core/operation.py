"""The journal of operations that write to the lake, and what a restart does with one it finds.

The lake and the catalog commit apart from each other. The stamp in a lake snapshot (the operation's id) says whether the first
of the two happened; the phase in ``modak.op_log`` says how far the operation knew it had come.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from modak.errors import IllegalTransition


class OperationKind(enum.StrEnum):
    TIERING = "tiering"
    COMPACTION = "compaction"
    MAINTENANCE = "maintenance"
    RETENTION = "retention"
    INGEST = "ingest"
    LOAD = "load"
    COPY = "copy"
    UNTIER = "untier"
    MIRROR = "mirror"


class Phase(enum.StrEnum):
    """How far an operation came, by its own word."""

    FLUSHING = "flushing"  # journaled before the first file is written
    COMMITTED = "committed"  # the lake took the commit; no reader sees it yet
    ADVANCED = "advanced"  # published, in the same transaction as this entry
    ABANDONED = "abandoned"  # given up, and never published


ALLOWED: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        Phase.FLUSHING: frozenset({Phase.COMMITTED, Phase.ABANDONED}),
        # A commit may still be given up: a pin can forbid its publication.
        Phase.COMMITTED: frozenset({Phase.ADVANCED, Phase.ABANDONED}),
        Phase.ADVANCED: frozenset(),
        Phase.ABANDONED: frozenset(),
    }
)


class Resume(enum.Enum):
    """What a restart does with an operation."""

    ADOPT = "adopt"  # the lake has the commit: publish it, write nothing again
    ABANDON = "abandon"  # nothing to publish: give up, undo the preparations, let the next cycle start afresh
    FINISH = "finish"  # published already: only the cleaning up may be missing
    REVERT = "revert"  # given up, yet its commit reached the lake: take it out before anything is built on it
    NOTHING = "nothing"  # given up and gone


_RESUME: Mapping[tuple[Phase, bool], Resume] = MappingProxyType(
    {
        (Phase.FLUSHING, False): Resume.ABANDON,
        (Phase.FLUSHING, True): Resume.ADOPT,
        # The catalog still points at the older S, so an operation whose commit is missing loses nothing by starting again.
        (Phase.COMMITTED, False): Resume.ABANDON,
        (Phase.COMMITTED, True): Resume.ADOPT,
        # Expiry removes old snapshots with their stamps, and an all-empty pass never had one.
        (Phase.ADVANCED, False): Resume.FINISH,
        (Phase.ADVANCED, True): Resume.FINISH,
        (Phase.ABANDONED, False): Resume.NOTHING,
        # A job that outlived its driver committed late. Its rows are in the heap too, so publishing would double them.
        (Phase.ABANDONED, True): Resume.REVERT,
    }
)


def check(old: Phase, new: Phase) -> None:
    """Refuse a change of phase that ``ALLOWED`` does not list."""
    if new not in ALLOWED[old]:
        legal = ", ".join(phase for phase in Phase if phase in ALLOWED[old]) or "nothing: it is final"
        raise IllegalTransition("illegal change of an operation's phase", hint=f"from {old} to: {legal}", old=old, new=new)


def resume(phase: Phase, lake_has_stamp: bool) -> Resume:
    """Decide from the journal and the lake alone, so that any worker decides the same."""
    return _RESUME[phase, lake_has_stamp]
