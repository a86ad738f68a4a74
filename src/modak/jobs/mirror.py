"""Mirror: the pump. One pass reads the slot's stream up to where the WAL stood when it began, and takes every mirrored table along.

Transactions are collected in commit order, collapsed to the newest row of each key and put into the lake a batch at a time. A table's F
moves in the transaction that publishes its commit; the slot forgets only what lies before the lowest F. A table that cannot be followed
is parked and holds nobody back.
"""

from __future__ import annotations

import contextlib
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from modak.catalog import mirrors, problems, tables
from modak.catalog.mirrors import Mirror
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.changes import ROW_BYTES, Collapse, KeyMissing
from modak.core.table import Name
from modak.errors import LockNotAvailable, ModakError, Retry, ValueRefused
from modak.failpoints import failpoint
from modak.jobs import foreign, resume
from modak.jobs.context import JobContext
from modak.jobs.mirroring import apply, leaves
from modak.jobs.mirroring.follower import CannotFollow, Follower, cannot_follow, describe
from modak.jobs.tasks import ENGINE_MEMORY
from modak.scan.engine import Engine
from modak.scan.snapshots import Snapshots
from modak.source import replication
from modak.source.pgoutput import Begin, Commit, Delete, Insert, Message, RelationMessage, Truncate, Update, decode
from modak.source.replication import Keepalive, SlotFailed, Stream

JOB = "mirror"
PARKED_BEFORE = "parked: modak status says why"
MIRROR_LOCK = 0x6D68 << 40
WAIT_SECONDS = 1.0
# So often is the memory of all tables together looked at; a table's own is with every change.
CHECK_CHANGES = 256
SLOT_SECONDS_MAX = 15.0
ALONE_SECONDS_MAX = 5.0
# The stream may be silent for so long although the WAL has not been read to the end: a giant transaction is being decoded.
SILENCE_SECONDS_MAX = 600.0

Opener = Callable[[Name], AbstractContextManager[JobContext]]


@dataclass(frozen=True)
class Limits:
    """What a batch may grow to. ``wal_bytes_max``: a failing table that makes the slot keep more is parked."""

    changes_max: int = 200_000
    bytes_max: int = 128 * 1024 * 1024
    wal_bytes_max: int = 16 * 1024**3


@dataclass
class MirrorOutcome:
    """What a pass did. ``parked`` and ``failed``: tables and why they did not get on; ``copying`` wait for `modak register`."""

    tables: int = 0
    transactions: int = 0
    changes: int = 0
    commits: int = 0
    rows_written: int = 0
    rows_deleted: int = 0
    lsn: int | None = None
    parked: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    copying: list[str] = field(default_factory=list)


