"""``modak`` whose worker never gets through a cycle, for a reason that nothing in it knows."""

from __future__ import annotations

from typing import NoReturn

from modak.cli.main import main
from modak.worker.loop import Loop


def stumble(*_: object) -> NoReturn:
    raise RuntimeError("can't start new thread")


if __name__ == "__main__":
    Loop._cycle = stumble  # type: ignore[method-assign]
    main()
