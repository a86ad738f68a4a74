"""Stamped commits to an Iceberg table, and finding them again.

Every commit of Modak's carries the operation that made it in its snapshot summary. After a crash the stamp says whether the commit
happened, and a snapshot without a stamp of ours was made by somebody else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from modak.errors import LakeError
from modak.lake.change import PositionDeletes, commit_change

OP_ID = "modak.op-id"
OP_KIND = "modak.op-kind"
TABLE_ID = "modak.table-id"
TIER_KEY_HI = "modak.tier-key-hi"


@dataclass(frozen=True)
class Commit:
    """One snapshot of a lake table, with the metadata file in which it is the current one."""

    snapshot_id: int
    sequence_number: int
    metadata_location: str
    stamps: Mapping[str, str]
    timestamp_ms: int
    operation: str

    @property
    def op_id(self) -> str | None:
        return self.stamps.get(OP_ID)


def stamps_of(snapshot: Snapshot) -> dict[str, str]:
    found: Mapping[str, Any] = snapshot.summary.additional_properties if snapshot.summary else {}
    return {name: str(value) for name, value in found.items()}


def commits_after(table: Table, snapshot_id: int | None) -> list[Commit]:
    """The line of snapshots from ``snapshot_id`` (not included; None: from the beginning) to the current one, oldest first."""
    found: list[Commit] = []
    current = table.current_snapshot()
    while current is not None and current.snapshot_id != snapshot_id:
        found.append(_commit(table, current))
        current = table.snapshot_by_id(current.parent_snapshot_id) if current.parent_snapshot_id is not None else None
    if snapshot_id is not None and current is None:
        raise LakeError(
            "the lake's current snapshot does not descend from the published one",
            hint="somebody rolled the lake table back or replaced it; `modak verify` shows the damage before you go on",
            published=snapshot_id,
        )
    return list(reversed(found))


def _commit(table: Table, snapshot: Snapshot) -> Commit:
    return Commit(
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number or 0,
        metadata_location=_metadata_of(table, snapshot.snapshot_id),
        stamps=stamps_of(snapshot),
        timestamp_ms=snapshot.timestamp_ms,
        operation=snapshot.summary.operation.value if snapshot.summary else "unknown",
    )


def _metadata_of(table: Table, snapshot_id: int) -> str:
    """The newest metadata file whose current snapshot this is: what a reader of S opens.

    The current file serves the current snapshot; an older one is looked up by the time its snapshot was current.
    """
    current = table.current_snapshot()
    if current is not None and current.snapshot_id == snapshot_id:
        return table.metadata_location
    log = table.inspect.metadata_log_entries().to_pylist()
    files = [entry["file"] for entry in log if entry["latest_snapshot_id"] == snapshot_id]
    if not files:
        raise LakeError("the metadata file of a snapshot is gone from the table's log", snapshot=snapshot_id)
    return str(files[-1])


def append(table: Table, files: Sequence[DataFile], stamps: Mapping[str, str]) -> Commit:
    """One commit of these files; fails with LakeMoved, changing nothing, if the table moved since it was loaded."""
    return change(table, stamps, added=files)


def change(
    table: Table,
    stamps: Mapping[str, str],
    *,
    added: Sequence[DataFile] = (),
    deletes: Sequence[PositionDeletes] = (),
    removed: Collection[str] = (),
    restored: Sequence[ManifestEntry] = (),
    is_rewrite: bool = False,
    merges_at: int | None = None,
) -> Commit:
    """Like ``append``, with rows deleted by position, files taken out by name, and files that were taken out before put back."""
    made = commit_change(
        table, stamps, added=added, deletes=deletes, removed=removed, restored=restored, is_rewrite=is_rewrite, merges_at=merges_at
    )
    return made_commit(table, made)


def made_commit(table: Table, snapshot_id: int) -> Commit:
    """The commit that was made just now."""
    made = table.snapshot_by_id(snapshot_id)
    if made is None:
        raise LakeError("the commit left no snapshot behind")
    return _commit(table, made)


def roll_back(table: Table, snapshot_id: int | None) -> None:
    """Make an earlier snapshot the current one again, or none at all; later ones stay until maintenance expires them."""
    change = table.manage_snapshots()
    if snapshot_id is None:
        change.remove_branch(MAIN_BRANCH).commit()
    else:
        change.set_current_snapshot(snapshot_id=snapshot_id).commit()
