"""A program that tiers over Spark Connect, and again when it is told to: PySpark knows one kind of Spark per process, and in that of
the tests it is the other one.

``released`` as an argument: it asks the server to let go of its session in between, as the server does by itself when nobody used it for
an hour.
"""

from __future__ import annotations

import os
import sys

from modak.app import App
from modak.settings import load
from tests import events


def main() -> None:
    app = App(load(os.environ))
    assert len(events.tier(app).partitions) == 2
    first = app._spark
    assert first is not None
    if "released" in sys.argv:
        first.client.release_session()
    print("once", flush=True)
    sys.stdin.readline()
    assert len(events.tier(app).partitions) == 1
    assert app._spark is not first
    print("twice", flush=True)


if __name__ == "__main__":
    main()
