"""What Postgres refuses on a step of one table is that table's failure: the pump serves all of them, and waits for no lock for long."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import psycopg

from modak.catalog import tables
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import ModakError, NotRegistered, Retry
from modak.jobs.context import JobContext
from modak.source.sessions import exclusive_holders

# Whoever holds a table for longer than this holds up that table, and nobody else.
LOCK_SECONDS_MAX = 5.0
Opener = Callable[[Name], AbstractContextManager[JobContext]]


class HeapFailed(ModakError):
    """Postgres refused a step of one mirrored table. It is tried again; the others go on."""

    code = "heap"
    retry = Retry.LATER


class HeapLocked(HeapFailed):
    """Somebody holds a mirrored table, or a partition of it, for longer than the pump waits."""

    code = "heap_locked"


@contextlib.contextmanager
def hurried(connection: Connection) -> Iterator[None]:
    """A session that waits for no lock longer than that, whatever its role or the server say. It has its own setting back afterwards."""
    row = connection.execute("select current_setting('lock_timeout') as before").fetchone()
    _set_timeout(connection, f"{int(LOCK_SECONDS_MAX * 1000)}ms")
    try:
        yield
    finally:
        if not connection.closed:
            _set_timeout(connection, str(row["before"]) if row else "0")


def _set_timeout(connection: Connection, value: str) -> None:
    connection.execute("select set_config('lock_timeout', %s, false)", [value])


@contextlib.contextmanager
def heap_failures(connection: Connection, name: Name) -> Iterator[None]:
    """Around steps of one table. ``connection`` is the pump's own: without it there is no pass, and the failure is not the table's."""
    try:
        yield
    except psycopg.Error as cause:
        if connection.closed:
            raise
        raise _failure(connection, name, cause) from cause


def bounded_opener(connection: Connection, opened: Opener) -> Opener:
    """Jobs of the pump: their sessions are hurried, and what Postgres refuses them is their tables' failure."""

    @contextlib.contextmanager
    def opener(name: Name) -> Iterator[JobContext]:
        with heap_failures(connection, name), opened(name) as job:
            # The session ends with the job, and nobody wants its own setting back.
            _set_timeout(job.connection, f"{int(LOCK_SECONDS_MAX * 1000)}ms")
            yield job

    return opener


def _failure(connection: Connection, name: Name, cause: psycopg.Error) -> HeapFailed:
    if isinstance(cause, psycopg.errors.LockNotAvailable):
        who = ""
        with contextlib.suppress(NotRegistered):
            who = exclusive_holders(connection, tables.get(connection, name).table_id)
        return HeapLocked(
            f"{name} is locked for longer than {LOCK_SECONDS_MAX:g} s" + (f": {who}" if who else ""),
            hint="the mirror goes on when that transaction ends; the other tables are followed meanwhile",
        )
    said = cause.diag.message_primary or str(cause).strip() or type(cause).__name__
    return HeapFailed(
        f"Postgres refused a step of the mirror of {name}: {said}",
        hint="the next pass tries again; the server's log has the statement",
        sqlstate=cause.sqlstate,
    )
