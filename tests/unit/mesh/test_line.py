"""The line before the counter: first come, first served, and nobody who gave up holds it."""

from __future__ import annotations

import threading
import time

from modak.mesh.line import Line


def never() -> bool:
    return False


def wait_until(condition: object) -> None:
    end = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.005)


class Customer:
    def __init__(self, line: Line, table: str = "t") -> None:
        self.place: threading.Event | None = None
        self.is_in = threading.Event()
        self.gave_up = threading.Event()
        self._thread = threading.Thread(target=self._stand, args=(line, table), daemon=True)
        self._thread.start()

    def _stand(self, line: Line, table: str) -> None:
        self.place = line.enter(table, self.gave_up.is_set)
        self.is_in.set()


def length(line: Line, table: str = "t") -> int:
    return len(line._waiting.get(table, []))


def queue(line: Line, count: int) -> list[Customer]:
    """One after the other, so that their order is known."""
    found: list[Customer] = []
    for number in range(count):
        found.append(Customer(line))
        wait_until(lambda wanted=number + 1: length(line) == wanted)
    return found


def inside(customers: list[Customer]) -> list[int]:
    return [number for number, one in enumerate(customers) if one.is_in.is_set()]


def test_two_are_let_in_and_the_others_follow_in_their_order() -> None:
    line = Line()
    customers = queue(line, 5)
    wait_until(lambda: inside(customers) == [0, 1])
    for leaving, expected in ((1, [0, 1, 2]), (0, [0, 1, 2, 3]), (3, [0, 1, 2, 3, 4])):
        place = customers[leaving].place
        assert place is not None
        line.leave("t", place)
        wait_until(lambda expected=expected: inside(customers) == expected)


def test_who_gives_up_is_out_of_the_line() -> None:
    line = Line()
    customers = queue(line, 4)
    customers[2].gave_up.set()
    wait_until(lambda: customers[2].is_in.is_set())
    assert customers[2].place is None
    assert customers[0].place is not None
    line.leave("t", customers[0].place)
    wait_until(lambda: customers[3].place is not None)


def test_tables_have_lines_of_their_own_and_an_empty_one_is_forgotten() -> None:
    line = Line()
    held = [line.enter("t", never) for _ in range(2)]
    other = line.enter("u", never)
    assert None not in (*held, other)
    for place in held:
        assert place is not None
        line.leave("t", place)
    assert length(line) == 0
    assert "t" not in line._waiting
