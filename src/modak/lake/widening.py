"""One more column for the lake table of a decoupled table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from modak.core import declared
from modak.core.decoupled import DecoupledColumn, Definition
from modak.errors import LakeError, Problem, Refused, Retry
from modak.lake.failures import failures
from modak.lake.iceberg import IcebergLake, iceberg_type

_ATTEMPTS_MAX = 20


class SchemaContended(LakeError):
    """Others commit to the table faster than its schema can be changed."""

    code = "schema_contended"
    retry = Retry.NOW


def widen(lake: IcebergLake, definition: Definition, wanted: Mapping[str, Any]) -> tuple[DecoupledColumn, list[str]]:
    """The column as the lake has it now, and what people should know. One that is there already is taken, if it is the same."""
    for _ in range(_ATTEMPTS_MAX):
        table = lake.load(definition.ref)
        found = _find(table, str(wanted["name"]))
        if found is not None:
            return _taken(table, found, definition, wanted)
        column = DecoupledColumn.parse({**wanted, "field_id": table.metadata.last_column_id + 1, "required": False})
        with failures(definition.ref, lake.storage):
            try:
                _add(table, column)
            except CommitFailedException:
                continue  # somebody else has committed meanwhile
        return column, []
    raise SchemaContended(f"lake table {definition.ref} changes all the time", hint="try again", attempts=_ATTEMPTS_MAX)


def _add(table: Table, column: DecoupledColumn) -> None:
    said = declared.with_column(table.properties.get(declared.PROPERTY), column)
    with table.transaction() as change:
        with change.update_schema() as schema:
            schema.add_column((column.name,), iceberg_type(column.lake.iceberg), doc=column.comment)
        if said is not None:
            change.set_properties({declared.PROPERTY: said})


def _find(table: Table, name: str) -> NestedField | None:
    """Engines of the lake do not tell capitals from small letters."""
    return next((field for field in table.schema().fields if field.name.lower() == name.lower()), None)


def _taken(table: Table, field: NestedField, definition: Definition, wanted: Mapping[str, Any]) -> tuple[DecoupledColumn, list[str]]:
    where = f"lake table {definition.ref} has a column {field.name}"
    if field.field_id in definition.field_ids:
        hint = "drop it in the lake with another engine first, or choose another name"
        raise Refused(f"{where} already, which is this table's: it was renamed or dropped here alone", hint=hint)
    said = declared.read(table.properties.get(declared.PROPERTY)).get(field.field_id)
    known, _ = declared.column_of(str(field.field_type).replace(" ", ""), said)
    if isinstance(known, Problem) or known["type"] != wanted["type"] or field.name != wanted["name"]:
        kind = str(field.field_type) if isinstance(known, Problem) else known["type"]
        raise Refused(f"{where} already, of type {kind}", hint="give it this name and type, or choose another name")
    own = {"field_id": field.field_id, "required": field.required, "comment": field.doc, "default": wanted.get("default")}
    return DecoupledColumn.parse({**known, "name": field.name, **own}), [f"{where} already: its values are shown from now on"]
