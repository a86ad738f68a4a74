"""Something that is done again and again beside everything else, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import psycopg

from modak.errors import ModakError

log = logging.getLogger("modak.gateway")


class Tender:
    """Begins at once. What fails is said and tried again."""

    def __init__(self, name: str, work: Callable[[], object], seconds: float) -> None:
        self._name, self._work, self._seconds = name, work, seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"modak-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(self._seconds)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._work()
            except (ModakError, psycopg.Error) as cause:
                log.warning("%s: %s", self._name, cause)
            except Exception:
                log.exception("%s failed", self._name)
            self._stopping.wait(self._seconds)
