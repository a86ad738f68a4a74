"""Snapshots on the lake table that the catalog did not publish: ours from an abandoned operation, or somebody else's."""

from __future__ import annotations

from pyiceberg.table import Table

from modak.catalog import operations, tables
from modak.core.operation import Phase
from modak.errors import LakeError, UsageError
from modak.jobs.context import JobContext
from modak.lake.commits import Commit, commits_after, roll_back

CHOICES = ("refuse", "accept", "rollback")


class ForeignSnapshot(LakeError):
    """Somebody else committed to the lake table."""

    code = "foreign_snapshot"


def settle(context: JobContext, choice: str) -> frozenset[int]:
    """Before a pass: undo late commits of abandoned operations, and do with foreign ones what the user said.

    Returns the foreign snapshots that were accepted.
    """
    if choice not in CHOICES:
        raise UsageError(f"--foreign {choice!r} is none of {', '.join(CHOICES)}")
    table = context.lake_table()
    late, strange = _unpublished(context, table)
    if strange and choice == "refuse":
        raise _refusal(context, strange)
    if late or (strange and choice == "rollback"):
        # Nothing published depends on them; readers open S by its own metadata file.
        roll_back(table, tables.published_snapshot(context.connection, context.table_id))
        return frozenset()
    return frozenset(commit.snapshot_id for commit in strange)


def refuse_unknown(context: JobContext, table: Table, accepted: frozenset[int]) -> None:
    """Right before a commit: what came since the pass began is not built over blindly."""
    _, strange = _unpublished(context, table)
    news = [commit for commit in strange if commit.snapshot_id not in accepted]
    if news:
        raise _refusal(context, news)


def _unpublished(context: JobContext, table: Table) -> tuple[list[Commit], list[Commit]]:
    late, strange = [], []
    for commit in commits_after(table, tables.published_snapshot(context.connection, context.table_id)):
        known = operations.find(context.connection, commit.op_id) if commit.op_id else None
        if known is not None and known.phase is Phase.ABANDONED:
            late.append(commit)
        else:
            strange.append(commit)
    return late, strange


def _refusal(context: JobContext, strange: list[Commit]) -> ForeignSnapshot:
    newest = strange[-1]
    who = newest.stamps.get("engine-name") or newest.stamps.get("spark.app.id") or newest.stamps.get("app-id") or "an unknown engine"
    return ForeignSnapshot(
        f"{len(strange)} snapshots that Modak did not make stand on lake table {context.table.lake_table_ref}",
        hint="readers still see the published one; to keep the foreign changes run `modak tier … --foreign accept`, "
        "to undo them `modak tier … --foreign rollback`",
        newest=newest.snapshot_id,
        operation=newest.operation,
        by=who,
    )
