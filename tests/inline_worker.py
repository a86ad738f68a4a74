"""``modak`` whose jobs run their tasks themselves: a worker to be killed need not start Spark first."""

from __future__ import annotations

from modak.cli.main import main
from tests.inline import inlined

if __name__ == "__main__":
    with inlined():
        main()
