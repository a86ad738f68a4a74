"""What ties an operation to its commit in the lake: the commit carries the operation's stamps, and the journal notes the commit."""

from __future__ import annotations

from typing import Any

from modak.catalog import operations
from modak.catalog.operations import Operation
from modak.core.operation import Phase
from modak.jobs.context import JobContext
from modak.lake import commits
from modak.lake.commits import Commit


def stamps(operation: Operation, **more: str) -> dict[str, str]:
    """By these a restart finds the commit again."""
    return {
        commits.OP_ID: operation.op_id,
        commits.OP_KIND: operation.kind.value,
        commits.TABLE_ID: str(operation.table_id),
        **more,
    }


def note_commit(context: JobContext, operation: Operation, commit: Commit, **more: Any) -> Operation:
    details = {"snapshot_id": str(commit.snapshot_id), "metadata_location": commit.metadata_location, **more}
    return operations.move(context.connection, operation, Phase.COMMITTED, snapshot=commit.sequence_number, details=details)
