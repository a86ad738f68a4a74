"""Write position-delete files: one for each data file whose rows go. Runs inside Spark's Python workers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from modak.lake.change import FILE_PATH_FIELD, POSITION_FIELD, PositionDeletes

Positions = np.ndarray[Any, np.dtype[np.int64]]

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(FILE_PATH_FIELD)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POSITION_FIELD)}),
    ]
)


@dataclass(frozen=True)
class Doomed:
    """Rows of one data file that go. ``location`` is the file's name exactly as its manifest has it."""

    location: str
    spec_id: int
    partition: tuple[object, ...]
    positions: Positions


def write_deletes(metadata_json: str, io_properties: Mapping[str, str], prefix: str, doomed: Doomed) -> PositionDeletes:
    return write_deletes_at(TableMetadataUtil.parse_raw(metadata_json).location, io_properties, prefix, doomed)


def write_deletes_at(location: str, io_properties: Mapping[str, str], prefix: str, doomed: Doomed) -> PositionDeletes:
    """The delete file, invisible until it is committed; its name carries the operation."""
    path = f"{location.rstrip('/')}/data/{prefix}-{uuid.uuid4().hex[:12]}-deletes.parquet"
    io = load_file_io(dict(io_properties), path)
    positions = np.unique(doomed.positions)
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), dtype=np.int32)), pa.array([doomed.location])).cast(
        pa.string()
    )
    rows = pa.table([paths, pa.array(positions)], schema=_SCHEMA)
    with io.new_output(path).create(overwrite=False) as stream:
        pq.write_table(rows, stream, compression="zstd", store_schema=False)
    name = doomed.location.encode()
    lowest, highest = (to_bytes(LongType(), int(end)) for end in (positions[0], positions[-1]))
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*doomed.partition),
        record_count=len(positions),
        file_size_in_bytes=len(io.new_input(path)),
        # Whole: readers tell by equal bounds that the file speaks of this data file alone.
        lower_bounds={FILE_PATH_FIELD: name, POSITION_FIELD: lowest},
        upper_bounds={FILE_PATH_FIELD: name, POSITION_FIELD: highest},
        column_sizes=None,
        value_counts={FILE_PATH_FIELD: len(positions), POSITION_FIELD: len(positions)},
        null_value_counts={FILE_PATH_FIELD: 0, POSITION_FIELD: 0},
        nan_value_counts=None,
        split_offsets=None,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    return PositionDeletes(file, doomed.spec_id)
