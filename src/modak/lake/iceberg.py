"""Iceberg behind the lake port, through PyIceberg: metadata only, so that registration needs no JVM."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyiceberg import types
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)

from modak.core.lake_table import LakeTable
from modak.errors import LakeError, LakeTableExists
from modak.lake.port import LakePointer
from modak.lake.storage import Storage, pyiceberg_properties

_TYPES: dict[str, types.IcebergType] = {
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "timestamptz": types.TimestamptzType(),
    "string": types.StringType(),
    "uuid": types.UUIDType(),
    "binary": types.BinaryType(),
}
_TIME_TRANSFORMS: dict[str, Transform[Any, Any]] = {
    "hour": HourTransform(),
    "day": DayTransform(),
    "month": MonthTransform(),
    "year": YearTransform(),
}
_FIRST_PARTITION_FIELD = 1000


def iceberg_type(name: str) -> types.IcebergType:
    if name.startswith("decimal("):
        digits, scale = name.removeprefix("decimal(").rstrip(")").split(",")
        return types.DecimalType(int(digits), int(scale))
    return _TYPES[name]


def iceberg_schema(table: LakeTable) -> Schema:
    fields = [
        types.NestedField(number, column.name, iceberg_type(column.type.iceberg), required=column.required, doc=column.comment)
        for number, column in enumerate(table.columns, start=1)
    ]
    floating = (types.FloatType, types.DoubleType)
    keys = [field for field in fields if field.name in table.primary_key]
    # Iceberg's identifier fields may not be floats; such a key is still ours, only not announced to other engines.
    identifiers = [] if any(isinstance(field.field_type, floating) for field in keys) else [field.field_id for field in keys]
    return Schema(*fields, identifier_field_ids=identifiers)


def partition_spec(table: LakeTable, schema: Schema) -> PartitionSpec:
    if table.layout == "none":
        return UNPARTITIONED_PARTITION_SPEC
    transform = _TIME_TRANSFORMS.get(table.layout) or TruncateTransform(int(table.layout))
    suffix = table.layout if table.layout in _TIME_TRANSFORMS else "band"
    taken = {field.name.lower() for field in schema.fields}
    name = f"{table.tier_key}_{suffix}"
    while name.lower() in taken:
        name += "_"
    return PartitionSpec(PartitionField(schema.find_field(table.tier_key).field_id, _FIRST_PARTITION_FIELD, transform, name))


def sort_order(table: LakeTable, schema: Schema) -> SortOrder:
    """Tier key first, then the key: ranges of time stay together, and a look-up reads one row group."""
    columns = dict.fromkeys((table.tier_key, *table.primary_key))
    return SortOrder(*(SortField(schema.find_field(column).field_id, IdentityTransform()) for column in columns))


class IcebergLake:
    """One storage profile's catalog."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._catalog: Catalog | None = None

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            with failures("the Iceberg catalog", self.storage):
                self._catalog = load_catalog(self.storage.catalog_name, **pyiceberg_properties(self.storage))
        return self._catalog

    def create(self, table: LakeTable) -> LakePointer:
        schema = iceberg_schema(table)
        namespace, name = _identifier(table.ref)
        with failures(table.ref, self.storage):
            # Asked first, because a create that loses leaves its metadata file behind.
            if self.catalog.table_exists((namespace, name)):
                raise TableAlreadyExistsError(table.ref)
            with contextlib.suppress(NamespaceAlreadyExistsError):
                self.catalog.create_namespace(namespace)
            created = self.catalog.create_table(
                (namespace, name),
                schema,
                location=self.storage.new_location(table.ref) if self.storage.catalog == "jdbc" else None,
                partition_spec=partition_spec(table, schema),
                sort_order=sort_order(table, schema),
                properties=dict(table.properties),
            )
        return _pointer(table.ref, created)

    def find(self, ref: str) -> LakePointer | None:
        with failures(ref, self.storage):
            try:
                return _pointer(ref, self.catalog.load_table(_identifier(ref)))
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def search(self, stamps: Mapping[str, str]) -> list[LakePointer]:
        found = []
        with failures("the search for tables", self.storage):
            for namespace in self.catalog.list_namespaces():
                for identifier in self.catalog.list_tables(namespace):
                    pointer = self.find(".".join(identifier))
                    if pointer is not None and stamps.items() <= pointer.properties.items():
                        found.append(pointer)
        return found

    def load(self, ref: str) -> Table:
        """The table itself, for commits and schema changes."""
        with failures(ref, self.storage):
            return self.catalog.load_table(_identifier(ref))

    def drop(self, ref: str, *, purge: bool) -> None:
        with failures(ref, self.storage):
            try:
                table = self.catalog.load_table(_identifier(ref))
            except (NoSuchTableError, NoSuchNamespaceError):
                return
            if not purge:
                self.catalog.drop_table(_identifier(ref))
                return
            self.catalog.purge_table(_identifier(ref))
            _remove_folder(table.location())


def _identifier(ref: str) -> tuple[str, str]:
    namespace, name = ref.split(".", 1)
    return namespace, name


def _pointer(ref: str, table: Table) -> LakePointer:
    snapshot = table.current_snapshot()
    summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    return LakePointer(
        ref=ref,
        location=table.location(),
        metadata_location=table.metadata_location,
        snapshot_id=snapshot.snapshot_id if snapshot else None,
        sequence_number=snapshot.sequence_number if snapshot else None,
        properties=dict(table.properties),
        columns=tuple(field.name for field in table.schema().fields),
        field_ids=tuple(field.field_id for field in table.schema().fields),
        total_rows=int(summary["total-records"]) if "total-records" in summary else None,
        total_bytes=int(summary["total-files-size"]) if "total-files-size" in summary else None,
    )


def _remove_folder(location: str) -> None:
    """Object stores have no folders; on a disk the emptied one would stay behind."""
    if location.startswith("file:"):
        shutil.rmtree(Path("/" + location.removeprefix("file:").lstrip("/")), ignore_errors=True)


@contextlib.contextmanager
def failures(what: str, storage: Storage) -> Iterator[None]:
    """PyIceberg's many exceptions have no common base; at this border they become ours."""
    try:
        yield
    except TableAlreadyExistsError as cause:
        raise LakeTableExists(f"lake table {what} exists already", hint="choose another name with --lake-table") from cause
    except LakeError:
        raise
    except Exception as cause:
        raise LakeError(
            f"the lake failed on {what}: {type(cause).__name__}: {cause}".splitlines()[0],
            hint="check MODAK_CATALOG, MODAK_WAREHOUSE and the storage profile's credentials",
            warehouse=storage.warehouse,
        ) from cause
