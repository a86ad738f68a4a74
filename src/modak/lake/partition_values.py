"""The partition that each row belongs to, by any spec: PyIceberg's transforms, and what they get wrong or do not take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, VoidTransform
from pyiceberg.typedef import Record

from modak.core.tier_key import MICROSECONDS_PER_DAY


def parted(table: pa.Table, spec: PartitionSpec, schema: Schema) -> Iterator[tuple[Record, pa.Table]]:
    """The rows of each partition, in the order they had. ``table`` has the schema's columns in its order.

    Rows are told apart by the places of their values in a dictionary and not by comparing them: NaN is equal to nothing.
    """
    places = {field.field_id: number for number, field in enumerate(schema.fields)}
    keys = [_values(field, schema, table.column(places[field.source_id]).combine_chunks()) for field in spec.fields]
    codes = np.zeros(table.num_rows, dtype=np.int64)
    for key in keys:
        encoded = pc.dictionary_encode(key, null_encoding="encode")
        _, codes = np.unique(codes * len(encoded.dictionary) + encoded.indices.to_numpy(), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(codes[order]) != 0])[: table.num_rows]
    for start, end in zip(starts, np.r_[starts[1:], table.num_rows], strict=True):
        record = Record(*(key[int(order[start])].as_py() for key in keys))
        yield record, table if len(starts) == 1 else table.take(pa.array(order[start:end]))


def _values(field: PartitionField, schema: Schema, column: Any) -> Any:
    """As manifests have them: numbers of days or microseconds, bytes of a UUID."""
    transform = field.transform
    if isinstance(transform, VoidTransform):
        return pa.nulls(len(column))
    if isinstance(transform, DayTransform) and pa.types.is_timestamp(column.type):
        return _days(column)
    if pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    found = transform.pyarrow_transform(schema.find_type(field.source_id))(column)
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    if isinstance(found.type, pa.BaseExtensionType):
        return found.storage
    if pa.types.is_date32(found.type):
        return found.cast(pa.int32())
    return found.cast(pa.int64()) if pa.types.is_timestamp(found.type) or pa.types.is_time(found.type) else found


def _days(column: Any) -> Any:
    """PyIceberg's takes the last second of a day before 1970 for the next day, where it has a fraction."""
    moments = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    days = np.floor_divide(moments, MICROSECONDS_PER_DAY).astype(np.int32)
    return pa.array(days, mask=column.is_null().to_numpy(zero_copy_only=False))
