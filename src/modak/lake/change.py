"""One commit of everything an operation changed: data files added, rows deleted by position, whole files taken out.

PyIceberg appends; position deletes and the removal of files by name are added here, on its manifest writers. A commit is never rebased:
if the table moved since it was loaded, nothing happens, because what was found in one snapshot need not hold in the next.
"""

from __future__ import annotations

import time
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
    write_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary, update_snapshot_summaries
from pyiceberg.table.update import UpdateTableMetadata
from pyiceberg.table.update.snapshot import _FastAppendFiles

from modak.errors import CommitUnknown, LakeError, Retry
from modak.lake.calendar import use_long_calendar
from modak.lake.failures import is_lakes, lake_failure
from modak.lake.history import keep_history
from modak.lake.merging import merged_entries, small_of
from modak.lake.old_specs import figures, schema_for

use_long_calendar()
keep_history()

# The column of a delete file that names data files.
FILE_PATH_FIELD = 2147483546
POSITION_FIELD = 2147483545


# The catalog may need a moment to come back, or to finish what it was doing when the answer got lost.
_LOOKS_SECONDS = (0.0, 0.5, 2.0)


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
    restored: Sequence[ManifestEntry] = (),
    is_rewrite: bool = False,
    merges_at: int | None = None,
) -> int:
    """``removed`` names data and delete files; deletes that speak of a removed data file alone go with it.

    ``restored`` are entries that an earlier commit removed, data and deletes. They come back with the numbers they had, so that deletes
    concern the same files as before. ``is_rewrite``: the rows are the same as before, which readers of changes want to know.
    ``merges_at``: so many small manifests become few along with it. Returns the snapshot's id.
    """
    transaction = Steady(table)
    change = Change(transaction, stamps, deletes, frozenset(removed), restored, is_rewrite=is_rewrite, merges_at=merges_at)
    for file in added:
        change.append_data_file(file)
    return carry_out(change, table)


