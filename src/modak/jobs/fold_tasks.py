"""What the fold does on Spark's workers: find rows of corrected keys in data files, and write new images.

A search reads the key columns of a few files, beside the keys that Postgres has for their range of tier keys; a writing turns images
into data files. Both leave files that nobody sees before the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from modak.catalog import migrate
from modak.jobs.tasks import buffers, copied, engine_cursor, reporting_session, write_found
from modak.lake.data_files import Target, Writer, conform
from modak.scan.positions import positions_of_keys

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile

    from modak.lake.change import PositionDeletes
    from modak.lake.storage import Storage
    from modak.scan.snapshot import DataFile, Field


@dataclass(frozen=True)
class Search:
    """Files that may hold rows of the keys which this SQL reads."""

    files: tuple[DataFile, ...]
    keys_sql: str


@dataclass(frozen=True)
class Folded:
    """What a task made, and of how many rows."""

    data: tuple[IcebergFile, ...] = ()
    deletes: tuple[PositionDeletes, ...] = ()
    rows: int = 0


@dataclass(frozen=True)
class FoldTask:
    """Everything the tasks of one fold need; goes to the executors as it is. Numbers are searches first, then writings."""

    dsn: str = field(repr=False)
    snapshot: str
    op_id: str
    target: Target
    storage: Storage
    key_fields: tuple[Field, ...]
    searches: tuple[Search, ...]
    writings: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.searches) + len(self.writings)

    def run(self, number: int) -> Folded:
        searching = number < len(self.searches)
        done = self._search(number) if searching else self._write(number, self.writings[number - len(self.searches)])
        with reporting_session(self.dsn) as session:
            session.execute(migrate.SQL.query("report_progress"), {"op_id": self.op_id, "task": number, "rows_done": done.rows})
        return done

    def _search(self, number: int) -> Folded:
        search = self.searches[number]
        keys = read_keys(self.dsn, self.snapshot, search.keys_sql, self.target, self.key_fields)
        if not keys.num_rows:
            return Folded()
        with engine_cursor(self.storage) as cursor:
            found = positions_of_keys(cursor, search.files, self.key_fields, keys)
        deletes = write_found(self.target, f"{self.op_id}-{number}", search.files, found)
        return Folded(deletes=deletes, rows=sum(one.file.record_count for one in deletes))

    def _write(self, number: int, query: str) -> Folded:
        writer, rows = Writer(self.target, f"{self.op_id}-{number}"), 0
        with copied(self.dsn, self.snapshot, query) as batches:
            for buffer in buffers(batches):
                writer.write(buffer)
                rows += buffer.num_rows
        return Folded(data=tuple(writer.close()), rows=rows)


def read_keys(dsn: str, snapshot: str, query: str, target: Target, fields: Sequence[Field]) -> pa.Table:
    """Primary keys that a query reads from Postgres, as the lake types them."""
    writer = Writer(target, "")
    schema = pa.schema([writer.arrow_schema.field(writer.names.index(field.name)) for field in fields])
    with copied(dsn, snapshot, query) as batches:
        parts = [conform(pa.Table.from_batches([batch]).select([field.name for field in fields]), schema) for batch in batches]
    return pa.concat_tables(parts) if parts else schema.empty_table()
