"""Manifests: many small ones become a few, sorted by lake partition, so that planning a query opens few files."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from modak.lake.change import Change, carry_out
from modak.lake.commits import Commit, made_commit
from modak.lake.merging import ENTRIES_MAX, entry_count, small_of

__all__ = ["ENTRIES_MAX", "entry_count", "merge_manifests", "small_manifests"]


def small_manifests(table: Table) -> list[ManifestFile]:
    """Of the current snapshot."""
    snapshot = table.current_snapshot()
    return small_of(snapshot.manifests(table.io)) if snapshot is not None else []


def merge_manifests(table: Table, stamps: Mapping[str, str]) -> Commit:
    """A commit that does nothing else."""
    return made_commit(table, carry_out(Change(table.transaction(), stamps, is_rewrite=True, merges_at=1), table))
