"""What maintenance does on Spark's workers: write the live rows of some files anew, in order, and join delete files.

Rows go from DuckDB as Arrow into new data files, sorted by tier key and key, or as the table says; a sort that outgrows its memory goes to
disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from modak.catalog import migrate
from modak.jobs.tasks import buffers, engine_cursor, reporting_session, task_engine, write_found
from modak.lake.any_files import AnyWriter
from modak.lake.data_files import Target, Writer
from modak.scan.deletes import deleted_positions
from modak.scan.live_rows import live_rows
from modak.scan.sqltext import quoted
from modak.scan.table import ColdTables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.manifest import DataFile as IcebergFile

    from modak.lake.change import PositionDeletes
    from modak.lake.delete_files import Positions
    from modak.lake.storage import Storage
    from modak.scan.snapshot import DataFile, Snapshot


@dataclass(frozen=True)
class Rewritten:
    """What a task made, and of how many rows."""

    data: tuple[IcebergFile, ...] = ()
    deletes: tuple[PositionDeletes, ...] = ()
    rows: int = 0


@dataclass(frozen=True)
class RewriteTask:
    """Everything the tasks of one commit need; goes to the executors as it is. Numbers are rewrites first, then joins.

    ``order`` is an ORDER BY of DuckDB's; empty leaves rows in the order of their files. ``reports``: the operation is in the journal.
    """

    dsn: str = field(repr=False)
    op_id: str
    target: Target
    storage: Storage
    size_max: int
    rewrites: tuple[Snapshot, ...]
    joins: tuple[tuple[DataFile, ...], ...]
    order: str
    reports: bool = True

    @property
    def count(self) -> int:
        return len(self.rewrites) + len(self.joins)

    def run(self, number: int) -> Rewritten:
        done = self._rewrite(number) if number < len(self.rewrites) else self._join(number)
        if not self.reports:
            return done
        with reporting_session(self.dsn) as session:
            session.execute(migrate.SQL.query("report_progress"), {"op_id": self.op_id, "task": number, "rows_done": done.rows})
        return done

    def _rewrite(self, number: int) -> Rewritten:
        snapshot, rows = self.rewrites[number], 0
        # Registered tables are partitioned by their tier key, others as they like.
        kind = Writer if self.target.tier_key else AnyWriter
        writer = kind(self.target, f"{self.op_id}-{number}", size_max=self.size_max)
        with task_engine(self.storage) as engine:
            tables = ColdTables(engine)
            for buffer in buffers(live_rows(tables, snapshot, self.order)):
                writer.write(buffer)
                rows += buffer.num_rows
            tables.snapshots.close()
        return Rewritten(data=tuple(writer.close()), rows=rows)

    def _join(self, number: int) -> Rewritten:
        """One delete file for each data file instead of many."""
        files = self.joins[number - len(self.rewrites)]
        with engine_cursor(self.storage) as cursor:
            said = deleted_positions(sorted({delete.path for file in files for delete in file.deletes}), cursor)
        found: dict[str, Positions] = {}
        for file in files:
            parts = [said[delete.path][file.path] for delete in file.deletes if file.path in said[delete.path]]
            if parts:
                found[file.path] = np.concatenate(parts)
        deletes = write_found(self.target, f"{self.op_id}-{number}", files, found)
        return Rewritten(deletes=deletes, rows=sum(one.file.record_count for one in deletes))


def in_order(names: Iterable[str]) -> str:
    """By these columns, each once."""
    return ", ".join(map(quoted, dict.fromkeys(names)))
