"""The lease: one worker leads. A session of its own holds a lock of Postgres, so a dead leader's place is free at once; one that hangs is
evicted when its session has been silent for too long.

What makes it safe is neither the lock nor a clock but the epoch: see ``modak.catalog.leadership`` and decision 0030.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime

import psycopg

from modak.catalog import leadership
from modak.connection import Connection
from modak.source.locks import bounded, retried

log = logging.getLogger("modak.worker")

STANDBY_SECONDS = 1.0
# A host that vanished without a word is noticed by the server, too.
_KEEPALIVE = {"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}

Connect = Callable[[], AbstractContextManager[Connection]]


class Lease:
    """One leadership, from its beginning to its end. ``lost`` is set when it is over, whoever ended it."""

    def __init__(self, connection: Connection, epoch: int, seconds: float) -> None:
        self.epoch = epoch
        self.since = datetime.now(UTC)
        self.lost = threading.Event()
        self._connection, self._seconds = connection, seconds
        self._beat = threading.Thread(target=self._show_life, name="modak-lease", daemon=True)
        self._beat.start()

    def _show_life(self) -> None:
        """On the session that holds the lock, and nothing else uses it: its silence means that this process hangs."""
        try:
            while not self.lost.wait(self._seconds / 3):
                if not leadership.show_life(self._connection, self.epoch):
                    log.warning("another worker leads now")
                    return
        except psycopg.Error as cause:
            log.warning("the session that holds the lease is gone: %s", str(cause).strip())
        except Exception:
            log.exception("the lease is given up")
        finally:
            # However it ends: a leader that nobody shows the life of is evicted, and must know that its time is over.
            self.lost.set()

    def end(self) -> None:
        self.lost.set()
        self._beat.join()


@contextlib.contextmanager
def leading(connect: Connect, seconds: float, stop: threading.Event) -> Iterator[Lease | None]:
    """Stand by until the place is free, then lead; None when ``stop`` came first. The place is free again after the block."""
    with connect() as connection:
        for name, text in _KEEPALIVE.items():
            connection.execute("select set_config(%s, %s, false)", [name, text])
        if not _wait(connection, seconds, stop):
            yield None
            return
        lease = Lease(connection, _take(connection), seconds)
        log.info("this worker leads, epoch %s", lease.epoch)
        try:
            yield lease
        finally:
            lease.end()


def _wait(connection: Connection, seconds: float, stop: threading.Event) -> bool:
    told = False
    while not stop.is_set():
        if leadership.try_lead(connection):
            return True
        if not told:
            found = leadership.read(connection)
            log.info("standing by: %s leads", f"{found['holder']} (epoch {found['epoch']})" if found else "another worker")
            told = True
        for pid in leadership.evict_silent(connection, seconds):
            log.warning("the leader's session %s was silent for more than %s s and is ended", pid, seconds)
        stop.wait(min(STANDBY_SECONDS, seconds / 3))
    return False


def _take(connection: Connection) -> int:
    """The number after all others. A publication of the last leader is waited for; one that hangs in it was ended before."""
    for pid in leadership.evict_earlier(connection):
        log.info("session %s of an earlier leader is ended", pid)
    host, pid = platform.node(), os.getpid()

    def step() -> int:
        with bounded(connection, 1000):
            return leadership.take(connection, holder=leadership.holder_name(), host=host, pid=pid)

    hint = "a transaction of the last leader is still open, and this role may not end it"
    return retried(step, "the lease", hint=hint)
