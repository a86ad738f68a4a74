"""A column that was added with a default: rows that stood there have the value without a word in the stream, so the lake's get it too.

Every file is written anew, one after the other and a batch at a time, in a commit that nobody sees before the transaction which first had
the column is published. After a crash it is rolled back and made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from modak.catalog import operations, tables
from modak.core.operation import OperationKind, Phase
from modak.core.table import Column
from modak.failpoints import failpoint
from modak.jobs import foreign, journal
from modak.jobs.context import JobContext
from modak.jobs.tasks import buffers, task_engine
from modak.lake import commits
from modak.lake.data_files import Writer
from modak.lake.text_values import arrow_column
from modak.scan.live_rows import live_rows
from modak.scan.snapshot import Snapshot
from modak.scan.table import ColdTables

if TYPE_CHECKING:
    from pyiceberg.table import Table as LakeTable


def fill(context: JobContext, table: LakeTable, columns: Mapping[int, Column], values: Mapping[int, str], part: int | None) -> int | None:
    """Give every row of the lake these values, by the columns' numbers; returns the snapshot, None if the lake has no rows. ``part``: the
    snapshot of ours that this goes on from, if it is not the published one."""
    current = table.current_snapshot()
    if current is None:
        return None
    line = tables.cutline(context.connection, context.table_id)
    details = {"old_tier_key_hi": line.tier_key_hi, "old_snapshot": line.snapshot, "to_lsn": None, "filled": list(values)}
    operation = operations.start(context.connection, context.table_id, OperationKind.MIRROR, details)
    operations.move(context.connection, operation, Phase.ABANDONED)
    foreign.refuse_unknown(context, table, frozenset(), part=part)
    constants = _constants(context, table, columns, values)
    writer = Writer(context.target(table), operation.op_id)
    head = context.cold(table, current.sequence_number)
    for rows in _rows(context, head):
        for name, value in constants.items():
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.repeat(value, len(rows)))
        writer.write(rows)
    added = writer.close()
    failpoint("mirror.after_fill")
    removed = frozenset(file.location for file in head.files)
    return commits.change(table, journal.stamps(operation), added=added, removed=removed).snapshot_id


def _rows(context: JobContext, head: Snapshot) -> Iterator[pa.Table]:
    """A file at a time: the pump is everybody's, and a table may be larger than its memory."""
    with task_engine(context.lake.storage) as engine:
        cold = ColdTables(engine)
        for file in head.files:
            yield from buffers(live_rows(cold, replace(head, files=(file,))))
        cold.snapshots.close()


def _constants(context: JobContext, table: LakeTable, columns: Mapping[int, Column], values: Mapping[int, str]) -> dict[str, pa.Scalar]:
    """By the lake's names."""
    fields = {field.field_id: field for field in table.schema().fields}
    known = tables.lake_field_ids(context.connection, context.table_id)
    found = {}
    for number, value in values.items():
        field = fields[known[number]]
        found[field.name] = arrow_column([value.encode()], str(field.field_type), columns[number].type.base, field.name)[0]
    return found
