"""What was worked out about a statement for a snapshot: whoever asks again what he asked before need not wait for that.

It is known by the snapshot and goes with it. Nothing here holds one: deletes that the engine keeps for a snapshot go when nobody reads it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Generic, TypeVar

from modak.core.decoupled import Definition
from modak.scan.snapshot import Snapshot

T = TypeVar("T")
_STATEMENTS_MAX = 100


class Kept(Generic[T]):
    """By snapshot, by what the table was at the time, and by the statement's text. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._found: weakref.WeakKeyDictionary[Snapshot, dict[str, tuple[Definition, T]]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def find(self, snapshot: Snapshot, definition: Definition, text: str) -> T | None:
        with self._lock:
            found = self._found.get(snapshot, {}).get(text)
        return found[1] if found is not None and found[0] == definition else None

    def keep(self, snapshot: Snapshot, definition: Definition, text: str, found: T) -> None:
        with self._lock:
            known = self._found.setdefault(snapshot, {})
            if len(known) >= _STATEMENTS_MAX:
                del known[next(iter(known))]
            known[text] = definition, found
