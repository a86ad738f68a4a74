"""A lake table as people look at it: its snapshots, and the files of one of them with their sizes. Read from metadata only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntryStatus
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Snapshot

from modak.lake.failures import failures
from modak.lake.storage import Storage, pyiceberg_properties

SNAPSHOTS_MAX = 50
FILES_MAX = 100
# Manifests are small, but a lake of years has many: beyond these the totals of the snapshot have to do.
_MANIFESTS_MAX = 200


@dataclass(frozen=True)
class LakeSnapshot:
    """One commit; ``operation`` is Iceberg's word for it, ``job`` ours if the commit is."""

    sequence_number: int
    snapshot_id: int
    at: datetime
    operation: str
    op_id: str | None
    added_rows: int
    deleted_rows: int
    total_rows: int | None
    total_bytes: int | None
    is_published: bool = False


@dataclass(frozen=True)
class LakeFile:
    name: str
    kind: str  # data or deletes
    rows: int
    bytes: int
    partition: str


@dataclass(frozen=True)
class Totals:
    rows: int = 0
    bytes: int = 0
    data_files: int = 0
    delete_files: int = 0


@dataclass(frozen=True)
class Inspection:
    """``files`` are the largest ones; None where there are too many manifests to read for a look."""

    location: str
    totals: Totals
    snapshots: tuple[LakeSnapshot, ...] = ()
    files: tuple[LakeFile, ...] | None = ()
    bands: tuple[tuple[str, int, int], ...] = field(default=())  # partition value, files, bytes


def totals(storage: Storage, metadata_location: str, snapshot_id: int) -> Totals:
    """What the snapshot's own summary says."""
    with failures(metadata_location, storage):
        table = StaticTable.from_metadata(metadata_location, pyiceberg_properties(storage))
        return totals_of(table.snapshot_by_id(snapshot_id))


def inspect(storage: Storage, metadata_location: str, snapshot_id: int) -> Inspection:
    with failures(metadata_location, storage):
        table = StaticTable.from_metadata(metadata_location, pyiceberg_properties(storage))
        snapshot = table.snapshot_by_id(snapshot_id)
        newest = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0, reverse=True)[:SNAPSHOTS_MAX]
        found = _files(table, snapshot)
        return Inspection(
            location=table.location(),
            totals=totals_of(snapshot),
            snapshots=tuple(_snapshot(one, published=one.snapshot_id == snapshot_id) for one in newest),
            files=None if found is None else tuple(sorted(found, key=lambda one: -one.bytes)[:FILES_MAX]),
            bands=_bands(found or []),
        )


def _summary(snapshot: Snapshot | None) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot is not None and snapshot.summary is not None else {}


def _number(summary: Mapping[str, str], name: str) -> int:
    return int(summary.get(name) or 0)


def totals_of(snapshot: Snapshot | None) -> Totals:
    summary = _summary(snapshot)
    deletes = _number(summary, "total-delete-files")
    return Totals(
        # Position deletes each take one row away; Iceberg's own figure counts the rows of the files.
        rows=_number(summary, "total-records") - _number(summary, "total-position-deletes"),
        bytes=_number(summary, "total-files-size"),
        data_files=_number(summary, "total-data-files"),
        delete_files=deletes,
    )


def _snapshot(snapshot: Snapshot, *, published: bool) -> LakeSnapshot:
    summary = _summary(snapshot)
    return LakeSnapshot(
        sequence_number=snapshot.sequence_number or 0,
        snapshot_id=snapshot.snapshot_id,
        at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        operation=snapshot.summary.operation.value if snapshot.summary is not None else "",
        op_id=summary.get("modak.op-id"),
        added_rows=_number(summary, "added-records"),
        deleted_rows=_number(summary, "deleted-records") + _number(summary, "added-position-deletes"),
        total_rows=totals_of(snapshot).rows if "total-records" in summary else None,
        total_bytes=_number(summary, "total-files-size") if "total-files-size" in summary else None,
        is_published=published,
    )


def _files(table: StaticTable, snapshot: Snapshot | None) -> list[LakeFile] | None:
    if snapshot is None:
        return []
    manifests = snapshot.manifests(table.io)
    if len(manifests) > _MANIFESTS_MAX:
        return None
    found = []
    for manifest in manifests:
        spec = table.specs()[manifest.partition_spec_id]
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.status is not ManifestEntryStatus.DELETED:
                found.append(_file(entry.data_file, spec, table.schema()))
    return found


def _file(file: DataFile, spec: PartitionSpec, schema: Schema) -> LakeFile:
    kind = "data" if file.content is DataFileContent.DATA else "deletes"
    band = ", ".join(
        part.transform.to_human_string(schema.find_type(part.source_id), file.partition[place]) for place, part in enumerate(spec.fields)
    )
    return LakeFile(file.file_path.rsplit("/", 1)[-1], kind, file.record_count, file.file_size_in_bytes, band)


def _bands(files: list[LakeFile]) -> tuple[tuple[str, int, int], ...]:
    sums: dict[str, tuple[int, int]] = {}
    for one in files:
        count, size = sums.get(one.partition, (0, 0))
        sums[one.partition] = count + 1, size + one.bytes
    return tuple((name, *counted) for name, counted in sorted(sums.items()))
