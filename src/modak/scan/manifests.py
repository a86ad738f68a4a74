"""Iceberg's manifests as lists of data and delete files. Only what a reader needs is decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from modak.errors import LakeError, Retry
from modak.scan.paths import readable
from modak.scan.snapshot import DataFile, DeleteFile

# The column of a delete file that names data files; its bounds stand in the manifest.
FILE_PATH_FIELD = 2147483546
_DELETED = 2
_EQUALITY_DELETES = 2


def _field(number: int, name: str, kind: Any, required: bool = False) -> NestedField:
    return NestedField(number, name, kind, required=required)


def _counts(key: int, value: int) -> MapType:
    return MapType(key, IntegerType(), value, LongType())


def _bounds(key: int, value: int) -> MapType:
    return MapType(key, IntegerType(), value, BinaryType())


# Fields are found by id, whatever version of Iceberg wrote the manifest; an empty partition struct means the file's own.
_FILE = StructType(
    _field(134, "content", IntegerType()),
    _field(100, "file_path", StringType(), True),
    _field(101, "file_format", StringType(), True),
    _field(102, "partition", StructType(), True),
    _field(103, "record_count", LongType(), True),
    _field(104, "file_size_in_bytes", LongType(), True),
    # PyIceberg steps over scalars it was not asked for, but not over maps and lists.
    _field(108, "column_sizes", _counts(117, 118)),
    _field(109, "value_counts", _counts(119, 120)),
    _field(110, "null_value_counts", _counts(121, 122)),
    _field(111, "distinct_counts", _counts(123, 124)),
    _field(137, "nan_value_counts", _counts(138, 139)),
    _field(125, "lower_bounds", _bounds(126, 127)),
    _field(128, "upper_bounds", _bounds(129, 130)),
    _field(132, "split_offsets", ListType(133, LongType(), element_required=True)),
    _field(135, "equality_ids", ListType(136, LongType(), element_required=True)),
    _field(143, "referenced_data_file", StringType()),
)
_ENTRY = Schema(
    _field(0, "status", IntegerType(), True),
    _field(3, "sequence_number", LongType()),
    _field(2, "data_file", _FILE, True),
)


class UnreadableSnapshot(LakeError):
    """The snapshot uses something of Iceberg that the gateway does not read; it never guesses."""

    code = "unreadable_snapshot"
    sqlstate = "0A000"
    retry = Retry.MANUAL


@dataclass(frozen=True, slots=True)
class Deletion:
    """A delete file with what decides to which data files it applies."""

    file: DeleteFile
    sequence_number: int
    spec_id: int
    partition: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The live entries of one manifest; a manifest never changes."""

    data: tuple[DataFile, ...]
    deletions: tuple[Deletion, ...]

    @property
    def size(self) -> int:
        return len(self.data) + len(self.deletions) + 1


def read_manifest(io: FileIO, manifest: ManifestFile) -> Manifest:
    data: list[DataFile] = []
    deletions: list[Deletion] = []
    with AvroFile[Any](io.new_input(manifest.manifest_path), _ENTRY) as entries:
        for status, sequence_number, file in entries:
            if status == _DELETED:
                continue
            # A new file's number is that of the commit, unknown when the manifest was written.
            number = manifest.sequence_number if sequence_number is None else sequence_number
            if file[0]:
                deletions.append(_deletion(file, number, manifest))
            else:
                data.append(_data_file(file, number, manifest.partition_spec_id))
    return Manifest(tuple(data), tuple(deletions))


def uncommitted(file: IcebergFile, spec_id: int) -> DataFile:
    """A file that is in no manifest yet, as readers know those that are."""
    _require_parquet(file.file_format.value, file.file_path)
    return DataFile(
        path=readable(file.file_path),
        location=file.file_path,
        rows=file.record_count,
        bytes=file.file_size_in_bytes,
        sequence_number=0,
        spec_id=spec_id,
        partition=tuple(file.partition._data),
        lower=_plain(file.lower_bounds),
        upper=_plain(file.upper_bounds),
        nulls=_plain(file.null_value_counts),
        nans=_plain(file.nan_value_counts),
        row_groups=len(file.split_offsets) if file.split_offsets else None,
    )


def _data_file(file: Any, sequence_number: int, spec_id: int) -> DataFile:
    _, location, file_format, partition, rows, size, _, _, nulls, _, nans, lower, upper, offsets, _, _ = file
    _require_parquet(file_format, location)
    return DataFile(
        path=readable(location),
        location=location,
        rows=rows,
        bytes=size,
        sequence_number=sequence_number,
        spec_id=spec_id,
        partition=tuple(partition),
        lower=_plain(lower),
        upper=_plain(upper),
        nulls=_plain(nulls),
        nans=_plain(nans),
        row_groups=len(offsets) if offsets else None,
    )


def _deletion(file: Any, sequence_number: int, manifest: ManifestFile) -> Deletion:
    content, location, file_format, partition, rows, size, _, _, _, _, _, lower, upper, _, _, referenced = file
    if content == _EQUALITY_DELETES:
        raise UnreadableSnapshot(
            "the lake table has equality deletes, which the gateway does not apply",
            hint="compact the table with the engine that wrote them, or write with merge-on-read position deletes",
            delete_file=location,
        )
    _require_parquet(file_format, location)
    target = referenced or _single_target(_plain(lower), _plain(upper))
    kept = DeleteFile(readable(location), location, rows, size, readable(target) if target else None)
    return Deletion(kept, sequence_number, manifest.partition_spec_id, tuple(partition))


def _single_target(lower: Mapping[int, bytes], upper: Mapping[int, bytes]) -> str | None:
    """The one data file all positions are of; equal bounds were not cut short, since a cut upper bound is raised."""
    low, high = lower.get(FILE_PATH_FIELD), upper.get(FILE_PATH_FIELD)
    return low.decode() if low is not None and low == high else None


def _require_parquet(file_format: str, location: str) -> None:
    if file_format.upper() != "PARQUET":
        raise UnreadableSnapshot(
            f"the lake table has a file in {file_format} format, and the gateway reads Parquet only",
            hint="rewrite the table's files as Parquet, and its deletes as Iceberg v2 position deletes",
            file=location,
        )


def _plain(found: Mapping[int, Any] | None) -> Mapping[int, Any]:
    return found if found is not None else {}
