"""Files of an earlier partition spec in a commit of now: partitions are their own spec's, whose columns may be gone from the table."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import SnapshotSummaryCollector
from pyiceberg.types import NestedField


def schema_for(spec: PartitionSpec, metadata: TableMetadata) -> Schema:
    """The table's schema, with the columns that the spec was made for: by these the partition's values have types."""
    schema = metadata.schema()
    gone = {field.source_id for field in spec.fields} - set(schema.field_ids)
    if not gone:
        return schema
    known = {field.field_id: field for older in metadata.schemas for field in older.fields}
    # Their names may be others' by now.
    extra = (NestedField(number, f"dropped_{number}", known[number].field_type) for number in sorted(gone & known.keys()))
    return Schema(*schema.fields, *extra, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)


def figures(metadata: TableMetadata, added: Iterable[tuple[DataFile, int]], removed: Iterable[DataFile]) -> dict[str, str]:
    """What a snapshot's summary says about files, each by its own spec. PyIceberg takes all that are added for the newest one's."""
    limit = metadata.properties.get(TableProperties.WRITE_PARTITION_SUMMARY_LIMIT, TableProperties.WRITE_PARTITION_SUMMARY_LIMIT_DEFAULT)
    found, specs = SnapshotSummaryCollector(partition_summary_limit=int(limit)), metadata.specs()
    schemas = {number: schema_for(spec, metadata) for number, spec in specs.items()}
    for file, number in added:
        found.add_file(file, schemas[number], specs[number])
    for file in removed:
        found.remove_file(file, schemas[file.spec_id], specs[file.spec_id])
    return found.build()
