"""Timeouts that a role or a database sets for its applications do not end a job that idles while its tasks work."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests import events
from tests.events import fold, put_under_modak, tier
from tests.gateways import RunningGateway
from tests.support import rows

from modak.app import App
from modak.connection import UNHURRIED, Connection, connect

pytestmark = [pytest.mark.spark, pytest.mark.inline]

SHORT = "100ms"
TIMEOUTS = ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout")
SETTINGS = "select name, setting from pg_settings where name = any(%s)"


def limit(connection: Connection, length: str, *names: str) -> None:
    for name in names:
        connection.execute(f"do $$ begin execute format('alter database %I set {name} = %L', current_database(), '{length}'); end $$")


def test_a_fold_outlives_them(app: App, connection: Connection, gateway: RunningGateway, at_point: Callable[..., None]) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    tier(app)
    connection.execute("update public.events set val = 'corrected' where id = 2")
    known = [name for name, _ in rows(connection, SETTINGS, list(TIMEOUTS))]
    limit(connection, SHORT, *(name for name in known if name.startswith(("idle_in", "transaction"))))
    idle = f"""
        select count(*) filter (where clock_timestamp() - state_change > 2 * interval '{SHORT}') as idle, count(*) as there
          from pg_stat_activity where application_name = 'modak-snapshot' and datname = current_database()
    """

    def wait() -> None:
        until = time.monotonic() + 30
        while (found := rows(connection, idle)[0]) == (0, 1) and time.monotonic() < until:
            pass
        assert found == (1, 1)

    at_point("fold.after_files", wait)
    assert fold(app).corrections == 1
    assert rows(connection, "select val from public.events where id = 2") == [("corrected",)]


def test_a_job_s_sessions_have_none(app: App, connection: Connection, dsn: str) -> None:
    known = dict(rows(connection, SETTINGS, list(TIMEOUTS)))
    limit(connection, "1h", *known)
    with connect(dsn, autocommit=True) as plain:
        assert dict(rows(plain, SETTINGS, list(TIMEOUTS))) == dict.fromkeys(known, "3600000")
        with plain.transaction():
            plain.execute(UNHURRIED)
            assert dict(rows(plain, SETTINGS, list(TIMEOUTS))) == dict.fromkeys(known, "0")
    with connect(dsn, unhurried=True) as session:
        assert dict(rows(session, SETTINGS, list(TIMEOUTS))) == dict.fromkeys(known, "0")
        session.rollback()
        assert dict(rows(session, SETTINGS, list(TIMEOUTS))) == dict.fromkeys(known, "0")
    with app.connection(unhurried=True) as session:
        assert dict(rows(session, SETTINGS, list(TIMEOUTS))) == dict.fromkeys(known, "0")
