"""Pace: a flush rests as much as writers beside it need to keep their speed, and not at all when there are none.

Before every batch a task passes a gate, which is an advisory lock. The driver closes it now and then and compares how many write
transactions end while the tasks work and while they rest. On a machine with room to spare both rates are the same, and the flush works
nearly all the time; on a small one it gets the share of time that costs the writers no more than ``1 - WRITERS_KEEP`` of their speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from modak.connection import Connection

# What writers keep of their speed. A flush always gets the remaining share of time, however much it disturbs: it never starves.
WRITERS_KEEP = 0.85
# Write transactions per second below which nobody is disturbed; our own progress reports are a few.
QUIET_RATE = 10.0
SHARE_FIRST = 0.5
WORK_SECONDS_MAX = 5.0
REST_SECONDS_MIN = 0.2
REST_SECONDS_MAX = 1.0
# A closed gate stops a task at its next batch, and the backend behind it when the socket is full; until then that is still work.
SETTLE_SECONDS = 0.1


def pass_gate(connection: Connection, op_id: str) -> None:
    """Returns once the gate is open. The lock of a dead driver is gone, so nobody waits for one."""
    connection.execute("select pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", [op_id])


def work_share(working: float, resting: float) -> float:
    """The share of time to work, given the writers' rates: what they lose while we work, times that share, is what they may lose."""
    loss = 1 - working / resting if resting > working else 0.0
    return min(1.0, (1 - WRITERS_KEEP) / loss) if loss else 1.0


class Pace:
    """The gate's keeper. ``wait(seconds)`` lets time pass, and says when the work is over."""

    def __init__(self, connection: Connection, op_id: str, wait: Callable[[float], bool]) -> None:
        self._connection = connection
        self._op_id = op_id
        self._wait = wait
        self._share = SHARE_FIRST

    def turn(self) -> bool:
        """Let the tasks work for a while, and rest if somebody writes meanwhile. True once the work is over."""
        rest = max(REST_SECONDS_MIN, REST_SECONDS_MAX * (1 - self._share))
        work = rest * self._share / (1 - self._share) if self._share < 1 else WORK_SECONDS_MAX
        since = self._now()
        if self._wait(max(0.0, min(work, WORK_SECONDS_MAX) - SETTLE_SECONDS)):
            return True
        if self._rate(since) < QUIET_RATE:
            self._share = SHARE_FIRST
            return False
        self._connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", [self._op_id])
        try:
            if self._wait(SETTLE_SECONDS):
                return True
            working, since = self._rate(since), self._now()
            over = self._wait(rest)
            self._share = (self._share + work_share(working, self._rate(since))) / 2
            return over
        finally:
            self._connection.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [self._op_id])

    def _now(self) -> tuple[float, int]:
        """The clock, and the number of the next write transaction: every role may read it, and no statistics lag behind it."""
        row = self._connection.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as number").fetchone()
        assert row is not None
        return time.monotonic(), int(row["number"])

    def _rate(self, since: tuple[float, int]) -> float:
        now = self._now()
        return (now[1] - since[1]) / max(now[0] - since[0], 0.001)
