"""The life cycle of a partition, whole table against an independent list."""

from __future__ import annotations

import itertools

import pytest

from modak.core import partition
from modak.core.partition import ALLOWED, MEANINGS, Partition, PartitionState
from modak.errors import IllegalTransition, ValueRefused

LEGAL = {
    ("hot", "sealing"),
    ("sealing", "tiering"),
    ("sealing", "hot"),
    ("tiering", "tiered"),
    ("tiering", "hot"),
    ("tiered", "dropped"),
    ("tiered", "hot"),
}
P0 = Partition("public", "p0", 0, 100, PartitionState.HOT)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(PartitionState, repeat=2)))
def test_every_pair_of_states(old: PartitionState, new: PartitionState) -> None:
    if (old, new) in LEGAL:
        partition.check(old, new)
        return
    with pytest.raises(IllegalTransition) as caught:
        partition.check(old, new)
    legal = [to for start, to in LEGAL if start == old] or ["final"]
    assert all(to in str(caught.value.hint) for to in legal)
    assert caught.value.facts == {"old": old, "new": new}


def test_the_table_and_the_meanings_know_every_state_and_cannot_be_changed() -> None:
    assert set(ALLOWED) == set(MEANINGS) == set(PartitionState)
    assert all(meaning.set_by and meaning.guarantees for meaning in MEANINGS.values())
    with pytest.raises(TypeError):
        ALLOWED[PartitionState.DROPPED] = frozenset(PartitionState)  # type: ignore[index]


def test_the_diagram_draws_each_legal_change_once() -> None:
    first, *lines = partition.diagram().splitlines()
    assert first == "stateDiagram-v2"
    edges = [tuple(line.strip().split(" --> ")) for line in lines]
    assert len(edges) == len(set(edges))
    assert set(edges) == LEGAL | {("[*]", "hot"), ("dropped", "[*]")}


def test_a_partition_is_half_open() -> None:
    assert [P0.contains(key) for key in (-1, 0, 99, 100)] == [False, True, True, False]


def test_bounds_may_meet_but_not_cross() -> None:
    assert not Partition("public", "far", 7, 7, PartitionState.HOT).contains(7)
    with pytest.raises(ValueRefused):
        Partition("public", "turned", 8, 7, PartitionState.HOT)


def test_moving_keeps_the_rest_and_asks_the_table() -> None:
    assert P0.moved_to(PartitionState.SEALING) == Partition("public", "p0", 0, 100, PartitionState.SEALING)
    with pytest.raises(IllegalTransition):
        P0.moved_to(PartitionState.TIERED)
