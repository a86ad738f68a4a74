"""Rows as COPY writes them in CSV, as Arrow columns of the lake's types: exact, or refused.

Arrow's own CSV reader does a block at a time. A block with something it does not read, years after 9999 above all, is read value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from modak.lake.text_values import arrow_column

_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us"),
}
# NULL is nothing at all, the empty text is quoted. Lines break inside of quotes too.
_PARSE = csv.ParseOptions(newlines_in_values=True)
_UUID_BYTES, _DASHES = 36, (8, 13, 18, 23)
_DIGITS = np.zeros(256, dtype=np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)


def read_csv(block: bytes, names: Sequence[str], kinds: Sequence[str]) -> pa.RecordBatch:
    """Whole rows. ``kinds`` are Iceberg types; ``timestamptz`` comes as the time in UTC without a zone, ``binary`` in hexadecimal.

    The first field of each row is none of them and left out.
    """
    try:
        columns = _read(block, [_typed(kind) for kind in kinds])
        arrays = [_finished(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    except pa.ArrowInvalid:
        columns = _read(block, [pa.string()] * len(kinds))
        arrays = [_one_by_one(column, kind, name) for column, kind, name in zip(columns, kinds, names, strict=True)]
    return pa.record_batch(arrays, names=list(names))


def _read(block: bytes, types: Sequence[pa.DataType]) -> list[pa.Array]:
    names = [f"c{place}" for place in range(len(types))]
    found = csv.read_csv(
        pa.BufferReader(pa.py_buffer(block)),
        csv.ReadOptions(use_threads=False, block_size=max(len(block), 1), column_names=["mark", *names]),
        _PARSE,
        csv.ConvertOptions(
            include_columns=names,
            column_types=dict(zip(names, types, strict=True)),
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in found.columns]


def _typed(kind: str) -> pa.DataType:
    if kind.startswith("decimal("):
        digits, scale = kind.removeprefix("decimal(").rstrip(")").split(",")
        return pa.decimal128(int(digits), int(scale))
    return _TYPES.get(kind, pa.string())


def _finished(column: pa.Array, kind: str) -> pa.Array:
    if kind == "timestamptz":
        return column.view(pa.timestamp("us", "UTC"))
    if kind == "uuid":
        return _uuids(column)
    return _bytes(column) if kind == "binary" else column


def _one_by_one(column: pa.Array, kind: str, name: str) -> pa.Array:
    values = column.cast(pa.binary()).to_pylist()
    if kind == "binary":
        values = [None if value is None else b"\\x" + value for value in values]
    return arrow_column(values, kind, "text", name)


def _texts(column: pa.Array) -> tuple[Any, Any, Any]:
    """The validity, the ends, and the bytes of an array of strings; nulls have none."""
    assert column.offset == 0  # as the reader makes them
    validity, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32, count=len(column) + 1)
    content = np.frombuffer(data, dtype=np.uint8)[: ends[-1]] if data is not None and data.size else np.empty(0, np.uint8)
    return validity, ends, content


def _bytes(column: pa.Array) -> pa.Array:
    validity, ends, digits = _texts(column)
    values = _DIGITS[digits]
    packed = (values[0::2] << 4) | values[1::2]
    return pa.Array.from_buffers(pa.binary(), len(column), [validity, pa.py_buffer((ends // 2).astype(np.int32)), pa.py_buffer(packed)])


def _uuids(column: pa.Array) -> pa.Array:
    validity, ends, text = _texts(column)
    if len(text) % _UUID_BYTES:
        raise pa.ArrowInvalid("not a uuid")
    values = _DIGITS[np.delete(text.reshape(-1, _UUID_BYTES), _DASHES, axis=1)].reshape(-1)
    packed = (values[0::2] << 4) | values[1::2]
    offsets = (ends // _UUID_BYTES * 16).astype(np.int32)
    made = pa.Array.from_buffers(pa.binary(), len(column), [validity, pa.py_buffer(offsets), pa.py_buffer(packed)])
    return made.cast(pa.binary(16))
