"""Mirror: the pump. One pass reads the slot's stream up to where the WAL stood when it began, and takes every mirrored table along.

Transactions are collected in commit order, collapsed to the newest row of each key and put into the lake a batch at a time. A table's F
moves in the transaction that publishes its commit; the slot forgets only what lies before the lowest F. A table that cannot be followed
is parked and holds nobody back.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from modak.catalog import leadership, mirrors, problems, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.changes import ROW_BYTES
from modak.core.stream_shape import Shape
from modak.core.table import Name
from modak.errors import ModakError
from modak.failpoints import failpoint
from modak.jobs import foreign, maintain, resume, shed
from modak.jobs.context import JobContext
from modak.jobs.mirroring import apply, columns, doubts, heard, leaves, watch
from modak.jobs.mirroring import guard as guarding
from modak.jobs.mirroring.alone import MIRROR_LOCK, alone, collector_paused, freed_slot
from modak.jobs.mirroring.follower import Follower, cannot_follow, catalog_shape, collect, describe
from modak.jobs.mirroring.heap_failures import HeapFailed, Opener, bounded_opener, heap_failures, hurried
from modak.jobs.mirroring.leaving import JOB, Leaving
from modak.jobs.mirroring.outcome import Limits, MirrorOutcome
from modak.jobs.mirroring.tags import Tagging
from modak.jobs.tasks import ENGINE_MEMORY
from modak.lake.failures import lake_failures
from modak.registration import names_now
from modak.scan.engine import Engine
from modak.scan.snapshots import Snapshots
from modak.source import replication
from modak.source.pgoutput import Begin, Commit, Delete, Insert, Message, RelationMessage, Truncate, Update, decode
from modak.source.replication import Keepalive, SlotFailed, Stream

log = logging.getLogger("modak.mirror")
PARKED_BEFORE = "parked: modak status says why"
WAIT_SECONDS = 1.0
# The stream may be silent for so long although the WAL has not been read to the end: a giant transaction is being decoded.
SILENCE_SECONDS_MAX = 600.0
# A table's name, changes of the stream, and rows written and deleted for them.
Told = Callable[[str, int, int, int], None]


def mirror(
    connection: Connection,
    dsn: str,
    opened: Opener,
    *,
    limits: Limits | None = None,
    upto: int | None = None,
    settles: bool = True,
    epoch: int | None = None,
    told: Told = lambda *_: None,
) -> MirrorOutcome:
    """One pass over every mirrored table of the database. F is ``upto`` then, by default where the WAL stood when the pass began.

    Tables that shed partitions are seen to afterwards; ``settles``: what T has passed is dropped, and corrections are folded, as well.
    ``epoch``: the leadership of the worker that runs it; ``told`` hears of each commit as it is made.
    """
    mirrored = [table for table in tables.listing(connection) if table.mode == "mirrored"]
    outcome = MirrorOutcome(tables=sum(table.enabled for table in mirrored))
    if not mirrored:
        return outcome
    with alone(connection), hurried(connection):
        mirrored = names_now.follow_names(connection, mirrored)
        listed = [table for table in mirrored if table.enabled]
        slot, publication = str(mirrored[0].slot_name), str(mirrored[0].publication_name)
        opened = bounded_opener(connection, opened)
        pump = _Pump(connection, dsn, opened, limits or Limits(), outcome, slot, publication, epoch, told=told)
        with guarding.reported(pump.guard, pump.leaving.waited):
            pump.go(listed, upto)
        pump.guard.look(pump.followers, pump.leaving.waited)
        if upto is None:
            _shed(pump, [table for table in listed if table.has_seam], settles=settles)
            pump.tidy()
    return outcome


def _shed(pump: _Pump, listed: list[Registered], *, settles: bool) -> None:
    """Tables that were followed just now, and no others."""

    def failed(table: Registered, error: ModakError) -> None:
        pump.outcome.failed[str(table.name)] = str(error)
        if isinstance(error, HeapFailed):  # the job itself could not write it down
            problems.report(pump.connection, table.table_id, shed.JOB, error)

    stopped = {*pump.outcome.parked, *pump.outcome.failed, *pump.outcome.copying}
    followed = [table for table in listed if str(table.name) not in stopped]
    sealed = shed.seal_due(pump.opened, followed, failed)
    if sealed:
        pump.go([waiting.table for waiting in sealed], None, resumes=False)
        pump.outcome.shed += shed.advance(pump.opened, sealed, failed)
    if settles:
        for done in shed.settle(pump.opened, followed, failed).values():
            pump.outcome.dropped += done.dropped
            pump.outcome.corrections += done.folded
            pump.outcome.waiting += done.waiting


@dataclass
class _Pump:
    connection: Connection
    dsn: str = field(repr=False)
    opened: Opener
    limits: Limits
    outcome: MirrorOutcome
    slot: str
    publication: str
    epoch: int | None = None
    followers: dict[int, Follower] = field(default_factory=dict)
    told: Told = lambda *_: None
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # what a pass holds
    _begin: Begin | None = None
    _others: list[RelationMessage] = field(default_factory=list)  # described since the last change: before one of a table, its partition
    _as_of: float | None = None
    _shapes: dict[int, Shape] = field(default_factory=dict)  # as the tables were before the place where the pass ends
    _collected: int = 0  # bytes of all tables
    _deleted: dict[int, Registered] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.guard = guarding.Guard(self.connection, self.slot, self.limits, self.outcome, self.epoch)
        self.leaving = Leaving(self.connection, self.outcome, self.epoch)

    def go(self, listed: list[Registered], upto: int | None, *, resumes: bool = True) -> None:
        """A pass. Without ``resumes`` operations that are under way are left alone: they wait for this pass."""
        self.followers.clear()
        with self._open:
            self._prepare(listed, resumes)
            if self.followers:
                self._run(upto)

    def _prepare(self, listed: list[Registered], resumes: bool) -> None:
        """Settle what a crash left, and leave out what cannot be followed."""
        slot = freed_slot(self.connection, self.slot)
        for table in listed:
            state = mirrors.get(self.connection, table.table_id)
            if state.is_parked:
                self.outcome.parked[str(table.name)] = PARKED_BEFORE
            elif not state.is_followed:
                self.outcome.copying.append(str(table.name))
            elif not self.leaving.is_postponed(table):
                with self._reported(table):
                    table = names_now.follow_name(self.connection, table)
                    watch.check_slot(self.connection, table, slot, state)
                    with self._job(table.name) as job:
                        self.followers[table.table_id] = self._follower(job, resumes)

    def _follower(self, job: JobContext, resumes: bool) -> Follower:
        if resumes:
            resume.resume_all(job, sheds=True)
        foreign.settle(job, "refuse", by_pump=True)
        state = mirrors.get(job.connection, job.table_id)
        watch.check(job.connection, job.table, state)
        state = watch.check_labels(job.connection, job.table, state)
        now = leaves.read(job.connection, job.table_id)
        strange = leaves.difference(job.connection, job.table, state.leaves, now)
        if strange is not None and strange.what is not None and not strange.is_told:
            raise cannot_follow(job.table, strange.what, code="partition")
        if strange is None and now != state.leaves:
            mirrors.save_leaves(job.connection, job.table_id, now)
        found = Follower(job.table, mirrors.get(job.connection, job.table_id), job.lake.storage)
        found.leaves, found.leaves_before = now, state.leaves
        if strange is not None:
            doubts.look(job, found, strange, self._open)
        # Nobody else moves it while this pass has the stream.
        found.line = tables.cutline(job.connection, job.table_id).tier_key_hi if job.table.has_seam else None
        return found

    def _run(self, upto: int | None) -> None:
        # Read before the first message: a commit that comes later is for the next pass.
        self._as_of = replication.server_time(self.connection) if upto is None else None
        self._shapes = {one: catalog_shape(self.connection, one) for one in self.followers} if upto is None else {}
        target = replication.flushed_lsn(self.connection) if upto is None else upto
        start = min(follower.mirror.applied_lsn for follower in self.followers.values())
        with tempfile.TemporaryDirectory(prefix="modak-mirror-") as folder, contextlib.ExitStack() as stack:
            storages = [follower.storage for follower in self.followers.values()]
            engine = Engine(storages, memory_limit=ENGINE_MEMORY, threads=2, temp_directory=Path(folder))
            stack.callback(engine.close)
            self.snapshots = stack.enter_context(contextlib.closing(Snapshots()))
            self.cursor = stack.enter_context(contextlib.closing(engine.cursor()))
            stream = stack.enter_context(contextlib.closing(Stream(self.dsn, self.slot, self.publication, start)))
            stack.enter_context(collector_paused())
            self._follow(stream, target)

    def _follow(self, stream: Stream, target: int) -> None:
        # A pass that failed may have published more than it could confirm.
        self._confirm(stream)
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
                self._flush(min(message.end_lsn, target), message.time)
                self._confirm(stream)
                gc.collect()
        self._everybody_at(target)
        self._confirm(stream)

    def _take(self, message: Message, size: int) -> None:
        if isinstance(message, Insert | Update | Delete):
            self._change(message.oid, message, size)
            self._others.clear()
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
            else:
                self._others.append(message)
        elif isinstance(message, Truncate):
            self._others.clear()
            for oid in message.oids:
                self._change(oid, message, size)

    def _change(self, oid: int, message: Insert | Update | Delete | Truncate, size: int) -> None:
        follower = self.followers.get(oid)
        if follower is not None and self._others:
            follower.spoken.update(other.oid for other in self._others)
        if follower is None or self._begin is None or self._begin.final_lsn < follower.mirror.applied_lsn:
            return
        try:
            for other in self._others:
                heard.hear(follower, other)
            if follower.message is not None:
                self._describe(follower, follower.message, self._begin.final_lsn)
            collapse = follower.collapse
            if collapse is None:
                raise SlotFailed("the stream did not describe a table before its changes", table=str(follower.table.name))
            if follower.is_below(message):
                return
            if follower.rewritten is not None:
                follower.rewritten.note(self._begin.xid, follower, message)
            collect(collapse, message)
        except ModakError as error:
            self._leave(follower.table, error)
            return
        collapse.bytes += ROW_BYTES + size
        self._collected += ROW_BYTES + size
        self.outcome.changes += 1
        if self._collected > self.limits.bytes_max:
            self._flush(None)

    def _describe(self, follower: Follower, message: RelationMessage, commit_lsn: int) -> None:
        """Rows before a change of columns go to the lake as they were meant."""
        follower.message = None
        watch.check_identity(follower.table, message)
        if follower.takes(message) and follower.collapse is not None:
            return
        with self._job_after_part(follower) as job:
            describe(follower, job, message, commit_lsn)

    def _is_full(self) -> bool:
        changes = sum(follower.collapse.changes for follower in self.followers.values() if follower.collapse)
        return changes >= self.limits.changes_max or self._collected >= self.limits.bytes_max // 2

    def _flush(self, to_lsn: int | None, as_of: float | None = None) -> None:
        for follower in [one for one in self.followers.values() if one.has_changes]:
            upto, follower.as_of = None if follower.is_held else to_lsn, as_of
            if upto is None and not (follower.collapse and follower.collapse.changes):
                continue
            with self._reported(follower.table), self._job(follower.table.name) as job:
                self._apply(job, follower, upto)
        # What tables that failed had collected is gone with them.
        self._collected = sum(follower.bytes for follower in self.followers.values())

    def _apply(self, job: JobContext, follower: Follower, to_lsn: int | None) -> None:
        changes = follower.collapse.changes if follower.collapse else 0
        done = apply.apply(job, follower, to_lsn, self.snapshots, self.cursor)
        self.told(str(follower.table.name), changes, done.rows_written, done.rows_deleted)
        self.outcome.commits += done.commits
        self.outcome.rows_written += done.rows_written
        self.outcome.rows_deleted += done.rows_deleted
        if done.rows_deleted:
            self._deleted[follower.table.table_id] = follower.table

    def tidy(self) -> None:
        """Files that this pass left half deleted are written anew at once: their readers would pay for it until maintenance comes."""
        for table in self._deleted.values():
            try:
                with self._job(table.name) as job:
                    done = maintain.tidy(job)
                    self.outcome.commits += done.commits if done is not None else 0
            except ModakError as error:
                # Only readers are slower for it; the table is followed as before.
                log.warning("files of %s were not written anew: %s", table.name, error)

    def _everybody_at(self, lsn: int) -> None:
        """The end of a pass: tables with changes get them, and the others follow without a commit."""
        for follower in list(self.followers.values()):
            with self._reported(follower.table):
                follower.clear_suspicion()
                self._tell_columns(follower, lsn)
                self._settle(follower, lsn)
        self._flush(lsn, self._as_of)
        for follower in list(self.followers.values()):
            with self._reported(follower.table):
                self._at_rest(follower, lsn)
        self.outcome.lsn = lsn
        followed = [follower.table for follower in self.followers.values()]
        self.outcome.tagged |= Tagging(self.connection, self.opened).tag(followed, lsn)
        failpoint("mirror.before_confirm")

    def _settle(self, follower: Follower, lsn: int) -> None:
        if follower.is_held:
            with self._job_after_part(follower) as job:
                doubts.check(job, follower, lsn, self.snapshots, self.cursor)

    def _tell_columns(self, follower: Follower, lsn: int) -> None:
        shape = self._shapes.get(follower.table.table_id)
        if shape is not None and columns.untold(self.connection, follower, shape):
            with self._job_after_part(follower) as job:
                columns.tell(job, follower, shape, lsn)

    def _at_rest(self, follower: Follower, lsn: int) -> None:
        table_id = follower.table.table_id
        if follower.mirror.applied_lsn < lsn:
            with self.connection.transaction():
                leadership.check_epoch(self.connection, self.epoch)
                leadership.check_lock(self.connection, MIRROR_LOCK, "the stream")
                mirrors.follow(self.connection, follower.mirror, lsn, self._as_of)
        if follower.saw_truncate or follower.was_checked or follower.came:
            known = mirrors.get(self.connection, table_id).leaves
            now = leaves.read(self.connection, table_id) if follower.saw_truncate else []
            looked = leaves.explained(follower.leaves, follower.leaves_before, known, now)
            mirrors.save_leaves(self.connection, table_id, [*looked, *follower.came])
        problems.clear(self.connection, table_id, JOB)

    @contextlib.contextmanager
    def _job(self, name: Name) -> Iterator[JobContext]:
        """A failure of the lake's libraries is the table's failure, and not the pump's."""
        with self.opened(name) as job, lake_failures(f"the mirror of {name}", job.lake.storage):
            yield job

    @contextlib.contextmanager
    def _job_after_part(self, follower: Follower) -> Iterator[JobContext]:
        """When what was collected of the table is in the lake, where nobody sees it yet."""
        with self._job(follower.table.name) as job:
            if follower.collapse is not None and follower.collapse.changes:
                self._apply(job, follower, None)
            yield job

    def _confirm(self, stream: Stream) -> None:
        """The slot may forget what every table has; one that was registered meanwhile counts too."""
        lowest = mirrors.lowest_applied(self.connection, self.slot)
        if lowest is not None:
            stream.confirm(lowest)

    @contextlib.contextmanager
    def _reported(self, table: Registered) -> Iterator[None]:
        """A table's failure is that table's: it leaves this pass, or the stream for good, and the others go on."""
        try:
            with heap_failures(self.connection, table.name):
                yield
        except ModakError as error:
            self._leave(table, error)

    def _leave(self, table: Registered, error: ModakError) -> None:
        self.followers.pop(table.table_id, None)
        self.leaving.leave(table, error)
