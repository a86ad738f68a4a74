"""What new files ask of Spark's workers: find the rows they replace, in the lake and among themselves, and tell Postgres their keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from modak.catalog import migrate
from modak.jobs.restore import Restored, writing
from modak.jobs.tasks import engine_cursor, reporting_session, write_found
from modak.scan.positions import positions_of_rows, repeated_key, superseded_positions
from modak.scan.relation import read_sql
from modak.scan.sqltext import quoted

if TYPE_CHECKING:
    from modak.lake.change import PositionDeletes
    from modak.lake.data_files import Target
    from modak.lake.storage import Storage
    from modak.scan.snapshot import DataFile, Field

BATCH_ROWS = 50_000


@dataclass(frozen=True)
class Replacing:
    """Files of the lake that may hold rows with keys of the new files ``by``."""

    files: tuple[DataFile, ...]
    by: tuple[DataFile, ...]


@dataclass(frozen=True)
class Competing:
    """New files that may have keys in common; the newest version wins. Files of one version must not."""

    files: tuple[DataFile, ...]
    versions: tuple[int, ...]


@dataclass(frozen=True)
class Telling:
    """A new file whose keys Postgres has to know."""

    file: DataFile
    version: int


Part = Replacing | Competing | Telling


@dataclass(frozen=True)
class Settled:
    """What a task made. ``repeated``: a key that two rows of one version have, which only some callers have ruled out."""

    deletes: tuple[PositionDeletes, ...] = ()
    rows: int = 0
    repeated: str | None = None


@dataclass(frozen=True)
class IncomingTask:
    """Everything the tasks of one operation need; goes to the executors as it is."""

    dsn: str = field(repr=False)
    op_id: str
    target: Target
    storage: Storage
    key_fields: tuple[Field, ...]
    columns: tuple[Restored, ...]
    column_fields: tuple[Field, ...]
    keys_table: str
    checks_repeats: bool
    parts: tuple[Part, ...]

    def run(self, number: int) -> Settled:
        part = self.parts[number]
        if isinstance(part, Replacing):
            done = self._replace(part, number)
        elif isinstance(part, Competing):
            done = self._compete(part, number)
        else:
            done = self._tell(part)
        with reporting_session(self.dsn) as session:
            session.execute(migrate.SQL.query("report_progress"), {"op_id": self.op_id, "task": number, "rows_done": done.rows})
        return done

    def _replace(self, part: Replacing, number: int) -> Settled:
        with engine_cursor(self.storage) as cursor:
            found = positions_of_rows(cursor, part.files, self.key_fields, part.by)
        return Settled(write_found(self.target, f"{self.op_id}-{number}", part.files, found), sum(map(len, found.values())))

    def _compete(self, part: Competing, number: int) -> Settled:
        with engine_cursor(self.storage) as cursor:
            repeated = repeated_key(cursor, part.files, self.key_fields) if self.checks_repeats else None
            if repeated is not None or len(set(part.versions)) == 1:
                return Settled(repeated=repeated)
            found = superseded_positions(cursor, part.files, part.versions, self.key_fields)
        return Settled(write_found(self.target, f"{self.op_id}-{number}", part.files, found), sum(map(len, found.values())))

    def _tell(self, part: Telling) -> Settled:
        """Told twice, after Spark ran a task again, does no harm."""
        rows = 0
        names = ", ".join(quoted(column.name) for column in self.columns)
        values = ", ".join(f"r.c{place}::{column.display}" for place, column in enumerate(self.columns))
        insert = f"insert into {self.keys_table} (version, {names}) select {int(part.version)}, {values} from pg_temp.modak_raw r"  # noqa: S608
        with writing(self.dsn) as cursor:
            raw = ", ".join(f"c{place} {column.raw}" for place, column in enumerate(self.columns))
            cursor.execute(f"create temporary table modak_raw ({raw}) on commit drop")
            for batch in self._keys(part.file):
                cursor.adbc_ingest("modak_raw", pa.Table.from_batches([batch]), mode="append", temporary=True)
                cursor.execute(insert)
                cursor.execute("truncate pg_temp.modak_raw")
                rows += batch.num_rows
        return Settled(rows=rows)

    def _keys(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        named = ", ".join(f"f{field.id} AS {quoted(field.name)}" for field in self.column_fields)
        items = ", ".join(column.duckdb_sql(place) for place, column in enumerate(self.columns))
        query = f"SELECT {items} FROM (SELECT {named} FROM {read_sql([file], self.column_fields)}) AS cold"  # noqa: S608
        with engine_cursor(self.storage) as cursor:
            yield from cursor.execute(query).to_arrow_reader(BATCH_ROWS)
