"""Undo one commit though others came after it: exactly, or not at all.

Where it is the newest, the branch goes back to its parent. Where others committed on top, what it added goes and what it removed comes
back, by one more commit, unless a later commit rests on it: then no set of files is the table without it, and nothing is touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from modak.lake import commits
from modak.lake.change import FILE_PATH_FIELD, LakeMoved, target_of


@dataclass
class Effects:
    """What one commit did to the list of files."""

    added: dict[str, DataFile] = field(default_factory=dict)
    removed: list[ManifestEntry] = field(default_factory=list)

    def added_of(self, *contents: DataFileContent) -> list[DataFile]:
        return [file for file in self.added.values() if file.content in contents]


@dataclass(frozen=True)
class Found:
    """A stamped commit that is part of the table now, and ``obstacle``, why it cannot be undone; None if it can."""

    snapshot: Snapshot
    effects: Effects
    obstacle: str | None


def find(table: Table, stamp: str, value: str) -> Found | None:
    """The commit with this stamp; None where it is not part of the table, or was undone."""
    made = _stamped(table.snapshots(), stamp, value)
    current = table.current_snapshot()
    if made is None or current is None or _stamped(ancestors_of(current, table.metadata), stamp, _undone(value)) is not None:
        return None
    effects = _effects(table.io, made)
    if current.snapshot_id == made.snapshot_id:
        return Found(made, effects, None if _can_go_back(table, made) else _lost(table.io, effects))
    live = _live(table.io, current)
    if not _counts(table, made, effects, live):
        return None
    return Found(made, effects, _rests_on(effects, live, _live(table.io, made)) or _lost(table.io, effects))


def undo(table: Table, stamp: str, value: str, found: Found | None) -> bool:
    """``found`` is what ``find`` said of the table as it is loaded, and nothing is in the way. May be done twice.

    Returns whether a snapshot still has its files. LakeMoved, and nothing changed, where another commit came first.
    """
    if found is None:
        _expire(table, _stamped(table.snapshots(), stamp, value))
        return _stamped(table.snapshots(), stamp, value) is not None
    if _can_go_back(table, found.snapshot):
        try:
            commits.roll_back(table, found.snapshot.parent_snapshot_id)
        except CommitFailedException as cause:
            raise LakeMoved("the lake table moved while a commit was being undone", hint="it is looked at again") from cause
        table.refresh()
        _expire(table, found.snapshot)
        return _stamped(table.snapshots(), stamp, value) is not None
    commits.change(table, {stamp: _undone(value)}, removed=found.effects.added.keys(), restored=found.effects.removed)
    return True


def knows_parent(table: Table, snapshot: Snapshot) -> bool:
    """Whether the table as it was before is still there. PyIceberg forgets a parent that it expires: then only a first commit has none."""
    if snapshot.parent_snapshot_id is not None:
        return table.snapshot_by_id(snapshot.parent_snapshot_id) is not None
    return all(
        manifest.added_snapshot_id == snapshot.snapshot_id and not manifest.existing_files_count and not manifest.deleted_files_count
        for manifest in snapshot.manifests(table.io)
    )


def _can_go_back(table: Table, made: Snapshot) -> bool:
    """The newest, and what was there before it is known still."""
    current = table.current_snapshot()
    return current is not None and current.snapshot_id == made.snapshot_id and knows_parent(table, made)


def _undone(value: str) -> str:
    return f"{value} taken back"


def _stamped(snapshots: Iterable[Snapshot], stamp: str, value: str) -> Snapshot | None:
    return next((one for one in snapshots if commits.stamps_of(one).get(stamp) == value), None)


def _expire(table: Table, made: Snapshot | None) -> None:
    """One that nothing leads to any more. What a branch or a tag of somebody's holds stays."""
    if made is None or any(one.snapshot_id == made.snapshot_id for one in ancestors_of(table.current_snapshot(), table.metadata)):
        return
    if any(ref.snapshot_id == made.snapshot_id for ref in table.metadata.refs.values()):
        return
    try:
        table.maintenance.expire_snapshots().by_id(made.snapshot_id).commit()
    except CommitFailedException as cause:
        raise LakeMoved("the lake table moved while a commit was being undone", hint="it is looked at again") from cause


def _effects(io: FileIO, made: Snapshot) -> Effects:
    found = Effects()
    for manifest in made.manifests(io):
        if manifest.added_snapshot_id != made.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
            if entry.status == ManifestEntryStatus.ADDED:
                found.added[entry.data_file.file_path] = entry.data_file
            elif entry.status == ManifestEntryStatus.DELETED:
                found.removed.append(entry)
    return found


def _live(io: FileIO, snapshot: Snapshot) -> dict[str, DataFile]:
    entries = (entry for manifest in snapshot.manifests(io) for entry in manifest.fetch_manifest_entry(io, discard_deleted=True))
    return {entry.data_file.file_path: entry.data_file for entry in entries}


def _counts(table: Table, made: Snapshot, effects: Effects, live: Collection[str]) -> bool:
    """Whether the current snapshot descends from it. Where those in between have expired, the files tell."""
    line = list(ancestors_of(table.current_snapshot(), table.metadata))
    if any(one.snapshot_id == made.snapshot_id for one in line):
        return True
    if line[-1].parent_snapshot_id is None and knows_parent(table, line[-1]):
        return False
    if effects.added:
        return any(path in live for path in effects.added)
    return not any(entry.data_file.file_path in live for entry in effects.removed)


def _rests_on(effects: Effects, live: dict[str, DataFile], then: Collection[str]) -> str | None:
    """What of the table as it is now makes no sense without the commit. In doubt, yes."""
    if any(path not in live for path in effects.added):
        return "a later commit removed or rewrote files that it added"
    targets = [target_of(file) for file in effects.added_of(DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES)]
    if any(target is None or target not in live for target in targets):
        return "a later commit rewrote files whose rows it deleted"
    rows = [file.file_path.encode() for file in effects.added_of(DataFileContent.DATA)]
    for path, file in live.items():
        if path in then or file.content == DataFileContent.DATA:
            continue
        if file.content == DataFileContent.EQUALITY_DELETES or any(_may_concern(file, row) for row in rows):
            return "a later commit deleted or changed rows that it added"
    if any(entry.data_file.file_path in live for entry in effects.removed):
        return "a later commit put files back that it removed"
    return None


def _may_concern(deletes: DataFile, path: bytes) -> bool:
    """By the bounds of the paths that it names; one without bounds may name any."""
    lower, upper = ((bounds or {}).get(FILE_PATH_FIELD) for bounds in (deletes.lower_bounds, deletes.upper_bounds))
    return lower is None or upper is None or lower <= path <= upper


def _lost(io: FileIO, effects: Effects) -> str | None:
    if all(io.new_input(entry.data_file.file_path).exists() for entry in effects.removed):
        return None
    return "files that it removed are gone from the store: the snapshots that had them have expired"
