"""What a new copy takes the place of: everything in the lake, or, of a table that shed partitions, the rows from T on.

Rows below T are nowhere else any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modak.catalog import tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core import bounds
from modak.core.table import Relation
from modak.jobs.context import JobContext
from modak.jobs.mirroring.leaves import Leaves
from modak.jobs.tasks import engine_cursor, write_found
from modak.lake.delete_files import Positions
from modak.scan.positions import key_number, positions_where

if TYPE_CHECKING:
    from pyiceberg.table import Table as LakeTable

    from modak.lake.change import PositionDeletes


@dataclass(frozen=True)
class Cleared:
    """``removed`` names data files that go whole; ``deletes`` are rows of files that stay."""

    removed: frozenset[str] = frozenset()
    deletes: tuple[PositionDeletes, ...] = ()


def clear(context: JobContext, table: LakeTable, snapshot: int | None, op_id: str) -> Cleared:
    published = context.cold(table, snapshot)
    if not context.table.has_seam:
        return Cleared(frozenset(file.location for file in published.files))
    line = tables.cutline(context.connection, context.table_id).tier_key_hi
    key = published.field(context.table.tier_key_col)
    whole, across = set[str](), []
    for file, values in zip(published.files, published.ranges(key), strict=True):
        if values.low is not None and values.low >= line:
            whole.add(file.location)
        elif values.high is None or values.high >= line:
            across.append(file)
    doomed: dict[str, Positions] = {}
    with engine_cursor(context.lake.storage) as cursor:
        for file in across:
            doomed |= positions_where(cursor, [file], key, f"{key_number(key)} >= {line}")
    return Cleared(frozenset(whole), write_found(context.target(table), op_id, across, doomed) if doomed else ())


def copied_leaves(connection: Connection, table: Registered, relation: Relation, files: Leaves) -> Leaves:
    """The partitions that a copy reads: not those below T, and no spill. Their rows are in the lake, or in corrections."""
    if not table.has_seam:
        return files
    line = tables.cutline(connection, table.table_id).tier_key_hi
    hot = {leaf.oid for leaf in bounds.range_leaves(relation) if bounds.parse_range(leaf.bound, table.key_type)[1] > line}
    return [file for file in files if file["oid"] in hot]
