"""A lake snapshot as plain data: columns, files with what is known of their values, and the delete files that apply to each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modak.errors import NotFound
from modak.scan.bounds import Range, RawBounds, column_range


@dataclass(frozen=True, slots=True)
class Field:
    """A top-level column; ``type`` is Iceberg's name of its type."""

    id: int
    name: str
    type: str
    required: bool


@dataclass(frozen=True, slots=True)
class PartitionPart:
    """One part of a partition spec: a transform of one column."""

    source_id: int
    transform: str
    name: str


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """Positions that are deleted, in one data file (``target``) or, where that is None, in several."""

    path: str
    location: str
    rows: int
    bytes: int
    target: str | None = None


@dataclass(frozen=True, slots=True)
class DataFile:
    """``path`` is what DuckDB opens, ``location`` what Iceberg wrote. Bounds are raw: ``Snapshot.ranges`` decodes them."""

    path: str
    location: str
    rows: int
    bytes: int
    sequence_number: int
    spec_id: int
    partition: tuple[object, ...]
    lower: RawBounds
    upper: RawBounds
    nulls: Mapping[int, int]
    nans: Mapping[int, int]
    row_groups: int | None
    deletes: tuple[DeleteFile, ...] = ()

    @property
    def live_rows(self) -> int:
        """Rows less the deletes that are surely of this file; at least one unless the file is empty."""
        deleted = sum(delete.rows for delete in self.deletes if delete.target is not None)
        return max(self.rows - deleted, min(self.rows, 1))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The table at one S. ``fields`` is the schema of the metadata file it was read from, newer columns and names included.

    Hold the object for as long as a query over it runs: what was prepared for it in the engine goes when it goes.
    """

    table_uuid: str
    sequence_number: int | None
    snapshot_id: int | None
    fields: tuple[Field, ...]
    specs: Mapping[int, tuple[PartitionPart, ...]]
    spec_id: int
    files: tuple[DataFile, ...]
    _ranges: dict[int, tuple[Range, ...]] = field(default_factory=dict, init=False, repr=False)

    @property
    def rows(self) -> int:
        return sum(file.live_rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def partition_spec(self) -> tuple[PartitionPart, ...]:
        """The spec new files get; older files may have another."""
        return self.specs[self.spec_id]

    def field(self, name: str) -> Field:
        for candidate in self.fields:
            if candidate.name == name:
                return candidate
        raise NotFound(
            f"the lake table has no column {name} yet",
            hint="columns reach the lake with the next pass of tiering",
            snapshot=self.sequence_number,
        )

    def ranges(self, column: Field) -> tuple[Range, ...]:
        """What each file holds of a column, in the order of ``files``; decoded when first asked for."""
        found = self._ranges.get(column.id)
        if found is None:
            parts = {
                spec_id: [(n, p.transform) for n, p in enumerate(spec) if p.source_id == column.id] for spec_id, spec in self.specs.items()
            }
            found = tuple(column_range(file, column.id, column.type, parts.get(file.spec_id, ())) for file in self.files)
            self._ranges[column.id] = found
        return found
