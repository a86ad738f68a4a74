"""What is due: sights and memories in, lists out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modak.core.schedule import WATCHED, Job, Limits, Memory, Past, Sight, backoff_seconds, backpressure, due, in_turn
from modak.core.table import Name

LIMITS = Limits(fold_rows=100, fold_seconds=60, backlog_rows=1000, backlog_labels=10, recheck_seconds=600)
AT_REST = Sight(1, Name("public", "events"), "as it was", tiered=3, retains=True)
SETTLED = Memory({job: Past("as it was", 1) for job in WATCHED})


def jobs(memory: Memory = SETTLED, **changes: object) -> list[Job]:
    return due(replace(AT_REST, **changes), memory, LIMITS)  # type: ignore[arg-type]


def test_a_table_at_rest_has_nothing_to_do() -> None:
    assert jobs() == []


def test_a_table_that_nobody_knows_is_looked_at() -> None:
    assert jobs(Memory()) == [Job.TIER, Job.RECLAIM, Job.RETAIN]
    assert jobs(Memory(), tiers=False, tiered=0, retains=False) == []
    assert jobs(Memory(), keeps_heap=True) == [Job.TIER, Job.RETAIN]


def test_a_change_wakes_what_watches_the_heap() -> None:
    assert jobs(activity="other") == [Job.TIER, Job.RECLAIM, Job.RETAIN]
    assert jobs(activity="other", tiers=False) == [Job.RECLAIM, Job.RETAIN]


def test_what_waits_for_a_reader_is_tried_again() -> None:
    memory = Memory({**SETTLED.passes, Job.RECLAIM: Past("as it was", 1, settled=False)})
    assert jobs(memory) == [Job.RECLAIM]


def test_a_quiet_table_is_looked_at_now_and_then() -> None:
    memory = Memory({**SETTLED.passes, Job.TIER: Past("as it was", 600)})
    assert jobs(memory) == [Job.TIER]


@pytest.mark.parametrize(
    ("corrections", "seconds", "expected"), [(0, 1e9, False), (1, 59, False), (1, 60, True), (99, 0, False), (100, 0, True)]
)
def test_corrections_are_folded_by_number_or_by_age(corrections: int, seconds: float, expected: bool) -> None:
    assert (Job.FOLD in jobs(replace(SETTLED, fold_seconds=seconds), corrections=corrections)) is expected


def test_the_order_of_a_round() -> None:
    found = jobs(Memory(), open_operations=1, staged=1, corrections=100, requested=True)
    assert found == list(Job)


@pytest.mark.parametrize(("changes", "reason"), [({"corrections": 1001}, "1000 corrections"), ({"staged": 11}, "10 staged loads")])
def test_a_backlog_holds_tiering_back_and_nothing_else(changes: dict[str, int], reason: str) -> None:
    sight = replace(AT_REST, activity="other", **changes)  # type: ignore[arg-type]
    assert reason in (backpressure(sight, LIMITS) or "")
    found = due(sight, SETTLED, LIMITS)
    assert Job.TIER not in found
    assert {Job.RECLAIM, Job.RETAIN} < set(found)
    assert {Job.FOLD, Job.ADOPT} & set(found)


def test_no_backlog_no_reason() -> None:
    assert backpressure(replace(AT_REST, corrections=1000, staged=10), LIMITS) is None


def test_maintenance_by_request_by_interval_and_by_policy() -> None:
    hourly = replace(LIMITS, maintain_seconds=3600)
    assert due(AT_REST, SETTLED, hourly) == [Job.MAINTAIN]
    written = replace(AT_REST, lake_changed=True)
    assert due(replace(written, maintained_seconds=3599), SETTLED, hourly) == []
    assert due(replace(written, maintained_seconds=3601), SETTLED, hourly) == [Job.MAINTAIN]
    assert due(replace(written, maintained_seconds=3599, maintain_seconds=60), SETTLED, hourly) == [Job.MAINTAIN]
    assert due(replace(written, maintained_seconds=3601, maintain_seconds=7200), SETTLED, hourly) == []
    # A lake at rest only lets snapshots grow old, and one without a snapshot has nothing.
    assert due(replace(AT_REST, maintained_seconds=3601), SETTLED, hourly) == []
    assert due(replace(AT_REST, maintained_seconds=90_000), SETTLED, hourly) == [Job.MAINTAIN]
    assert due(replace(AT_REST, is_published=False), SETTLED, hourly) == []
    assert due(replace(AT_REST, maintains=False), SETTLED, hourly) == []
    # Asked for, it runs although the schedule is off.
    assert due(replace(AT_REST, requested=True), SETTLED, LIMITS) == [Job.MAINTAIN]


def test_a_mirror_is_only_maintained() -> None:
    """Everything else of a complete heap is the pump's."""
    mirror = replace(AT_REST, has_seam=False, activity="other", corrections=10**9, staged=1, open_operations=1)
    assert due(mirror, SETTLED, LIMITS) == []
    assert due(replace(mirror, requested=True), SETTLED, LIMITS) == [Job.MAINTAIN]


def test_whoever_waited_longest_comes_first() -> None:
    sights = [Sight(number, Name("public", f"t{number}"), "") for number in range(4)]
    assert [sight.table_id for sight in in_turn(sights, {0: 5.0, 1: 3.0, 2: 4.0})] == [3, 1, 2, 0]


def test_backing_off_doubles_up_to_a_limit() -> None:
    assert [backoff_seconds(failures, 10, 300) for failures in (1, 2, 3, 5, 500)] == [20, 40, 80, 300, 300]
