"""Which files a table's snapshots refer to, and which of them go when snapshots do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

DELETERS = 8


@dataclass(frozen=True)
class Leftovers:
    """Files that expired snapshots leave behind, in the order in which they go: by what is still there the rest is found again."""

    data: frozenset[str]
    manifests: frozenset[str]
    lists: frozenset[str]


def left_behind(io: FileIO, before: TableMetadata, now: TableMetadata, same: Callable[[str], str]) -> Leftovers:
    """Files that a snapshot of ``before`` refers to and none of ``now``; those that are gone already are left out.

    ``same`` gives one spelling to the several that engines have for a file.
    """
    kept_ids = {snapshot.snapshot_id for snapshot in now.snapshots}
    gone = [snapshot for snapshot in before.snapshots if snapshot.snapshot_id not in kept_ids]
    kept = {same(path): manifest for path, manifest in _manifests(io, now.snapshots).items()}
    found: dict[str, ManifestFile] = {}
    for snapshot in gone:
        with contextlib.suppress(FileNotFoundError):
            found |= _manifests(io, [snapshot])
    dropped = {path: manifest for path, manifest in found.items() if same(path) not in kept}
    files: dict[str, str] = {}
    for manifest in dropped.values():
        with contextlib.suppress(FileNotFoundError):
            files |= {same(path): path for path in _paths(io, manifest, deleted=True)}
    for manifest in kept.values():
        if not files:
            break
        for path in _paths(io, manifest):
            files.pop(same(path), None)
    return Leftovers(frozenset(files.values()), frozenset(dropped), frozenset(snapshot.manifest_list for snapshot in gone))


def remove_all(io: FileIO, leftovers: Leftovers) -> int:
    return remove(io, leftovers.data) + remove(io, leftovers.manifests) + remove(io, leftovers.lists)


def referred(table: Table) -> set[str]:
    """Everything that the table as it stands names: of every snapshot, and of its own past."""
    metadata, io = table.metadata, table.io
    manifests = _manifests(io, metadata.snapshots)
    found = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    found |= {file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)}
    found |= {snapshot.manifest_list for snapshot in metadata.snapshots} | set(manifests)
    for manifest in manifests.values():
        found |= set(_paths(io, manifest))
    return found


def remove(io: FileIO, paths: Iterable[str]) -> int:
    """Delete files, several at a time; one that is gone already is no failure. Returns how many were asked for."""

    def delete(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            io.delete(path)

    wanted = sorted(paths)
    with ThreadPoolExecutor(DELETERS, thread_name_prefix="modak-delete") as pool:
        for _ in pool.map(delete, wanted):
            pass
    return len(wanted)


def _manifests(io: FileIO, snapshots: Collection[Snapshot]) -> dict[str, ManifestFile]:
    """By path: successive snapshots share most of them."""
    found: dict[str, ManifestFile] = {}
    for snapshot in snapshots:
        for manifest in read_manifest_list(io.new_input(snapshot.manifest_list)):
            found[manifest.manifest_path] = manifest
    return found


def _paths(io: FileIO, manifest: ManifestFile, *, deleted: bool = False) -> Iterator[str]:
    for entry in manifest.fetch_manifest_entry(io=io, discard_deleted=not deleted):
        yield entry.data_file.file_path
