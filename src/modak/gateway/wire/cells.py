"""One column's values as they will stand on the wire, and how to get there from Arrow without touching each value in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from modak.errors import ModakError

Bytes = npt.NDArray[np.uint8]
Lengths = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

_NULL: Final = -1


class Unsupported(ModakError):
    """There is no binary form for this column here; the caller takes the text form, or tells the client."""

    code = "unsupported_format"
    sqlstate = "0A000"


@dataclass(frozen=True)
class Cells:
    """The wire form of one column over some rows.

    ``lengths`` has the length word of each value, -1 for NULL. The bytes are either ``block``, a matrix with one row per value (no NULLs,
    all of one width), or ``data``, an Arrow binary array whose NULLs have no bytes.
    """

    lengths: Lengths
    data: Any = None
    block: Bytes | None = None

    @property
    def sizes(self) -> Lengths:
        """The bytes each value takes, length word apart."""
        return np.maximum(self.lengths, 0)


def valid_mask(column: Any) -> Mask | None:
    """True where there is a value; None if there is one everywhere."""
    return column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None


def fixed(block: Bytes, valid: Mask | None) -> Cells:
    """Values of one width, one row of the matrix each; rows of NULLs may hold anything."""
    width = block.shape[1]
    if valid is None:
        return Cells(np.full(len(block), width, dtype=np.int32), block=block)
    lengths = np.where(valid, np.int32(width), np.int32(_NULL))
    return Cells(lengths, data=packed(block[valid], np.maximum(lengths, 0)))


def packed(data: npt.NDArray[Any], sizes: Lengths) -> Any:
    """Bytes that already lie end to end, as an Arrow binary array of values with these sizes."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return _binary_array(offsets, data)


def packed_rows(block: Bytes) -> Any:
    """The same for values of one width, the rows of a matrix."""
    count, width = block.shape
    return _binary_array(np.arange(0, (count + 1) * width, width, dtype=np.int32), block)


def _binary_array(offsets: Lengths, data: npt.NDArray[Any]) -> Any:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def numbers(column: Any, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """A view of the values buffer of a primitive column, honouring the offset of a slice."""
    size = np.dtype(kind).itemsize
    return np.frombuffer(column.buffers()[1], dtype=kind, count=len(column), offset=column.offset * size)


def as_bytes(values: npt.NDArray[Any]) -> Bytes:
    """A matrix with the bytes of each number (or record) in a row."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize)


def strings(column: Any) -> Cells:
    """A column whose bytes go out as they are: text, or the raw bytes of a blob."""
    column = string_layout(column)
    valid = valid_mask(column)
    if pa.types.is_large_binary(column.type):
        column = _with_small_offsets(column if valid is None else column.fill_null(pa.scalar(b"", pa.large_binary())))
    offsets: Lengths = np.frombuffer(column.buffers()[1], dtype=np.int32, count=len(column) + 1, offset=column.offset * 4)
    lengths = offsets[1:] - offsets[:-1]
    # The slot of a NULL may span bytes; only the mask says what is there.
    return Cells(lengths if valid is None else np.where(valid, lengths, np.int32(_NULL)), data=column)


def string_layout(column: Any) -> Any:
    """Any kind of string column as ``binary`` or ``large_binary``, without a copy unless the layout is another."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):  # DuckDB's enums
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return column.view(pa.binary())
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return column.view(pa.large_binary())
    if pa.types.is_string_view(kind):
        return column.cast(pa.string()).view(pa.binary())
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_null(kind):
        return column.cast(pa.binary())
    raise Unsupported("not a column of strings", arrow=kind)


def _with_small_offsets(column: Any) -> Any:
    """Offsets counted from the slice's own first byte fit in 32 bits, as whoever cuts the blocks keeps them small; Arrow's cast
    looks at the whole buffer instead and refuses. No NULLs in here.
    """
    _, offsets, data = column.buffers()
    spans = np.frombuffer(offsets, dtype=np.int64, count=len(column) + 1, offset=column.offset * 8)
    first, last = int(spans[0]), int(spans[-1])
    small = (spans - first).astype(np.int32)
    body = data.slice(first, last - first) if data is not None else pa.py_buffer(b"")
    return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(small), body])
