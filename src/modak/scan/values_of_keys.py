"""Values of live rows by their keys: what a change that does not repeat a large value has to keep, and whether they are the expected ones.

First where the rows are, for which their keys are read; then their values, a slice at a time. Together they may be larger than memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from modak.scan.deletes import Positions, deleted_positions
from modak.scan.engine import Cursor
from modak.scan.positions import joined_keys
from modak.scan.relation import read_sql
from modak.scan.snapshot import DataFile, Field

SLICE_BYTES = 32 * 1024 * 1024
# What the engine hands over at a time; it makes no smaller ones.
_VECTOR_ROWS = 2048
_PLACES = "modak_places"


@dataclass(frozen=True)
class Places:
    """Live rows: the place of each one's key among the keys asked for, of its file among the files, and its position there."""

    numbers: Positions
    files: Positions
    positions: Positions

    def __len__(self) -> int:
        return len(self.numbers)


def places_of_keys(cursor: Cursor, files: Sequence[DataFile], key_fields: Sequence[Field], keys: pa.Table) -> Places:
    """A key without a live row is not among them."""
    if not files or not keys.num_rows:
        return Places(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    with joined_keys(cursor, key_fields, keys) as join:
        found = cursor.execute(
            f"SELECT keys.n, rows.file_index::BIGINT AS place, rows.file_row_number::BIGINT AS position "  # noqa: S608
            f"FROM {read_sql(files, key_fields)} AS rows JOIN {join}"
        ).to_arrow_table()
    numbers, places, positions = (np.asarray(column.to_numpy(), dtype=np.int64) for column in found.columns)
    live = _live(cursor, files, places, positions)
    return Places(numbers[live], places[live], positions[live])


def first_unlike(
    cursor: Cursor, files: Sequence[DataFile], key_fields: Sequence[Field], fields: Sequence[Field], rows: pa.Table
) -> tuple[int, Field | None] | None:
    """The number of a row that the files do not have like this, and the field that differs; None in its place: the key has no live row.
    ``rows`` has the values of the key's fields, and then of ``fields``."""
    if not rows.num_rows:
        return None
    if not files:
        return 0, None
    unlike = [f", rows.f{field.id} IS DISTINCT FROM keys.k{len(key_fields) + place} AS d{place}" for place, field in enumerate(fields)]
    read = list(dict.fromkeys([*key_fields, *fields]))
    with joined_keys(cursor, key_fields, rows, fields) as join:
        found = cursor.execute(
            f"SELECT keys.n, rows.file_index::BIGINT AS place, rows.file_row_number::BIGINT AS position{''.join(unlike)} "  # noqa: S608
            f"FROM {read_sql(files, read)} AS rows JOIN {join}"
        ).to_arrow_table()
    numbers, places, positions = (np.asarray(column.to_numpy(), dtype=np.int64) for column in found.columns[:3])
    live = _live(cursor, files, places, positions)
    for field, differs in zip(fields, found.columns[3:], strict=True):
        wrong = numbers[live & np.asarray(differs.to_numpy(), dtype=bool)]
        if len(wrong):
            return int(wrong[0]), field
    missing = np.setdiff1d(np.arange(rows.num_rows), numbers[live])
    return (int(missing[0]), None) if len(missing) else None


def _live(cursor: Cursor, files: Sequence[DataFile], places: Positions, positions: Positions) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of these rows nobody deleted."""
    hit = [int(place) for place in np.unique(places)]
    gone = deleted_positions(sorted({delete.path for place in hit for delete in files[place].deletes}), cursor)
    live = np.ones(len(places), dtype=bool)
    for place in hit:
        file = files[place]
        for delete in file.deletes:
            live &= ~((places == place) & np.isin(positions, gone[delete.path].get(file.path, ())))
    return live


def values_at(
    cursor: Cursor, files: Sequence[DataFile], wanted: Sequence[Field], places: Places, *, slice_bytes: int = SLICE_BYTES
) -> Iterator[tuple[list[int], list[pa.Array]]]:
    """The values of the ``wanted`` fields, with the numbers of the rows they belong to: in slices that are not much larger than
    ``slice_bytes``, in any order. The cursor is taken until the last one."""
    hit = np.unique(places.files)
    if not len(hit):
        return
    near = [files[int(place)] for place in hit]
    known = pa.table({"n": places.numbers, "place": np.searchsorted(hit, places.files), "position": places.positions})
    values = ", ".join(f"rows.f{field.id}" for field in wanted)
    with _registered(cursor, known):
        batches = cursor.execute(
            f"SELECT places.n, {values} FROM {read_sql(near, wanted)} AS rows JOIN {_PLACES} AS places "  # noqa: S608
            "ON places.place = rows.file_index::BIGINT AND places.position = rows.file_row_number::BIGINT"
        ).to_arrow_reader(_VECTOR_ROWS)
        for batch in batches:
            for part in _parts(batch, slice_bytes):
                yield part.column(0).to_pylist(), part.columns[1:]


@contextlib.contextmanager
def _registered(cursor: Cursor, places: pa.Table) -> Iterator[None]:
    cursor.register(_PLACES, places)
    try:
        yield
    finally:
        cursor.unregister(_PLACES)


def _parts(batch: Any, slice_bytes: int) -> Iterator[Any]:
    """Halved until it fits; a single row is what it is."""
    if batch.num_rows > 1 and batch.nbytes > slice_bytes:
        half = batch.num_rows // 2
        yield from _parts(batch.slice(0, half), slice_bytes)
        yield from _parts(batch.slice(half), slice_bytes)
    elif batch.num_rows:
        yield batch
