"""What a job works with. Jobs get everything from here and make nothing themselves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modak.catalog import leadership, problems
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.decoupled import Definition
from modak.core.lake_table import LakeColumn, Shape, lake_columns
from modak.core.table import Relation
from modak.errors import LockNotAvailable, NotFound
from modak.lake.data_files import Target
from modak.lake.failures import lake_failures
from modak.lake.iceberg import IcebergLake
from modak.lake.storage import io_properties
from modak.progress import SILENT, Progress
from modak.scan.snapshot import Snapshot
from modak.scan.snapshots import Snapshots
from modak.source.locks import ATTEMPTS_MAX
from modak.source.relation import describe, find_by_oid

if TYPE_CHECKING:
    from pyiceberg.table import Table as LakeTable
    from pyspark.sql import SparkSession


JOB_LOCK = 0x6D65 << 32


@contextlib.contextmanager
def alone_on(connection: Connection, table: Registered | Definition, wait_seconds: float = 0.0) -> Iterator[None]:
    """One job per table at a time, whoever runs it."""
    busy = LockNotAvailable(f"another job works on {table.name}", hint="wait for it; `modak status` shows what it does")
    # A restored database may number its decoupled tables beyond an OID.
    with session_lock(connection, JOB_LOCK + table.table_id % (1 << 32), wait_seconds, busy):
        yield


@contextlib.contextmanager
def session_lock(connection: Connection, key: int, wait_seconds: float, busy: LockNotAvailable) -> Iterator[None]:
    """Held by the session, so a dead worker holds nothing; its lock is free a moment later, when Postgres notices."""
    until = time.monotonic() + wait_seconds
    while not _locked(connection, key):
        if time.monotonic() >= until:
            raise busy
        time.sleep(0.1)
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("select pg_advisory_unlock(%s)", [key])


def _locked(connection: Connection, key: int) -> bool:
    row = connection.execute("select pg_try_advisory_lock(%s) as mine", [key]).fetchone()
    return row is not None and bool(row["mine"])


@dataclass(frozen=True)
class JobContext:
    """One table's job. ``connection`` is in autocommit and holds the job's session lock; ``spark`` starts Spark when first called.

    ``epoch`` is the leadership that a worker runs the job under; None for a job that somebody runs by hand.
    """

    connection: Connection
    dsn: str = field(repr=False)
    table: Registered
    lake: IcebergLake
    spark: Callable[[], SparkSession]
    cores: int = 2
    lock_attempts: int = ATTEMPTS_MAX
    progress: Progress = SILENT
    epoch: int | None = None

    @property
    def table_id(self) -> int:
        return self.table.table_id

    def fence(self) -> None:
        """First in a transaction that publishes: whoever lost his session, or his leadership to another worker, gets no further."""
        leadership.check_epoch(self.connection, self.epoch)
        leadership.check_lock(self.connection, JOB_LOCK + self.table_id, str(self.table.name))

    def lake_table(self) -> LakeTable:
        return self.lake.load(self.table.lake_table_ref)

    def target(self, table: LakeTable) -> Target:
        """The lake table as a task that writes files for it has to know it."""
        properties = io_properties(self.lake.storage)
        return Target(table.metadata.model_dump_json(), properties, self.table.tier_key_col, self.table.primary_key_cols, self.table.layout)

    def cold(self, table: LakeTable, sequence_number: int | None) -> Snapshot:
        """The lake's files at a published S."""
        with contextlib.closing(Snapshots()) as snapshots:
            return snapshots.get(table.metadata_location, sequence_number, io_properties(self.lake.storage))

    def relation(self) -> Relation:
        """The heap as it is now, under whatever name a mirrored one has by now."""
        if self.table.mode != "mirrored":
            return describe(self.connection, self.table.heap)
        name = find_by_oid(self.connection, self.table_id)
        if name is None:
            raise NotFound(f"{self.table.name} was dropped", hint=f"`modak unregister {self.table.name}` ends its registration")
        try:
            return describe(self.connection, name)
        except NotFound as cause:
            raise LockNotAvailable(f"{self.table.name} was renamed or dropped just now", hint="the next try sees that") from cause

    def columns(self, relation: Relation) -> tuple[LakeColumn, ...]:
        required = (*self.table.primary_key_cols, self.table.tier_key_col)
        columns, _ = lake_columns(relation.columns, required, self.table.text_cols)
        return columns

    def shape(self, relation: Relation) -> Shape:
        table = self.table
        return Shape(table.table_id, table.name, table.tier_key_col, table.key_type, table.primary_key_cols, self.columns(relation))


@contextlib.contextmanager
def reported(context: JobContext, job: str) -> Iterator[None]:
    """A pass of a job: what fails is in modak.problems until a pass succeeds, and a failure of the lake's libraries is one of ours."""
    what = f"the {job} of {context.table.name}"
    with problems.reported(context.connection, context.table_id, job), lake_failures(what, context.lake.storage):
        yield
