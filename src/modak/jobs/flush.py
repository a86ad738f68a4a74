"""Flush: partitions of the heap become data files of the lake, read under one snapshot by many Spark tasks.

A task reads its page range by binary COPY into Arrow and writes Parquet; nothing passes through the driver but the list of files.
The files are invisible until they are committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from modak.catalog import migrate, operations
from modak.connection import Connection, connect
from modak.core.lake_table import LakeColumn
from modak.core.table import Name
from modak.errors import ValueRefused
from modak.failpoints import failpoint
from modak.jobs.context import JobContext
from modak.jobs.pace import Pace, pass_gate
from modak.jobs.tasks import Spread, buffers, copied, reporting_session
from modak.lake.data_files import Target, Writer
from modak.source import heap
from modak.source.heap import Chunk, Snapshot

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

CHUNK_BYTES_MIN = 32 * 1024 * 1024
CHUNK_BYTES_MAX = 512 * 1024 * 1024
# More than one, so that no core waits long for another's last chunk.
CHUNKS_PER_CORE = 4
REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class Flushed:
    files: tuple[DataFile, ...]
    rows: int


@dataclass(frozen=True)
class FlushTask:
    """What one Spark task needs; goes to the executors as it is."""

    dsn: str = field(repr=False)
    snapshot: str
    op_id: str
    target: Target
    chunks: tuple[tuple[str, str], ...]  # (partition, SQL)

    def run(self, number: int) -> dict[str, Any]:
        partition, query = self.chunks[number]
        writer = Writer(self.target, f"{self.op_id}-{number}")
        rows, reported = 0, time.monotonic()
        with reporting_session(self.dsn) as session, copied(self.dsn, self.snapshot, query) as batches:
            for buffer in buffers(self._paced(session, batches)):
                bad = _bad_column(buffer)
                if bad is not None:
                    return {"task": number, "rows": rows, "files": [], "bad_column": bad, "partition": partition}
                writer.write(buffer)
                rows += buffer.num_rows
                if time.monotonic() - reported >= REPORT_SECONDS:
                    self._report(session, number, rows)
                    reported = time.monotonic()
            files = writer.close()
            self._report(session, number, rows)
        return {"task": number, "rows": rows, "files": files, "bad_column": None, "partition": partition}

    def _paced(self, session: Connection, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            pass_gate(session, self.op_id)

    def _report(self, session: Connection, number: int, rows: int) -> None:
        session.execute(migrate.SQL.query("report_progress"), {"op_id": self.op_id, "task": number, "rows_done": rows})


def _bad_column(rows: pa.Table) -> str | None:
    column = rows.column("modak_bad")
    if column.null_count == len(column):
        return None
    return str(column.drop_null()[0].as_py())


def flush(context: JobContext, op_id: str, partitions: Sequence[Name], columns: Sequence[LakeColumn], snapshot: Snapshot) -> Flushed:
    """Copy the partitions to files. Raises ValueRefused, naming column and key, if a value does not fit the lake."""
    wanted = context.cores * CHUNKS_PER_CORE
    cut = heap.chunks(context.connection, partitions, bytes_min=CHUNK_BYTES_MIN, bytes_max=CHUNK_BYTES_MAX, wanted=wanted)
    return flush_chunks(context, op_id, cut, columns, snapshot, skip=_skips_corrected(context))


def flush_chunks(
    context: JobContext, op_id: str, cut: Sequence[Chunk], columns: Sequence[LakeColumn], snapshot: Snapshot, *, skip: bool = False
) -> Flushed:
    """Copy these chunks. ``skip`` leaves out rows whose key the delta knows."""
    task = FlushTask(
        dsn=context.dsn,
        snapshot=snapshot.name,
        op_id=op_id,
        target=context.target(context.lake_table()),
        chunks=tuple((str(chunk.partition), _query(context, columns, chunk, skip)) for chunk in cut),
    )
    results = _run(context, task) if cut else []
    refused = [result for result in results if result["bad_column"] is not None]
    if refused:
        raise _refusal(context, cut[refused[0]["task"]], columns, refused[0]["bad_column"])
    files = [file for result in results for file in result["files"]]
    return Flushed(tuple(files), sum(result["rows"] for result in results))


def _skips_corrected(context: JobContext) -> bool:
    """A key without the tier key may have an older place in the cold tier, and a correction that hides it there.

    Such a row goes to the lake through that correction; written as a file, the correction would hide it too.
    """
    if context.table.tier_key_col in context.table.primary_key_cols:
        return False
    return context.connection.execute(migrate.SQL.query("has_delta"), {"table_id": context.table_id}).fetchone() is not None


def _query(context: JobContext, columns: Sequence[LakeColumn], chunk: Chunk, skip: bool) -> str:
    query = heap.select(columns, chunk)
    return query + f" and not {heap.is_corrected(context.table_id, context.table.primary_key_cols)}" if skip else query


def _run(context: JobContext, task: FlushTask) -> list[dict[str, Any]]:
    """Run the tasks and follow their progress meanwhile; Spark's own call blocks."""
    count = len(task.chunks)
    job = Spread(context.spark, task.run, count, "flush")
    with (
        context.progress.task(f"Copying {count} chunks to the lake") as bar,
        connect(context.dsn, autocommit=True, unhurried=True) as watcher,
    ):
        done, pace = 0, Pace(watcher, task.op_id, job.wait)
        while not pace.turn():
            now = operations.rows_done(watcher, task.op_id)
            bar.note(f"{now:,} rows")
            bar.advance(now - done)
            done = now
            failpoint("tier.during_flush")
    return job.result()


def _refusal(context: JobContext, chunk: Chunk, columns: Sequence[LakeColumn], name: str) -> ValueRefused:
    column = next(column for column in columns if column.name == name)
    found = heap.find_bad_value(context.connection, chunk.partition, column, context.table.primary_key_cols)
    return ValueRefused(
        f"{chunk.partition} holds a value that the lake's {column.type.iceberg} cannot: the partition stays hot",
        hint=f"correct the row, or register again with --as-text {name}; {column.type.iceberg} cannot hold {column.type.limits}",
        column=name,
        key=found[0] if found else None,
        value=found[1] if found else None,
        partition=str(chunk.partition),
    )