def mirror(connection: Connection, dsn: str, opened: Opener, *, limits: Limits | None = None, upto: int | None = None) -> MirrorOutcome:
    """One pass over every mirrored table of the database. F is ``upto`` then, by default where the WAL stood when the pass began."""
    listed = [table for table in tables.listing(connection) if table.mode == "mirrored" and table.enabled]
    outcome = MirrorOutcome(tables=len(listed))
    if not listed:
        return outcome
    with _alone(connection):
        pump = _Pump(connection, dsn, opened, limits or Limits(), outcome, str(listed[0].slot_name), str(listed[0].publication_name))
        pump.prepare(listed)
        if pump.followers:
            pump.run(upto)
        pump.guard()
    return outcome


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Rows make no cycles, and looking for some among hundreds of thousands of them takes two fifths of a pass. Once a batch is enough."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """The lock of a process that was killed is free a moment later, when Postgres notices."""
    until = time.monotonic() + ALONE_SECONDS_MAX
    while not _locked(connection):
        if time.monotonic() > until:
            raise LockNotAvailable("another process reads the stream", hint="a worker does; `modak status` shows how far it is")
        time.sleep(0.1)
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("select pg_advisory_unlock(%s)", [MIRROR_LOCK])


def _locked(connection: Connection) -> bool:
    row = connection.execute("select pg_try_advisory_lock(%s) as mine", [MIRROR_LOCK]).fetchone()
    return row is not None and bool(row["mine"])


@dataclass
class _Pump:
    connection: Connection
    dsn: str
    opened: Opener
    limits: Limits
    outcome: MirrorOutcome
    slot: str
    publication: str
    followers: dict[int, Follower] = field(default_factory=dict)
    _begin: Begin | None = None

    def prepare(self, listed: list[Registered]) -> None:
        """Settle what a crash left, and leave out what cannot be followed."""
        slot = replication.free_slot(self.connection, self.slot, SLOT_SECONDS_MAX)
        for table in listed:
            state = mirrors.get(self.connection, table.table_id)
            if state.is_parked:
                self.outcome.parked[str(table.name)] = PARKED_BEFORE
            elif not state.is_followed:
                self.outcome.copying.append(str(table.name))
            else:
                with self._reported(table):
                    _check_slot(table, slot, state)
                    with self.opened(table.name) as job:
                        self.followers[table.table_id] = self._follower(job)

    def _follower(self, job: JobContext) -> Follower:
        resume.resume_all(job)
        foreign.settle(job, "refuse")
        state = mirrors.get(job.connection, job.table_id)
        now = leaves.read(job.connection, job.table_id)
        strange = leaves.difference(job.connection, job.table, state.leaves, now)
        if strange is not None and not strange.is_told:
            raise cannot_follow(job.table, strange.what, code="partition")
        if strange is None and now != state.leaves:
            mirrors.save_leaves(job.connection, job.table_id, now)
        found = Follower(job.table, mirrors.get(job.connection, job.table_id), job.lake.storage)
        found.suspect = strange.what if strange is not None else None
        return found

    def run(self, upto: int | None) -> None:
        # Read before the first message: a commit that comes later is for the next pass.
        target = replication.flushed_lsn(self.connection) if upto is None else upto
        start = min(follower.mirror.applied_lsn for follower in self.followers.values())
        with tempfile.TemporaryDirectory(prefix="modak-mirror-") as folder, contextlib.ExitStack() as stack:
            storages = [follower.storage for follower in self.followers.values()]
            engine = Engine(storages, memory_limit=ENGINE_MEMORY, threads=2, temp_directory=Path(folder))
            stack.callback(engine.close)
            self.snapshots = stack.enter_context(contextlib.closing(Snapshots()))
            self.cursor = stack.enter_context(contextlib.closing(engine.cursor()))
            stream = stack.enter_context(contextlib.closing(Stream(self.dsn, self.slot, self.publication, start)))
            stack.enter_context(_collector_paused())
            self._follow(stream, target)

    def _follow(self, stream: Stream, target: int) -> None:
        heard = time.monotonic()
        while self.followers:
            found = stream.read(WAIT_SECONDS)
            if found is None:
                if time.monotonic() - heard > SILENCE_SECONDS_MAX:
                    raise SlotFailed("the stream says nothing", hint="see pg_stat_replication; the next pass tries again")
                # How far are you? A server with nothing to say would not tell by itself.
                stream.confirm(0, ask=True)
                continue
            heard = time.monotonic()
            if isinstance(found, Keepalive):
                if self._begin is None and found.end_lsn >= target:
                    break
                continue
            message = decode(found)
            if isinstance(message, Begin) and message.final_lsn >= target:
                break
            self._take(message, len(found))
            if isinstance(message, Commit) and self._is_full():
                self._flush(min(message.end_lsn, target))
                self._confirm(stream)
                gc.collect()
        self._everybody_at(target)
        self._confirm(stream)

    def _take(self, message: Message, size: int) -> None:
        if isinstance(message, Insert | Update | Delete):
            self._change(message.oid, message, size)
        elif isinstance(message, Begin):
            self._begin = message
        elif isinstance(message, Commit):
            self._begin = None
            self.outcome.transactions += 1
        elif isinstance(message, RelationMessage):
            follower = self.followers.get(message.oid)
            if follower is not None:
                # Looked at with the next change that the table does not have yet: older shapes are nobody's business any more.
                follower.message = message
        elif isinstance(message, Truncate):
            for oid in message.oids:
                self._change(oid, message, size)

    def _change(self, oid: int, message: Insert | Update | Delete | Truncate, size: int) -> None:
        follower = self.followers.get(oid)
        if follower is None or self._begin is None or self._begin.final_lsn < follower.mirror.applied_lsn:
            return
        try:
            if follower.message is not None:
                self._describe(follower, follower.message, self._begin.final_lsn)
            collapse = follower.collapse
            if collapse is None:
                raise SlotFailed("the stream did not describe a table before its changes", table=str(follower.table.name))
            _collect(collapse, message)
        except ModakError as error:
            self._leave(follower.table, error)
            return
        collapse.bytes += ROW_BYTES + size
        self.outcome.changes += 1
        if collapse.bytes > self.limits.bytes_max or (not self.outcome.changes % CHECK_CHANGES and self._bytes() > self.limits.bytes_max):
            self._flush(None)

    def _describe(self, follower: Follower, message: RelationMessage, commit_lsn: int) -> None:
        """Rows before a change of columns go to the lake as they were meant."""
        follower.message = None
        if follower.takes(message) and follower.collapse is not None:
            return
        with self.opened(follower.table.name) as job:
            if follower.collapse is not None and follower.collapse.changes:
                self._apply(job, follower, None)
            describe(follower, job, message, commit_lsn)

    def _bytes(self) -> int:
        return sum(follower.bytes for follower in self.followers.values())

    def _is_full(self) -> bool:
        changes = sum(follower.collapse.changes for follower in self.followers.values() if follower.collapse)
        return changes >= self.limits.changes_max or self._bytes() >= self.limits.bytes_max // 2

    def _flush(self, to_lsn: int | None) -> None:
        for follower in [one for one in self.followers.values() if one.has_changes]:
            upto = None if follower.suspect else to_lsn
            if upto is None and not (follower.collapse and follower.collapse.changes):
                continue
            with self._reported(follower.table), self.opened(follower.table.name) as job:
                self._apply(job, follower, upto)

    def _apply(self, job: JobContext, follower: Follower, to_lsn: int | None) -> None:
        done = apply.apply(job, follower, to_lsn, self.snapshots, self.cursor)
        self.outcome.commits += done.commits
        self.outcome.rows_written += done.rows_written
        self.outcome.rows_deleted += done.rows_deleted

    def _everybody_at(self, lsn: int) -> None:
        """The end of a pass: tables with changes get them, and the others follow without a commit."""
        for follower in list(self.followers.values()):
            with self._reported(follower.table):
                _clear_suspicion(follower)
        self._flush(lsn)
        for follower in list(self.followers.values()):
            with self._reported(follower.table):
                self._at_rest(follower, lsn)
        self.outcome.lsn = lsn
        failpoint("mirror.before_confirm")

    def _at_rest(self, follower: Follower, lsn: int) -> None:
        table_id = follower.table.table_id
        if follower.mirror.applied_lsn < lsn:
            with self.connection.transaction():
                mirrors.follow(self.connection, follower.mirror, lsn)
        if follower.saw_truncate:
            mirrors.save_leaves(self.connection, table_id, leaves.read(self.connection, table_id))
        problems.clear(self.connection, table_id, JOB)

    def _confirm(self, stream: Stream) -> None:
        """The slot may forget what every table has; one that was registered meanwhile counts too."""
        lowest = mirrors.lowest_applied(self.connection, self.slot)
        if lowest is not None:
            stream.confirm(lowest)

    @contextlib.contextmanager
    def _reported(self, table: Registered) -> Iterator[None]:
        """A table's failure is that table's: it leaves this pass, or the stream for good, and the others go on."""
        try:
            yield
        except ModakError as error:
            self._leave(table, error)

    def _leave(self, table: Registered, error: ModakError) -> None:
        self.followers.pop(table.table_id, None)
        if isinstance(error, LockNotAvailable):
            self.outcome.failed[str(table.name)] = str(error)
            return
        problems.report(self.connection, table.table_id, JOB, error)
        if isinstance(error, CannotFollow | KeyMissing | ValueRefused) or error.retry is Retry.MANUAL:
            mirrors.park(self.connection, table.table_id)
            self.outcome.parked[str(table.name)] = str(error)
        else:
            self.outcome.failed[str(table.name)] = str(error)

    def guard(self) -> None:
        """WAL that only a failing table keeps is let go at a limit: the disk is everybody's, and the table can be copied anew."""
        slot = replication.find_slot(self.connection, self.slot)
        if slot is None or slot.retained_bytes <= self.limits.wal_bytes_max:
            return
        for name in self.outcome.failed:
            table = next(one for one in tables.listing(self.connection) if str(one.name) == name)
            what = f"it keeps {slot.retained_bytes} bytes of WAL, more than {self.limits.wal_bytes_max}"
            problems.report(self.connection, table.table_id, JOB, cannot_follow(table, what, code="wal"))
            mirrors.park(self.connection, table.table_id)
            self.outcome.parked[name] = what


