"""Which column of the table a column of the stream is."""

from __future__ import annotations

from modak.core.stream_shape import Shape, ShapeColumn, recognise


def shape(**numbers: int) -> Shape:
    return tuple(ShapeColumn(name, 23, -1, number) for name, number in numbers.items())


def described(*names: str) -> list[tuple[str, int, int]]:
    return [(name, 23, -1) for name in names]


def test_a_known_shape() -> None:
    known = shape(a=1, b=2)
    assert recognise(described("a", "b"), [known], shape(a=1, b=2, c=3)) == known


def test_the_present_shape() -> None:
    now = shape(a=1, c=2, d=3)
    assert recognise(described("a", "c", "d"), [shape(a=1, b=2)], now) == now


def test_a_name_between_two_others() -> None:
    assert recognise(described("a", "x"), [shape(a=1, b=2)], shape(a=1, y=2)) == shape(a=1, x=2)


def test_a_column_that_is_gone_again() -> None:
    assert recognise(described("a", "b"), [shape(a=1, b=2, c=3)], shape(a=1)) == shape(a=1, b=2)
    assert "came and went" in str(recognise(described("a", "x"), [shape(a=1)], shape(a=1)))


def test_a_name_that_passed_from_one_column_to_another() -> None:
    assert "passed" in str(recognise(described("a", "b"), [shape(a=1, b=2, c=3)], shape(a=1, b=4, c=3)))
    assert "dropped and added again" in str(recognise(described("a", "b"), [shape(a=1, b=2)], shape(a=1, b=3)))


def test_names_that_were_swapped() -> None:
    known = shape(a=1, b=2)
    assert recognise(described("a", "b"), [known], shape(b=1, a=2)) == known


def test_nothing_known_yet() -> None:
    assert recognise(described("a"), [], shape(a=1)) == shape(a=1)


def test_a_return_to_an_older_shape() -> None:
    history = [shape(a=1, b=2), shape(a=1, b=2, c=3)]
    assert recognise(described("a", "b"), history, shape(a=1, b=2)) == shape(a=1, b=2)
    assert "dropped and added again" in str(recognise(described("a", "b"), history, shape(a=1, b=4)))
    assert "dropped and added again" in str(recognise(described("a", "b"), history, shape(a=1, b=3)))


def test_a_replay_meets_what_it_met_before() -> None:
    before = [shape(a=1, b=2)]
    assert recognise(described("a", "b"), before, shape(a=1, b=3), is_replay=True) == before[0]
