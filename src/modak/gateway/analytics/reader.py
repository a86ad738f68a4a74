"""Connections of the gateway's own that read everything in one snapshot, their own or one taken over, by binary COPY into Arrow."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from modak.connection import PINNED_SETTINGS, pinned
from modak.errors import ConnectionFailed, ModakError
from modak.gateway.failures import Cancelled

# Small batches stay in the processor's caches, and a cancel is seen between two of them.
BATCH_BYTES = 4 * 1024 * 1024
IDLE_MAX = 4
_INSIST_SECONDS = 0.05
_PREPARED_MAX = 50
# What is read here are tables. A view that a table's owner put in its place at the last moment would run as the gateway. Where it is known:
# Postgres has the setting since August 2024.
_TABLES_ONLY = (
    "select pg_catalog.set_config(s.name, 'view', false) from pg_catalog.pg_settings s where s.name = 'restrict_nonsystem_relation_kind'"
)


def insist(stop: Callable[[], object], over: threading.Event) -> None:
    """Stop something until it is over: a request that comes a moment before the work begins goes unheard."""
    stop()
    if not over.is_set():
        threading.Thread(target=_insist, args=(stop, over), name="modak-cancel", daemon=True).start()


def _insist(stop: Callable[[], object], over: threading.Event) -> None:
    while not over.wait(_INSIST_SECONDS):
        stop()


class ReadFailed(ModakError):
    """Postgres refused the gateway's own session something: a snapshot of another server, a table that is gone, a right."""

    code = "read_failed"
    sqlstate = "55000"


class Reader:
    """One connection. It belongs to one thread at a time; ``cancel`` may come from any."""

    def __init__(self, dsn: str) -> None:
        import adbc_driver_postgresql.dbapi as adbc

        self._errors = adbc.Error
        try:
            self._connection = adbc.connect(pinned(dsn), autocommit=True)
        except adbc.Error as cause:
            raise ConnectionFailed(f"cannot connect to Postgres: {cause}", hint="check the gateway's --dsn") from cause
        self._lock = threading.Lock()
        self._prepared: dict[str, str] = {}
        self._running: Any = None
        self._idle = threading.Event()
        self._idle.set()
        self._cancelled = False
        settings = {**PINNED_SETTINGS, "statement_timeout": "0", "application_name": "modak-gateway"}
        self._execute("select " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items()))
        self._execute(_TABLES_ONLY)

    def begin(self, snapshot: str | None) -> None:
        """Take a snapshot over, as ``pg_export_snapshot`` named it; None: the first query takes one."""
        if not re.fullmatch(r"[0-9A-Fa-f-]+", snapshot or "0"):
            raise ReadFailed("not the name of a snapshot", name=snapshot)
        self._cancelled = False
        self._execute("begin isolation level repeatable read read only")
        if snapshot is not None:
            self._execute(f"set transaction snapshot '{snapshot}'")

    def planned_rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query that comes again and again: Postgres keeps its plan, which takes longer to make than to run."""
        name = self._prepared.get(query)
        if name is None:
            if len(self._prepared) >= _PREPARED_MAX:
                self._execute("deallocate all")
                self._prepared.clear()
            name = f"modak_{len(self._prepared)}"
            self._execute(f"prepare {name} as {query}")
            self._prepared[query] = name
        return self.rows(f"execute {name}", copy=False)

    def rows(self, query: str, *, copy: bool = True) -> list[tuple[Any, ...]]:
        """``copy``: False for what is no SELECT, and so nothing that COPY takes."""
        with self._cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": str(copy).lower()})
            cursor.execute(query)
            return [tuple(row) for row in cursor.fetchall()]

    @contextlib.contextmanager
    def batches(self, query: str) -> Iterator[Any]:
        """The rows of a query as a ``pyarrow.RecordBatchReader``, while the block runs."""
        with self._cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
            cursor.execute(query)
            yield cursor.fetch_record_batch()

    def end(self) -> None:
        self._execute("rollback")

    def cancel(self) -> None:
        """What runs now, and whatever is asked of this reader until its next ``begin``."""
        self._cancelled = True
        insist(self._stop, self._idle)

    def _stop(self) -> None:
        with self._lock:
            if self._running is not None:
                self._running.adbc_cancel()

    def close(self) -> None:
        with contextlib.suppress(self._errors, RuntimeError):
            self._connection.close()

    def _execute(self, statement: str) -> None:
        with self._cursor() as cursor:
            cursor.execute(statement)

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[Any]:
        with self._connection.cursor() as cursor:
            with self._lock:
                if self._cancelled:
                    raise Cancelled("canceling statement due to user request")
                self._running = cursor
                self._idle.clear()
            try:
                yield cursor
            except self._errors as cause:
                if self._cancelled:
                    raise Cancelled("canceling statement due to user request") from cause
                raise ReadFailed(f"the gateway's session failed: {cause}".splitlines()[0], state=cause.sqlstate) from cause
            finally:
                with self._lock:
                    self._running = None
                    self._idle.set()


class Readers:
    """Idle readers are kept: opening one takes a tenth of a second, most of it to learn Postgres's types."""

    def __init__(self, dsn: str, *, idle_max: int = IDLE_MAX) -> None:
        self._dsn = dsn
        self._idle_max = idle_max
        self._idle: list[Reader] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self, snapshot: str | None) -> Reader:
        """A reader in the given snapshot, or in one of its own. Give it back with ``give_back``, whatever happens."""
        while True:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            reader = idle or Reader(self._dsn)
            try:
                reader.begin(snapshot)
            except BaseException:
                reader.close()
                if idle is None:
                    raise
                continue  # it may have broken while it lay idle
            return reader

    def give_back(self, reader: Reader) -> None:
        try:
            reader.end()
        except Exception:  # noqa: BLE001 - cancelled or broken: either way not to be used again
            reader.close()
            return
        with self._lock:
            if not self._closed and len(self._idle) < self._idle_max:
                self._idle.append(reader)
                return
        reader.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for reader in idle:
            reader.close()
