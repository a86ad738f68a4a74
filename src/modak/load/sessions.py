"""Connections with a loader on each, kept between batches: for hosts that load for many clients."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from modak.connection import Connection
from modak.load.batch import Loader
from modak.load.client import open_session
from modak.load.request import LoadOptions


@dataclass(frozen=True, eq=False)
class Session:
    """A connection and the loader that knows one table on it."""

    options: LoadOptions
    connection: Connection
    loader: Loader

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self.connection.close()


class Sessions:
    """At most ``most`` connections, in use or idle; as many threads borrow at once, so there is always one to give away."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._used: set[Session] = set()
        self._opening = 0

    @contextlib.contextmanager
    def borrow(self, options: LoadOptions) -> Iterator[Session]:
        session = self._take(options) or self._open(options)
        try:
            yield session
        finally:
            self._give_back(session)

    def _take(self, options: LoadOptions) -> Session | None:
        """The one that was used last: its caches are warm."""
        with self._lock:
            found = next((one for one in reversed(self._idle) if one.options == options), None)
            if found is not None:
                self._idle.remove(found)
                self._used.add(found)
            return found

    def _open(self, options: LoadOptions) -> Session:
        with self._lock:
            self._opening += 1
            full = len(self._idle) + len(self._used) + self._opening > self._most
            spare = self._idle.pop(0) if full and self._idle else None
        try:
            if spare is not None:
                spare.close()
            session = Session(options, *open_session(options))
        finally:
            with self._lock:
                self._opening -= 1
        with self._lock:
            self._used.add(session)
        return session

    def _give_back(self, session: Session) -> None:
        with self._lock:
            self._used.discard(session)
            sound = not session.connection.closed and session.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            if sound:
                self._idle.append(session)
        if not sound:
            session.close()

    def forget(self) -> None:
        """One connection broke; the idle ones may have broken with it."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def cancel(self) -> None:
        """Whoever is at work stops, and rolls back."""
        with self._lock:
            used = list(self._used)
        for session in used:
            with contextlib.suppress(psycopg.Error):
                session.connection.cancel_safe(timeout=2.0)
