"""Whether the files of a snapshot are what its manifests say: there, as long as they were written, and with as many rows.

For what no other copy can tell about: rows whose heap partition was dropped are in these files alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as parquet
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import Table

READERS = 16


@dataclass(frozen=True)
class Unsound:
    """``found`` says what is wrong with the file."""

    path: str
    found: str


def unsound_files(table: Table, snapshot_id: int) -> list[Unsound]:
    """Of the data and delete files that a reader of the snapshot opens. Their metadata are read, not their rows."""
    with ThreadPoolExecutor(READERS, thread_name_prefix="modak-sound") as pool:
        found = pool.map(lambda file: _look(table.io, file), _files(table, snapshot_id))
        return [one for one in found if one is not None]


def _files(table: Table, snapshot_id: int) -> Iterator[DataFile]:
    snapshot = table.snapshot_by_id(snapshot_id)
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file


def _look(io: FileIO, file: DataFile) -> Unsound | None:
    given = io.new_input(file.file_path)
    if not given.exists():
        return Unsound(file.file_path, "the file is gone")
    if len(given) != file.file_size_in_bytes:
        return Unsound(file.file_path, f"{len(given):,} bytes, and {file.file_size_in_bytes:,} were written")
    if file.file_format != FileFormat.PARQUET:
        return None
    try:
        with given.open() as opened:
            rows = parquet.ParquetFile(opened).metadata.num_rows
    except pa.ArrowInvalid:
        return Unsound(file.file_path, "it is no Parquet file any more")
    return None if rows == file.record_count else Unsound(file.file_path, f"{rows:,} rows, and {file.record_count:,} were written")
