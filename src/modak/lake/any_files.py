"""Write Parquet data files for an Iceberg table of any partition spec: tables that are nobody's but the lake's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import _determine_partitions
from pyiceberg.table.metadata import TableMetadata

from modak.lake.data_files import Partition, Target, Writer

_SAMPLE_ROWS = 10_000


@dataclass(frozen=True)
class AnyTarget(Target):
    """A target in this process, whose metadata need not cross to another."""

    known: TableMetadata | None = field(default=None, repr=False)

    def metadata(self) -> TableMetadata:
        assert self.known is not None
        return self.known


def any_target(metadata: TableMetadata, io_properties: Mapping[str, str]) -> AnyTarget:
    return AnyTarget("", io_properties, tier_key="", primary_key=(), layout="none", known=metadata)


@dataclass
class AnyWriter(Writer):
    """Rows keep the order in which they come; each partition of the spec has a rolling file of its own."""

    _folders: dict[Partition, str] = field(default_factory=dict)
    _sample: pa.Table | None = None

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
