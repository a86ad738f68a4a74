"""Connections for looking: read only, and bounded in every way, so that no look ever holds up what it looks at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from modak.app import App
from modak.catalog.migrate import require_current
from modak.connection import Connection, connect

_CONNECT_SECONDS = 5
_SETTINGS = """
    set default_transaction_read_only = on;
    set statement_timeout = '10s';
    set lock_timeout = '1s';
    set idle_in_transaction_session_timeout = '30s';
    set jit = off
"""


def looking(app: App, application: str = "modak-console") -> Callable[[], AbstractContextManager[Connection]]:
    @contextlib.contextmanager
    def opened() -> Iterator[Connection]:
        with connect(app.dsn, application=application, autocommit=True, connect_timeout=_CONNECT_SECONDS) as connection:
            connection.execute(_SETTINGS)
            require_current(connection)
            yield connection

    return opened
