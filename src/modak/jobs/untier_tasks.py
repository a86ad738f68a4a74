"""What untier does on Spark's workers: copy rows of lake files into new partitions, and find the rows of files that straddle the new line.

Rows go from DuckDB as Arrow by binary COPY into a temporary table, and from there in the heap's types into the partitions. A copying task
is one transaction with a mark of its own: however often Spark runs it, its rows are there once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg import sql

from modak.catalog import migrate
from modak.connection import Connection
from modak.jobs.pace import pass_gate
from modak.jobs.restore import Restored, writing
from modak.jobs.tasks import buffers, engine_cursor, reporting_session, task_engine, write_found
from modak.scan.positions import positions_where
from modak.scan.sqltext import quoted
from modak.scan.table import ColdTables
from modak.source.relation import SQL

if TYPE_CHECKING:
    from modak.lake.change import PositionDeletes
    from modak.lake.data_files import Target
    from modak.lake.storage import Storage
    from modak.scan.snapshot import DataFile, Field, Snapshot

BATCH_ROWS = 20_000
REPORT_SECONDS = 1.0

# A key of the lake as the canonical integer that T is.
_CANONICAL = {"date": "({} - DATE '1970-01-01')", "timestamp": "epoch_us({})", "timestamptz": "epoch_us({})"}


def in_range(lake: str, value: str, low: int, without: Sequence[tuple[int, int]] = ()) -> str:
    """DuckDB's condition on a tier key: from ``low`` on, and in none of the ranges ``without``."""
    key = _CANONICAL.get(lake, "{}").format(value)
    return " AND ".join([f"{key} >= {int(low)}", *(f"NOT ({key} >= {int(start)} AND {key} < {int(end)})" for start, end in without)])


@dataclass(frozen=True)
class Returned:
    """What a task did. ``refused``: why Postgres does not take a row."""

    rows: int = 0
    deletes: tuple[PositionDeletes, ...] = ()
    refused: str | None = None


@dataclass(frozen=True)
class UntierTask:
    """Everything the tasks of one untier need; goes to the executors as it is. Numbers are copies first, then straddling files."""

    dsn: str = field(repr=False)
    op_id: str
    staging: str
    columns: tuple[Restored, ...]
    key_field: Field
    low: int
    without: tuple[tuple[int, int], ...]
    storage: Storage
    target: Target
    copies: tuple[Snapshot, ...]
    straddling: tuple[tuple[DataFile, ...], ...]

    @property
    def count(self) -> int:
        return len(self.copies) + len(self.straddling)

    def run(self, number: int) -> Returned:
        with reporting_session(self.dsn) as session:
            if number < len(self.copies):
                return self._copy(session, number)
            done = self._straddle(number)
            self._report(session, number, done.rows)
            return done

    def _report(self, session: Connection, number: int, rows: int) -> None:
        session.execute(migrate.SQL.query("report_progress"), {"op_id": self.op_id, "task": number, "rows_done": rows})

    def _copy(self, session: Connection, number: int) -> Returned:
        import adbc_driver_manager as manager

        found = self._done(session, number)
        if found is not None:
            return found
        try:
            return self._restore(session, number)
        except manager.Error as cause:
            found = self._done(session, number)
            if found is not None:
                return found
            if str(getattr(cause, "sqlstate", None) or "")[:2] not in ("22", "23", "42"):
                raise
            return Returned(refused=_said(cause))

    def _done(self, session: Connection, number: int) -> Returned | None:
        row = session.execute(migrate.SQL.query("find_copied"), {"op_id": self.op_id, "task": _mark(number)}).fetchone()
        return Returned(int(row["rows_total"])) if row and row["rows_total"] is not None else None

    def _restore(self, session: Connection, number: int) -> Returned:
        rows, reported = 0, time.monotonic()
        keys = {"op_id": sql.Literal(self.op_id), "task": sql.Literal(_mark(number))}
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in self.columns)
        values = ", ".join(f"r.c{place}::{column.display}" for place, column in enumerate(self.columns))
        insert = SQL.template("untier_restored", staging=sql.SQL(self.staging), columns=names, values=sql.SQL(values)).as_string()
        with writing(self.dsn) as cursor, self._rows(self.copies[number]) as batches:
            cursor.execute(SQL.template("untier_claimed", **keys).as_string())
            raw = ", ".join(f"c{place} {column.raw}" for place, column in enumerate(self.columns))
            cursor.execute(f"create temporary table modak_raw ({raw}) on commit drop")
            for buffer in buffers(batches):
                cursor.adbc_ingest("modak_raw", buffer, mode="append", temporary=True)
                cursor.execute(insert)
                cursor.execute("truncate pg_temp.modak_raw")
                rows += buffer.num_rows
                pass_gate(session, self.op_id)
                if time.monotonic() - reported >= REPORT_SECONDS:
                    self._report(session, number, rows)
                    reported = time.monotonic()
            cursor.execute(SQL.template("untier_copied", rows=sql.Literal(rows), **keys).as_string())
        self._report(session, number, rows)
        return Returned(rows)

    @contextlib.contextmanager
    def _rows(self, snapshot: Snapshot) -> Iterator[Iterator[pa.RecordBatch]]:
        with task_engine(self.storage) as engine:
            tables = ColdTables(engine)
            names = [column.name for column in self.columns]
            relation, _ = tables.relation(snapshot, list(dict.fromkeys([*names, self.key_field.name])))
            items = ", ".join(column.duckdb_sql(place) for place, column in enumerate(self.columns))
            wanted = in_range(self.key_field.type, quoted(self.key_field.name), self.low, self.without)
            cursor = engine.cursor()
            reader = cursor.execute(f"SELECT {items} FROM {relation} AS cold WHERE {wanted}").to_arrow_reader(BATCH_ROWS)  # noqa: S608
            yield iter(reader)
            cursor.close()
            tables.snapshots.close()

    def _straddle(self, number: int) -> Returned:
        """Position deletes for the rows of these files from the new line on."""
        files = self.straddling[number - len(self.copies)]
        with engine_cursor(self.storage) as cursor:
            found = positions_where(cursor, files, self.key_field, in_range(self.key_field.type, "{value}", self.low))
        return Returned(deletes=write_found(self.target, f"{self.op_id}-{number}", files, found))


def _mark(number: int) -> int:
    """The mark's place in modak.op_progress, apart from the task's progress."""
    return -1 - number


def _said(cause: Exception) -> str:
    """Postgres's own words; the driver puts the whole statement before them."""
    details = {name: bytes(text).decode(errors="replace") for name, text in getattr(cause, "details", None) or ()}
    parts = [details[name] for name in ("PG_DIAG_MESSAGE_PRIMARY", "PG_DIAG_MESSAGE_DETAIL") if name in details]
    return ": ".join(parts) or str(cause)
