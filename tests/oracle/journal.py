"""What happened, for whoever has to find out why a run failed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path


class Journal:
    """Lines of all threads in the order in which they came; kept in memory, shown on failure."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._lock, self._start = threading.Lock(), time.monotonic()
        self._lines: list[tuple[float, str, str, frozenset[int]]] = []

    def note(self, who: str, what: str, ids: set[int] | None = None) -> None:
        with self._lock:
            self._lines.append((time.monotonic() - self._start, who, what, frozenset(ids or ())))

    def about(self, ids: set[int], limit: int = 80) -> str:
        """The last lines about these rows, with what the worker did between them."""
        with self._lock:
            if os.environ.get("ORACLE_JOURNAL"):
                Path(os.environ["ORACLE_JOURNAL"]).write_text("\n".join(f"{at:8.3f} {who:8} {what}" for at, who, what, _ in self._lines))
            chosen = [line for line in self._lines if line[1] == "worker" or ids & line[3]][-limit:]
        return "\n".join(f"{at:8.3f} {who:8} {what}" for at, who, what, _ in chosen)
