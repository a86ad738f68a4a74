"""What maintenance is about to do with the files of one snapshot, of a registered table or of a decoupled one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from modak.core import maintenance
from modak.core.maintenance import LakeFile, Upkeep
from modak.scan.snapshot import DataFile, Snapshot

# What one commit writes anew at most, so that a pass that is stopped has done something.
COMMIT_BYTES = 8 * 1024**3
JOINS_PER_TASK = 64


@dataclass(frozen=True)
class Plan:
    """Files are known by their path: groups of them to be written anew together, and those whose deletes are to be joined."""

    snapshot: Snapshot
    lake_files: tuple[LakeFile, ...]
    groups: tuple[tuple[str, ...], ...]
    joins: tuple[str, ...]
    files: Mapping[str, DataFile] = field(repr=False)

    @classmethod
    def of(cls, snapshot: Snapshot, upkeep: Upkeep, ordered_by: str | None = None) -> Plan:
        """``ordered_by``: neighbours by this column are packed together."""
        known = snapshot.ranges(snapshot.field(ordered_by)) if ordered_by is not None else [None] * len(snapshot.files)
        lows = [one.low if one is not None else None for one in known]
        lake_files = tuple(_lake_file(file, low) for file, low in zip(snapshot.files, lows, strict=True))
        groups, joins = maintenance.rewrites(lake_files, upkeep), maintenance.joins(lake_files, upkeep)
        taken = {path for group in groups for path in group}
        files = {file.path: file for file in snapshot.files}
        return cls(snapshot, lake_files, tuple(groups), tuple(path for path in joins if path not in taken), files)

    def bytes_of(self, paths: Sequence[str]) -> int:
        return sum(self.files[path].bytes for path in paths)

    def batches(self) -> list[list[tuple[str, ...]]]:
        """The groups, in commits of a bounded size."""
        return list(maintenance.batches(self.groups, {path: file.bytes for path, file in self.files.items()}, COMMIT_BYTES))

    def join_parts(self, joins: Sequence[str]) -> tuple[tuple[DataFile, ...], ...]:
        """For tasks: some files' deletes each."""
        return tuple(
            tuple(self.files[path] for path in joins[start : start + JOINS_PER_TASK]) for start in range(0, len(joins), JOINS_PER_TASK)
        )

    def useless(self, gone: Collection[str], joins: Sequence[str]) -> list[str]:
        """Delete files that a commit leaves without a row to delete: those it joins, and shared ones whose data files are all replaced."""
        joined = [delete.location for path in joins for delete in self.files[path].deletes]
        users: dict[str, set[str]] = {}
        for file in self.files.values():
            for delete in file.deletes:
                if delete.target is None:
                    users.setdefault(delete.location, set()).add(file.path)
        return joined + [location for location, paths in users.items() if paths <= set(gone)]


def _lake_file(file: DataFile, low: int | None) -> LakeFile:
    own = [delete for delete in file.deletes if delete.target is not None]
    return LakeFile(
        name=file.path,
        partition=(file.spec_id, file.partition),
        bytes=file.bytes,
        rows=file.rows,
        deleted_rows=sum(delete.rows for delete in own),
        delete_files=len(own),
        is_shared=len(own) < len(file.deletes),
        low=low,
    )
