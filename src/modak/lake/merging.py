"""Which manifests are small, and what becomes of their entries when they are merged.

Entries keep their sequence numbers and the snapshots they came with; the rows are the same as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile

# About eight megabytes, the size that Iceberg aims at.
ENTRIES_MAX = 2_000
# What one commit takes in at most: entries are held in memory, statistics and all.
ENTRIES_PER_COMMIT = 50_000


def entry_count(manifest: ManifestFile) -> int:
    """Live entries; deleted ones are left behind by a rewrite."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def small_of(manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
    """Those that are less than half full, up to what one commit takes; empty ones go with any commit."""
    found, entries = [], 0
    for manifest in manifests:
        if 0 < entry_count(manifest) < ENTRIES_MAX // 2 and entries + entry_count(manifest) <= ENTRIES_PER_COMMIT:
            found.append(manifest)
            entries += entry_count(manifest)
    return found


def merged_entries(manifests: Sequence[ManifestFile], io: FileIO) -> Iterator[tuple[ManifestFile, list[ManifestEntry]]]:
    """What each new manifest holds, and one of the old ones that it is like: of the same content and partition spec."""

    def kind(manifest: ManifestFile) -> tuple[int, int]:
        return manifest.content.value, manifest.partition_spec_id

    for _, alike in groupby(sorted(manifests, key=kind), key=kind):
        members = list(alike)
        entries = [entry for one in members for entry in one.fetch_manifest_entry(io=io, discard_deleted=True)]
        entries.sort(key=_place)
        for start in range(0, len(entries), ENTRIES_MAX):
            yield members[0], entries[start : start + ENTRIES_MAX]


def _place(entry: ManifestEntry) -> tuple[int, str]:
    """Neighbours in time stay together. A partition has one number, the band of the tier key; foreign layouts go by path alone."""
    values = list(entry.data_file.partition._data)
    return (values[0] if len(values) == 1 and isinstance(values[0], int) else 0), entry.data_file.file_path
