"""What a pass of the pump has for itself: the stream, which has one reader, and an interpreter that does not look for garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from modak.catalog import leadership
from modak.connection import Connection
from modak.errors import LockNotAvailable
from modak.jobs.context import session_lock
from modak.source import replication

MIRROR_LOCK = 0x6D68 << 40
ALONE_SECONDS_MAX = 5.0
# A reader of the slot without the pump's lock may be one that is just ending.
EVICT_SECONDS = 2.0
SLOT_SECONDS_MAX = 15.0


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Rows make no cycles, and looking for some among hundreds of thousands of them takes two fifths of a pass. Once a batch is enough."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def alone(connection: Connection, wait_seconds: float = ALONE_SECONDS_MAX) -> Iterator[None]:
    busy = LockNotAvailable("another process reads the stream", hint="a worker does; `modak status` shows how far it is")
    with session_lock(connection, MIRROR_LOCK, wait_seconds, busy):
        yield


def freed_slot(connection: Connection, name: str) -> replication.Slot | None:
    """We have the pump's lock: whoever still reads the slot has lost it, and would hold everybody up for as long as it hangs."""
    slot = replication.free_slot(connection, name, EVICT_SECONDS)
    if slot is None or slot.reader is None:
        return slot
    leadership.end_session(connection, slot.reader)
    return replication.free_slot(connection, name, SLOT_SECONDS_MAX)


def is_at_work(connection: Connection) -> bool:
    """Whether somebody reads the stream now."""
    row = connection.execute(
        "select exists (select from pg_locks l join pg_database d on d.oid = l.database"
        " where l.locktype = 'advisory' and l.granted and d.datname = current_database()"
        " and l.classid = %s::oid and l.objid = %s::oid and l.objsubid = 1) as found",
        [MIRROR_LOCK >> 32, MIRROR_LOCK & 0xFFFFFFFF],
    ).fetchone()
    return row is not None and bool(row["found"])
