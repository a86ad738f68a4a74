"""Move S and F over what the stream brought, or over chunks of a copy."""

from __future__ import annotations

from modak.catalog import mirrors
from modak.catalog.operations import Operation
from modak.failpoints import failpoint
from modak.jobs.context import JobContext
from modak.jobs.publishing.seam import hold_seam, locked_line, published, write_line
from modak.lake.commits import Commit
from modak.source.locks import bounded, retried


def publish_mirror(context: JobContext, operation: Operation, commit: Commit | None) -> Operation:
    """The lake holds every transaction up to the operation's place in the stream; S, F and that place move together."""

    def step() -> Operation:
        with bounded(context.connection):
            if context.table.has_seam:
                # The stream brings rows at T and above only: whoever corrects rows below it need not wait, nor look again.
                context.fence()
            else:
                hold_seam(context)
            line = locked_line(context, operation)
            mirror = mirrors.get(context.connection, context.table_id)
            write_line(context, line, line["tier_key_hi"], commit, changed=not context.table.has_seam)
            mirrors.follow(context.connection, mirror, operation.details["to_lsn"], operation.details.get("as_of"))
            failpoint("mirror.in_publish")
            return published(context, operation, {})

    return retried(step, f"mirror of {context.table.name}", attempts=context.lock_attempts)


def publish_copy(context: JobContext, operation: Operation, commit: Commit | None) -> Operation:
    """Chunks of the copy are in the lake. F says nothing before all of them are."""

    def step() -> Operation:
        with bounded(context.connection):
            hold_seam(context)
            line = locked_line(context, operation)
            write_line(context, line, line["tier_key_hi"], commit, changed=True)
            mirrors.note_chunks(context.connection, context.table_id, operation.details["chunks"])
            failpoint("copy.in_publish")
            return published(context, operation, {})

    return retried(step, f"copy of {context.table.name}", attempts=context.lock_attempts)
