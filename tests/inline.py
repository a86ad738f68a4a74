"""Jobs without Spark: the tasks run here, one after the other, and a partition goes, or comes back, without being compared first.

For tests whose subject is something else. What the tasks read and write is the same; that Spark spreads them, and that reclaim and untier
compare, has tests of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from modak.jobs import flush, fold, incoming, ingest, maintain, maintain_decoupled, reclaim, untier, untier_copy


class InlineSpread:
    """Stands where ``modak.jobs.tasks.Spread`` does."""

    def __init__(self, _: object, run: Callable[[int], Any], count: int, __: str) -> None:
        self._outcome = [run(number) for number in range(count)]

    def wait(self, _: float) -> bool:
        return True

    def result(self) -> list[Any]:
        return self._outcome


def run_inline(patch: pytest.MonkeyPatch) -> None:
    for module in (flush, fold, incoming, ingest, maintain, maintain_decoupled, untier_copy):
        patch.setattr(module, "Spread", InlineSpread)
    patch.setattr(reclaim, "_check_content", lambda *_: None)
    patch.setattr(untier, "compare", lambda *_, **__: None)


@contextlib.contextmanager
def inlined() -> Iterator[None]:
    """For fixtures that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        run_inline(patch)
        yield
