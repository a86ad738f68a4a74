"""Bounded waits for locks: try, give way to the writers, try again."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import psycopg
from psycopg import sql

from modak.connection import Connection
from modak.core.table import Name
from modak.errors import LockNotAvailable, ModakError

T = TypeVar("T")

LOCK_TIMEOUT_MS = 100
ATTEMPTS_MAX = 40
_PAUSE_SECONDS_MAX = 1.0


class GiveWay(Exception):
    """A step cannot go on now, and says what it comes to if it never can."""

    def __init__(self, finally_: ModakError) -> None:
        super().__init__(str(finally_))
        self.finally_ = finally_


_GIVE_WAY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure, GiveWay)


@contextlib.contextmanager
def bounded(connection: Connection, milliseconds: int = LOCK_TIMEOUT_MS) -> Iterator[None]:
    """A transaction in which no lock is waited for longer than that."""
    with connection.transaction():
        connection.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(milliseconds)))
        yield


def lock_view(connection: Connection, view: Name) -> None:
    """Nobody else is on the view until the transaction ends.

    LOCK TABLE on a view locks all that it reads, with its owner's rights: the catalog's tables too, which other tables' readers hold, and
    which an owner who does not own the catalog may not lock. An ALTER that changes nothing locks the view alone.
    """
    name, schema = sql.Identifier(view.schema, view.name), sql.Identifier(view.schema)
    connection.execute(sql.SQL("alter view {} set schema {}").format(name, schema))


def retried(
    step: Callable[[], T],
    what: str,
    *,
    attempts: int = ATTEMPTS_MAX,
    holders: Callable[[], str] | None = None,
    hint: str = "a long transaction or a prepared one holds them; end it, or wait: the next pass tries again",
) -> T:
    """Run a step that opens its own bounded transaction until it gets its locks; between two tries writers have their turn."""
    for attempt in range(1, attempts + 1):
        try:
            return step()
        except _GIVE_WAY as cause:
            if attempt == attempts:
                if isinstance(cause, GiveWay):
                    raise cause.finally_ from cause
                who = holders() if holders else ""
                raise LockNotAvailable(
                    f"{what}: the locks were not free in {attempts} tries" + (f"; held by {who}" if who else ""),
                    hint=hint,
                ) from cause
            # Jitter keeps two workers, or a worker and a periodic writer, from meeting again and again.
            time.sleep(min(_PAUSE_SECONDS_MAX, 0.02 * 2 ** min(attempt, 6)) * random.uniform(0.5, 1.5))  # noqa: S311
    raise AssertionError("unreachable")
