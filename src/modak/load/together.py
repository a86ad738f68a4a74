"""Several batches in one go: all of their rows are new and hot, so that one COPY takes them and one statement records their labels.

What does not fit in is left out, and so is everything where the COPY refuses a row: whoever asked applies such batches one by one, where
each has its own fate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from modak.connection import Connection
from modak.errors import ModakError
from modak.load.columns import content
from modak.load.labels import label_lock
from modak.load.request import LoadResult
from modak.load.rows import Digest, Source
from modak.load.staging import copy_in
from modak.load.statements import Statements
from modak.load.table import SQL, LoadTable


class NotTogether(Exception):
    """The batches have to be applied one by one."""


@dataclass(frozen=True)
class _Read:
    """A batch as text of a COPY."""

    place: int
    label: str
    columns: tuple[str, ...]
    texts: tuple[pa.Buffer, ...]
    rows: int
    digest: str


@dataclass(frozen=True)
class Together:
    """For a table that this connection knows, as it was under ``mark``."""

    connection: Connection
    table: LoadTable
    statements: Statements
    mark: str

    def apply(self, batches: Sequence[tuple[str, Source]]) -> list[LoadResult | None]:
        """Under the caller's savepoint, which has to be rolled back where this raises; None for a batch that was left out."""
        read = list(self._read(batches))
        columns = max((one.columns for one in read), key=[one.columns for one in read].count, default=())
        read = [one for one in read if one.columns == columns]
        free, line = self._lock([one.label for one in read]) if len(read) > 1 else (set(), 0)
        chosen = [one for one in read if one.label in free]
        if len(chosen) < 2:
            raise NotTogether
        taken = copy_in(self.connection, self.statements.copy_heap(columns, line), (text for one in chosen for text in one.texts))
        if taken != sum(one.rows for one in chosen):
            raise NotTogether
        self._record(chosen, line)
        results: list[LoadResult | None] = [None] * len(batches)
        for one in chosen:
            results[one.place] = LoadResult(one.label, "committed", hot_rows=one.rows)
        return results

    def _read(self, batches: Sequence[tuple[str, Source]]) -> Iterator[_Read]:
        """What can be read as text at all; an error is told by the batch itself, later."""
        for place, (label, source) in enumerate(batches):
            sets, digest = self.table.column_sets(), Digest()
            texts: list[pa.Buffer] = []
            rows = 0
            if not source.replayable:
                continue
            try:
                for chunk in source.chunks(sets):
                    digest.add(chunk, sets.sets)
                    texts.append(content(chunk.lines))
                    rows += chunk.count
            except ModakError:
                continue
            if rows and len(sets.sets) == 1:
                yield _Read(place, label, sets.sets[0], tuple(texts), rows, digest.text())

    def _lock(self, labels: Sequence[str]) -> tuple[set[str], int]:
        """The labels that are ours to apply, and T. Looked at in a statement of its own: it must see what holders before us committed."""
        execute, table_id = self.connection.execute, self.table.table_id
        locks = [label_lock(table_id, label) for label in labels]
        facts: dict[str, Any] = {
            "labels": list(labels),
            "highs": [lock["high"] for lock in locks],
            "lows": [lock["low"] for lock in locks],
            "table_id": table_id,
            "stage": "pg_temp.modak_none",
        }
        mine = {row["label"] for row in execute(SQL.query("lock_labels"), facts).fetchall() if row["mine"]}
        found = execute(SQL.query("open_loads"), facts).fetchone()
        if found is None or found["mark"] != self.mark or found["isolation"] != "read committed":
            raise NotTogether
        return mine - set(found["recorded"]), int(found["line"])

    def _record(self, chosen: Sequence[_Read], line: int) -> None:
        facts = {
            "table_id": self.table.table_id,
            "labels": [one.label for one in chosen],
            "rows": [one.rows for one in chosen],
            "digests": [one.digest for one in chosen],
            "line": line,
        }
        if self.connection.execute(SQL.query("record_hot_labels"), facts).rowcount != len(chosen):
            raise NotTogether
