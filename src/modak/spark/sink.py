"""A stream into a registered table, exactly once: every micro-batch is loaded under labels made of the query and the batch.

Executors load their rows themselves, by the library that Stream Load is. Rows are spread by their key into a number of parts that a batch
keeps for ever: whatever is run again, a task, a batch or the whole query, a part has the same rows and the same label, and is applied
once.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from modak import settings as configuration
from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import connect
from modak.errors import Refused, UsageError
from modak.load import LabelInFlight, LoadClient, LoadOptions, LoadRequest
from modak.load.request import LABEL_BYTES_MAX
from modak.settings import Settings
from modak.source.relation import parse_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTS = 8
PARTS_MAX = 1000
ROWS_MAX = 100_000_000
# How long an attempt waits for another one of the same part, which may be dying.
WAIT_SECONDS = 300.0
_QUERY_ID = "sql.streaming.queryId"
_RESULT = "label string"


def load_sink(
    dsn: str,
    table: str,
    *,
    label: str,
    parts: int = PARTS,
    settings: Settings | None = None,
    spool_threshold: int | None = None,
) -> Callable[[DataFrame, int], None]:
    """For ``writeStream.foreachBatch``: loads each micro-batch into ``table`` (``schema.table``), upserting by its key.

    ``label`` names the stream in the ledger of labels; two queries on one table need two names. The query's checkpoint makes the rest: its
    id and the number of the batch. ``parts`` is how many loads a batch makes side by side. Executors reach Postgres at the DSN's address.
    """
    if not label or not label.isprintable() or len(label.encode()) > LABEL_BYTES_MAX - 80:
        raise UsageError("label of a sink must be short printable text", found=ascii(label)[:100])
    if not 1 <= parts <= PARTS_MAX:
        raise UsageError(f"parts of a sink must be between 1 and {PARTS_MAX}", found=parts)
    chosen = replace(settings or configuration.load(os.environ), dsn=dsn)
    with connect(dsn) as connection:
        registered = tables.get(connection, parse_name(table))
        storage = App(chosen).storage(profiles.get(connection, registered.storage_profile))
    options = LoadOptions(dsn, table, storage=storage, rows_max=ROWS_MAX, application="modak-sink")
    options = options if spool_threshold is None else replace(options, spool_threshold=spool_threshold)
    key = registered.primary_key_cols

    def load(frame: DataFrame, batch_id: int) -> None:
        missing = [name for name in key if name not in frame.columns]
        if missing:
            hint = f"the stream has {', '.join(frame.columns)}"
            raise Refused(f"the stream has no column {missing[0]}, which is of the key of {table}", hint=hint)
        prefix = f"{label}-{_query_of(frame)}{batch_id}"
        count = _parts_before(dsn, registered.table_id, prefix) or parts
        part = _Part(options, prefix, count)
        # By the key and a number that is said: neither the cluster's size nor adaptive execution moves a row to another part.
        columns = [f"`{name.replace('`', '``')}`" for name in key]
        spread = frame.repartition(count, *columns)
        spread.mapInArrow(part.load, _RESULT).collect()

    return load


def _query_of(frame: DataFrame) -> str:
    """The query's id, which its checkpoint keeps. Spark Connect does not tell it; there the label alone names the query."""
    try:
        found = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    except Exception:  # noqa: BLE001 - each kind of session has a way of its own to say that it has no context
        return ""
    return f"{found}-" if found else ""


def _parts_before(dsn: str, table_id: int, prefix: str) -> int | None:
    """In how many parts a batch was begun before, if it was: it has to be finished in as many."""
    query = "select label from modak.load_labels where table_id = %s and starts_with(label, %s) limit 1"
    with connect(dsn) as connection:
        row = connection.execute(query, [table_id, f"{prefix}/"]).fetchone()
    match = re.fullmatch(r"[0-9]+-of-([0-9]+)", row["label"].removeprefix(f"{prefix}/")) if row else None
    return int(match[1]) if match else None


@dataclass(frozen=True)
class _Part:
    """What an executor does with its rows."""

    options: LoadOptions
    prefix: str
    count: int

    def load(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        supply = (batch for batch in batches if batch.num_rows)
        first = next(supply, None)
        if first is not None:
            label = f"{self.prefix}/{context.partitionId()}-of-{self.count}"
            self._apply(label, pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], supply)))
            yield pa.RecordBatch.from_pylist([{"label": label}], schema=pa.schema([("label", pa.string())]))

    def _apply(self, label: str, rows: pa.RecordBatchReader) -> None:
        """Rows are read once: what breaks on the way is for Spark, which runs the task again."""
        deadline = time.monotonic() + WAIT_SECONDS
        with LoadClient(self.options) as client:
            while True:
                try:
                    client.load(LoadRequest(label, rows))
                except LabelInFlight:
                    # Another attempt of this very task, before a row was read: Spark runs slow ones twice.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(random.uniform(0.05, 0.5))  # noqa: S311
                else:
                    return
