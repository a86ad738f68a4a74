"""Arrow record batches to DataRow messages: the loop over every row of every result, so none of it runs in Python.

A row is a chain of pieces: its header and length words, which all rows have in the same width, and values, which vary. Arrow's
element-wise join of binary arrays copies the chains of all rows into one buffer, which is the answer as it goes to the socket. It does so
without the GIL, so that other sessions get on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from modak.errors import ModakError
from modak.gateway.wire.backend import data_row
from modak.gateway.wire.binary import BINARY_TYPES, send
from modak.gateway.wire.cells import Bytes, Cells, Unsupported, as_bytes, packed_rows, string_layout, strings

__all__ = ["BINARY_TYPES", "TEXT", "ColumnFormat", "RowTooLarge", "Unsupported", "blocks", "encode", "encode_text"]

# Blocks that stay in the processor's cache are encoded twice as fast as a whole large batch.
_BLOCK_ROWS: Final = 8192
# Below this many rows the fixed cost of the vector operations, some hundred microseconds, is more than plain Python's.
_FEW_ROWS: Final = 64
# Arrow's offsets end at 2 GiB, and a socket's buffer should not see that much at once.
_BLOCK_BYTES: Final = 64 << 20
_ROW_BYTES_MAX: Final = 1 << 30  # Postgres's own bound, and libpq's

_NOTHING: Final = pa.scalar(b"", pa.binary())


class RowTooLarge(ModakError):
    """A single row that neither the protocol nor a client could take."""

    code = "row_too_large"
    sqlstate = "54000"


@dataclass(frozen=True)
class ColumnFormat:
    """How a column goes out: as text, in which case it already is a column of strings, or in the binary form of a Postgres type."""

    binary: str | None = None


TEXT: Final = ColumnFormat()


def encode_text(batch: Any) -> memoryview:
    """All rows of a ``pyarrow.RecordBatch`` whose columns are strings (of any layout) or blobs, sent as they are."""
    return encode(batch, [TEXT] * batch.num_columns)


def encode(batch: Any, columns: Sequence[ColumnFormat]) -> memoryview:
    """All rows, as DataRow messages one after the other."""
    found = list(blocks(batch, columns))
    return found[0] if len(found) == 1 else memoryview(b"".join(found))


def blocks(batch: Any, columns: Sequence[ColumnFormat]) -> Iterator[memoryview]:
    """The same in portions of whole rows, for a sender who waits for the client in between and holds only one of them."""
    if len(columns) != batch.num_columns:
        raise ValueError(f"{batch.num_columns} columns and {len(columns)} formats")
    for start in range(0, batch.num_rows, _BLOCK_ROWS):
        yield from _halved(batch.slice(start, _BLOCK_ROWS), columns)


def _halved(batch: Any, columns: Sequence[ColumnFormat]) -> Iterator[memoryview]:
    size = batch.nbytes
    if size > _BLOCK_BYTES and batch.num_rows > 1:
        middle = batch.num_rows // 2
        yield from _halved(batch.slice(0, middle), columns)
        yield from _halved(batch.slice(middle), columns)
        return
    if size > _ROW_BYTES_MAX:
        raise RowTooLarge("a row is too large for the wire", bytes=size, limit=_ROW_BYTES_MAX)
    if batch.num_rows <= _FEW_ROWS and all(form.binary is None for form in columns):
        yield _few_rows(batch)
        return
    cells = [_cells(column, form) for column, form in zip(batch.columns, columns, strict=True)]
    yield _rows(cells, batch.num_rows)


def _few_rows(batch: Any) -> memoryview:
    columns = [string_layout(column).to_pylist() for column in batch.columns]
    rows = zip(*columns, strict=True) if batch.num_columns else [()] * batch.num_rows
    return memoryview(b"".join(data_row(row) for row in rows))


def _cells(column: Any, form: ColumnFormat) -> Cells:
    return strings(column) if form.binary is None else send(column, form.binary)


def _rows(cells: Sequence[Cells], count: int) -> memoryview:
    pieces: list[Any] = []
    # Words and values of constant width gather here until a value of varying width comes between.
    constant = [_header(cells, count)]
    for one in cells:
        constant.append(as_bytes(one.lengths.astype(">i4")))
        if one.block is not None:
            constant.append(one.block)
            continue
        pieces += [_joined(constant), one.data]
        constant = []
    if not pieces:
        return np.ascontiguousarray(np.concatenate(constant, axis=1)).reshape(-1).data
    if constant:
        pieces.append(_joined(constant))
    rows = pc.binary_join_element_wise(*pieces, _NOTHING, null_handling="replace", null_replacement="")
    # memoryview of a buffer counts signed bytes, which some writers refuse.
    return memoryview(rows.buffers()[2]).cast("B")


def _header(cells: Sequence[Cells], count: int) -> Bytes:
    """Tag, length without the tag, number of columns."""
    head = np.empty(count, dtype=np.dtype([("tag", "u1"), ("length", ">u4"), ("columns", ">u2")]))
    head["tag"] = ord("D")
    head["columns"] = len(cells)
    length = np.full(count, 6 + 4 * len(cells), dtype=np.int64)
    for one in cells:
        length += one.sizes
    head["length"] = length
    return as_bytes(head)


def _joined(constant: Sequence[Bytes]) -> Any:
    return packed_rows(np.concatenate(constant, axis=1) if len(constant) > 1 else constant[0])
