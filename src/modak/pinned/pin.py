"""A pin: the row of modak.read_pins that keeps (T, S) readable for somebody outside Postgres, renewed while it is held."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from modak.connection import Connection, connect
from modak.errors import ConnectionFailed, NotRegistered, Refused

TTL = "15 minutes"
# A pin is renewed this many times before it would expire: one lost renewal does no harm.
RENEWALS_PER_TTL = 3

# The two statements of the published protocol; this reader takes the corrections from the snapshot it read S in, so folds need not wait
# for it. Under READ COMMITTED the line could move between them, and the metadata would be of a
# later S than the pin: pin() runs them in one REPEATABLE READ transaction.
_INSERT = """
insert into modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at, holds_delta)
select c.table_id, c.lake_snapshot_id, c.tier_key_hi, now() + %(ttl)s::interval, false
  from modak.cutline c
 where c.table_id = %(table_id)s
returning pin_id, pinned_tier_key_hi as t, pinned_lake_snapshot_id as s, extract(epoch from expires_at - now())::float8 as seconds
"""
READ_LINE = """
select tier_key_hi, lake_snapshot_id, lake_props ->> 'metadata_location' as metadata_location, lake_props ->> 'snapshot_id' as snapshot_id
  from modak.cutline where table_id = %(table_id)s
"""
_RENEW = "update modak.read_pins set expires_at = greatest(expires_at, now() + %(ttl)s::interval) where pin_id = %(pin_id)s"
_RELEASE = "delete from modak.read_pins where pin_id = %(pin_id)s"


@dataclass(frozen=True)
class Pin:
    """What was pinned. T is ``tier_key_hi`` and S ``lake_snapshot_id``, with its two handles; all None before anything was published."""

    pin_id: int
    table_id: int
    tier_key_hi: int
    lake_snapshot_id: int | None
    metadata_location: str | None
    snapshot_id: int | None
    ttl_seconds: float


def pin(connection: Connection, table_id: int, ttl: str = TTL) -> Pin:
    """Step 1 of the protocol, committed when this returns. The connection is in autocommit."""
    keys = {"table_id": table_id, "ttl": ttl}
    try:
        with connection.transaction():
            connection.execute("set transaction isolation level repeatable read")
            pinned = connection.execute(_INSERT, keys).fetchone()
            line = connection.execute(READ_LINE, keys).fetchone()
    except psycopg.errors.InsufficientPrivilege as cause:
        raise Refused(
            f"this role may not pin: {cause.diag.message_primary}",
            hint="a reader needs SELECT on modak.tables and modak.cutline, and SELECT, INSERT, UPDATE and DELETE on modak.read_pins",
        ) from cause
    if pinned is None or line is None:
        raise NotRegistered("the table has no cut-line: it was unregistered meanwhile", table_id=table_id)
    return Pin(
        pin_id=pinned["pin_id"],
        table_id=table_id,
        tier_key_hi=pinned["t"],
        lake_snapshot_id=pinned["s"],
        metadata_location=line["metadata_location"],
        snapshot_id=int(line["snapshot_id"]) if line["snapshot_id"] is not None else None,
        ttl_seconds=pinned["seconds"],
    )


def release(connection: Connection, pin_id: int) -> None:
    connection.execute(_RELEASE, {"pin_id": pin_id})


@contextlib.contextmanager
def held(dsn: str, connection: Connection, table_id: int, ttl: str = TTL) -> Iterator[Pin]:
    """A pin for the length of the block, however the block ends."""
    with kept(dsn, connection, pin(connection, table_id, ttl), ttl) as taken:
        yield taken


@contextlib.contextmanager
def kept(dsn: str, connection: Connection, taken: Pin, ttl: str = TTL) -> Iterator[Pin]:
    """Renew a pin that is taken already, and let go of it at the end of the block."""
    renewal = _Renewal(dsn, taken, ttl)
    try:
        yield taken
    finally:
        renewal.end()
        _let_go(dsn, connection, taken.pin_id)


def _let_go(dsn: str, connection: Connection, pin_id: int) -> None:
    """Over the session at hand, else over a new one. With Postgres out of reach, expires_at bounds what the pin holds up."""
    try:
        release(connection, pin_id)
    except psycopg.OperationalError:
        with contextlib.suppress(ConnectionFailed), connect(dsn, application="modak-pin", autocommit=True) as fresh:
            release(fresh, pin_id)


class _Renewal(threading.Thread):
    """Pushes expires_at on, from a session of its own: the reader's may be busy, or gone."""

    def __init__(self, dsn: str, taken: Pin, ttl: str) -> None:
        super().__init__(name="modak-pin", daemon=True)
        self._dsn = dsn
        self._keys = {"pin_id": taken.pin_id, "ttl": ttl}
        self._wait_seconds = taken.ttl_seconds / RENEWALS_PER_TTL
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(self._wait_seconds):
            # A connection that fails is tried again at the next turn, before the pin has expired.
            with contextlib.suppress(Exception), connect(self._dsn, application="modak-pin", autocommit=True) as connection:
                connection.execute(_RENEW, self._keys)

    def end(self) -> None:
        self._over.set()
        self.join()
