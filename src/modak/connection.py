"""Connections to Postgres whose text output is the same on every server and for every user."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import conninfo, sql
from psycopg.rows import DictRow, dict_row

from modak.errors import ConnectionFailed

Connection = psycopg.Connection[DictRow]


class _Honest(psycopg.Connection[DictRow]):
    """A transaction that was not committed is never taken for one that was, nor an interrupt for a failure."""

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """On Ctrl-C psycopg cancels the query and waits for its end. Where that is another than the cancel, such as a lock timeout in the
        same moment, the interrupt would be lost, and whoever tries again after a timeout would go on."""
        handled = sys.exception()
        try:
            return super().wait(*arguments, **options)
        except psycopg.Error as error:
            if isinstance(error.__context__, KeyboardInterrupt) and error.__context__ is not handled:
                raise KeyboardInterrupt from error
            raise

    @contextlib.contextmanager
    def transaction(self, savepoint_name: str | None = None, force_rollback: bool = False) -> Iterator[psycopg.Transaction]:
        """psycopg leaves a block without an error, and without COMMIT, where the connection broke and somebody inside dealt with that."""
        with super().transaction(savepoint_name, force_rollback) as transaction:
            yield transaction
            if self.closed:
                raise psycopg.OperationalError("the connection was lost before the transaction could commit")


# Values cross to the lake as text in places; with these the text is exact and does not depend on a user's settings.
PINNED_SETTINGS = {
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "standard_conforming_strings": "on",
    "search_path": "pg_catalog, pg_temp",
}
# What we acknowledge, to a client or to a slot, is on disk: a database whose default is off would forget it in a crash.
DURABLE = "-c synchronous_commit=on"

# A role's or a database's own timeouts are meant for applications. A job idles in a transaction while Spark works under its snapshot, and
# between statements while it holds its table.
_TIMEOUTS = ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
# Postgres 17 brought it, and an older one does not take a session that asks for it.
_TRANSACTION_TIMEOUT, _TRANSACTION_TIMEOUT_SINCE = "transaction_timeout", 170000
# For whoever connects by other means: every timeout that the server knows, until the transaction ends.
_KNOWN = ", ".join(f"'{name}'" for name in (*_TIMEOUTS, _TRANSACTION_TIMEOUT))
UNHURRIED = f"select pg_catalog.set_config(s.name, '0', true) from pg_catalog.pg_settings s where s.name in ({_KNOWN})"  # noqa: S608


def masked(dsn: str) -> str:
    """A DSN that may be printed."""
    try:
        parts = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return "***"
    kept = {name: "***" if "password" in name else str(value) for name, value in parts.items() if value is not None}
    return conninfo.make_conninfo("", **kept)


def session_options(dsn: str) -> str:
    """The DSN's own options, and the settings that every session of ours has."""
    given = str(conninfo.conninfo_to_dict(dsn).get("options") or "")
    pins = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in PINNED_SETTINGS.items())
    return f"{given} {pins} {DURABLE}".strip()


def pinned(dsn: str) -> str:
    """The DSN with these settings in it, for drivers that have questions of their own before anybody can set anything: under another search
    path an operator that somebody put into the schema public would answer them, with the rights of the session."""
    return conninfo.make_conninfo(dsn, options=session_options(dsn))


def unhurried_options(dsn: str) -> str:
    """The same for a session that no timeout of its role or database may end, together with ``unhurried_command`` once it is there."""
    return " ".join([session_options(dsn), *(f"-c {name}=0" for name in _TIMEOUTS)])


def unhurried_command(server_version: int) -> str | None:
    """What such a session says first, where the server knows a timeout that an older one would refuse a session for."""
    return f"set {_TRANSACTION_TIMEOUT} = 0" if server_version >= _TRANSACTION_TIMEOUT_SINCE else None


def open_connection(
    dsn: str, *, application: str = "modak", autocommit: bool = False, unhurried: bool = False, **options: Any
) -> Connection:
    """A connection for whoever keeps it and closes it himself. ``unhurried``: for a job, which no timeout of its role may end."""
    try:
        settings = unhurried_options(dsn) if unhurried else session_options(dsn)
        opened = _Honest.connect(dsn, row_factory=dict_row, autocommit=True, application_name=application, options=settings, **options)
        if unhurried and (command := unhurried_command(opened.info.server_version)) is not None:
            opened.execute(sql.SQL(command))
        opened.autocommit = autocommit
        return opened
    except psycopg.ProgrammingError as cause:
        raise ConnectionFailed("the DSN cannot be read", hint="write it as postgresql://user@host:port/database") from cause
    except psycopg.OperationalError as cause:
        raise ConnectionFailed(
            f"cannot connect to Postgres: {str(cause).strip()}", hint="check --dsn or MODAK_DSN", dsn=masked(dsn)
        ) from cause


@contextlib.contextmanager
def connect(
    dsn: str, *, application: str = "modak", autocommit: bool = False, unhurried: bool = False, **options: Any
) -> Iterator[Connection]:
    """A connection that ends with the block: committed if the block ends well, rolled back otherwise."""
    with open_connection(dsn, application=application, autocommit=autocommit, unhurried=unhurried, **options) as connection:
        yield connection
