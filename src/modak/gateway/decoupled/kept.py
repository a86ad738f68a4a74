"""Statements as they were translated for a snapshot: whoever asks again what he asked before need not wait for that.

They are known by the snapshot and go with it. Nothing here holds one: deletes that the engine keeps for a snapshot go when nobody reads it.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

from modak.core.decoupled import Definition
from modak.scan.snapshot import Snapshot

# A text that lists a hundred files and more is run for longer than it is translated.
_CHARS_MAX, _STATEMENTS_MAX = 50_000, 100


@dataclass(frozen=True)
class Translated:
    """``is_numbered``: it tells the numbers of rows."""

    sql: str
    columns: int
    is_numbered: bool


class Kept:
    """Every method may be called from any thread."""

    def __init__(self) -> None:
        self._found: weakref.WeakKeyDictionary[Snapshot, dict[str, tuple[Definition, Translated]]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def find(self, snapshot: Snapshot, definition: Definition, text: str) -> Translated | None:
        with self._lock:
            of, found = self._found.get(snapshot, {}).get(text, (None, None))
        return found if of == definition else None

    def keep(self, snapshot: Snapshot, definition: Definition, text: str, translated: Translated) -> None:
        if len(text) + len(translated.sql) > _CHARS_MAX:
            return
        with self._lock:
            known = self._found.setdefault(snapshot, {})
            if len(known) >= _STATEMENTS_MAX:
                del known[next(iter(known))]
            known[text] = definition, translated
