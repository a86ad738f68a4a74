"""Write Parquet data files for an Iceberg table of any partition spec: tables that are nobody's but the lake's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import _determine_partitions
from pyiceberg.table.metadata import TableMetadata

from modak.errors import ModakError
from modak.lake.data_files import Partition, Target, Writer

_SAMPLE_ROWS = 10_000


class ColumnsDiffer(ModakError):
    """Another engine has changed the columns of the lake table so that rows do not fit any more."""

    code = "lake_columns_differ"
    sqlstate = "42703"


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
    def places(self) -> list[int | None]:
        """Where in a file the columns are that rows come with; None for those that the lake does not have any more."""
        by_id = {column.field_id: place for place, column in enumerate(self._metadata.schema().fields)}
        return [by_id.get(number) for number in self._ids or ()]

    @property
    def _ids(self) -> tuple[int, ...] | None:
        return self.target.field_ids if isinstance(self.target, AnyTarget) else None

    def write(self, rows: pa.Table) -> None:
        """Rows with the target's columns in its order, or with the lake's by their names."""
        super().write(rows if self._ids is None else self._fitted(rows, self._ids))

    def _fitted(self, rows: pa.Table, numbers: tuple[int, ...]) -> pa.Table:
        """As the lake has its columns now: other engines add some, drop some and rename them."""
        fields = self._metadata.schema().fields
        if numbers == tuple(column.field_id for column in fields):
            return rows.rename_columns(self.names)
        given = dict(zip(numbers, rows.columns, strict=True))
        for number, name in zip(numbers, rows.column_names, strict=True):
            if all(column.field_id != number for column in fields) and given[number].null_count < rows.num_rows:
                hint = "another engine dropped it: drop it here as well, by ALTER FOREIGN TABLE … DROP COLUMN"
                raise ColumnsDiffer(f"the lake table has no column {name} any more", hint=hint)
        for column in fields:
            if column.required and column.field_id not in given:
                hint = "another engine added it: modak.add_iceberg_column gives it to the table here"
                raise ColumnsDiffer(f"column {column.name} of the lake table takes no NULL, and is not known here", hint=hint)
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
        for part in _determine_partitions(spec, self._file_schema, table):
            record = part.partition_key.partition
            self._folders[record] = part.partition_key.to_path() + "/"
            yield record, part.arrow_table_partition

    def _folder(self, partition: Partition) -> str:
        return self._folders.get(partition, "")
