"""Where rows stand: the positions of live rows that have one of the given keys, or meet a condition, file by file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from modak.scan.deletes import Positions, deleted_positions
from modak.scan.engine import Cursor
from modak.scan.relation import duckdb_type, read_sql, value_sql
from modak.scan.snapshot import DataFile, Field

_KEYS = "modak_keys"


def positions_of_keys(cursor: Cursor, files: Sequence[DataFile], fields: Sequence[Field], keys: pa.Table) -> dict[str, Positions]:
    """By the file's path. ``keys`` has the values of ``fields``, in their order; its own names do not matter."""
    with joined_keys(cursor, fields, keys) as join:
        return _live(cursor, files, fields, f"SEMI JOIN {join}")


@contextlib.contextmanager
def joined_keys(cursor: Cursor, fields: Sequence[Field], keys: pa.Table, also: Sequence[Field] = ()) -> Iterator[str]:
    """What stands behind JOIN to find the rows that have one of the keys: ``keys``, with its place as n, in the lake's types. ``also``: the
    fields of further columns of ``keys``, which go on counting and are not compared."""
    numbered = keys.rename_columns([f"k{place}" for place in range(len(fields) + len(also))])
    cursor.register(_KEYS, numbered.append_column("n", pa.array(range(keys.num_rows), pa.int64())))
    typed = ", ".join(f"k{place}::{duckdb_type(field)} AS k{place}" for place, field in enumerate([*fields, *also]))
    same = " AND ".join(f"{value_sql(field, 'rows')} = keys.k{place}" for place, field in enumerate(fields))
    try:
        yield f"(SELECT n, {typed} FROM {_KEYS}) AS keys ON {same}"  # noqa: S608
    finally:
        cursor.unregister(_KEYS)


def positions_of_rows(
    cursor: Cursor, files: Sequence[DataFile], fields: Sequence[Field], others: Sequence[DataFile]
) -> dict[str, Positions]:
    """Rows whose key, the values of ``fields``, a row of the other files has too. By the file's path."""
    same = " AND ".join(f"{value_sql(field, 'rows')} = {value_sql(field, 'keys')}" for field in fields)
    return _live(cursor, files, fields, f"SEMI JOIN {read_sql(others, fields)} AS keys ON {same}")


def superseded_positions(
    cursor: Cursor, files: Sequence[DataFile], versions: Sequence[int], fields: Sequence[Field]
) -> dict[str, Positions]:
    """Rows whose key a row of a newer file has, among files that nobody has deleted from yet."""
    found = cursor.execute(
        f"SELECT place, list(position) FROM ("  # noqa: S608
        f"SELECT rows.file_index AS place, rows.file_row_number::BIGINT AS position, "
        f"ages.version < max(ages.version) OVER (PARTITION BY {_names(fields)}) AS is_old "
        f"FROM {read_sql(files, fields)} AS rows JOIN {_ages(versions)} ON ages.place = rows.file_index) "
        f"WHERE is_old GROUP BY place"
    ).fetchall()
    return {files[int(place)].path: np.array(positions, dtype=np.int64) for place, positions in found}


def repeated_key(cursor: Cursor, files: Sequence[DataFile], fields: Sequence[Field]) -> str | None:
    """A key that two rows of these files have, as text; None where each has its own."""
    found = cursor.execute(
        f"SELECT concat_ws(', ', {_names(fields)}) FROM {read_sql(files, fields)} AS rows "  # noqa: S608
        f"GROUP BY {_names(fields)} HAVING count(*) > 1 LIMIT 1"
    ).fetchone()
    return str(found[0]) if found else None


def _names(fields: Sequence[Field]) -> str:
    return ", ".join(f"rows.f{field.id}" for field in fields)


def _ages(versions: Sequence[int]) -> str:
    rows = ", ".join(f"({place}, {int(version)})" for place, version in enumerate(versions))
    return f"(SELECT place::UBIGINT AS place, version FROM (VALUES {rows}) AS listed(place, version)) AS ages"  # noqa: S608


def positions_where(cursor: Cursor, files: Sequence[DataFile], field: Field, condition: str) -> dict[str, Positions]:
    """By the file's path; ``condition`` speaks of ``value``, which is the field's."""
    return _live(cursor, files, [field], f"WHERE {condition.format(value=f'rows.f{field.id}')}")


def key_number(field: Field) -> str:
    """For a condition: a tier key as the integer that T is."""
    return {"date": "({value} - DATE '1970-01-01')", "timestamp": "epoch_us({value})", "timestamptz": "epoch_us({value})"}.get(
        field.type, "{value}"
    )


def _live(cursor: Cursor, files: Sequence[DataFile], fields: Sequence[Field], narrowed: str) -> dict[str, Positions]:
    if not files:
        return {}
    found = cursor.execute(
        f"SELECT rows.file_index AS place, list(rows.file_row_number::BIGINT) AS positions "  # noqa: S608
        f"FROM {read_sql(files, fields)} AS rows {narrowed} GROUP BY rows.file_index"
    ).to_arrow_table()
    hit = {int(place): positions.values.to_numpy() for place, positions in zip(found["place"].to_pylist(), found["positions"], strict=True)}
    gone = deleted_positions(sorted({delete.path for place in hit for delete in files[place].deletes}), cursor)
    live: dict[str, Positions] = {}
    for place, positions in hit.items():
        file = files[place]
        for delete in file.deletes:
            positions = np.setdiff1d(positions, gone[delete.path].get(file.path, ()))
        if len(positions):
            live[file.path] = positions
    return live
