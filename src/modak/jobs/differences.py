"""Rows in which two copies of a table differ, as a comparison finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

DIFFERENCES_MAX = 100


@dataclass(frozen=True)
class Difference:
    """One row that is not the same: ``heap`` or ``lake`` is None where the row is missing. ``version``: of a correction without its row."""

    key: str
    heap: str | None
    lake: str | None
    partition: str
    version: int | None = None


@dataclass(frozen=True)
class Compared:
    rows: int
    differences: tuple[Difference, ...]
    truncated: bool = False


class Found:
    """Differences as they are found: the first are kept for the report, and all go to whoever mends them."""

    def __init__(self, mend: Callable[[Sequence[Difference]], None] | None = None) -> None:
        self.listed: list[Difference] = []
        self._mend = mend

    def add(self, differences: Sequence[Difference]) -> None:
        self.listed += differences[: DIFFERENCES_MAX + 1 - len(self.listed)]
        if self._mend and differences:
            self._mend(differences)

    @property
    def is_enough(self) -> bool:
        return self._mend is None and len(self.listed) > DIFFERENCES_MAX

    def compared(self, rows: int) -> Compared:
        return Compared(rows, tuple(self.listed[:DIFFERENCES_MAX]), len(self.listed) > DIFFERENCES_MAX)