def _clear_suspicion(follower: Follower) -> None:
    """The pass has seen everything that was committed when it looked at the partitions."""
    if follower.suspect and not follower.saw_truncate and not (follower.collapse and follower.collapse.truncated):
        raise cannot_follow(follower.table, follower.suspect, code="partition")
    follower.suspect = None


def _collect(collapse: Collapse, message: Insert | Update | Delete | Truncate) -> None:
    if isinstance(message, Insert):
        collapse.insert(message.new)
    elif isinstance(message, Update):
        collapse.update(message.new, message.old, is_whole=message.is_whole)
    elif isinstance(message, Delete):
        collapse.delete(message.old)
    else:
        collapse.truncate()


def _check_slot(table: Registered, slot: replication.Slot | None, state: Mirror) -> None:
    """A slot that is gone, lost or further than the table: its changes are nowhere any more."""
    if slot is None:
        raise cannot_follow(
            table, f"replication slot {table.slot_name} is gone: dropped, or not on this server after a failover", code="slot"
        )
    if slot.is_lost:
        raise cannot_follow(table, f"replication slot {slot.name} lost its WAL (max_slot_wal_keep_size)", code="slot")
    if slot.confirmed > state.applied_lsn:
        raise cannot_follow(table, f"replication slot {slot.name} was moved past the table's place in the stream", code="slot")
    if slot.active:
        raise LockNotAvailable(f"replication slot {slot.name} is being read by another session", hint="it ends with that session")
