"""Rows in Parquet and Arrow IPC files, read in bounded batches and again from the start when they are needed again."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from modak.load.errors import LoadRejected
from modak.load.rows import ARROW_CHUNK_ROWS, CHUNK_BYTES, Chunk, ColumnSets, arrow_chunks

# Rows of a Parquet batch at least, however large the file says they are.
_BATCH_ROWS_MIN = 64
_BAD = (pa.ArrowException, OSError, ValueError, TypeError, MemoryError, NotImplementedError)


class _ArrowRows(abc.ABC):
    """What the two kinds share: a schema, batches that were checked, and errors of the file as errors of the load."""

    kind = "Arrow"

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @property
    def is_empty(self) -> bool:
        with self._reading() as (_, batches):
            return all(batch.num_rows == 0 for batch in batches)

    def chunks(self, sets: ColumnSets) -> Iterator[Chunk]:
        with self._reading() as (schema, batches):
            yield from arrow_chunks(schema, batches, sets)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[tuple[pa.Schema, Iterable[pa.RecordBatch]]]:
        self._file.seek(0)
        with self._refusing():
            schema, batches = self._open(pa.PythonFile(self._file, mode="r"))
            list(schema.names)  # which may be no text
        yield schema, self._checked(batches)

    def _checked(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        supply = iter(batches)
        while True:
            with self._refusing():
                batch = next(supply, None)
                if batch is None:
                    return
                # Offsets that point nowhere would be followed otherwise.
                batch.validate(full=True)
            yield batch

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except _BAD as cause:
            what = str(cause).strip().splitlines() or [type(cause).__name__]
            raise LoadRejected(f"the body is no {self.kind} that can be read: {what[0]}", hint="is the content type right?") from cause

    @abc.abstractmethod
    def _open(self, file: pa.NativeFile) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
        """The schema, and the batches as they are read."""


class ArrowStream(_ArrowRows):
    """Arrow IPC, the streaming format."""

    kind = "Arrow IPC stream"

    def _open(self, file: pa.NativeFile) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
        reader = pa.ipc.open_stream(file)
        return reader.schema, reader


class ArrowFile(_ArrowRows):
    """Arrow IPC, the file format, also known as Feather."""

    kind = "Arrow IPC file"

    def _open(self, file: pa.NativeFile) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
        reader = pa.ipc.open_file(file)
        return reader.schema, map(reader.get_batch, range(reader.num_record_batches))


class ParquetRows(_ArrowRows):
    """A Parquet file, or some of its row groups."""

    kind = "Parquet file"

    def __init__(self, file: BinaryIO, groups: Sequence[int] | None = None) -> None:
        super().__init__(file)
        self._groups = groups

    @property
    def is_empty(self) -> bool:
        self._file.seek(0)
        with self._refusing():
            return bool(pq.read_metadata(self._file).num_rows == 0)

    def _open(self, file: pa.NativeFile) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1024 * 1024)
        return parquet.schema_arrow, _batches(parquet, range(parquet.num_row_groups) if self._groups is None else self._groups)


def _batches(parquet: pq.ParquetFile, groups: Iterable[int]) -> Iterator[pa.RecordBatch]:
    for group in groups:
        rows = parquet.metadata.row_group(group).num_rows
        wanted = min(ARROW_CHUNK_ROWS, max(_BATCH_ROWS_MIN, _fitting(parquet, group)))
        yield from parquet.iter_batches(batch_size=min(wanted, max(rows, 1)), row_groups=[group], use_threads=False)


def _fitting(parquet: pq.ParquetFile, group: int) -> int:
    """How many rows make a chunk, going by what the file says of its size."""
    found = parquet.metadata.row_group(group)
    return int(CHUNK_BYTES * found.num_rows // max(found.total_byte_size, 1))
