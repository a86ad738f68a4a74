"""The Iceberg side of a decoupled table: schema, partition spec, properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg import types
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, TruncateTransform, VoidTransform

from modak.core import declared, decoupled
from modak.core.decoupled import Definition
from modak.core.lake_table import properties
from modak.errors import ModakError, Problem, Refused
from modak.lake.iceberg import FIRST_PARTITION_FIELD, TIME_TRANSFORMS, IcebergLake, iceberg_type
from modak.lake.inspection import Totals, totals_of

MODE_STAMP, TABLE_STAMP = "modak.mode", "modak.table"
_UNSAID = ("write.target-file-size-bytes", "write.parquet.row-group-size-bytes", "write.parquet.bloom-filter-max-bytes")
_NAME_BYTES_MAX = 63
_SYSTEM_COLUMNS = frozenset(("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"))
# As Iceberg's own builder calls them, so that Spark and Trino show what their users expect.
_SUFFIXES = {"bucket": "bucket", "truncate": "trunc"}


def schema_of(definition: Definition) -> Schema:
    return Schema(
        *(
            types.NestedField(column.field_id, column.name, iceberg_type(column.lake.iceberg), required=column.required, doc=column.comment)
            for column in definition.columns
        )
    )


def spec_of(definition: Definition, schema: Schema) -> PartitionSpec:
    fields: list[PartitionField] = []
    taken = {field.name.lower() for field in schema.fields}
    for number, wanted in enumerate(definition.partition_by, start=FIRST_PARTITION_FIELD):
        name = wanted.column
        if wanted.transform != "identity":
            name = f"{wanted.column}_{_SUFFIXES.get(wanted.transform, wanted.transform)}"
            while name.lower() in taken:
                name += "_"
            taken.add(name.lower())
        fields.append(PartitionField(schema.find_field(wanted.column).field_id, number, _transform(wanted), name))
    return PartitionSpec(*fields) if fields else UNPARTITIONED_PARTITION_SPEC


def _transform(wanted: decoupled.PartitionField) -> Transform[Any, Any]:
    if wanted.transform == "identity":
        return IdentityTransform()
    if wanted.number is None:
        return TIME_TRANSFORMS[wanted.transform]
    return BucketTransform(wanted.number) if wanted.transform == "bucket" else TruncateTransform(wanted.number)


def properties_of(definition: Definition, stamps: Mapping[str, str] | None = None) -> dict[str, str]:
    """Merge-on-read as every table of ours. Each commit leaves a metadata file, and no pin names one: the oldest may go."""
    said = declared.text_of(definition.columns)
    own = {
        MODE_STAMP: "decoupled",
        TABLE_STAMP: str(definition.name),
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "100",
        **({declared.PROPERTY: said} if said is not None else {}),
    }
    found = dict(properties((), own | dict(stamps or {})))
    # DuckDB does not write to a partitioned table that says such things; our own writers keep to the same sizes without.
    return {name: value for name, value in found.items() if name not in _UNSAID}


@dataclass(frozen=True)
class Found:
    """The columns of a lake table as Postgres is to have them, in JSON; ``notices`` say what of their declaration is not honoured."""

    columns: list[dict[str, Any]]
    partition_by: list[str]
    notices: list[str]


def found_in(table: Table) -> Found:
    """Raises where a column has no plain type in Postgres."""
    said = declared.read(table.properties.get(declared.PROPERTY))
    columns: list[dict[str, Any]] = []
    problems: list[Problem] = []
    notices: list[str] = []
    names = Counter(field.name.lower() for field in table.schema().fields)
    for field in table.schema().fields:
        problems += _name_problems(field.name, names)
        found, told = declared.column_of(str(field.field_type).replace(" ", ""), said.get(field.field_id))
        if isinstance(found, Problem):
            problems.append(Problem("type", f"column {field.name}: {found.message}", found.hint))
            continue
        notices += [f"column {field.name}: {one}" for one in told]
        columns.append({"name": field.name, "field_id": field.field_id, "required": field.required, "comment": field.doc, **found})
    if problems:
        raise Refused(f"lake table {'.'.join(table.name())} cannot be attached", problems, hint="nothing was changed")
    return Found(columns, _partition_by(table), notices)


def _name_problems(name: str, names: Mapping[str, int]) -> Iterator[Problem]:
    hint = "rename it in the lake, by the engine that made it"
    if len(name.encode()) > _NAME_BYTES_MAX:
        yield Problem("name", f"column {name}: Postgres has names of {_NAME_BYTES_MAX} bytes at most", hint)
    if name in _SYSTEM_COLUMNS:
        yield Problem("name", f"column {name}: Postgres has a system column of that name in every table", hint)
    if names[name.lower()] > 1:
        yield Problem("name", f"column {name}: there is another one that differs by capitals only, which DuckDB takes for the same", hint)


def _partition_by(table: Table) -> list[str]:
    schema = table.schema()
    return [str(_entry(field, schema)) for field in table.spec().fields if not isinstance(field.transform, VoidTransform)]


def _entry(field: PartitionField, schema: Schema) -> decoupled.PartitionField:
    column = schema.find_field(field.source_id).name
    match field.transform:
        case IdentityTransform():
            return decoupled.PartitionField("identity", column)
        case BucketTransform(num_buckets=number):
            return decoupled.PartitionField("bucket", column, number)
        case TruncateTransform(width=number):
            return decoupled.PartitionField("truncate", column, number)
    return decoupled.PartitionField(str(field.transform), column)


def is_registered(properties: Mapping[str, str]) -> bool:
    """Whether it is the lake side of a tiered or a mirrored table, of any database."""
    return any(name.startswith("modak.") for name in properties) and properties.get(MODE_STAMP) != "decoupled"


def totals(lake: IcebergLake, ref: str) -> Totals:
    """What the newest snapshot's summary says; one read of the table's metadata."""
    return totals_of(lake.load(ref).current_snapshot())


def shown(definition: Definition, lake: Callable[[], IcebergLake]) -> dict[str, Any]:
    """A table as people look at it; ``error`` where its lake does not answer."""
    known: dict[str, Any] = {
        "table": str(definition.name),
        "mode": "decoupled",
        "lake_table": definition.ref,
        "profile": definition.profile,
        "partition_by": [str(field) for field in definition.partition_by],
        "is_attached": definition.is_attached,
    }
    try:
        found = totals(lake(), definition.ref)
    except ModakError as cause:
        return {**known, "rows": None, "bytes": None, "files": None, "error": cause.message}
    return {**known, "rows": found.rows, "bytes": found.bytes, "files": found.data_files + found.delete_files, "error": None}
