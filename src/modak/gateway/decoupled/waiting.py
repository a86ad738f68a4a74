"""Which of a gateway's transactions waits for which: two that wait for each other would do so until their time is over, and both fail.

On one gateway only. Of two that meet on different nodes the one with less patience gives up first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from modak.errors import ModakError, Retry


class Deadlock(ModakError):
    """The transaction that would close a circle of waiters ends, so that the others go on."""

    code = "deadlock_detected"
    sqlstate = "40P01"
    retry = Retry.NOW


class Waiting:
    """Every method may be called from any thread. Transactions are known by what they are, tables by the names of their turns."""

    def __init__(self) -> None:
        self._holders: dict[str, object] = {}
        self._waits: dict[object, str] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def turn(self, who: object, name: str) -> Iterator[None]:
        """Around the wait for a turn, which he has when the block ends. Raises Deadlock where whoever has it waits for him."""
        with self._lock:
            if self._leads_to(who, name):
                raise Deadlock(
                    "deadlock detected: another transaction waits for a table that this one writes to, and has the one that this wants",
                    hint="run the transaction again; let transactions write to the same tables in the same order",
                )
            self._waits[who] = name
        try:
            yield
            with self._lock:
                self._holders[name] = who
        finally:
            with self._lock:
                del self._waits[who]

    def let_go(self, who: object, name: str) -> None:
        """Before the turn is given back, so that whoever has it next is known."""
        with self._lock:
            if self._holders.get(name) is who:
                del self._holders[name]

    def _leads_to(self, who: object, name: str) -> bool:
        holder = self._holders.get(name)
        while holder is not None and holder is not who:
            wanted = self._waits.get(holder)
            holder = self._holders.get(wanted) if wanted is not None else None
        return holder is who
