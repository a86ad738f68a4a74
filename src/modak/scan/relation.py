"""The live rows of some files as an expression for FROM, with the columns as they are named and typed now. Pure.

Files are read by field id: a file keeps the names and types its columns had when it was written, and Parquet names are made harmless by
every writer. Inside, columns are called by their ids, so that no name of a user's meets one of DuckDB's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from modak.errors import Refused
from modak.scan.deletes import Bitmaps
from modak.scan.paths import without_globs
from modak.scan.snapshot import DataFile, Field, Snapshot
from modak.scan.sqltext import quoted, string

_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}
# DuckDB reads a list of one file with one thread when it is told the schema: it counts the row groups of files that it has opened to find
# one. A list of two is read with all threads, so a large file gets company without rows (``COPY (SELECT 1 AS nothing WHERE false)``).
_COMPANY: Final = str(Path(__file__).parent / "nothing.parquet")
_ONE_THREAD_ROWS_MAX = 250_000
_LOST = "deletes of this snapshot are gone from the engine: the query outlived it or began before it was prepared"


def relation_sql(snapshot: Snapshot, files: Sequence[DataFile], columns: Sequence[str], bitmaps: Bitmaps | None = None) -> str:
    """Exactly the live rows of ``files``. ``bitmaps`` is what ``Deletes.prepare`` gave for them; files with deletes need it."""
    fields = [snapshot.field(name) for name in columns] or list(snapshot.fields[:1])
    clean = [file for file in files if not file.deletes]
    touched = [file for file in files if file.deletes]
    arms = [_clean_sql(clean, fields)] if clean else []
    if touched:
        if bitmaps is None:
            raise ValueError("files with deletes are read with their bitmaps: call Deletes.prepare first")
        arms.append(_touched_sql(touched, fields, bitmaps))
    return "(" + " UNION ALL ".join(arms or [_empty_sql(fields)]) + ")"


def numbered_sql(
    snapshot: Snapshot, files: Sequence[DataFile], columns: Sequence[str], firsts: Sequence[int], bitmaps: Bitmaps | None = None
) -> str:
    """Like ``relation_sql``, with a number for each row (``rid``): its place in its file after the file's own, ``firsts``."""
    fields = [snapshot.field(name) for name in columns]
    if not files:
        return f"({_empty_sql(fields, also='NULL::BIGINT AS rid')})"
    numbers = ", ".join(
        f"({place}, {first}, {bitmaps.numbers[file.path] if bitmaps is not None and file.deletes else 'NULL'})"
        for place, (file, first) in enumerate(zip(files, firsts, strict=True))
    )
    typed = "place::UBIGINT AS place, first::BIGINT AS first, number::INTEGER AS number"
    places = f"SELECT {typed} FROM (VALUES {numbers}) AS v(place, first, number)"  # noqa: S608
    alive = ""
    if bitmaps is not None:
        lost = f"coalesce(bits, CASE WHEN numbers.number IS NOT NULL THEN error({string(_LOST)}) END)"
        places = f"SELECT place, first, {lost} AS bits FROM ({places}) AS numbers LEFT JOIN {bitmaps.table} AS kept USING (number)"  # noqa: S608
        alive = " WHERE places.bits IS NULL OR get_bit(places.bits, rows.file_row_number::INTEGER) = 0"
    items = ", ".join(part for part in (_outputs(fields), "places.first + rows.file_row_number::BIGINT AS rid") if part)
    source = read_sql(files, fields or list(snapshot.fields[:1]))
    return f"(SELECT {items} FROM {source} AS rows JOIN ({places}) AS places ON places.place = rows.file_index{alive})"  # noqa: S608


def duckdb_type(field: Field) -> str:
    if field.type.startswith("decimal("):
        return field.type.upper()
    if field.type.startswith("fixed["):
        return "BLOB"
    if field.type not in _TYPES:
        raise Refused(f"column {field.name} has the lake type {field.type}, which the gateway does not read", hint="leave it out")
    return _TYPES[field.type]


def _clean_sql(files: Sequence[DataFile], fields: Sequence[Field]) -> str:
    return f"SELECT {_outputs(fields)} FROM {read_sql(files, fields)}"  # noqa: S608


def _touched_sql(files: Sequence[DataFile], fields: Sequence[Field], bitmaps: Bitmaps) -> str:
    """A row's bit is found by the file's place in the list; a bitmap that is not there is an error, never an empty one."""
    numbers = ", ".join(f"({place}, {bitmaps.numbers[file.path]})" for place, file in enumerate(files))
    # DuckDB counts files in UBIGINT; a key of that type spares a cast of every row.
    places = (
        f"SELECT place::UBIGINT AS place, coalesce(bits, error({string(_LOST)})) AS bits "  # noqa: S608
        f"FROM (VALUES {numbers}) AS numbers(place, number) LEFT JOIN {bitmaps.table} USING (number)"
    )
    return (
        f"SELECT {_outputs(fields)} FROM {read_sql(files, fields)} AS rows "  # noqa: S608
        f"JOIN ({places}) AS deletes ON deletes.place = rows.file_index "
        "WHERE get_bit(deletes.bits, rows.file_row_number::INTEGER) = 0"
    )


def _empty_sql(fields: Sequence[Field], also: str = "") -> str:
    nothing = [f"NULL::{duckdb_type(field)} AS {quoted(field.name)}" for field in fields]
    return f"SELECT {', '.join([*nothing, also] if also else nothing)} WHERE false"


def _outputs(fields: Sequence[Field]) -> str:
    return ", ".join(f"{value_sql(field)} AS {quoted(field.name)}" for field in fields)


def value_sql(field: Field, row: str = "") -> str:
    """A column of ``read_sql``, for conditions as well. DuckDB looks bytes up in a bloom filter by the text that it prints for them, and
    skips row groups that have them: so no condition on such a column may reach the scan, and none goes through a CASE."""
    name = f"{row}.f{field.id}" if row else f"f{field.id}"
    return f"CASE WHEN {name} IS NOT NULL THEN {name} END" if duckdb_type(field) == "BLOB" else name


def read_sql(files: Sequence[DataFile], fields: Sequence[Field]) -> str:
    """Every row of the files, deleted ones too: columns are called f and their field id; a file is known by its place (file_index)."""
    names = [file.path for file in files]
    if len(files) == 1 and files[0].rows > _ONE_THREAD_ROWS_MAX:
        names.append(_COMPANY)
    paths = ", ".join(string(without_globs(name)) for name in names)
    schema = ", ".join(f"{field.id}: {{name: 'f{field.id}', type: {string(duckdb_type(field))}, default_value: NULL}}" for field in fields)
    rows = sum(file.rows for file in files)
    # Parquet's statistics leave NaN out, and without can_have_nan DuckDB would skip row groups in which x > 5 holds for NaN.
    options = f"hive_partitioning => false, can_have_nan => true, explicit_cardinality => {rows}"
    return f"read_parquet([{paths}], schema => MAP {{{schema}}}, {options})"
