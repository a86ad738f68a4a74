"""Logical replication over libpq: a slot's snapshot for copies, and its stream for everything after.

psycopg has no replication protocol of its own, but its libpq has all of it: a connection with ``replication=database`` and COPY BOTH.
"""

from __future__ import annotations

import contextlib
import select
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psycopg import conninfo, pq, sql

from modak.connection import Connection, connect, masked, unhurried_command, unhurried_options
from modak.errors import ConnectionFailed, LockNotAvailable, ModakError, Retry
from modak.source.heap import Snapshot
from modak.source.relation import SQL

# Creating a slot waits for transactions that run already; so long, and no longer.
SNAPSHOT_SECONDS_MAX = 300.0
DROP_SECONDS_MAX = 10.0
_WAL_DATA = struct.Struct("!QQq")
_KEEPALIVE = struct.Struct("!QqB")
_STATUS = struct.Struct("!cQQQqB")


class SlotFailed(ModakError):
    """The replication slot or its stream does not work."""

    code = "slot"
    retry = Retry.LATER


@dataclass(frozen=True)
class Slot:
    """A slot as pg_replication_slots has it; ``confirmed`` is where its stream can begin, ``reader`` the session that reads it now."""

    name: str
    confirmed: int
    active: bool
    retained_bytes: int
    is_lost: bool
    reader: int | None = None


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Everything that committed before ``end_lsn`` has been sent."""

    end_lsn: int


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def find_slot(connection: Connection, name: str) -> Slot | None:
    row = connection.execute(SQL.query("find_slot"), {"name": name}).fetchone()
    if row is None:
        return None
    return Slot(name, int(row["confirmed"]), row["active"], int(row["retained_bytes"]), row["is_lost"], row["reader"])


def free_slot(connection: Connection, name: str, seconds_max: float) -> Slot | None:
    """The slot when nobody reads it, as far as that comes in this time: a reader that was killed is noticed a moment later."""
    until = time.monotonic() + seconds_max
    while (slot := find_slot(connection, name)) is not None and slot.active and time.monotonic() < until:
        time.sleep(0.1)
    return slot


def ensure_slot(connection: Connection, dsn: str, name: str) -> None:
    """After the publication: a stream that begins before it would fail on it. A slot that lost its WAL never has a stream again."""
    slot = find_slot(connection, name)
    if slot is not None and slot.is_lost:
        drop_slot(connection, name)
        slot = None
    if slot is None:
        opened = _connect(dsn, "modak-slot")
        try:
            _create(opened, dsn, f"{sql.Identifier(name).as_string()} LOGICAL pgoutput (SNAPSHOT 'nothing')")
        finally:
            opened.finish()


def drop_slot(connection: Connection, name: str) -> None:
    if free_slot(connection, name, DROP_SECONDS_MAX) is not None:
        connection.execute("select pg_drop_replication_slot(%s)", [name])


def flushed_lsn(connection: Connection) -> int:
    """Up to here the stream can tell; later commits may not be on disk yet."""
    row = connection.execute("select (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint as lsn").fetchone()
    return int(row["lsn"]) if row else 0


def flush_wal(connection: Connection) -> int:
    """A place on disk by now, behind every commit that somebody may have seen, asynchronous ones too."""
    connection.execute("select pg_logical_emit_message(true, 'modak', '')")
    return flushed_lsn(connection)


def server_time(connection: Connection) -> float:
    """Seconds since 1970 by the server's clock, as its commits have them."""
    row = connection.execute("select extract(epoch from clock_timestamp())::float8 as now").fetchone()
    return float(row["now"]) if row else 0.0


def inserted_lsn(connection: Connection) -> int:
    """Everything that a statement can see committed before here."""
    row = connection.execute("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint as lsn").fetchone()
    return int(row["lsn"]) if row else 0


def _connect(dsn: str, application: str) -> pq.abc.PGconn:
    parameters = {
        "replication": "database",
        "client_encoding": "UTF8",
        "application_name": application,
        # A batch may take longer to write than the server waits for a sign of life. A reader that hangs is ended by the next one.
        "options": f"{unhurried_options(dsn)} -c wal_sender_timeout=0",
    }
    opened = pq.PGconn.connect(conninfo.make_conninfo(dsn, **parameters).encode())
    if opened.status != pq.ConnStatus.OK:
        reason = opened.error_message.decode(errors="replace").strip()
        opened.finish()
        raise ConnectionFailed(
            f"no replication connection: {reason}",
            hint="the role needs REPLICATION, and pg_hba.conf must let it in to this database",
            dsn=masked(dsn),
        )
    # A slot's snapshot is a transaction that stays open for as long as the copy takes, and the stream sends from within one.
    command = unhurried_command(opened.server_version)
    if command is not None and opened.exec_(command.encode()).status != pq.ExecStatus.COMMAND_OK:
        reason = opened.error_message.decode(errors="replace").strip()
        opened.finish()
        raise SlotFailed(f"{command}: {reason}")
    return opened


