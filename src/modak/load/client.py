"""Loads by a client of its own: one connection, kept for the next batch and opened again when it broke."""

from __future__ import annotations

import contextlib
import random
import time
from types import TracebackType

import psycopg

from modak.catalog.migrate import require_current
from modak.connection import Connection, open_connection
from modak.errors import ConnectionFailed, ModakError
from modak.failpoints import failpoint
from modak.load.batch import Loader
from modak.load.errors import LabelInFlight
from modak.load.request import LoadOptions, LoadRequest, LoadResult, check_label
from modak.load.rows import Source

_PAUSE_SECONDS_MAX = 2.0


class LoadClient:
    """Applies batches to one table, each exactly once whatever happens to the connection.

    Many clients may load the same table side by side; one client is for one thread at a time.
    """

    def __init__(self, options: LoadOptions) -> None:
        self.options = options
        self._connection: Connection | None = None
        self._loader: Loader | None = None

    def __enter__(self) -> LoadClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Also when a load is half-way: it is rolled back."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
        self._connection = self._loader = None

    def load(self, request: LoadRequest) -> LoadResult:
        """Apply a batch and answer when it is durable; a label that was applied before is answered from the record.

        After ConnectionFailed the outcome is unknown, and loading the same label again finds it out. This does so by itself for rows that
        can be read again, a few times.
        """
        label, source = check_label(request.label), Source(request.rows, self.options.rows_max)
        for attempt in range(1, self.options.attempts + 1):
            last = attempt == self.options.attempts
            try:
                result = self._ready().apply_source(label, source)
            except ConnectionFailed:
                self.close()
                if last or (source.started and not source.replayable):
                    raise
            except LabelInFlight:
                # The transaction of the broken attempt may not have noticed yet.
                if last or attempt == 1:
                    raise
            else:
                failpoint("load.after_commit")
                return result
            time.sleep(min(_PAUSE_SECONDS_MAX, 0.05 * 2**attempt) * random.uniform(0.5, 1.5))  # noqa: S311
        raise AssertionError("unreachable")

    def find(self, label: str) -> LoadResult | None:
        """What is recorded of a label; None where nothing is."""
        return self._ready().find(check_label(label))

    def _ready(self) -> Loader:
        if self._loader is not None and self._connection is not None and not self._connection.closed:
            return self._loader
        self.close()
        self._connection, self._loader = open_session(self.options)
        return self._loader


def open_session(options: LoadOptions) -> tuple[Connection, Loader]:
    """A connection as loads want it, in autocommit, with a loader on it: for whoever puts several batches into one transaction."""
    connection = open_connection(options.dsn, application=options.application, autocommit=True)
    try:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        require_current(connection)
        connection.execute("select set_config('lock_timeout', %s, false)", [f"{int(options.lock_seconds * 1000)}ms"])
    except psycopg.Error as cause:
        connection.close()
        raise ConnectionFailed(f"the connection broke before anything was loaded: {cause}", hint="load again") from cause
    except ModakError:
        connection.close()
        raise
    return connection, Loader(connection, options)
