"""Manifests: many small ones become a few, sorted by lake partition, so that planning a query opens few files.

Entries keep their sequence numbers and the snapshots they came with; the rows are the same as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import Table

from modak.lake.change import Change, carry_out
from modak.lake.commits import Commit, made_commit

# About eight megabytes, the size that Iceberg aims at.
ENTRIES_MAX = 2_000
# What one commit takes in at most: entries are held in memory, statistics and all.
ENTRIES_PER_COMMIT = 50_000


def small_manifests(table: Table) -> list[ManifestFile]:
    """Manifests of the current snapshot that are less than half full, up to what one commit takes; empty ones go with any commit."""
    snapshot = table.current_snapshot()
    found, entries = [], 0
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        if 0 < entry_count(manifest) < ENTRIES_MAX // 2 and entries + entry_count(manifest) <= ENTRIES_PER_COMMIT:
            found.append(manifest)
            entries += entry_count(manifest)
    return found


def entry_count(manifest: ManifestFile) -> int:
    """Live entries; deleted ones are left behind by a rewrite."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def merge_manifests(table: Table, stamps: Mapping[str, str]) -> Commit:
    return made_commit(table, carry_out(_Merge(table.transaction(), stamps, is_rewrite=True), table))


class _Merge(Change):
    def _existing_manifests(self) -> list[ManifestFile]:
        small = {manifest.manifest_path: manifest for manifest in small_manifests(self._transaction._table)}
        kept = [manifest for manifest in super()._existing_manifests() if manifest.manifest_path not in small]
        return [*self._merged(list(small.values())), *kept]

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        def kind(manifest: ManifestFile) -> tuple[int, int]:
            return manifest.content.value, manifest.partition_spec_id

        written = []
        for _, alike in groupby(sorted(manifests, key=kind), key=kind):
            members = list(alike)
            entries = [entry for one in members for entry in one.fetch_manifest_entry(io=self._io, discard_deleted=True)]
            entries.sort(key=_place)
            for start in range(0, len(entries), ENTRIES_MAX):
                with self.writer(self.spec(members[0].partition_spec_id), members[0].content) as writer:
                    for entry in entries[start : start + ENTRIES_MAX]:
                        writer.existing(entry)
                written.append(writer.to_manifest_file())
        return written


def _place(entry: ManifestEntry) -> tuple[int, str]:
    """Neighbours in time stay together. A partition has one number, the band of the tier key; foreign layouts go by path alone."""
    values = list(entry.data_file.partition._data)
    return (values[0] if len(values) == 1 and isinstance(values[0], int) else 0), entry.data_file.file_path
