"""Write Parquet data files for an Iceberg table from Arrow batches, in bounded memory.

Runs inside Spark's Python workers. The files are invisible until somebody commits them; their names carry the operation, so that what a
crash leaves behind can be found.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, PrimitiveType

from modak.errors import LakeError, ValueRefused
from modak.lake.layout import partition_numbers
from modak.lake.statistics import file_statistics

ROW_GROUP_ROWS = 100_000
OPEN_FILES_MAX = 64
# Parquet has no bloom filter for booleans, and in one of bytes DuckDB does not find what is there.
_NO_BLOOM = (pa.types.is_boolean, pa.types.is_binary, pa.types.is_large_binary)
# The one number that a registered table is partitioned by, or the values of any partition spec.
Partition = int | Record | None


def in_whole_groups(rows: int) -> int:
    """How many of the rows that are there should be written by now, while more may come; all of them, where they are fewer than a group."""
    return rows - rows % ROW_GROUP_ROWS or rows


@dataclass(frozen=True)
class Target:
    """Everything a task needs to write for a table; crosses to executors as plain text."""

    metadata_json: str
    io_properties: Mapping[str, str] = field(repr=False)
    tier_key: str
    primary_key: tuple[str, ...]
    layout: str

    def metadata(self) -> TableMetadata:
        return TableMetadataUtil.parse_raw(self.metadata_json)


@dataclass
class _OpenFile:
    path: str
    partition: Partition
    stream: Any
    writer: pq.ParquetWriter
    rows: int = 0
    bytes: int = 0


@dataclass
class Writer:
    """Splits sorted rows by lake partition and keeps one rolling file open for each."""

    target: Target
    prefix: str
    size_max: int | None = None
    finished: list[DataFile] = field(default_factory=list)
    _open: OrderedDict[Partition, _OpenFile] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._metadata = self.target.metadata()
        schema = self._metadata.schema()
        # As every Iceberg writer does: Parquet names are made harmless, and readers go by field id.
        self._file_schema = sanitize_column_names(schema)
        self.arrow_schema = schema_to_pyarrow(self._file_schema)
        self.names = [column.name for column in schema.fields]
        self._io: FileIO = load_file_io(dict(self.target.io_properties), self._metadata.location)
        self._size_max = self.size_max or int(self._metadata.properties.get("write.target-file-size-bytes", 128 * 1024 * 1024))

    def write(self, rows: pa.Table) -> None:
        """Rows with the lake's columns in the lake's order; any order of rows."""
        table = self._sorted(conform(rows.select(self.names), self.arrow_schema))
        for partition, part in self._parts(table):
            self._append(partition, part)

    def close(self) -> list[DataFile]:
        while self._open:
            self._finish(next(iter(self._open)))
        return self.finished

    def _sorted(self, table: pa.Table) -> pa.Table:
        """Sorted by tier key, then key. Rows mostly arrive in that order already, and looking is much cheaper than sorting."""
        keys = _as_numbers(table.column(self.names.index(self.target.tier_key)))
        if len(keys) < 2 or bool(np.all(keys[1:] >= keys[:-1])):
            return table
        order = dict.fromkeys((self.target.tier_key, *self.target.primary_key))
        columns = [table.column_names[self.names.index(name)] for name in order]
        sortable = [name for name in columns if not isinstance(table.schema.field(name).type, pa.BaseExtensionType)]
        return table.sort_by([(name, "ascending") for name in sortable])

    def _parts(self, table: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
        """Runs of rows of one lake partition; sorted rows make each partition one run."""
        if self.target.layout == "none":
            yield None, table
            return
        keys = _as_numbers(table.column(self.names.index(self.target.tier_key)))
        numbers = partition_numbers(keys, self.target.layout, is_date=pa.types.is_date32(table.schema.field(self._tier_index()).type))
        starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
        for start, end in zip(starts, np.r_[starts[1:], len(numbers)], strict=True):
            yield int(numbers[start]), table.slice(int(start), int(end - start))

    def _tier_index(self) -> int:
        return self.names.index(self.target.tier_key)

    def _append(self, partition: Partition, rows: pa.Table) -> None:
        file = self._open.pop(partition, None) or self._start(partition)
        file.writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        file.rows += rows.num_rows
        file.bytes += rows.nbytes
        self._open[partition] = file
        # Compressed Parquet is a third of Arrow's size or less; a file somewhat under its target does no harm.
        if file.bytes > self._size_max * 3:
            self._finish(partition)
        elif len(self._open) > OPEN_FILES_MAX:
            self._finish(next(iter(self._open)))

    def _folder(self, partition: Partition) -> str:
        return "" if partition is None else f"part={partition}/"

    def _start(self, partition: Partition) -> _OpenFile:
        folder = self._folder(partition)
        path = f"{self._metadata.location.rstrip('/')}/data/{folder}{self.prefix}-{uuid.uuid4().hex[:12]}.parquet"
        stream = self._io.new_output(path).create(overwrite=False)
        writer = pq.ParquetWriter(
            stream,
            self.arrow_schema,
            compression="zstd",
            store_schema=False,
            write_page_index=True,
            # As Iceberg's specification has them: up to 18 digits a decimal is an integer, smaller and faster than bytes.
            store_decimal_as_integer=True,
            use_dictionary=self._repetitive(),
            bloom_filter_options={name: {"ndv": ROW_GROUP_ROWS, "fpp": 0.01} for name in self._looked_up()},
        )
        return _OpenFile(path, partition, stream, writer)

    def _looked_up(self) -> list[str]:
        """Columns worth a bloom filter: the key's."""
        fields = [self.arrow_schema.field(self.names.index(name)) for name in self.target.primary_key]
        return [field.name for field in fields if not any(is_kind(field.type) for is_kind in _NO_BLOOM)]

    def _repetitive(self) -> list[str]:
        """Columns worth a dictionary: texts. Numbers and times mostly outgrow one, after all the work; zstd makes less of them without."""
        return [field.name for field in self.arrow_schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]

    def _finish(self, partition: Partition) -> None:
        file = self._open.pop(partition)
        file.writer.close()
        # The writer does not own the stream it was given; unclosed, its last bytes and its length are not there yet.
        file.stream.close()
        footer, size = _footer(self._io, file.path)
        statistics = file_statistics(footer, self._file_schema, self._metadata.properties)
        self.finished.append(_data_file(file.path, size, statistics, partition, self._metadata))


