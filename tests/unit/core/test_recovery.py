"""What a lake table is judged to be, seen from the published S, and which column is which after a restore."""

from __future__ import annotations

import pytest

from modak.core.recovery import Finding, LakeCommit, LakeState, judge, match_columns

OURS, KNOWN, STRANGE = LakeCommit(True, False), LakeCommit(True, True), LakeCommit(False, False)


def state(*later: LakeCommit, published: bool = True, snapshot: bool = True, pointer: bool = True, descends: bool = True) -> LakeState:
    return LakeState(published, published and snapshot, pointer, later if descends else None)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (state(), None),
        (state(published=False), None),
        (state(OURS), "ahead"),
        (state(OURS, OURS, published=False), "ahead"),
        (state(KNOWN), None),
        (state(KNOWN, OURS), "ahead"),
        (state(STRANGE), "foreign"),
        # Rolling back would undo what somebody else did, too.
        (state(OURS, STRANGE), "foreign"),
        (state(STRANGE, published=False), None),
        (state(descends=False), "rolled_back"),
        (state(snapshot=False), "behind"),
        (state(snapshot=False, pointer=False), "lost"),
        (state(pointer=False), "pointer"),
        (state(OURS, pointer=False), "ahead"),
    ],
)
def test_a_lake_is_judged_by_what_it_has_after_s(found: LakeState, verdict: str | None) -> None:
    assert judge(found) == verdict


def test_columns_are_matched_by_name() -> None:
    assert match_columns([(1, "id"), (2, "val")], {"id": 1, "val": 7}) == {1: 1, 2: 7}


def test_a_column_that_one_side_alone_has_was_added_or_dropped() -> None:
    assert match_columns([(1, "id"), (2, "new")], {"id": 1}) == {1: 1}
    assert match_columns([(1, "id")], {"id": 1, "gone": 2}) == {1: 1}


def test_a_rename_is_not_guessed() -> None:
    assert match_columns([(1, "id"), (2, "value")], {"id": 1, "val": 2}) is None


def test_a_finding_says_what_is_done_about_it() -> None:
    assert Finding("slot", "gone", "start over", "public.t").as_dict() == {
        "code": "slot",
        "table": "public.t",
        "what": "gone",
        "action": "start over",
    }
