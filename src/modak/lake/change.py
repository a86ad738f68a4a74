"""One commit of everything an operation changed: data files added, rows deleted by position, whole files taken out.

PyIceberg appends; position deletes and the removal of files by name are added here, on its manifest writers. A commit is never rebased:
if the table moved since it was loaded, nothing happens, because what was found in one snapshot need not hold in the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import UpdateTableMetadata
from pyiceberg.table.update.snapshot import _FastAppendFiles

from modak.errors import LakeError, Retry
from modak.lake.calendar import use_long_calendar

use_long_calendar()

# The column of a delete file that names data files.
FILE_PATH_FIELD = 2147483546
POSITION_FIELD = 2147483545


class LakeMoved(LakeError):
    """Another commit came first; nothing of ours is visible."""

    code = "lake_moved"
    retry = Retry.NOW


@dataclass(frozen=True)
class PositionDeletes:
    """A delete file and the partition spec of its data file, which PyIceberg's own object loses on its way between processes."""

    file: DataFile
    spec_id: int


def commit_change(
    table: Table,
    stamps: Mapping[str, str],
    *,
    added: Sequence[DataFile] = (),
    deletes: Sequence[PositionDeletes] = (),
    removed: Collection[str] = (),
) -> None:
    """``removed`` names data files; deletes that speak of one of them alone go with it."""
    transaction = table.transaction()
    change = _Change(transaction, stamps, deletes, frozenset(removed))
    for file in added:
        change.append_data_file(file)
    try:
        change.commit()
        transaction.commit_transaction()
    except CommitFailedException as cause:
        change._clean_all_uncommitted()
        raise LakeMoved("the lake table moved while files were being committed", hint="the next pass looks at what came") from cause


class _DeletesWriter(ManifestWriterV2):
    """A manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Change(_FastAppendFiles):
    def __init__(
        self, transaction: Transaction, stamps: Mapping[str, str], deletes: Sequence[PositionDeletes], removed: frozenset[str]
    ) -> None:
        operation = Operation.APPEND
        if removed:
            operation = Operation.OVERWRITE if deletes else Operation.DELETE
        elif deletes:
            operation = Operation.OVERWRITE
        super().__init__(operation=operation, transaction=transaction, io=transaction._table.io, snapshot_properties=dict(stamps))
        self._deletes = tuple(deletes)
        self._removed = removed

    def commit(self) -> None:
        # Not registered for PyIceberg's retries, which would build over a stranger's commit.
        UpdateTableMetadata.commit(self)

    def _manifests(self) -> list[ManifestFile]:
        return [*self._write_deletes(), *super()._manifests()]

    def _write_deletes(self) -> Iterator[ManifestFile]:
        for spec_id in sorted({one.spec_id for one in self._deletes}):
            with self._writer(self.spec(spec_id), ManifestContent.DELETES) as writer:
                for file in [one.file for one in self._deletes if one.spec_id == spec_id]:
                    writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file))
            yield writer.to_manifest_file()

    def _existing_manifests(self) -> list[ManifestFile]:
        manifests = super()._existing_manifests()
        if not self._removed:
            return manifests
        return [self._without_removed(manifest) for manifest in manifests]

    def _without_removed(self, manifest: ManifestFile) -> ManifestFile:
        entries = manifest.fetch_manifest_entry(io=self._io, discard_deleted=True)
        gone = [entry for entry in entries if self._goes(entry.data_file)]
        if not gone:
            return manifest
        with self._writer(self.spec(manifest.partition_spec_id), manifest.content) as writer:
            for entry in entries:
                if self._goes(entry.data_file):
                    writer.delete(entry)
                else:
                    writer.existing(entry)
        self._deleted_data_files |= {entry.data_file for entry in gone}
        return writer.to_manifest_file()

    def _goes(self, file: DataFile) -> bool:
        if file.content == DataFileContent.DATA:
            return file.file_path in self._removed
        return target_of(file) in self._removed

    def _writer(self, spec: PartitionSpec, content: ManifestContent) -> ManifestWriter:
        if content == ManifestContent.DATA:
            return self.new_manifest_writer(spec)
        return _DeletesWriter(spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)

    def _summary(self, snapshot_properties: dict[str, str] = {}) -> Summary:  # noqa: B006 - PyIceberg's own default
        data = self._added_data_files
        self._added_data_files = [*data, *(one.file for one in self._deletes)]
        try:
            return super()._summary(snapshot_properties)
        finally:
            self._added_data_files = data


def target_of(deletes: DataFile) -> str | None:
    """The one data file that a delete file speaks of; None if it is for several. Bounds of a path are never cut short in such files."""
    lower, upper = ((bounds or {}).get(FILE_PATH_FIELD) for bounds in (deletes.lower_bounds, deletes.upper_bounds))
    return lower.decode() if lower is not None and lower == upper else None
