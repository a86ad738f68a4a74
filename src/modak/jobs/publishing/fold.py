"""Move S over folded corrections, and clear them."""

from __future__ import annotations

from modak.catalog.operations import Operation
from modak.failpoints import failpoint
from modak.jobs.cold_side import reach
from modak.jobs.context import JobContext
from modak.jobs.publishing.seam import SQL, hold_seam, let_pins_pass, locked_line, published, write_line
from modak.lake.commits import Commit
from modak.registration import rebuild
from modak.source.corrections import Corrections
from modak.source.locks import bounded, retried


def publish_fold(context: JobContext, operation: Operation, commit: Commit | None) -> Operation:
    """Move S and clear the folded corrections, with the spill's rows that stood for them. Raises Pinned where a reader came between."""
    relation = context.relation()
    corrections = Corrections(context.shape(relation), relation)
    # A heap that is kept keeps its spilled rows as well.
    spills = [] if context.table.keep_heap else rebuild.spills(context.table, relation)
    if commit is not None:
        # Without one pass of tiering, or after an untier of everything, the cold side has no foreign table yet.
        reach(context, operation.details["old_tier_key_hi"])

    def step() -> Operation:
        with bounded(context.connection):
            execute = context.connection.execute
            hold_seam(context)
            line = locked_line(context, operation)
            cleared = corrections.clear(context.connection, operation.op_id, spills)
            execute(SQL.query("clear_fold"), {"op_id": operation.op_id})
            write_line(context, line, line["tier_key_hi"], commit, changed=True)
            failpoint("fold.in_publish")
            let_pins_pass(context)
            return published(context, operation, {"cleared": cleared})

    return retried(step, f"fold of {context.table.name}", attempts=context.lock_attempts)
