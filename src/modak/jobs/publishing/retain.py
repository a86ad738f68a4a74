"""Move R, and S with it."""

from __future__ import annotations

import psycopg

from modak.catalog.operations import Operation
from modak.errors import Refused
from modak.failpoints import failpoint
from modak.jobs.context import JobContext
from modak.jobs.publishing.seam import SQL, Pinned, hold_seam, let_pins_pass, locked_line, published, write_line
from modak.lake.commits import Commit
from modak.registration import rebuild
from modak.source.expiring import Expiring
from modak.source.locks import bounded, retried


def _refuse_staged_below(context: JobContext, line: int) -> None:
    """Loads stage under the lock that this transaction has alone: what is not here yet will see the new R."""
    row = context.connection.execute(SQL.query("lowest_staged_key"), {"table_id": context.table_id}).fetchone()
    if row is not None and row["lowest"] is not None and row["lowest"] < line:
        raise Pinned(
            f"a staged load of {context.table.name} holds rows below the new retention line",
            hint="it waits until the load is adopted",
            lowest=row["lowest"],
        )


def publish_retention(context: JobContext, operation: Operation, commit: Commit | None) -> Operation:
    """Move R, and S with it, and purge what lies below R. Raises Pinned where a reader, or a load that is staged, came between."""
    relation, line = context.relation(), int(operation.details["new_retention_line"])
    expiring = Expiring(context.shape(relation), relation, line)
    spills = rebuild.spills(context.table, relation)

    def step() -> Operation:
        with bounded(context.connection):
            execute = context.connection.execute
            hold_seam(context)
            row = locked_line(context, operation)
            purged = expiring.expire(context.connection, operation.op_id, spills)
            execute(SQL.query("clear_fold"), {"op_id": operation.op_id})
            execute(SQL.query("forget_expired_partitions"), {"table_id": context.table_id, "retention_line": line})
            write_line(context, row, row["tier_key_hi"], commit, changed=commit is not None or purged > 0, retention_line=line)
            failpoint("retain.in_publish")
            _refuse_staged_below(context, line)
            let_pins_pass(context)
            return published(context, operation, {"purged": purged})

    try:
        return retried(step, f"retention of {context.table.name}", attempts=context.lock_attempts)
    except psycopg.errors.ForeignKeyViolation as cause:
        raise Refused(
            f"expired rows of {context.table.name} are referenced: {cause.diag.message_detail or cause.diag.message_primary}",
            hint="remove the references; the next pass expires the rows",
            sqlstate="23503",
        ) from cause