def written_file(target: Target, path: str) -> DataFile:
    """A file that a Writer finished in another process, as a commit takes it: by its own names and types, which may be older than now."""
    metadata = target.metadata()
    footer, size = _footer(load_file_io(dict(target.io_properties), metadata.location), path)
    schema = pyarrow_to_schema(footer.schema.to_arrow_schema())
    statistics = file_statistics(footer, schema, metadata.properties)
    return _data_file(path, size, statistics, _partition_of(target, metadata, schema, statistics, path), metadata)


def _partition_of(target: Target, metadata: TableMetadata, schema: Schema, statistics: Mapping[str, Any], path: str) -> int | None:
    if target.layout == "none":
        return None
    field_id = metadata.schema().find_field(target.tier_key).field_id
    kind = schema.find_type(field_id)
    assert isinstance(kind, PrimitiveType)
    ends = [from_bytes(kind, statistics[bounds][field_id]) for bounds in ("lower_bounds", "upper_bounds")]
    first, last = partition_numbers(np.array(ends, dtype=np.int64), target.layout, is_date=isinstance(kind, DateType))
    if first != last:
        raise LakeError("a file has rows of several partitions of the lake", file=path, first=int(first), last=int(last))
    return int(first)


def _footer(io: FileIO, path: str) -> tuple[pq.FileMetaData, int]:
    written = io.new_input(path)
    with written.open() as stream:
        return pq.read_metadata(stream), len(written)


def _data_file(path: str, size: int, statistics: Mapping[str, Any], partition: Partition, metadata: TableMetadata) -> DataFile:
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition if isinstance(partition, Record) else Record() if partition is None else Record(partition),
        file_size_in_bytes=size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )
    # No field of a manifest's, so PyIceberg drops it among the others.
    made.spec_id = metadata.default_spec_id
    return made


def _as_numbers(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A tier-key column as integers, without a copy where Arrow has none to make."""
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    return np.asarray(column.to_numpy(), dtype=np.int64)


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows as the copy delivers them, in the types of the file; every cast is exact or raises."""
    columns = [_conform(rows.column(number), wanted.type) for number, wanted in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _conform(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType) and column.type != wanted:
        # The copy marks numeric as an opaque text.
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
    if column.type == wanted:
        return column
    if isinstance(wanted, pa.BaseExtensionType):
        chunks = [pa.ExtensionArray.from_storage(wanted, pc.cast(chunk, wanted.storage_type)) for chunk in column.chunks]
        return pa.chunked_array(chunks, type=wanted)
    if pa.types.is_time(wanted) and pa.types.is_string(column.type):
        return _times(column).cast(wanted)
    return column.cast(wanted)


def _times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow reads no times of day from texts, but moments."""
    try:
        return pc.binary_join_element_wise("1970-01-01", column, " ").cast(pa.timestamp("us")).cast(pa.time64("us"))
    except pa.ArrowInvalid as cause:
        raise ValueRefused("the lake's time of day ends before 24:00:00", hint="use 00:00:00, or 23:59:59.999999") from cause
