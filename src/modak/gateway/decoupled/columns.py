"""The columns of a foreign table and those that its lake table has by now: the same by their numbers, whatever other engines call them."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata

from modak.core.decoupled import Definition
from modak.errors import ModakError
from modak.gateway.decoupled.base import Base


class ColumnGone(ModakError):
    """Another engine dropped a column of the lake table. NULL would be no answer: it may have had values."""

    code = "lake_column_gone"
    sqlstate = "42703"


class ColumnUnknown(ModakError):
    """Another engine added one, and a row that is written by who does not know it would be without its value."""

    code = "lake_column_unknown"
    sqlstate = "55000"


def check_readable(definition: Definition, metadata: TableMetadata) -> None:
    present = {field.field_id for field in metadata.schema().fields}
    gone = [column.name for column in definition.columns if column.field_id not in present]
    if gone:
        hint = "drop the name here, by DROP FOREIGN TABLE, and attach the lake table anew"
        raise ColumnGone(f"lake table {definition.ref} of {definition.name} has no column {', '.join(gone)} any more", hint=hint)


def check_writable(definition: Definition, base: Base, *, updates: bool) -> None:
    """In a column that is not known here new rows have NULL, if it takes that, and rows that are changed would lose what they have."""
    fields = base.metadata.schema().fields
    if len(fields) == len(definition.columns):
        return  # all of them are there, or the base had not been read: nothing else is, and this is asked for every row
    known = set(definition.field_ids)
    unknown = [field for field in fields if field.field_id not in known]
    lost = [field.name for field in unknown if field.required or (updates and _has_values(base, field.field_id))]
    if lost:
        raise ColumnUnknown(
            f"lake table {definition.ref} has columns by now that {definition.name} does not have: {', '.join(lost)}",
            hint="modak.add_iceberg_column gives them to the table here",
        )


def _has_values(base: Base, field_id: int) -> bool:
    """Not where every row is NULL by the file's own count, nor in files that are older than the column."""
    field = next((field for field in base.snapshot.fields if field.id == field_id), None)
    if field is None:
        return False
    before = {one.schema_id for one in base.metadata.schemas if all(column.field_id != field_id for column in one.fields)}
    newest = max((one.sequence_number or 0 for one in base.metadata.snapshots if one.schema_id in before), default=0)
    files = zip(base.snapshot.files, base.snapshot.ranges(field), strict=True)
    # Those of format 1 have no number, and may be of any time.
    return any(not values.only_nulls and not 0 < file.sequence_number <= newest for file, values in files)
