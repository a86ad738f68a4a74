"""Partitions that were dropped or detached: their rows leave the lake too, where it is sure which rows those are.

The stream does not tell of it, but everything that was written to such a partition committed before it went, and so before the look that
misses it. At the end of the pass the lake has all of that. If nobody can have put rows of the partition's range elsewhere meanwhile, then
all that the lake has of the range are rows that the table has not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from modak.catalog import operations, tables
from modak.catalog.tables import Registered
from modak.core import bounds
from modak.core.operation import OperationKind, Phase
from modak.core.tier_key import TierKeyType
from modak.errors import LockNotAvailable, Refused
from modak.failpoints import failpoint
from modak.jobs import foreign, journal
from modak.jobs.context import JobContext
from modak.jobs.mirroring import leaves
from modak.jobs.mirroring.follower import CannotFollow, Follower, cannot_follow
from modak.jobs.mirroring.head import stand
from modak.jobs.mirroring.leaves import Leaf, leaf_name
from modak.jobs.tasks import write_found
from modak.lake import commits
from modak.lake.delete_files import Positions
from modak.lake.storage import io_properties
from modak.scan.engine import Cursor
from modak.scan.positions import key_number, positions_where
from modak.scan.snapshots import Snapshots
from modak.source import replication
from modak.source.spill import identifier

if TYPE_CHECKING:
    from pyiceberg.table import Table as LakeTable

    from modak.scan.snapshot import DataFile, Field, Snapshot

log = logging.getLogger("modak.mirror")


@dataclass(frozen=True)
class Departed:
    """``number`` is the column's that the table is partitioned by (pg_attribute.attnum), and ``ranges`` are those of the partitions.

    ``lsn``: everything that was ever written to them committed before.
    """

    leaves: tuple[Leaf, ...]
    number: int
    key_type: TierKeyType
    ranges: tuple[bounds.Ends, ...]
    lsn: int

    @classmethod
    def look(cls, context: JobContext, gone: Sequence[Leaf], now: Sequence[Leaf]) -> Departed:
        """Raises CannotFollow where the partition that takes what no other does has taken rows of the ranges already."""
        number = int(gone[0]["range"]["column"])
        column = next(column for column in context.relation().columns if column.number == number)
        try:
            key_type = TierKeyType.from_pg(column.type.base if column.type.namespace == "pg_catalog" else column.type.display)
        except Refused as refused:
            raise cannot_follow(context.table, f"partition {leaf_name(gone[0])} was detached or dropped", code="partition") from refused
        tops = {leaf["range"]["top"]: leaf["range"]["bound"] for leaf in gone}
        ranges = tuple(bounds.ends(bound, key_type) for bound in tops.values())
        found = cls(tuple(gone), number, key_type, ranges, replication.flush_wal(context.connection))
        for leaf in now:
            if leaf["range"]["bound"] == bounds.DEFAULT and found._has_rows(context, leaf, column.name):
                raise found._lost(context.table, leaf)
        return found

    def _has_rows(self, context: JobContext, leaf: Leaf, column: str) -> bool:
        """Whether a partition has rows of the ranges."""
        value = sql.SQL("r.{}").format(sql.Identifier(column))
        parts = []
        for low, high in self.ranges:
            above = sql.SQL("{} >= {}").format(value, sql.Literal(self.key_type.encode(low))) if low is not None else sql.SQL("true")
            below = sql.SQL("{} < {}").format(value, sql.Literal(self.key_type.encode(high))) if high is not None else sql.SQL("true")
            parts.append(sql.SQL("{} and {}").format(above, below))
        query = sql.SQL("select exists (select from only {} r where {}) as found")
        row = context.connection.execute(query.format(identifier(leaf_name(leaf)), sql.SQL(" or ").join(parts))).fetchone()
        return bool(row and row["found"])

    def _lost(self, table: Registered, other: Leaf) -> CannotFollow:
        what = f"partition {leaf_name(self.leaves[0])} was detached or dropped, and {leaf_name(other)} may have taken rows of its range"
        return cannot_follow(table, what, code="partition")

    def follow(self, context: JobContext, follower: Follower, lsn: int, snapshots: Snapshots, cursor: Cursor) -> None:
        """With everything before ``lsn`` in the lake table. Raises CannotFollow where it is not sure whose rows those of the ranges are."""
        if lsn < self.lsn:
            raise LockNotAvailable(
                f"partitions of {follower.table.name} left after the end of this pass", hint="the next pass follows them"
            )
        self._check_others(follower, [*follower.leaves, *leaves.read(context.connection, context.table_id)])
        table = stand(context, follower)
        current = table.current_snapshot()
        number = current.sequence_number if current else None
        head = snapshots.get(table.metadata_location, number, io_properties(context.lake.storage))
        ids = tables.lake_field_ids(context.connection, context.table_id)
        field = next(field for field in head.fields if field.id == ids.get(self.number))
        if field.type == "string":
            raise cannot_follow(follower.table, f"partition {leaf_name(self.leaves[0])} was detached or dropped", code="partition")
        self._delete(context, follower, table, head, cursor, field)

    def _check_others(self, follower: Follower, others: Sequence[Leaf]) -> None:
        """Whether no other partition can have taken rows of the ranges since."""
        known = {leaf["oid"] for leaf in follower.leaves_before if not leaf.get("came")}
        for leaf in others:
            bound = leaf["range"]["bound"]
            if bound == bounds.DEFAULT:
                takes = leaf["oid"] not in known or leaf["oid"] in follower.spoken
            else:
                ends = bounds.ends(bound, self.key_type)
                takes = leaf["oid"] not in known and any(bounds.overlap(one, ends) for one in self.ranges)
            if takes:
                raise self._lost(follower.table, leaf)

    def _delete(self, context: JobContext, follower: Follower, table: LakeTable, head: Snapshot, cursor: Cursor, field: Field) -> None:
        """In a commit that nobody sees before what the pass brought is published; after a crash it is rolled back and made again."""
        whole, across = _files(head, field, self.ranges)
        doomed: dict[str, Positions] = {}
        if across:
            value = key_number(field)
            conditions = [" AND ".join(_conditions(value, one)) or "true" for one in self.ranges]
            doomed = positions_where(cursor, across, field, " OR ".join(f"({condition})" for condition in conditions))
        names = ", ".join(str(leaf_name(leaf)) for leaf in self.leaves)
        log.info("%s of %s left: its rows leave the lake", names, follower.table.name)
        if not whole and not doomed:
            return
        line = tables.cutline(context.connection, context.table_id)
        details = {"old_tier_key_hi": line.tier_key_hi, "old_snapshot": line.snapshot, "to_lsn": None, "departed": names}
        operation = operations.start(context.connection, context.table_id, OperationKind.MIRROR, details)
        operations.move(context.connection, operation, Phase.ABANDONED)
        foreign.refuse_unknown(context, table, frozenset(), part=follower.part)
        deletes = write_found(context.target(table), operation.op_id, across, doomed) if doomed else ()
        follower.part = commits.change(table, journal.stamps(operation), deletes=deletes, removed=whole).snapshot_id
        failpoint("mirror.after_departure")


def _files(head: Snapshot, field: Field, ranges: Sequence[bounds.Ends]) -> tuple[frozenset[str], list[DataFile]]:
    """Files that go as a whole, by their names, and those of which only some rows may."""
    whole, across = set[str](), []
    for file, values in zip(head.files, head.ranges(field), strict=True):
        held = None if values.low is None or values.high is None else (int(values.low), int(values.high))
        # Rows without a value are in no range, and bounds say nothing of them.
        has_nulls = values.nulls != 0 and not field.required
        if held is not None and not has_nulls and any(bounds.within(held, one) for one in ranges):
            whole.add(file.location)
        elif held is None or any(bounds.touches(held, one) for one in ranges):
            across.append(file)
    return frozenset(whole), across


def _conditions(value: str, ends: bounds.Ends) -> Iterator[str]:
    low, high = ends
    if low is not None:
        yield f"{value} >= {low}"
    if high is not None:
        yield f"{value} < {high}"
