"""A table whose file is another one, with columns that were altered or came since the last look: an ALTER TABLE may have written other
values into its rows, by USING or by a default, without a word in the stream. Or it may have not, and nothing in the catalog tells.

So its rows are compared. A session keeps the snapshot of the look. At the end of the pass the lake has everything that committed before
it, and what committed since, of which the stream tells the keys. Every other row must be in the lake as the snapshot has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import psycopg
from psycopg import sql
from psycopg.rows import DictRow

from modak.connection import Connection, open_connection
from modak.core.changes import UNCHANGED, Key, Row
from modak.core.seen import Seen
from modak.core.stream_shape import Shape
from modak.errors import LockNotAvailable
from modak.jobs.context import JobContext
from modak.jobs.mirroring.files import Likeness
from modak.jobs.mirroring.follower import Follower, cannot_follow, catalog_shape
from modak.jobs.mirroring.leaves import Leaf, leaf_name
from modak.lake.storage import io_properties
from modak.scan.engine import Cursor
from modak.scan.snapshots import Snapshots
from modak.source import replication
from modak.source.pgoutput import Delete, Insert, Truncate, Update
from modak.source.spill import identifier

FETCH_ROWS = 5_000
# For each batch the lake's keys are read again, so it is as large as memory is meant for.
BATCH_ROWS, BATCH_BYTES = 200_000, 64 * 1024 * 1024
LOCK_TIMEOUT = "5s"
LATER = "the next pass looks into it"


@dataclass(frozen=True)
class Rewritten:
    """``numbers``: columns in doubt (pg_attribute.attnum). ``lsn``: everything that the session's snapshot sees committed before.

    ``touched``: keys that transactions changed which the snapshot does not see.
    """

    session: Connection
    leaf: Leaf
    numbers: frozenset[int]
    lsn: int
    seen: Seen
    touched: set[Key] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)  # numbers of columns of which such a transaction left a large value alone

    @classmethod
    def look(cls, context: JobContext, leaf: Leaf, numbers: Sequence[int]) -> Rewritten:
        session = open_connection(context.dsn, application="modak-rewritten", unhurried=True)
        session.execute("set transaction isolation level repeatable read, read only")
        session.execute("select set_config('lock_timeout', %s, true)", [LOCK_TIMEOUT])
        row = session.execute("select pg_current_snapshot()::text as snapshot").fetchone()
        assert row is not None
        return cls(session, leaf, frozenset(numbers), replication.flush_wal(context.connection), Seen.parse(row["snapshot"]))

    def close(self) -> None:
        self.session.close()

    def note(self, xid: int, follower: Follower, message: Insert | Update | Delete | Truncate) -> None:
        """A change of the stream. A TRUNCATE shows in the table's file."""
        collapse = follower.collapse
        if collapse is None or isinstance(message, Truncate) or self.seen(xid):
            return
        old = None if isinstance(message, Insert) else message.old
        if old is not None:
            self.touched.add(collapse.key(old))
        if not isinstance(message, Delete):
            self.touched.add(collapse.key(message.new if old is None else collapse.with_key(message.new, old)))
            self.kept.update(column.number for column, value in zip(follower.shape, message.new, strict=True) if value is UNCHANGED)

    def check(self, context: JobContext, follower: Follower, lsn: int, snapshots: Snapshots, cursor: Cursor) -> None:
        """With everything before ``lsn`` in the lake table, published or not. Raises CannotFollow for a row that is another one there."""
        name = follower.table.name
        if lsn < self.lsn:
            raise LockNotAvailable(f"{name} was rewritten, and this pass ends before that", hint=LATER)
        shape = catalog_shape(context.connection, context.table_id)
        known = follower.mirror.shapes
        if known and [column.as_json() for column in shape] != list(known[-1]["columns"]):
            raise LockNotAvailable(f"columns of {name} change while it is compared with the lake", hint=LATER)
        places = self._places(follower, shape)
        if self.kept.intersection(shape[place].number for place in places):
            raise LockNotAvailable(f"rows of {name} that keep large values changed while it was compared with the lake", hint=LATER)
        probe = Follower(follower.table, follower.mirror, follower.storage, shape, context.relation().columns)
        table = context.lake_table()
        current = table.current_snapshot()
        head = snapshots.get(table.metadata_location, current.sequence_number if current else None, io_properties(context.lake.storage))
        likeness = Likeness(context, probe, table, head, cursor, places)
        for rows in self._rows(follower, [shape[place].name for place in places]):
            found = likeness.unlike(rows)
            if found is not None:
                raise cannot_follow(follower.table, _difference(*found), code="rewritten")
        self.close()  # with it goes its lock, which somebody may wait for

    def _places(self, follower: Follower, shape: Shape) -> list[int]:
        """Where in the shape the columns in doubt are. All of them if the key is one: then nothing else says which row is which."""
        key = follower.table.primary_key_cols
        is_key = any(column.number in self.numbers and column.name in key for column in shape)
        return [place for place, column in enumerate(shape) if column.number in self.numbers or is_key]

    def _rows(self, follower: Follower, names: Sequence[str]) -> Iterator[list[Row]]:
        """The key's values and those of the columns, as the stream would write them, of rows that it did not tell of."""
        size = len(follower.table.primary_key_cols)
        heap = identifier(leaf_name(self.leaf))
        values = [
            sql.SQL("case when h.{0} is null then null else convert_to(concat(h.{0}), 'UTF8') end").format(sql.Identifier(name))
            for name in (*follower.table.primary_key_cols, *names)
        ]
        query = sql.SQL("select array[{}]::bytea[] as row from only {} h").format(sql.SQL(", ").join(values), heap)
        try:
            with self.session.cursor(name="modak_rewritten") as found:
                found.execute(query)
                self._check_file(follower)
                yield from _batches(found, size, self.touched)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.LockNotAvailable) as cause:
            raise LockNotAvailable(f"{follower.table.name} was altered while it was compared with the lake", hint=LATER) from cause

    def _check_file(self, follower: Follower) -> None:
        """A file that was written since has rows that an older snapshot does not see. From here on the session's lock keeps it."""
        row = self.session.execute("select pg_relation_filenode(%s::oid)::bigint as filenode", [self.leaf["oid"]]).fetchone()
        if row is None or row["filenode"] != self.leaf["filenode"]:
            raise LockNotAvailable(f"{follower.table.name} was rewritten again while it was compared with the lake", hint=LATER)


def _batches(cursor: psycopg.ServerCursor[DictRow], size: int, touched: AbstractSet[Key]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    held = 0
    while rows := cursor.fetchmany(FETCH_ROWS):
        told = [tuple(row["row"]) for row in rows]
        batch += [row for row in told if row[:size] not in touched]
        held += sum(len(value) for row in told for value in row if value is not None)
        if len(batch) >= BATCH_ROWS or held >= BATCH_BYTES:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _difference(key: Key, column: str | None) -> str:
    text = b", ".join(key).decode(errors="replace")[:100]
    if column is None:
        return f"it was rewritten by an ALTER TABLE, and the lake has no row of key {text}"
    return f"column {column} was rewritten by an ALTER TABLE with other values, of key {text} for one, without a word in the stream"
