"""Snapshots by their S: found in a metadata file, read once, kept as long as there is room.

Successive snapshots share most of their manifests, so those are kept as well, by path.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from modak.errors import LakeError, ModakError, Retry
from modak.scan.manifests import Deletion, Manifest, UnreadableSnapshot, read_manifest
from modak.scan.snapshot import DataFile, DeleteFile, Field, PartitionPart, Snapshot

FORMAT_VERSION_MAX = 2
_READERS = 8
_NAME_MAPPING = "schema.name-mapping.default"


class SnapshotGone(LakeError):
    """No snapshot with this sequence number is left in the table."""

    code = "snapshot_gone"
    sqlstate = "72000"
    retry = Retry.MANUAL


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


class _Loaded:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.size = len(snapshot.files) + 1


_Kept = TypeVar("_Kept", bound=_Sized)


class _Cache(Generic[_Kept]):
    """Least recently used out first, by number and by total size. Two threads that miss one key load it once."""

    def __init__(self, entries_max: int, size_max: int) -> None:
        self._entries_max, self._size_max = entries_max, size_max
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._loading: dict[Hashable, Future[_Kept]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], _Kept]) -> _Kept:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            waiting = self._loading.get(key)
            if waiting is None:
                mine: Future[_Kept] = Future()
                self._loading[key] = mine
        if waiting is not None:
            return waiting.result()
        try:
            found = load()
        except BaseException as cause:
            with self._lock:
                del self._loading[key]
            mine.set_exception(cause)
            raise
        with self._lock:
            del self._loading[key]
            self._kept[key] = found
            self._evict()
        mine.set_result(found)
        return found

    def _evict(self) -> None:
        size = sum(entry.size for entry in self._kept.values())
        # The newest stays, however large: its reader is about to use it.
        while len(self._kept) > 1 and (len(self._kept) > self._entries_max or size > self._size_max):
            size -= self._kept.popitem(last=False)[1].size


class Snapshots:
    """``get`` may be called from any thread."""

    def __init__(self, *, entries_max: int = 64, files_max: int = 200_000) -> None:
        self._by_location: _Cache[_Loaded] = _Cache(entries_max * 2, files_max * 2)
        self._by_table: _Cache[_Loaded] = _Cache(entries_max, files_max)
        self._manifests: _Cache[Manifest] = _Cache(files_max, files_max)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="modak-manifests")

    def get(self, metadata_location: str, sequence_number: int | None, io_properties: Mapping[str, str]) -> Snapshot:
        """The snapshot with exactly this sequence number, with the columns as this metadata file has them.

        None asks for the table before anything was published: no files, whatever the lake holds by now.
        """

        def load() -> _Loaded:
            with _failures(metadata_location, sequence_number):
                io = load_file_io(dict(io_properties), metadata_location)
                metadata = FromInputFile.table_metadata(io.new_input(metadata_location))
                key = (metadata.table_uuid, sequence_number, metadata.current_schema_id)
                return self._by_table.get(key, lambda: _Loaded(self._read(metadata, sequence_number, io)))

        return self._by_location.get((metadata_location, sequence_number), load).snapshot

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _read(self, metadata: TableMetadata, sequence_number: int | None, io: FileIO) -> Snapshot:
        _require_readable(metadata, sequence_number)
        found = _find(metadata, sequence_number)
        manifests = self._read_manifests(found, io) if found is not None else []
        deletions = [deletion for manifest in manifests for deletion in manifest.deletions]
        data = [file for manifest in manifests for file in manifest.data]
        return Snapshot(
            table_uuid=str(metadata.table_uuid),
            sequence_number=sequence_number,
            snapshot_id=found.snapshot_id if found is not None else None,
            fields=tuple(Field(f.field_id, f.name, str(f.field_type), f.required) for f in metadata.schema().fields),
            specs={
                spec.spec_id: tuple(PartitionPart(part.source_id, str(part.transform), part.name) for part in spec.fields)
                for spec in metadata.partition_specs
            },
            spec_id=metadata.default_spec_id,
            files=tuple(with_deletes(data, deletions)),
        )

    def _read_manifests(self, snapshot: IcebergSnapshot, io: FileIO) -> list[Manifest]:
        listed = list(read_manifest_list(io.new_input(snapshot.manifest_list)))

        def read(manifest: ManifestFile) -> Manifest:
            return self._manifests.get(manifest.manifest_path, lambda: read_manifest(io, manifest))

        return list(self._readers.map(read, listed))


class _failures:  # noqa: N801
    """PyIceberg's and Arrow's exceptions have no common base; at this border they become ours, with the snapshot's name."""

    def __init__(self, metadata_location: str, sequence_number: int | None) -> None:
        self._facts = {"snapshot": sequence_number, "metadata": metadata_location}

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, cause: BaseException | None, __: object) -> None:
        if isinstance(cause, ModakError):
            cause.facts = {name: value for name, value in self._facts.items() if value is not None} | cause.facts
        elif isinstance(cause, Exception):
            raise LakeError(
                f"the lake's metadata cannot be read: {type(cause).__name__}: {cause}".splitlines()[0],
                hint="check the storage profile's credentials; `modak verify` shows what of the table is left",
                **self._facts,
            ) from cause


