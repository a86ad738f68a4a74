"""Pins of the gateway: one row of modak.read_pins per (table, S) in use, renewed while it is, gone soon after.

A scan inside Postgres is guarded by its transaction's own horizon as well; the pin covers readers whose transaction Postgres does not
know, and says to people who holds what. On a standby there is nothing to write to, and the primary's horizon is what guards.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from modak.catalog.migrate import SQL
from modak.connection import Connection, open_connection

log = logging.getLogger("modak.gateway")

LEASE_SECONDS = 900
RENEW_SECONDS = 300
LINGER_SECONDS = 60


class PinKeeper(Protocol):
    def hold(self, table_id: int, sequence_number: int | None) -> AbstractContextManager[None]: ...


@dataclass
class _Held:
    pin_id: int | None
    users: int = 0
    until: float = 0.0
    idle_since: float = 0.0


class Pins:
    """Any thread may hold; one connection writes."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], _Held] = {}
        self._connection: Connection | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tend, name="modak-pins", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def hold(self, table_id: int, sequence_number: int | None) -> Iterator[None]:
        """For as long as the block runs, and a little longer: the next query of the same kind finds the pin in place."""
        if sequence_number is None:
            yield
            return
        key = (table_id, sequence_number)
        with self._lock:
            held = self._held.get(key)
            if held is None:
                held = self._held[key] = _Held(self._insert(*key), until=time.monotonic() + LEASE_SECONDS)
            held.users += 1
        try:
            yield
        finally:
            with self._lock:
                held.users -= 1
                held.idle_since = time.monotonic()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)
        with self._lock:
            for key in list(self._held):
                self._delete(key)
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _tend(self) -> None:
        while not self._stop.wait(LINGER_SECONDS / 4):
            now = time.monotonic()
            with self._lock:
                for key, held in list(self._held.items()):
                    if held.users == 0 and now - held.idle_since > LINGER_SECONDS:
                        self._delete(key)
                    elif held.until - now < LEASE_SECONDS - RENEW_SECONDS:
                        self._renew(held)

    def _insert(self, table_id: int, sequence_number: int) -> int | None:
        keys = {"table_id": table_id, "sequence_number": sequence_number, "seconds": LEASE_SECONDS}
        row = self._execute("pin_snapshot", keys)
        return int(row["pin_id"]) if row else None

    def _renew(self, held: _Held) -> None:
        if held.pin_id is not None:
            self._execute("renew_pin", {"pin_id": held.pin_id, "seconds": LEASE_SECONDS})
        held.until = time.monotonic() + LEASE_SECONDS

    def _delete(self, key: tuple[int, int]) -> None:
        held = self._held.pop(key)
        if held.pin_id is not None:
            self._execute("release_pin", {"pin_id": held.pin_id})

    def _execute(self, query: str, keys: Mapping[str, object]) -> dict[str, Any] | None:
        """A pin that cannot be written does not stop a read: Postgres's horizon guards it, and maintenance keeps a grace age."""
        for _ in range(2):
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = open_connection(self._dsn, application="modak-gateway", autocommit=True)
                cursor = self._connection.execute(SQL.query(query), keys)
                return cursor.fetchone() if cursor.description else None
            except psycopg.errors.ReadOnlySqlTransaction:
                return None
            except psycopg.OperationalError as cause:
                log.warning("pin not written: %s", cause)
                self._connection = None
        return None
