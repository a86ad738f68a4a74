"""Heal a copy that was made under two snapshots: every row that changed between them is taken anew from the second.

The stream says which keys those are, and only that: their rows are read from the heap under the second snapshot, which is exact, where a
replay would have to do without the large values that the stream does not repeat.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from psycopg import sql

from modak.catalog import mirrors, operations, tables
from modak.connection import Connection
from modak.core.below import Below
from modak.core.changes import Collapse, Key, Last, Row
from modak.core.operation import OperationKind
from modak.errors import LockNotAvailable
from modak.failpoints import failpoint
from modak.jobs import foreign, journal, resume
from modak.jobs.context import JobContext
from modak.jobs.mirroring import leaves, watch
from modak.jobs.mirroring.alone import alone
from modak.jobs.mirroring.files import make
from modak.jobs.mirroring.follower import Follower, catalog_shape, collect
from modak.jobs.publishing.mirror import publish_copy
from modak.jobs.tasks import ENGINE_MEMORY
from modak.lake import commits
from modak.scan.engine import Cursor, Engine
from modak.source import replication
from modak.source.pgoutput import Begin, Commit, Delete, Insert, RelationMessage, Truncate, Update, decode
from modak.source.replication import Keepalive, Stream
from modak.source.spill import identifier

# More than that, and copying anew is the quicker way.
KEYS_MAX = 2_000_000
PART_KEYS = 50_000
SLOT_SECONDS_MAX = 120.0
STREAM_SECONDS_MAX = 1800.0


def heal(context: JobContext, session: Connection, start_lsn: int, end_lsn: int) -> bool:
    """Bring the lake from what two snapshots saw to what ``session``, which has the second, sees. False: the copy must start over."""
    # The slot has one reader at a time: a pump at work is waited for, and none can take our place, as it would a stray reader's.
    with alone(context.connection, STREAM_SECONDS_MAX):
        keys = _touched(context, start_lsn, end_lsn) if _has_stream(context, start_lsn) else None
    if keys is None:
        return False
    with tempfile.TemporaryDirectory(prefix="modak-heal-") as folder:
        engine = Engine([context.lake.storage], memory_limit=ENGINE_MEMORY, threads=2, temp_directory=Path(folder))
        with contextlib.closing(engine), contextlib.closing(engine.cursor()) as cursor:
            found = iter(sorted(keys))
            while part := list(itertools.islice(found, PART_KEYS)):
                _replace(context, _follower(context, session, part), cursor)
                failpoint("copy.after_heal")
    return True


def _touched(context: JobContext, start_lsn: int, end_lsn: int) -> set[Key] | None:
    """Keys, old and new, of every change that committed between the snapshots; None where that cannot be told, or there are too many."""
    table, keys = context.table, set[Key]()
    collapse: Collapse | None = None
    below: Below | None = None
    line = tables.cutline(context.connection, context.table_id).tier_key_hi
    commit_lsn = 0
    partitions = {leaf["oid"] for leaf in leaves.read(context.connection, context.table_id)}
    with _stream(context, start_lsn) as stream:
        while True:
            found = stream.read(1.0)
            if found is None:
                stream.confirm(0, ask=True)
                continue
            if isinstance(found, Keepalive):
                if found.end_lsn >= end_lsn:
                    return keys
                continue
            message = decode(found)
            if isinstance(message, Begin):
                commit_lsn = message.final_lsn
                if commit_lsn >= end_lsn:
                    return keys
            elif isinstance(message, Commit) and message.end_lsn >= end_lsn:
                return keys
            elif isinstance(message, RelationMessage) and message.oid in partitions and not watch.names_key(table, message):
                return None
            elif isinstance(message, RelationMessage) and message.oid == table.table_id:
                names = [column.name for column in message.columns]
                if not watch.names_key(table, message) or not set(names).issuperset(table.primary_key_cols):
                    return None
                collapse = Collapse(tuple(names.index(name) for name in table.primary_key_cols))
                below = Below(table.key_type, line, names.index(table.tier_key_col)) if table.has_seam else None
            elif commit_lsn < start_lsn or collapse is None:
                continue
            elif isinstance(message, Truncate) and table.table_id in message.oids:
                return None
            elif isinstance(message, Insert | Update | Delete) and message.oid == table.table_id:
                if below is not None and below(message.old if isinstance(message, Delete) else message.new):
                    continue  # what lies below T is not the copy's
                collect(collapse, message)
                # Nothing but the keys is kept, the old one too: a row of the moment in between is of no use.
                keys.update(collapse.last)
                collapse.last.clear()
                if len(keys) > KEYS_MAX:
                    return None


def _has_stream(context: JobContext, start_lsn: int) -> bool:
    """Whether the slot still has everything from there on. One that was made anew begins later, and would do so without a word."""
    slot = replication.free_slot(context.connection, context.table.slot_name or "", SLOT_SECONDS_MAX)
    if slot is not None and slot.active:
        raise LockNotAvailable(f"slot {slot.name} is being read", hint="run the command again when that session has ended")
    return slot is not None and not slot.is_lost and slot.confirmed <= start_lsn


def _stream(context: JobContext, start_lsn: int) -> contextlib.closing[Stream]:
    table = context.table
    return contextlib.closing(Stream(context.dsn, table.slot_name or "", table.publication_name or "", start_lsn))


def _follower(context: JobContext, session: Connection, keys: Sequence[Key]) -> Follower:
    """The keys' last words, as of the session's snapshot."""
    relation = context.relation()
    follower = Follower(context.table, mirrors.get(context.connection, context.table_id), context.lake.storage)
    follower.shape, follower.columns = catalog_shape(context.connection, context.table_id), relation.columns
    follower.fresh()
    assert follower.collapse is not None
    last = follower.collapse.last
    last.update({key: Last(None, True) for key in keys})
    for row in _rows(context, session, follower, keys):
        last[follower.collapse.key(row)] = Last(row, True)
    return follower


def _rows(context: JobContext, session: Connection, follower: Follower, keys: Sequence[Key]) -> Iterator[Row]:
    """Rows of these keys, each value as the stream would write it."""
    names = sql.SQL(", ").join(sql.Identifier(name) for name in context.table.primary_key_cols)
    heap = identifier(context.table.heap)
    session.execute("drop table if exists pg_temp.modak_touched")
    session.execute(sql.SQL("create temporary table modak_touched as select {} from {} where false").format(names, heap))
    with session.cursor() as cursor, cursor.copy("copy pg_temp.modak_touched from stdin") as copy:
        for key in keys:
            copy.write_row([part.decode() for part in key])
    session.execute("analyze pg_temp.modak_touched")
    values = [
        sql.SQL("case when h.{0} is null then null else convert_to(concat(h.{0}), 'UTF8') end").format(sql.Identifier(column.name))
        for column in follower.columns
    ]
    same = [sql.SQL("h.{0} = k.{0}").format(sql.Identifier(name)) for name in context.table.primary_key_cols]
    query = sql.SQL("select array[{}]::bytea[] as row from {} h join pg_temp.modak_touched k on {}").format(
        sql.SQL(", ").join(values), heap, sql.SQL(" and ").join(same)
    )
    for found in session.execute(query).fetchall():
        yield tuple(found["row"])


def _replace(context: JobContext, follower: Follower, cursor: Cursor) -> None:
    """One commit: whatever the lake has of the keys goes, and their rows come."""
    line = tables.cutline(context.connection, context.table_id)
    details: dict[str, Any] = {"old_tier_key_hi": line.tier_key_hi, "old_snapshot": line.snapshot, "chunks": []}
    operation = operations.start(context.connection, context.table_id, OperationKind.COPY, details)
    with resume.given_up_on_failure(context, operation, resume.abandon_plain):
        table = context.lake_table()
        foreign.refuse_unknown(context, table, frozenset())
        made = make(context, follower, table, context.cold(table, line.snapshot), cursor, operation.op_id)
        commit = commits.change(table, journal.stamps(operation), added=made.added, deletes=made.deletes)
    operation = journal.note_commit(context, operation, commit)
    publish_copy(context, operation, commit)
