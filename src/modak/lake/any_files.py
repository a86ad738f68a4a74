"""Write Parquet data files for an Iceberg table of any partition spec: tables that are nobody's but the lake's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from modak.lake.data_files import Partition, Target, Writer
from modak.lake.partition_values import parted

_SAMPLE_ROWS = 10_000
_NAME_BYTES_MAX, _HALF_ESCAPE = 200, re.compile(r"%[0-9A-F]?$")


@dataclass(frozen=True)
class AnyTarget(Target):
    """A target in this process, whose metadata need not cross to another."""

    known: TableMetadata | None = field(default=None, repr=False)
    field_ids: tuple[int, ...] | None = None
    """The lake's numbers of the columns that rows come with; None where they are the lake's own."""

    def metadata(self) -> TableMetadata:
        assert self.known is not None
        return self.known


def any_target(metadata: TableMetadata, io_properties: Mapping[str, str], field_ids: Sequence[int]) -> AnyTarget:
    return AnyTarget("", io_properties, tier_key="", primary_key=(), layout="none", known=metadata, field_ids=tuple(field_ids))


@dataclass
class AnyWriter(Writer):
    """Rows keep the order in which they come; each partition of the spec has a rolling file of its own."""

    _folders: dict[Partition, str] = field(default_factory=dict)
    _sample: pa.Table | None = None

    @property
    def places(self) -> list[int]:
        """Where in a file the columns are that rows come with."""
        by_id = {column.field_id: place for place, column in enumerate(self._metadata.schema().fields)}
        return [by_id[number] for number in self._ids or ()]

    @property
    def _ids(self) -> tuple[int, ...] | None:
        return self.target.field_ids if isinstance(self.target, AnyTarget) else None

    def write(self, rows: pa.Table) -> None:
        """Rows with the target's columns in its order, or with the lake's by their names."""
        super().write(rows if self._ids is None else self._fitted(rows, self._ids))

    def _fitted(self, rows: pa.Table, numbers: tuple[int, ...]) -> pa.Table:
        """As the lake has its columns now: other engines rename some, and what they added is NULL."""
        fields = self._metadata.schema().fields
        if numbers == tuple(column.field_id for column in fields):
            return rows.rename_columns(self.names)
        given = dict(zip(numbers, rows.columns, strict=True))
        nothing = pa.chunked_array([pa.nulls(rows.num_rows)])
        return pa.Table.from_arrays([given.get(column.field_id, nothing) for column in fields], names=self.names)

    def _sorted(self, table: pa.Table) -> pa.Table:
        if self._sample is None:
            self._sample = table.slice(0, _SAMPLE_ROWS)
        return table

    def _repetitive(self) -> list[str]:
        """Texts that are mostly different make no dictionary either, and finding that out takes as long as compressing them."""
        sample = self._sample
        names = super()._repetitive()
        if sample is None or sample.num_rows < _SAMPLE_ROWS:
            return names
        return [name for name in names if pc.count_distinct(sample.column(name)).as_py() < _SAMPLE_ROWS // 2]

    def _parts(self, table: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
        spec = self._metadata.spec()
        if spec.is_unpartitioned():
            yield None, table
            return
        for record, rows in parted(table, spec, self._file_schema):
            if record not in self._folders:
                self._folders[record] = _folder_of(record, spec, self._file_schema)
            yield record, rows

    def _folder(self, partition: Partition) -> str:
        return self._folders.get(partition, "")


def _folder_of(record: Record, spec: PartitionSpec, schema: Schema) -> str:
    """Only for people who look: the manifest has the values. So a name may end before it is too long for a file system."""
    try:
        path = spec.partition_to_path(record, schema)
    except OverflowError:
        path = "/".join(f"{quote_plus(part.name)}={quote_plus(str(record[place]))}" for place, part in enumerate(spec.fields))
    return "".join(_HALF_ESCAPE.sub("", name[:_NAME_BYTES_MAX]) + "/" for name in path.split("/"))
