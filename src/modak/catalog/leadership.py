"""Who leads: the lock that one worker's session holds, the number of its leadership, and what a publication checks of both."""

from __future__ import annotations

import os
import platform
from typing import Any

import psycopg

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.errors import LeadershipLost

LEADER_LOCK = 0x6D67 << 40
_LEASE = "modak lease "
# Postgres cuts the names of sessions at 63 bytes.
_HOST_CHARACTERS_MAX = 40


def holder_name() -> str:
    """What this process is called among the workers."""
    return f"{platform.node()[:_HOST_CHARACTERS_MAX]}/{os.getpid()}"


def lease_name() -> str:
    """What the session is called by which this process leads or stands by."""
    return _LEASE + holder_name()


def session_name(epoch: int) -> str:
    """What sessions of a leader's jobs are called, so that the next leader finds those that were left."""
    return f"modak worker {epoch}"


def try_lead(connection: Connection) -> bool:
    """The lock goes with the session: whoever dies leads no more."""
    row = connection.execute(SQL.query("try_lead"), {"key": LEADER_LOCK}).fetchone()
    return row is not None and bool(row["mine"])


def take(connection: Connection, *, holder: str, host: str, pid: int) -> int:
    """The number of a new leadership. Waits for publications of the one before; later ones of it find their number gone."""
    row = connection.execute(SQL.query("take_lead"), {"holder": holder, "host": host, "pid": pid}).fetchone()
    assert row is not None
    return int(row["epoch"])


def show_life(connection: Connection, epoch: int) -> bool:
    """False where somebody else has taken over."""
    return connection.execute(SQL.query("show_life"), {"epoch": epoch}).fetchone() is not None


def read(connection: Connection) -> dict[str, Any] | None:
    """Who leads, or led last."""
    return connection.execute(SQL.query("read_leader")).fetchone()


def workers(connection: Connection) -> dict[str, Any]:
    """Who leads, with ``leads`` false where its place is free by now, and who stands by. ``is_this``: it is this very process."""
    found = connection.execute(SQL.query("list_workers"), {"prefix": _LEASE, "key": LEADER_LOCK}).fetchall()
    leader, here = read(connection), holder_name()
    held = {one["holder"] for one in found if one["leads"]}
    if leader is not None:
        leader = {**leader, "leads": bool(held), "is_this": leader["holder"] == here}
    standbys = [{"holder": one["holder"], "since": one["since"], "is_this": one["holder"] == here} for one in found if not one["leads"]]
    return {"leader": leader, "standbys": standbys}


def evict_silent(connection: Connection, seconds: float) -> list[int]:
    """End the session of a leader that hangs: stopped, swapped out, or on a host that vanished."""
    found = connection.execute(SQL.query("list_silent_leaders"), {"key": LEADER_LOCK, "seconds": seconds}).fetchall()
    return [row["pid"] for row in found if end_session(connection, row["pid"])]


def evict_earlier(connection: Connection) -> list[int]:
    """For whoever has the lock: sessions of jobs that an earlier leader left."""
    found = connection.execute(SQL.query("list_earlier_sessions")).fetchall()
    return [row["pid"] for row in found if end_session(connection, row["pid"])]


def end_session(connection: Connection, pid: int) -> bool:
    """False without the right to: then it is waited for."""
    try:
        row = connection.execute("select pg_terminate_backend(%s) as ended", [pid]).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return False
    return row is not None and bool(row["ended"])


def check_lock(connection: Connection, key: int, what: str) -> None:
    """Inside a publishing transaction: the session that publishes is the one that has been alone on it all the time."""
    row = connection.execute(SQL.query("holds_lock"), {"key": key}).fetchone()
    if row is None or not row["mine"]:
        raise LeadershipLost(
            f"this session does not hold the lock of {what}",
            hint="connect to Postgres itself or by a pooler in session mode; nothing was published, and the next pass tries again",
        )


def check_epoch(connection: Connection, epoch: int | None) -> None:
    """Inside a publishing transaction of a worker's job: it still leads, and will until the transaction ends."""
    if epoch is None:
        return
    row = connection.execute(SQL.query("hold_epoch"), {"key": LEADER_LOCK, "epoch": epoch}).fetchone()
    if row is None or not row["leads"]:
        raise LeadershipLost(
            "this worker does not lead any more", hint="nothing was published; the worker that leads finishes it", epoch=epoch
        )