class Steady(Transaction):
    """PyIceberg works out the metadata anew whenever it is asked for them, snapshot by snapshot; they change with a step only."""

    _kept: tuple[int, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if self._kept is None or self._kept[0] != len(self._updates):
            self._kept = len(self._updates), super().table_metadata
        return self._kept[1]


def carry_out(change: Change, table: Table) -> int:
    """LakeMoved, and nothing left behind, where another commit came first. Returns the snapshot's id."""
    name = ".".join(table.name())
    try:
        change.commit()
    except Exception as cause:
        if not is_lakes(cause):
            raise
        raise lake_failure(f"the manifests of {name}", cause) from cause
    try:
        change._transaction.commit_transaction()
    except Exception as cause:
        if not is_lakes(cause):
            raise
        # Also after a conflict: something on the way to the catalog may have sent the request twice, and the second one lost to the first.
        if _landed(table, change._snapshot_id, name, cause):
            return change._snapshot_id
        if isinstance(cause, CommitFailedException):
            change._clean_all_uncommitted()
            raise LakeMoved("the lake table moved while files were being committed", hint="the next pass looks at what came") from cause
        failed = lake_failure(f"a commit to {name}", cause)
        failed.may_arrive = True
        raise failed from cause
    return change._snapshot_id


def _landed(table: Table, snapshot_id: int, name: str, cause: Exception) -> bool:
    """Whether the commit is there, after an answer that got lost or says nothing.

    One that is not there may still arrive. It carries the stamp of an operation that was given up then, and the next pass takes it out.
    """
    for seconds in _LOOKS_SECONDS:
        time.sleep(seconds)
        try:
            table.refresh()
        except Exception as failure:
            if not is_lakes(failure):
                raise
            continue
        return table.metadata.snapshot_by_id(snapshot_id) is not None
    raise CommitUnknown(
        f"whether a commit to {name} happened is not known: {type(cause).__name__}",
        hint="the catalog cannot be asked; once it answers, the next pass finds the commit by its stamp and goes on from there",
    ) from cause


class _DeletesWriter(ManifestWriterV2):
    """A manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class Change(_FastAppendFiles):
    def __init__(
        self,
        transaction: Transaction,
        stamps: Mapping[str, str],
        deletes: Sequence[PositionDeletes] = (),
        removed: frozenset[str] = frozenset(),
        restored: Sequence[ManifestEntry] = (),
        *,
        is_rewrite: bool = False,
        merges_at: int | None = None,
    ) -> None:
        operation = Operation.APPEND
        if removed:
            operation = Operation.OVERWRITE if deletes or restored else Operation.DELETE
        elif deletes or restored:
            operation = Operation.OVERWRITE
        super().__init__(operation=operation, transaction=transaction, io=transaction._table.io, snapshot_properties=dict(stamps))
        self._deletes = tuple(deletes)
        self._removed = removed
        self._restored = tuple(restored)
        self._is_rewrite = is_rewrite
        self._merges_at = merges_at

    def commit(self) -> None:
        # Not registered for PyIceberg's retries, which would build over a stranger's commit.
        UpdateTableMetadata.commit(self)

    def _manifests(self) -> list[ManifestFile]:
        added = self._added_data_files
        newest = self._transaction.table_metadata.default_spec_id
        earlier = {spec_id for file in added if (spec_id := self._spec_of(file)) != newest}
        before = [self._write_added(spec_id) for spec_id in sorted(earlier)]
        self._added_data_files = [file for file in added if self._spec_of(file) not in earlier]
        try:
            return [*self._write_deletes(), *self._write_restored(), *before, *super()._manifests()]
        finally:
            self._added_data_files = added

    def _spec_of(self, file: DataFile) -> int:
        """By which it was written; the newest where a file has not brought it along."""
        found: int | None = getattr(file, "_spec_id", None)
        return self._transaction.table_metadata.default_spec_id if found is None else found

    def _write_added(self, spec_id: int) -> ManifestFile:
        """Another engine has changed the table's spec since: by the new one these would be in partitions that they do not belong to."""
        with self.writer(self.spec(spec_id), ManifestContent.DATA) as writer:
            for file in self._added_data_files:
                if self._spec_of(file) == spec_id:
                    writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file))
        return writer.to_manifest_file()

    def _write_deletes(self) -> Iterator[ManifestFile]:
        for spec_id in sorted({one.spec_id for one in self._deletes}):
            with self.writer(self.spec(spec_id), ManifestContent.DELETES) as writer:
                for file in [one.file for one in self._deletes if one.spec_id == spec_id]:
                    writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file))
            yield writer.to_manifest_file()

    def _write_restored(self) -> Iterator[ManifestFile]:
        def kind(entry: ManifestEntry) -> tuple[int, ManifestContent]:
            is_data = entry.data_file.content == DataFileContent.DATA
            return entry.data_file.spec_id, ManifestContent.DATA if is_data else ManifestContent.DELETES

        for spec_id, content in sorted({kind(entry) for entry in self._restored}):
            with self.writer(self.spec(spec_id), content) as writer:
                for entry in self._restored:
                    if kind(entry) == (spec_id, content):
                        writer.add(entry)
            yield writer.to_manifest_file()

    def _existing_manifests(self) -> list[ManifestFile]:
        manifests = super()._existing_manifests()
        if not self._removed:
            return self._merged(manifests)
        # What goes is written down in the manifests it was in, for whoever has to undo it: those are not merged by the same commit.
        return [self._without_removed(manifest) for manifest in manifests]

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        small = small_of(manifests)
        if self._merges_at is None or len(small) < self._merges_at:
            return manifests
        written = []
        for like, entries in merged_entries(small, self._io):
            with self.writer(self.spec(like.partition_spec_id), like.content) as writer:
                for entry in entries:
                    writer.existing(entry)
            written.append(writer.to_manifest_file())
        gone = {manifest.manifest_path for manifest in small}
        return written + [manifest for manifest in manifests if manifest.manifest_path not in gone]

    def _without_removed(self, manifest: ManifestFile) -> ManifestFile:
        entries = manifest.fetch_manifest_entry(io=self._io, discard_deleted=True)
        gone = [entry for entry in entries if self._goes(entry.data_file)]
        if not gone:
            return manifest
        with self.writer(self.spec(manifest.partition_spec_id), manifest.content) as writer:
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
        return file.file_path in self._removed or target_of(file) in self._removed

    def writer(self, spec: PartitionSpec, content: ManifestContent) -> ManifestWriter:
        if content == ManifestContent.DATA:
            return self.new_manifest_writer(spec)
        schema = schema_for(spec, self._transaction.table_metadata)
        return _DeletesWriter(spec, schema, self.new_manifest_output(), self._snapshot_id, self._compression)

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        metadata = self._transaction.table_metadata
        return write_manifest(
            format_version=metadata.format_version,
            spec=spec,
            schema=schema_for(spec, metadata),
            output_file=self.new_manifest_output(),
            snapshot_id=self._snapshot_id,
            avro_compression=self._compression,
        )

    def _summary(self, snapshot_properties: dict[str, str] = {}) -> Summary:  # noqa: B006 - PyIceberg's own default
        metadata = self._transaction.table_metadata
        added = [(file, self._spec_of(file)) for file in self._added_data_files]
        added += [(one.file, one.spec_id) for one in self._deletes]
        added += [(entry.data_file, entry.data_file.spec_id) for entry in self._restored]
        before = metadata.snapshot_by_id(self._parent_snapshot_id) if self._parent_snapshot_id is not None else None
        summary = update_snapshot_summaries(
            Summary(self._operation, **figures(metadata, added, self._deleted_data_files), **snapshot_properties),
            before.summary if before is not None else None,
        )
        # PyIceberg counts for other operations only; the figures are the same.
        return Summary(Operation.REPLACE, **summary.additional_properties) if self._is_rewrite else summary


def target_of(deletes: DataFile) -> str | None:
    """The one data file that a delete file speaks of; None if it is for several. Bounds of a path are never cut short in such files."""
    lower, upper = ((bounds or {}).get(FILE_PATH_FIELD) for bounds in (deletes.lower_bounds, deletes.upper_bounds))
    return lower.decode() if lower is not None and lower == upper else None
