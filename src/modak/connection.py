"""Connections to Postgres whose text output is the same on every server and for every user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.rows import DictRow, dict_row

from modak.errors import ConnectionFailed

Connection = psycopg.Connection[DictRow]

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
    return f"{given} {pins}".strip()


def open_connection(dsn: str, *, application: str = "modak", autocommit: bool = False, **options: Any) -> Connection:
    """A connection for whoever keeps it and closes it himself."""
    try:
        return psycopg.connect(
            dsn, row_factory=dict_row, autocommit=autocommit, application_name=application, options=session_options(dsn), **options
        )
    except psycopg.ProgrammingError as cause:
        raise ConnectionFailed("the DSN cannot be read", hint="write it as postgresql://user@host:port/database") from cause
    except psycopg.OperationalError as cause:
        raise ConnectionFailed(
            f"cannot connect to Postgres: {str(cause).strip()}", hint="check --dsn or MODAK_DSN", dsn=masked(dsn)
        ) from cause


@contextlib.contextmanager
def connect(dsn: str, *, application: str = "modak", autocommit: bool = False, **options: Any) -> Iterator[Connection]:
    """A connection that ends with the block: committed if the block ends well, rolled back otherwise."""
    with open_connection(dsn, application=application, autocommit=autocommit, **options) as connection:
        yield connection
