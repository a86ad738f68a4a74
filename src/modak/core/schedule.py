"""Which jobs of a table are due, in their order: what one look at the catalog saw, and what the worker remembers, in; a list out.

Nothing here asks a table itself. Rows age by the data's own newest key, so a heap that nobody wrote to since the last pass has nothing
new to tier: one look at Postgres's counters of all tables replaces a pass over each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from modak.core.table import Name


class Job(StrEnum):
    """What a worker runs; the value is the job's name in modak.problems."""

    RESUME = "resume"
    ADOPT = "adopt"
    TIER = "tier"
    RECLAIM = "reclaim"
    FOLD = "fold"
    RETAIN = "retain"
    MAINTAIN = "maintain"


# So often is a lake maintained that nobody writes to.
QUIET_SECONDS = 86_400.0
# What fails is tried again after so long at the latest.
BACKOFF_SECONDS_MAX = 300.0
# A pass of these has nothing to do until the heap, T or the policy changes.
WATCHED = (Job.TIER, Job.RECLAIM, Job.RETAIN)


@dataclass(frozen=True)
class Limits:
    """``fold_*``: a commit for every few corrections would leave the lake in splinters. ``backlog_*``: more waiting than that holds
    tiering back. ``recheck_seconds``: so often a quiet table is looked at all the same, since counters may be off or reset."""

    fold_rows: int = 10_000
    fold_seconds: float = 300.0
    backlog_rows: int = 1_000_000
    backlog_labels: int = 1_000
    recheck_seconds: float = 3600.0
    maintain_seconds: float | None = None


@dataclass(frozen=True)
class Sight:
    """A table as one look saw it. ``activity`` differs when the heap, T, R or the policy has changed.

    ``has_seam``: rows below T are the lake's; not of a mirror whose heap is complete, which the pump sees to.
    """

    table_id: int
    name: Name
    activity: str
    has_seam: bool = True
    tiers: bool = True
    keeps_heap: bool = False
    retains: bool = False
    staged: int = 0
    corrections: int = 0
    tiered: int = 0
    open_operations: int = 0
    requested: bool = False
    is_published: bool = True
    lake_changed: bool = False
    maintains: bool = True
    maintained_seconds: float | None = None
    maintain_seconds: float | None = None


@dataclass(frozen=True)
class Past:
    """The last pass of a job that ended well. ``settled``: it left nothing that only waits."""

    activity: str
    seconds_ago: float
    settled: bool = True


@dataclass(frozen=True)
class Memory:
    """What the worker knows of a table since it leads. ``fold_seconds``: since the last fold, or since it leads."""

    passes: Mapping[Job, Past] = field(default_factory=dict)
    fold_seconds: float = 0.0


def backpressure(sight: Sight, limits: Limits) -> str | None:
    """Why no further partition is tiered now: each brings corrections and work for readers, and what waits comes first."""
    if sight.corrections > limits.backlog_rows:
        return f"more than {limits.backlog_rows} corrections wait to be folded"
    if sight.staged > limits.backlog_labels:
        return f"more than {limits.backlog_labels} staged loads wait to be adopted"
    return None


def due(sight: Sight, memory: Memory, limits: Limits) -> list[Job]:
    """What a crash left comes first; then staged rows: a fold leaves what is newer than they are, and tiering may wait for them."""
    if not sight.has_seam:
        return [Job.MAINTAIN] if sight.requested or _maintains(sight, limits) else []
    wanted = {
        Job.RESUME: sight.open_operations > 0,
        Job.ADOPT: sight.staged > 0,
        Job.TIER: sight.tiers and backpressure(sight, limits) is None and _changed(Job.TIER, sight, memory, limits),
        Job.RECLAIM: sight.tiered > 0 and not sight.keeps_heap and _changed(Job.RECLAIM, sight, memory, limits),
        Job.FOLD: _folds(sight, memory, limits),
        Job.RETAIN: sight.retains and _changed(Job.RETAIN, sight, memory, limits),
        Job.MAINTAIN: sight.requested or _maintains(sight, limits),
    }
    return [job for job, is_due in wanted.items() if is_due]


def in_turn(sights: Iterable[Sight], served: Mapping[int, float]) -> list[Sight]:
    """Whoever waited longest comes first; ``served`` is when a table had its last turn, on any clock."""
    return sorted(sights, key=lambda sight: (served.get(sight.table_id, float("-inf")), sight.name))


def backoff_seconds(failures: int, cycle_seconds: float, most: float) -> float:
    """Doubles with every failure in a row, up to a limit."""
    return min(most, cycle_seconds * 2.0 ** min(failures, 30))


def _changed(job: Job, sight: Sight, memory: Memory, limits: Limits) -> bool:
    past = memory.passes.get(job)
    return past is None or not past.settled or past.activity != sight.activity or past.seconds_ago >= limits.recheck_seconds


def _folds(sight: Sight, memory: Memory, limits: Limits) -> bool:
    return sight.corrections >= limits.fold_rows or (sight.corrections > 0 and memory.fold_seconds >= limits.fold_seconds)


def _maintains(sight: Sight, limits: Limits) -> bool:
    """A table's own interval goes before the worker's; without either only who asks for it gets it.

    A lake that did not change has nothing to pack, but snapshots that grow old: once a day is enough for those.
    """
    every = sight.maintain_seconds if sight.maintain_seconds is not None else limits.maintain_seconds
    if every is None or not sight.maintains or not sight.is_published:
        return False
    if sight.maintained_seconds is None:
        return True
    return sight.maintained_seconds >= (every if sight.lake_changed else max(every, QUIET_SECONDS))
