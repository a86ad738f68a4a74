"""A column added with a default is filled in whatever the size of the lake: file by file, a few batches at a time (SCENARIOS 75)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from tests.mirroring import heap_rows, pump, same, start

from modak.app import App
from modak.connection import Connection
from modak.core.table import Name
from modak.jobs import tasks
from modak.jobs.mirroring import filling
from modak.lake.data_files import Writer
from modak.scan import live_rows
from modak.scan.snapshot import Snapshot
from modak.scan.table import ColdTables

pytestmark = pytest.mark.inline
T = Name("public", "items")
World = tuple[App, Connection]
FILES, ROWS = 5, 6000


def test_a_default_is_filled_in_with_little_in_memory(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = mirrored
    connection.execute("create table items (id int primary key, note text, u uuid, n numeric(12, 2))")
    start(app, connection, T)
    for number in range(FILES):
        first = number * ROWS
        connection.execute(f"insert into items select n, 'note', gen_random_uuid(), n from generate_series({first}, {first + ROWS - 1}) n")
        pump(app, connection)
    # Some files have deletes beside them.
    connection.execute("delete from items where id % 3 = 0")
    connection.execute("update items set note = 'new' where id % 7 = 0")
    pump(app, connection)
    monkeypatch.setattr(live_rows, "BATCH_ROWS", 500)
    monkeypatch.setattr(tasks, "ROW_GROUP_ROWS", 1000)
    alive: list[weakref.ref[Any]] = []
    seen: list[tuple[int, int]] = []
    written: list[int] = []
    read, write = live_rows.live_rows, Writer.write

    def counted(tables: ColdTables, snapshot: Snapshot, order: str = "") -> Iterator[Any]:
        for batch in read(tables, snapshot, order):
            alive.append(weakref.ref(batch))
            seen.append((len(snapshot.files), sum(one() is not None for one in alive)))
            yield batch

    def noted(self: Writer, rows: Any) -> None:
        written.append(rows.num_rows)
        write(self, rows)

    monkeypatch.setattr(filling, "live_rows", counted)
    monkeypatch.setattr(Writer, "write", noted)
    connection.execute("alter table items add column kind text default 'plain', add column size int default 7")
    done = pump(app, connection)
    assert (done.parked, done.failed) == ({}, {})
    assert len(seen) >= 10
    assert {files for files, _ in seen} == {1}, "one file is open at a time"
    assert max(held for _, held in seen) <= 2
    assert max(written) < 3 * 2048, "the engine hands over as many at a time, at least"
    assert sum(written) == len(heap_rows(connection, T))
    same(app, connection, T)
