"""Move S over files that were written anew: the same rows as before, so nobody has to wait for it."""

from __future__ import annotations

from modak.catalog.operations import Operation
from modak.failpoints import failpoint
from modak.jobs.context import JobContext
from modak.jobs.publishing.seam import hold_seam, locked_line, published, write_line
from modak.lake.commits import Commit
from modak.source.locks import bounded, retried


def publish_maintenance(context: JobContext, operation: Operation, commit: Commit | None) -> Operation:
    """A pinned reader keeps its own snapshot, and its corrections stand as they were: pins do not forbid this."""

    def step() -> Operation:
        with bounded(context.connection):
            hold_seam(context)
            line = locked_line(context, operation)
            write_line(context, line, line["tier_key_hi"], commit, changed=False)
            failpoint("maintain.in_publish")
            return published(context, operation, {})

    return retried(step, f"maintenance of {context.table.name}", attempts=context.lock_attempts)
