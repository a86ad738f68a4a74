"""What Modak asks of a lake's metadata. Data moves through Spark; this port creates, finds and removes tables.

Contract: ``create`` returns once the table is durable and fails with LakeTableExists, changing nothing, when the name is taken;
``drop`` of an absent table is a no-op. Every failure is a LakeError that names the table and keeps its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from modak.core.lake_table import LakeTable


@dataclass(frozen=True)
class LakePointer:
    """A lake table as it stands now. ``sequence_number`` is what the cut-line calls S; None without a snapshot."""

    ref: str
    location: str
    metadata_location: str
    snapshot_id: int | None
    sequence_number: int | None
    properties: Mapping[str, str]
    columns: tuple[str, ...]
    field_ids: tuple[int, ...] = ()  # of the columns, in their order
    total_rows: int | None = None
    total_bytes: int | None = None


class Lake(Protocol):
    def create(self, table: LakeTable) -> LakePointer: ...

    def find(self, ref: str) -> LakePointer | None: ...

    def search(self, stamps: Mapping[str, str]) -> list[LakePointer]:
        """Tables whose properties hold all of these; reads every table's metadata, so it is for rare questions."""
        ...

    def drop(self, ref: str, *, purge: bool) -> None: ...
