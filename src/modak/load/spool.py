"""Cold volume: whole rows of the staging table become data files of the lake, which nobody sees before they are adopted.

The files carry the lake's field ids and lie in the partitions they belong to, so adoption commits them as they are. Their names begin with
``load-``: one that no label names is an orphan of a load that did not commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.csv
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile
from pyiceberg.types import IcebergType

from modak.connection import Connection
from modak.core.lake_table import LakeColumn, lake_columns
from modak.errors import Refused
from modak.lake.data_files import Target, Writer
from modak.lake.failures import failures
from modak.lake.iceberg import IcebergLake, iceberg_type
from modak.lake.storage import Storage, io_properties
from modak.load.statements import Statements
from modak.load.table import LoadTable

PREFIX = "load-"
BUFFER_BYTES = 16 * 1024 * 1024


@dataclass
class Spool:
    """The files of one batch. ``columns`` are the lake's, in the lake's order."""

    target: Target
    storage: Storage
    columns: tuple[LakeColumn, ...]
    prefix: str
    files: list[str] = field(default_factory=list)

    def write(self, connection: Connection, statements: Statements) -> int:
        """Every marked row, sorted as the lake wants it; returns how many."""
        written = self.write_files(connection, statements)
        self.files = [str(file.file_path) for file in written]
        return sum(file.record_count for file in written)

    def write_files(self, connection: Connection, statements: Statements) -> list[DataFile]:
        writer = Writer(self.target, self.prefix)
        with failures(f"the files of a load ({self.prefix})", self.storage):
            for part in self._read(connection, statements):
                writer.write(part)
            return writer.close()

    def _read(self, connection: Connection, statements: Statements) -> Iterator[pa.Table]:
        pending, size = [], 0
        with connection.cursor() as cursor, cursor.copy(statements.spooled(self.columns)) as copy:
            for line in copy:
                pending.append(bytes(line))
                size += len(line)
                if size >= BUFFER_BYTES:
                    yield _parsed(b"".join(pending), self.columns)
                    pending, size = [], 0
        if pending:
            yield _parsed(b"".join(pending), self.columns)

    def remove(self) -> None:
        """Files of a batch that is certain not to commit; one that stays is an orphan, and is swept later."""
        io = load_file_io(dict(self.target.io_properties), self.target.metadata().location)
        for file in self.files:
            with contextlib.suppress(Exception):
                io.delete(file)
        self.files = []


def open_spool(table: LoadTable, source: Storage | Callable[[str], Storage], label: str) -> Spool | None:
    """Where the files of a batch go; None while the lake's columns are not yet those of the heap, and every row must pass by the delta."""
    registered = table.registered
    storage = source if isinstance(source, Storage) else source(registered.storage_profile)
    lake = IcebergLake(storage).load(registered.lake_table_ref)
    columns, problems = lake_columns(table.columns, table.place, registered.text_cols)
    if problems:
        raise Refused(f"{table.name} has columns that the lake cannot take", problems)
    by_name = {column.name: column for column in columns}
    fields = lake.schema().fields
    if {one.name: one.field_type for one in fields} != {name: _iceberg(column) for name, column in by_name.items()}:
        return None
    return Spool(
        Target(lake.metadata.model_dump_json(), io_properties(storage), table.tier_key, table.key, registered.layout),
        storage,
        tuple(by_name[one.name] for one in fields),
        f"{PREFIX}{hashlib.sha256(label.encode()).hexdigest()[:12]}-{uuid.uuid4().hex[:8]}",
    )


def _iceberg(column: LakeColumn) -> IcebergType:
    return iceberg_type(column.type.iceberg)


# How the text of a COPY is read: times are numbers there, and bytes are hexadecimal.
_READ = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.int32(),
    "timestamp": pa.int64(),
    "timestamptz": pa.int64(),
}
_MEANT = {"date": pa.date32(), "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC")}


def _parsed(text: bytes, columns: Sequence[LakeColumn]) -> pa.Table:
    names = [f"c{number}" for number in range(len(columns))]
    types = {name: _read_type(column.type.iceberg) for name, column in zip(names, columns, strict=True)}
    table = pyarrow.csv.read_csv(
        pa.py_buffer(text),
        read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=max(len(text), 1)),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    made = [_meant(table.column(name), column.type.iceberg) for name, column in zip(names, columns, strict=True)]
    return pa.table(made, names=[column.name for column in columns])


def _read_type(kind: str) -> pa.DataType:
    if kind.startswith("decimal("):
        digits, scale = (int(part) for part in kind[8:-1].split(","))
        return pa.decimal128(digits, scale)
    return _READ.get(kind, pa.string())


def _meant(values: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    if kind in _MEANT:
        return values.cast(_MEANT[kind])
    if kind == "uuid":
        return pa.chunked_array([[None if one is None else uuid.UUID(one).bytes for one in values.to_pylist()]], pa.binary(16))
    if kind == "binary":
        return pa.chunked_array([[None if one is None else bytes.fromhex(one[2:]) for one in values.to_pylist()]], pa.binary())
    return values
