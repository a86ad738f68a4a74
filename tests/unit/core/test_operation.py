"""The journal: each pair of phases, and each thing a restart can find."""

from __future__ import annotations

import itertools

import pytest

from modak.core import operation
from modak.core.operation import ALLOWED, OperationKind, Phase, Resume
from modak.errors import IllegalTransition

LEGAL = {("flushing", "committed"), ("flushing", "abandoned"), ("committed", "advanced"), ("committed", "abandoned")}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(Phase, repeat=2)))
def test_every_pair_of_phases(old: Phase, new: Phase) -> None:
    if (old, new) in LEGAL:
        operation.check(old, new)
        return
    with pytest.raises(IllegalTransition) as caught:
        operation.check(old, new)
    assert all(to in str(caught.value.hint) for start, to in LEGAL if start == old)


RESUMED = {
    (Phase.FLUSHING, False): Resume.ABANDON,
    (Phase.FLUSHING, True): Resume.ADOPT,
    (Phase.COMMITTED, False): Resume.ABANDON,
    (Phase.COMMITTED, True): Resume.ADOPT,
    (Phase.ADVANCED, False): Resume.FINISH,
    (Phase.ADVANCED, True): Resume.FINISH,
    (Phase.ABANDONED, False): Resume.NOTHING,
    (Phase.ABANDONED, True): Resume.REVERT,
}


@pytest.mark.parametrize(("phase", "stamped"), list(itertools.product(Phase, (False, True))))
def test_every_thing_a_restart_can_find(phase: Phase, stamped: bool) -> None:
    assert operation.resume(phase, stamped) is RESUMED[phase, stamped]


@pytest.mark.parametrize("phase", list(Phase))
def test_what_a_restart_decides_the_life_cycle_allows(phase: Phase) -> None:
    """A decision that changes the phase must lead to the end it means, in one or two legal steps."""
    ends = {Resume.ADOPT: Phase.ADVANCED, Resume.ABANDON: Phase.ABANDONED}
    for stamped in (False, True):
        end = ends.get(operation.resume(phase, stamped))
        if end is None:
            assert not ALLOWED[phase], "only a final phase may be left as it is"
        else:
            assert end in ALLOWED[phase] or any(end in ALLOWED[step] for step in ALLOWED[phase])


def test_kinds_are_those_of_the_journal() -> None:
    assert set(OperationKind) == {"tiering", "compaction", "maintenance", "retention", "ingest", "load", "copy", "untier", "mirror"}
