"""Snapshots on the lake table that the catalog did not publish: ours from an abandoned operation, or somebody else's."""

from __future__ import annotations

from pyiceberg.table import Table

from modak.catalog import mirrors, operations, tables
from modak.core.operation import OperationKind, Phase
from modak.errors import LakeError, LockNotAvailable, UsageError
from modak.jobs.context import JobContext
from modak.jobs.mirroring.alone import is_at_work
from modak.lake.change import LakeMoved
from modak.lake.commits import OP_KIND, Commit, commits_after, roll_back

CHOICES = ("refuse", "accept", "rollback")


class ForeignSnapshot(LakeError):
    """Somebody else committed to the lake table."""

    code = "foreign_snapshot"


def settle(context: JobContext, choice: str, *, by_pump: bool = False) -> frozenset[int]:
    """Before a pass: undo late commits of abandoned operations, and do with foreign ones what the user said.

    Returns the foreign snapshots that were accepted. Parts of a transaction that the pump is reading are late commits too, and only
    ``by_pump`` they are undone; a new copy (``rollback``) takes their place anyway.
    """
    if choice not in CHOICES:
        raise UsageError(f"--foreign {choice!r} is none of {', '.join(CHOICES)}")
    table = context.lake_table()
    late, strange = _unpublished(context, table)
    if strange and choice == "refuse":
        raise _refusal(context, strange)
    if _parts(late) and choice != "rollback" and not by_pump and _is_being_followed(context):
        raise LockNotAvailable(
            f"the pump is in the middle of a transaction of {context.table.name}", hint="it ends with that pass; the next try finds it done"
        )
    if strange and late and choice == "accept":
        raise _mixed(context, strange)
    if late or (strange and choice == "rollback"):
        # Nothing published depends on them; readers open S by its own metadata file.
        roll_back(table, tables.published_snapshot(context.connection, context.table_id))
        return frozenset()
    return frozenset(commit.snapshot_id for commit in strange)


def refuse_unknown(context: JobContext, table: Table, accepted: frozenset[int], *, part: int | None = None) -> None:
    """Right before a commit: what came since the pass began is not built over blindly.

    That may also be a commit of ours: of a leader that was paused in the middle of it, or one that the catalog took long to carry out. Its
    operation has been given up, and its rows are in ours as well. ``part``: the newest of the pump's own, which it goes on from.
    """
    late, strange = _unpublished(context, table)
    news = [commit for commit in strange if commit.snapshot_id not in accepted]
    if news:
        raise _refusal(context, news)
    if late and late[-1].snapshot_id != part:
        raise LakeMoved(
            f"a commit of operation {late[-1].op_id}, which was given up, came to lake table {context.table.lake_table_ref} after all",
            hint="nothing was built on it; the next pass takes it out and goes on",
        )


def _parts(late: list[Commit]) -> list[Commit]:
    return [commit for commit in late if commit.stamps.get(OP_KIND) == OperationKind.MIRROR.value]


def _is_being_followed(context: JobContext) -> bool:
    """Whether a pump may go on from its parts. It takes the stream's lock first, and the table's, which we have, at each step."""
    if context.table.mode != "mirrored" or not is_at_work(context.connection):
        return False
    return mirrors.get(context.connection, context.table_id).is_followed


def _unpublished(context: JobContext, table: Table) -> tuple[list[Commit], list[Commit]]:
    late, strange = [], []
    for commit in commits_after(table, tables.published_snapshot(context.connection, context.table_id)):
        known = operations.find(context.connection, commit.op_id) if commit.op_id else None
        if known is not None and known.phase is Phase.ABANDONED:
            late.append(commit)
        else:
            strange.append(commit)
    return late, strange


def _mixed(context: JobContext, strange: list[Commit]) -> ForeignSnapshot:
    return ForeignSnapshot(
        f"foreign snapshots stand on lake table {context.table.lake_table_ref} together with a commit of ours that was given up",
        hint="they cannot be accepted without its rows: `--foreign rollback` undoes both, and the foreign changes have to be made again",
        newest=strange[-1].snapshot_id,
    )


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