def _create(opened: pq.abc.PGconn, dsn: str, what: str) -> pq.abc.PGresult:
    with connect(dsn, application="modak-slot", autocommit=True, unhurried=True) as session:
        return _result(opened, f"CREATE_REPLICATION_SLOT {what}", lambda: _log_running(session))


def _log_running(session: Connection) -> None:
    """The server notes every 15 seconds which transactions run, and a new slot waits for such notes: ask for one."""
    session.execute(SQL.query("log_running_transactions"))


def _result(opened: pq.abc.PGconn, command: str, nudge: Callable[[], None] = lambda: None) -> pq.abc.PGresult:
    """Send a command and wait for its answer, not for ever."""
    opened.send_query(command.encode())
    until = time.monotonic() + SNAPSHOT_SECONDS_MAX
    while opened.is_busy():
        left = until - time.monotonic()
        if left <= 0:
            opened.get_cancel().cancel()
            raise LockNotAvailable(
                "the slot's snapshot waits for transactions that began before it",
                hint="end long transactions (pg_stat_activity, pg_prepared_xacts) and run the command again",
            )
        if not select.select([opened.socket], [], [], min(left, 0.2))[0]:
            nudge()
            continue
        opened.consume_input()
    result = opened.get_result()
    if result is None or result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COPY_BOTH):
        raise SlotFailed(f"{command.split(' (')[0]}: {opened.error_message.decode(errors='replace').strip()}")
    return result


@contextlib.contextmanager
def slot_snapshot(dsn: str) -> Iterator[tuple[Snapshot, int]]:
    """A snapshot and its exact place in the stream: what committed before is in the one, everything else in the other.

    It is a temporary slot's own, which goes with the block. Making it waits for every transaction that runs already, so none can have
    written to a table before it was published and commit after the snapshot.
    """
    opened = _connect(dsn, "modak-snapshot")
    try:
        name = f"modak_copy_{uuid.uuid4().hex[:16]}"
        made = _create(opened, dsn, f"{name} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')")
        lsn, snapshot = ((made.get_value(0, place) or b"").decode() for place in (1, 2))
        yield Snapshot(snapshot, ""), lsn_number(lsn)
    finally:
        opened.finish()


class Stream:
    """A slot's stream from a place on. ``confirm`` lets the server forget; nothing else does."""

    def __init__(self, dsn: str, slot: str, publication: str, start_lsn: int) -> None:
        self._connection = _connect(dsn, "modak-mirror")
        names = sql.Literal(sql.Identifier(publication).as_string()).as_string()
        command = (
            f"START_REPLICATION SLOT {sql.Identifier(slot).as_string()} LOGICAL {lsn_text(start_lsn)} "
            f"(proto_version '1', publication_names {names})"
        )
        try:
            _result(self._connection, command)
        except BaseException:
            self._connection.finish()
            raise
        self._confirmed = 0

    def read(self, seconds: float) -> bytes | Keepalive | None:
        """The next message, or None if none came in this time."""
        until = time.monotonic() + seconds
        while True:
            size, data = self._connection.get_copy_data(1)
            if size > 0:
                found = self._message(data)
                if found is not None:
                    return found
            elif size == 0:
                left = until - time.monotonic()
                if left <= 0:
                    return None
                select.select([self._connection.socket], [], [], left)
                self._connection.consume_input()
            else:
                raise self._ended()

    def confirm(self, lsn: int, *, ask: bool = False) -> None:
        """Everything before ``lsn`` is durable elsewhere. ``ask``: the server says at once how far it is."""
        self._confirmed = max(self._confirmed, lsn)
        at = self._confirmed
        self._connection.put_copy_data(_STATUS.pack(b"r", at, at, at, 0, int(ask)))
        self._connection.flush()

    def close(self) -> None:
        self._connection.finish()

    def _message(self, data: memoryview) -> bytes | Keepalive | None:
        kind = data[0]
        if kind == 0x77:  # w: a piece of the stream
            return bytes(data[1 + _WAL_DATA.size :])
        if kind == 0x6B:  # k
            end_lsn, _, wants_reply = _KEEPALIVE.unpack_from(data, 1)
            if wants_reply:
                self.confirm(self._confirmed)
            return Keepalive(end_lsn)
        return None

    def _ended(self) -> SlotFailed:
        result = self._connection.get_result()
        reason = (result.error_message if result else self._connection.error_message).decode(errors="replace").strip()
        return SlotFailed(f"the stream ended: {reason or 'the server closed it'}", hint="the next pass begins where this one was published")
