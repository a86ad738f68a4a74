"""Lake tables without Spark, for tests that read them: written by Modak's own writer, with position deletes as Spark would leave them."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

from modak.core.lake_table import LakeColumn, LakeTable, properties
from modak.core.type_map import LakeType
from modak.lake.commits import append
from modak.lake.data_files import Target, Writer
from modak.lake.iceberg import iceberg_schema, partition_spec, sort_order

_numbers = itertools.count(1)
_PATH, _POSITION = 2147483546, 2147483545


class ScanLake:
    """One table. ``at(S)`` is the metadata to read S from; ``oracle(S)`` is what PyIceberg reads there."""

    def __init__(
        self, folder: Path, columns: Mapping[str, LakeType], tier_key: str, primary_key: Sequence[str], layout: str = "none"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the folder, whose name SQLAlchemy may read differently than it is written.
        database = folder.parent / f"catalog{next(_numbers)}.db"
        catalog = load_catalog("modak", type="sql", uri=f"sqlite:///{database}", warehouse=f"file://{folder}/warehouse")
        catalog.create_namespace("public")
        required = {tier_key, *primary_key}
        kept = tuple(LakeColumn(name, kind, name in required) for name, kind in columns.items())
        self.plan = LakeTable("public.t", kept, tier_key, tuple(primary_key), layout, properties(primary_key, {}))
        schema = iceberg_schema(self.plan)
        self.table: Table = catalog.create_table(
            "public.t",
            schema,
            partition_spec=partition_spec(self.plan, schema),
            sort_order=sort_order(self.plan, schema),
            properties=dict(self.plan.properties),
        )

    def append(self, *batches: pa.Table) -> int:
        """One commit, with a file (or several, by partition) for each batch; returns S."""
        self.table.refresh()
        target = Target(self.table.metadata.model_dump_json(), {}, self.plan.tier_key, self.plan.primary_key, self.plan.layout)
        files: list[DataFile] = []
        for batch in batches:
            writer = Writer(target, f"batch{next(_numbers)}")
            writer.write(batch)
            files += writer.close()
        return append(self.table, files, {}).sequence_number

    def at(self) -> str:
        self.table.refresh()
        return self.table.metadata_location

    def oracle(self, sequence_number: int) -> pa.Table:
        """All rows at S. Of an older S PyIceberg shows the columns of that time, where we show those of the metadata."""
        table = StaticTable.from_metadata(self.at())
        if sequence_number == table.metadata.last_sequence_number:
            return table.scan().to_arrow()
        found = [snapshot for snapshot in table.metadata.snapshots if snapshot.sequence_number == sequence_number]
        return table.scan(snapshot_id=found[0].snapshot_id).to_arrow()

    def data_files(self) -> list[DataFile]:
        self.table.refresh()
        return [task.file for task in self.table.scan().plan_files()]

    def delete(self, positions: Mapping[str, Sequence[int]], *, one_file: bool = False, content: int = 1) -> int:
        """Commit position deletes by data file; ``one_file`` puts them all into a single delete file. Returns S."""
        self.table.refresh()
        groups = [dict(positions)] if one_file else [{path: rows} for path, rows in positions.items()]
        by_path = {file.file_path: file for file in self.data_files()}
        files = [self._delete_file(group, by_path, content) for group in groups]
        return self._commit(files)

    def _delete_file(self, group: Mapping[str, Sequence[int]], by_path: Mapping[str, DataFile], content: int) -> DataFile:
        pairs = sorted((path, position) for path, rows in group.items() for position in rows)
        schema = pa.schema(
            [
                pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(_PATH)}),
                pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(_POSITION)}),
            ]
        )
        location = f"{self.table.location()}/data/deletes-{uuid.uuid4().hex}.parquet"
        rows = pa.table([[path for path, _ in pairs], [position for _, position in pairs]], schema=schema)
        pq.write_table(rows, location.removeprefix("file://"))
        paths = sorted(group)
        return DataFile.from_args(
            content=DataFileContent(content),
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=by_path[paths[0]].partition,
            record_count=len(pairs),
            file_size_in_bytes=Path(location.removeprefix("file://")).stat().st_size,
            lower_bounds={_PATH: paths[0].encode()},
            upper_bounds={_PATH: paths[-1].encode()},
            equality_ids=[1] if content == 2 else None,
        )

    def _commit(self, files: Sequence[DataFile]) -> int:
        metadata, io = self.table.metadata, self.table.io
        current = self.table.current_snapshot()
        assert current is not None
        number, snapshot_id = metadata.last_sequence_number + 1, self.table.metadata.new_snapshot_id()
        folder = f"{self.table.location()}/metadata"
        output = io.new_output(f"{folder}/{uuid.uuid4().hex}-m0.avro")
        with _DeleteManifest(self.table.spec(), self.table.schema(), output, snapshot_id, "deflate") as writer:
            for file in files:
                writer.add_entry(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file))
        listing = f"{folder}/snap-{snapshot_id}.avro"
        with write_manifest_list(2, io.new_output(listing), snapshot_id, current.snapshot_id, number, "deflate") as listed:
            listed.add_manifests([writer.to_manifest_file(), *current.manifests(io)])
        snapshot = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=current.snapshot_id,
            sequence_number=number,
            timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms),
            manifest_list=listing,
            summary=Summary(operation=Operation.DELETE),
            schema_id=metadata.current_schema_id,
        )
        reference = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot_id)
        self.table.catalog.commit_table(self.table, (), (AddSnapshotUpdate(snapshot=snapshot), reference))
        return number


class _DeleteManifest(ManifestWriterV2):
    """PyIceberg writes manifests of data files only; one of delete files differs in what it says it holds."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows to compare: dates and times as integers, since Python's own end at the years 1 and 9999; sorted, NaN and NULL included."""
    columns = []
    for name in table.column_names:
        column = table.column(name)
        if isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
        if pa.types.is_date32(column.type):
            column = column.cast(pa.int32())
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns.append([repr(value) for value in column.to_pylist()])
    return sorted(zip(*columns, strict=True))
