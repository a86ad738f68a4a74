"""What a pass builds on: the published snapshot and its own parts of an open transaction, and nothing else that came or went since.

The table's lock is free between two steps of a pass, so the lake is looked at anew before each one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modak.catalog import mirrors, tables
from modak.errors import CutlineMoved
from modak.jobs import foreign
from modak.jobs.context import JobContext

if TYPE_CHECKING:
    from pyiceberg.table import Table as LakeTable

    from modak.jobs.mirroring.follower import Follower


def check_place(context: JobContext, follower: Follower) -> None:
    """A copy that was made anew knows more than what the pass has read."""
    state = mirrors.get(context.connection, context.table_id)
    if not state.is_followed or (state.applied_lsn, state.copied_lsn) != (follower.mirror.applied_lsn, follower.mirror.copied_lsn):
        raise CutlineMoved(f"{context.table.name} was copied anew, parked or moved during the pass", hint="the next pass begins at its F")


def stand(context: JobContext, follower: Follower) -> LakeTable:
    """The lake table to put the next changes on. Raises CutlineMoved where a replay from F is the only right way on."""
    check_place(context, follower)
    table = context.lake_table()
    current = table.current_snapshot()
    head = current.snapshot_id if current else None
    if follower.part is not None:
        if head != follower.part:
            raise CutlineMoved(
                f"another job took parts of an open transaction out of the lake table of {context.table.name}",
                hint="nothing of it was published; the next pass reads the transaction again",
                expected=follower.part,
                found=head,
            )
        return table
    if head != tables.published_snapshot(context.connection, context.table_id):
        # A commit of a job that gave up may have come since the pass began.
        foreign.settle(context, "refuse", by_pump=True)
        return context.lake_table()
    return table
