"""Changes of columns that no row followed: the stream does not tell of them, so the end of a pass looks at the table itself."""

from __future__ import annotations

from modak.connection import Connection
from modak.core.stream_shape import Shape
from modak.jobs.context import JobContext
from modak.jobs.mirroring.follower import Follower, catalog_shape, describe
from modak.source.pgoutput import RelationMessage, StreamColumn


def untold(connection: Connection, follower: Follower, shape: Shape | None) -> bool:
    """Whether the lake has yet to hear of the columns that the table had when the pass began, and has still.

    ``shape`` was read before the place where the pass ends. If the table has another one by now, the next pass sees to it.
    """
    known = follower.mirror.shapes
    if shape is None or not known or catalog_shape(connection, follower.table.table_id) != shape:
        return False
    if _as_json(shape) != list(known[-1]["columns"]):
        return True
    # The lake heard of it in a pass that was killed before it was published: what was filled in is gone again.
    return int(known[-1]["lsn"]) > follower.mirror.applied_lsn and follower.shape != shape


def tell(context: JobContext, follower: Follower, shape: Shape, lsn: int) -> None:
    """As if the stream had described the table at ``lsn``. What was collected must be in the lake already."""
    known = follower.mirror.shapes
    heard = known[-1] if known and _as_json(shape) == list(known[-1]["columns"]) else None
    columns = tuple(StreamColumn(column.name, column.type_oid, column.modifier) for column in shape)
    name = follower.table.heap
    message = RelationMessage(follower.table.table_id, name.schema, name.name, "d", columns)
    describe(follower, context, message, int(heard["lsn"]) if heard else lsn)
    head = context.lake_table().current_snapshot()
    if follower.mirror.shapes != known and head is not None:
        # Readers find the columns by the metadata that is published, and that wants a commit.
        follower.part = head.snapshot_id


def _as_json(shape: Shape) -> list[dict[str, object]]:
    return [column.as_json() for column in shape]
