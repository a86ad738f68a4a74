"""The line before the counter: writers of one gateway wait for each other here, and only the first few of them in Postgres.

Every claim in Postgres is a session that each release wakes. With sixteen writers fifteen would ask for nothing, at the cost of the one who
has the turn. So many draw a ticket as keep the counter busy: the one who is served, and the next, whose peers answer meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_AT_THE_COUNTER = 2
_LOOK_SECONDS = 0.1


class Line:
    """Thread-safe; first come, first served. Whoever entered must leave, also if he gave up waiting."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[threading.Event]] = {}
        self._lock = threading.Lock()

    def enter(self, table: str, gives_up: Callable[[], bool]) -> threading.Event | None:
        """A place near the front, to be given back by ``leave``; None for who gave up, and is out of the line again."""
        place = threading.Event()
        with self._lock:
            line = self._waiting.setdefault(table, [])
            line.append(place)
            self._call(line)
        while not place.wait(_LOOK_SECONDS):
            if gives_up():
                self.leave(table, place)
                return None
        return place

    def leave(self, table: str, place: threading.Event) -> None:
        with self._lock:
            line = self._waiting[table]
            line.remove(place)
            self._call(line)
            if not line:
                del self._waiting[table]

    @staticmethod
    def _call(line: list[threading.Event]) -> None:
        for place in line[:_AT_THE_COUNTER]:
            place.set()
