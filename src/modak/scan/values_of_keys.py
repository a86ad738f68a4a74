"""Values of live rows by their keys: what a change that does not repeat a large value has to keep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from modak.scan.deletes import deleted_positions
from modak.scan.engine import Cursor
from modak.scan.relation import duckdb_type, read_sql
from modak.scan.snapshot import DataFile, Field

_KEYS = "modak_wanted"


def values_of_keys(
    cursor: Cursor, files: Sequence[DataFile], key_fields: Sequence[Field], wanted: Sequence[Field], keys: pa.Table
) -> dict[int, tuple[object, ...]]:
    """The values of the ``wanted`` fields, by the place of their key in ``keys``; a key without a live row is not in it."""
    if not files or not keys.num_rows:
        return {}
    numbered = keys.rename_columns([f"k{place}" for place in range(len(key_fields))])
    cursor.register(_KEYS, numbered.append_column("n", pa.array(range(keys.num_rows), pa.int64())))
    typed = ", ".join(f"k{place}::{duckdb_type(field)} AS k{place}" for place, field in enumerate(key_fields))
    same = " AND ".join(f"rows.f{field.id} = keys.k{place}" for place, field in enumerate(key_fields))
    fields = list({field.id: field for field in (*key_fields, *wanted)}.values())
    columns = ", ".join(f"rows.f{field.id}" for field in wanted)
    try:
        found = cursor.execute(
            f"SELECT keys.n, rows.file_index, rows.file_row_number::BIGINT, {columns} FROM {read_sql(files, fields)} AS rows "  # noqa: S608
            f"JOIN (SELECT n, {typed} FROM {_KEYS}) AS keys ON {same}"
        ).fetchall()
    finally:
        cursor.unregister(_KEYS)
    gone = deleted_positions(sorted({delete.path for _, place, *_ in found for delete in files[place].deletes}), cursor)
    live: dict[int, tuple[object, ...]] = {}
    for number, place, position, *values in found:
        file = files[place]
        if not any(position in np.asarray(gone[delete.path].get(file.path, ())) for delete in file.deletes):
            live[number] = tuple(values)
    return live