def _require_readable(metadata: TableMetadata, sequence_number: int | None) -> None:
    if metadata.format_version > FORMAT_VERSION_MAX:
        raise UnreadableSnapshot(
            f"the lake table was upgraded to Iceberg v{metadata.format_version}; the gateway reads up to v{FORMAT_VERSION_MAX}",
            hint="its deletion vectors and defaults would be misread; write the table anew as v2",
            snapshot=sequence_number,
        )
    if _NAME_MAPPING in metadata.properties:
        # Parquet files without field ids are told apart by nothing in the metadata, and read by id they would be all NULL.
        raise UnreadableSnapshot(
            "the lake table may hold files without field ids, since it has a name mapping",
            hint=f"rewrite its data files, then remove the table property {_NAME_MAPPING}",
            snapshot=sequence_number,
        )


def _find(metadata: TableMetadata, sequence_number: int | None) -> IcebergSnapshot | None:
    if sequence_number is None:
        return None
    found = [snapshot for snapshot in metadata.snapshots if (snapshot.sequence_number or 0) == sequence_number]
    if not found:
        raise SnapshotGone(
            f"snapshot {sequence_number} is gone from the lake",
            hint="it expired after every pin on it ended; start the query anew, which reads the published snapshot",
            table=metadata.table_uuid,
        )
    if len(found) > 1 and metadata.current_snapshot_id in {snapshot.snapshot_id for snapshot in found}:
        # Nothing was committed since the upgrade: whoever wants one of these wants the newest.
        return next(snapshot for snapshot in found if snapshot.snapshot_id == metadata.current_snapshot_id)
    if len(found) > 1:
        raise UnreadableSnapshot(
            f"{len(found)} snapshots of the lake table share the sequence number {sequence_number}",
            hint="snapshots made before an upgrade to Iceberg v2 cannot be told apart; make a new one",
            table=metadata.table_uuid,
        )
    return found[0]


def with_deletes(data: Sequence[DataFile], deletions: Sequence[Deletion]) -> list[DataFile]:
    """Each data file with the position deletes that came with it or after it."""
    by_target: dict[str, list[Deletion]] = {}
    by_partition: dict[tuple[int, tuple[object, ...]], list[Deletion]] = {}
    for deletion in deletions:
        if deletion.file.target is not None:
            by_target.setdefault(deletion.file.target, []).append(deletion)
        else:
            by_partition.setdefault((deletion.spec_id, deletion.partition), []).append(deletion)
    if not deletions:
        return list(data)

    def applying(file: DataFile) -> tuple[DeleteFile, ...]:
        near = (*by_target.get(file.path, ()), *by_partition.get((file.spec_id, file.partition), ()))
        return tuple(deletion.file for deletion in near if deletion.sequence_number >= file.sequence_number)

    return [replace(file, deletes=deletes) if (deletes := applying(file)) else file for file in data]
