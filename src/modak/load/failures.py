"""What Postgres says when a load fails, in our own errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg

from modak.connection import Connection
from modak.errors import ConnectionFailed, LockNotAvailable, MissingComponent, ModakError, Refused, Retry
from modak.load.errors import LoadRejected

# What a batch relied on is not there any more: a column, an index, the table itself.
STALE = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedObject,
    psycopg.errors.InvalidColumnReference,
    psycopg.errors.DuplicateTable,
)


class LoadFailed(ModakError):
    """A load could not be finished, for no fault of its rows; nothing was recorded."""

    code = "load_failed"
    retry = Retry.LATER


class AwaitsAdoption(LoadFailed):
    """A row gives some of its columns, and the rest may be in a file that is staged."""

    code = "awaits_adoption"
    sqlstate = "55000"


class RaceLost(LoadFailed):
    """Other transactions changed the same rows, again and again."""

    code = "race_lost"
    sqlstate = "40001"
    retry = Retry.NOW


def translated(error: psycopg.Error, connection: Connection, table: str) -> ModakError:
    """The error for a failed batch. Whether a transaction that was about to commit did so is not known when the connection broke."""
    what = error.diag.message_primary or str(error).strip() or type(error).__name__
    if connection.broken or connection.closed:
        return ConnectionFailed(f"the connection broke while {table} was loaded: {what}", hint="load the same label again")
    facts: dict[str, Any] = {"table": table, "sqlstate": error.sqlstate}
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Refused(what, hint="a load writes as the role of its DSN; the role that registered the table may do it", **facts)
    if isinstance(error, psycopg.errors.DataError | psycopg.errors.IntegrityError | psycopg.errors.RaiseException):
        # Found when the transaction was about to commit, by a constraint that waits until then; which row it was, nobody says.
        return LoadRejected(what, hint=error.diag.message_hint, constraint=error.diag.constraint_name, sqlstate=error.sqlstate)
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return LockNotAvailable(f"rows or locks of {table} were not free in time: {what}", hint="load the same label again")
    return LoadFailed(f"the load of {table} failed: {what}", hint=error.diag.message_hint, **facts)


@contextlib.contextmanager
def cold_tier(connection: Connection, table: str) -> Iterator[None]:
    """A look into the lake, which takes the gateway."""
    try:
        yield
    except psycopg.Error as error:
        if connection.broken or (error.sqlstate or "")[:2] not in ("08", "HV"):
            raise
        raise MissingComponent(
            f"the gateway does not answer, and rows of {table} have to be looked up in the lake: {error.diag.message_primary}",
            hint="start it with `modak gateway`, or load rows with every column and a key that holds the tier key",
        ) from error
