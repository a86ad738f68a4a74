"""Move S over new files, and clear the corrections that are older than they are."""

from __future__ import annotations

from modak.catalog.operations import Operation
from modak.failpoints import failpoint
from modak.jobs.cold_side import reach
from modak.jobs.context import JobContext
from modak.jobs.publishing.seam import SQL, hold_seam, let_pins_pass, locked_line, published, write_line
from modak.lake.commits import Commit
from modak.registration import rebuild
from modak.source.incoming import Incoming, drop_keys
from modak.source.locks import bounded, retried


def publish_incoming(context: JobContext, operation: Operation, commit: Commit | None) -> Operation:
    """Move S, settle what Postgres knows of the same rows, and call the labels committed. Raises Pinned where a reader came between."""
    relation = context.relation()
    incoming = Incoming(context.shape(relation), relation, operation.op_id)
    spills = [] if context.table.keep_heap else rebuild.spills(context.table, relation)
    # Without one pass of tiering the cold side has no foreign table yet.
    reach(context, operation.details["old_tier_key_hi"])

    def step() -> Operation:
        with bounded(context.connection):
            execute = context.connection.execute
            hold_seam(context)
            line = locked_line(context, operation)
            changed = incoming.settle(context.connection, context.table.heap, line["tier_key_hi"], spills)
            execute(SQL.query("clear_fold"), {"op_id": operation.op_id})
            execute(SQL.query("commit_labels"), {"table_id": context.table_id, "versions": operation.details.get("versions", [])})
            write_line(context, line, line["tier_key_hi"], commit, changed=True)
            drop_keys(context.connection, context.table_id, operation.op_id)
            failpoint("incoming.in_publish")
            if changed:
                let_pins_pass(context)
            return published(context, operation, {"corrections": changed})

    return retried(step, f"adoption of {context.table.name}", attempts=context.lock_attempts)
