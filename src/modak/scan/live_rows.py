"""The live rows of a snapshot's files as Arrow batches, a few at a time: to write them anew without holding them all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from modak.scan.snapshot import DataFile, Field, Snapshot
from modak.scan.sqltext import quoted
from modak.scan.table import ColdTables

BATCH_ROWS = 20_000
BATCH_BYTES = 32 * 1024 * 1024


def live_rows(tables: ColdTables, snapshot: Snapshot, order: str = "") -> Iterator[Any]:
    """Every column, as a writer of files takes it. ``order`` is an ORDER BY of DuckDB's; empty leaves rows in the order of their files."""
    with contextlib.closing(tables.engine.cursor()) as cursor:
        relation, _ = tables.relation(snapshot, [column.name for column in snapshot.fields])
        items = ", ".join(_item(column) for column in snapshot.fields)
        ordered = f" ORDER BY {order}" if order else ""
        found = cursor.execute(f"SELECT {items} FROM {relation} AS cold{ordered}")  # noqa: S608
        yield from found.to_arrow_reader(_batch_rows(snapshot.files))


def _item(column: Field) -> str:
    """A column as the writer takes it: DuckDB would hand a uuid over as text."""
    name = quoted(column.name)
    return f"unhex(replace({name}::VARCHAR, '-', '')) AS {name}" if column.type == "uuid" else name


def _batch_rows(files: Sequence[DataFile]) -> int:
    """Few at a time where rows are wide."""
    rows = sum(file.rows for file in files) or 1
    width = max(1, sum(file.bytes for file in files) // rows)
    return max(64, min(BATCH_ROWS, BATCH_BYTES // width))
