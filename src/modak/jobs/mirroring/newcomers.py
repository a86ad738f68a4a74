"""Partitions that were attached: whether all rows that one held when it was seen first came by the stream.

A session keeps the snapshot of that look. At the end of the pass the lake has everything that committed before it, so a row of the
snapshot that is still there, and that the lake does not have, was brought in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from modak.catalog import mirrors
from modak.connection import Connection, open_connection
from modak.core.changes import Key
from modak.core.table import Name
from modak.errors import LockNotAvailable
from modak.jobs.context import JobContext
from modak.jobs.mirroring.files import lacking
from modak.jobs.mirroring.follower import Follower, cannot_follow, catalog_shape
from modak.jobs.mirroring.leaves import Leaf, leaf_name
from modak.lake.storage import io_properties
from modak.scan.engine import Cursor
from modak.scan.snapshots import Snapshots
from modak.source import replication
from modak.source.spill import identifier

BATCH_KEYS = 50_000


@dataclass(frozen=True)
class Newcomers:
    """``lsn``: everything that the session's snapshot sees committed before."""

    session: Connection
    leaves: tuple[Leaf, ...]
    lsn: int

    @classmethod
    def look(cls, context: JobContext, leaves: Sequence[Leaf]) -> Newcomers:
        session = open_connection(context.dsn, application="modak-newcomers", unhurried=True)
        session.execute("set transaction isolation level repeatable read, read only")
        session.execute("select 1")
        return cls(session, tuple(leaves), replication.flush_wal(context.connection))

    def check(self, context: JobContext, follower: Follower, lsn: int, snapshots: Snapshots, cursor: Cursor) -> None:
        """With everything before ``lsn`` in the lake table, published or not. Raises CannotFollow for a row that is nowhere else."""
        if lsn < self.lsn:
            raise LockNotAvailable(f"a partition of {follower.table.name} is newer than this pass", hint="the next pass looks into it")
        table = context.lake_table()
        current = table.current_snapshot()
        number = current.sequence_number if current else None
        head = snapshots.get(table.metadata_location, number, io_properties(context.lake.storage))
        probe = Follower(follower.table, mirrors.get(context.connection, context.table_id), follower.storage)
        probe.shape, probe.columns = catalog_shape(context.connection, context.table_id), context.relation().columns
        for name in map(leaf_name, self.leaves):
            try:
                for keys in self._keys(name, follower.table.primary_key_cols):
                    missing = lacking(context, probe, table, head, cursor, keys)
                    if missing and _is_there(context.connection, name, follower.table.primary_key_cols, missing):
                        raise cannot_follow(follower.table, f"partition {name} was attached with rows in it", code="partition")
            except psycopg.errors.UndefinedTable as cause:
                raise cannot_follow(follower.table, f"partition {name} was detached or dropped", code="partition") from cause

    def _keys(self, leaf: Name, names: Sequence[str]) -> Iterator[list[Key]]:
        values = sql.SQL(", ").join(_text(name) for name in names)
        query = sql.SQL("select array[{}] as key from only {} r").format(values, identifier(leaf))
        with self.session.cursor(name="modak_newcomers") as found:
            found.execute(query)
            while rows := found.fetchmany(BATCH_KEYS):
                yield [tuple(value.encode() for value in row["key"]) for row in rows]


def _text(name: str) -> sql.Composed:
    """A value as the stream writes it."""
    return sql.SQL("concat(r.{})").format(sql.Identifier(name))


def _is_there(connection: Connection, leaf: Name, names: Sequence[str], keys: Sequence[Key]) -> bool:
    """Whether one of the keys is in the partition now: rows that were deleted meanwhile are not missed."""
    listed = [[key[place].decode() for key in keys] for place in range(len(names))]
    columns = [sql.Identifier(f"k{place}") for place in range(len(names))]
    same = [sql.SQL("{} = k.{}").format(_text(name), column) for name, column in zip(names, columns, strict=True)]
    query = sql.SQL("select exists (select from only {} r join unnest({}) as k({}) on {}) as found").format(
        identifier(leaf),
        sql.SQL(", ").join(sql.SQL("%s::text[]") for _ in names),
        sql.SQL(", ").join(columns),
        sql.SQL(" and ").join(same),
    )
    row = connection.execute(query, listed).fetchone()
    return bool(row and row["found"])
