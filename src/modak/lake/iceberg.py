"""Iceberg behind the lake port, through PyIceberg: metadata only, so that registration needs no JVM."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from pyiceberg import types
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
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
from modak.errors import Refused
from modak.lake.failures import failures
from modak.lake.loading import find_table, load_table
from modak.lake.places import owns_its_folder, remove_files
from modak.lake.port import LakePointer
from modak.lake.storage import Storage, pyiceberg_properties

log = logging.getLogger("modak.lake")

_TYPES: dict[str, types.IcebergType] = {
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "date": types.DateType(),
    "time": types.TimeType(),
    "timestamp": types.TimestampType(),
    "timestamptz": types.TimestamptzType(),
    "string": types.StringType(),
    "uuid": types.UUIDType(),
    "binary": types.BinaryType(),
}
TIME_TRANSFORMS: dict[str, Transform[Any, Any]] = {
    "hour": HourTransform(),
    "day": DayTransform(),
    "month": MonthTransform(),
    "year": YearTransform(),
}
FIRST_PARTITION_FIELD = 1000


def iceberg_type(name: str) -> types.IcebergType:
    if name.startswith("decimal("):
        digits, scale = name.removeprefix("decimal(").rstrip(")").split(",")
        return types.DecimalType(int(digits), int(scale))
    if name.startswith("fixed["):
        return types.FixedType(int(name.removeprefix("fixed[").rstrip("]")))
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
    transform = TIME_TRANSFORMS.get(table.layout) or TruncateTransform(int(table.layout))
    suffix = table.layout if table.layout in TIME_TRANSFORMS else "band"
    taken = {field.name.lower() for field in schema.fields}
    name = f"{table.tier_key}_{suffix}"
    while name.lower() in taken:
        name += "_"
    return PartitionSpec(PartitionField(schema.find_field(table.tier_key).field_id, FIRST_PARTITION_FIELD, transform, name))


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
        order = sort_order(table, schema)
        return _pointer(table.ref, self.make(table.ref, schema, partition_spec(table, schema), dict(table.properties), order))

    def make(
        self, ref: str, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str], order: SortOrder = UNSORTED_SORT_ORDER
    ) -> Table:
        """A new table, in a folder of its own; TableAlreadyExistsError becomes LakeTableExists."""
        with failures(ref, self.storage):
            # Asked first, because a create that loses leaves its metadata file behind.
            if self.catalog.table_exists(_identifier(ref)):
                raise TableAlreadyExistsError(ref)
            with contextlib.suppress(NamespaceAlreadyExistsError):
                self.catalog.create_namespace(_identifier(ref)[0])
            return self.catalog.create_table(
                _identifier(ref),
                schema,
                location=self.storage.new_location(ref) if not self.storage.is_rest else None,
                partition_spec=spec,
                sort_order=order,
                properties=dict(properties),
            )

    def find(self, ref: str) -> LakePointer | None:
        table = self.find_table(ref)
        return _pointer(ref, table) if table is not None else None

    def find_table(self, ref: str) -> Table | None:
        """Like ``load``, where the table need not be there."""
        with failures(ref, self.storage):
            return find_table(self.catalog, _identifier(ref))

    def search(self, stamps: Mapping[str, str]) -> list[LakePointer]:
        found = []
        with failures("the search for tables", self.storage):
            for namespace in self.catalog.list_namespaces():
                for identifier in self.catalog.list_tables(namespace):
                    pointer = self.find(".".join(identifier))
                    if pointer is not None and stamps.items() <= pointer.properties.items():
                        found.append(pointer)
        return found

    def refs(self, namespace: str) -> list[str]:
        """The tables of a namespace; none where there is no such namespace."""
        with failures(f"the tables of {namespace}", self.storage):
            try:
                return sorted(".".join(identifier) for identifier in self.catalog.list_tables(namespace))
            except NoSuchNamespaceError:
                return []

    def load(self, ref: str) -> Table:
        """The table itself, for commits and schema changes."""
        with failures(ref, self.storage):
            return load_table(self.catalog, _identifier(ref))

    def load_at(self, ref: str, location: str) -> Table:
        """The table as one of its metadata files has it, whatever the catalog points to by now."""
        with failures(ref, self.storage):
            io = self.catalog._load_file_io(location=location)
            metadata = FromInputFile.table_metadata(io.new_input(location))
            return Table(_identifier(ref), metadata, location, self.catalog._load_file_io(metadata.properties, location), self.catalog)

    def drop(self, ref: str, *, purge: bool) -> None:
        with failures(ref, self.storage):
            table = find_table(self.catalog, _identifier(ref))
            if table is None:
                return
            if not purge:
                self.catalog.drop_table(_identifier(ref))
                return
            if self.storage.is_rest:
                # It looks after its own files.
                self.catalog.purge_table(_identifier(ref))
                return
            # Not by what the metadata names: another table may stand on the same files. What is in the table's own folder is its own.
            owns = owns_its_folder(table, self.storage)
            self.catalog.drop_table(_identifier(ref))
            if owns:
                remove_files(table, self.storage)
            else:
                log.warning("the files of lake table %s stay: other tables' are in its folder %s", ref, table.location())

    def check_purge(self, ref: str) -> None:
        """Before somebody is promised that a table's files go. A REST catalog decides by itself."""
        table = self.find_table(ref) if not self.storage.is_rest else None
        if table is None:
            return
        with failures(ref, self.storage):
            owns = owns_its_folder(table, self.storage)
        if not owns:
            raise Refused(
                f"the files of lake table {ref} cannot be removed: other tables' are in its folder",
                hint="drop it without purge; nothing was changed",
                location=table.location(),
            )


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
