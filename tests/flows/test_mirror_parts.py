"""Parts of a giant transaction stand in the lake unpublished, while the table's lock is free for other jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.mirroring import copy, frontier, lake_rows, pump, same, start, state

from modak.app import App
from modak.catalog import tables
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import LockNotAvailable
from modak.jobs import foreign, maintain, mirror
from modak.lake.commits import roll_back

pytestmark = pytest.mark.inline
T = Name("public", "items")
World = tuple[App, Connection]
PART_BYTES = 20 * 250


@pytest.fixture
def giant(mirrored: World) -> World:
    """A transaction of several parts that nobody has read yet."""
    app, connection = mirrored
    connection.execute("create table items (id int primary key, note text)")
    connection.execute("insert into items select i, 'old' from generate_series(1, 10) i")
    start(app, connection, T)
    with connection.transaction():
        connection.execute("insert into items select i, 'big' || i from generate_series(100, 199) i")
        connection.execute("delete from items where id = 3")
    return app, connection


def between_parts(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Once, after the first part, when no job is at work on the table."""
    flush, done = mirror._Pump._flush, []

    def flushed(pump: mirror._Pump, to_lsn: int | None, as_of: float | None = None) -> None:
        flush(pump, to_lsn, as_of)
        if to_lsn is None and not done:
            done.append(True)
            action()

    monkeypatch.setattr(mirror._Pump, "_flush", flushed)


def test_another_job_lets_parts_alone(giant: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = giant

    def maintained() -> None:
        with app.job(T) as job, pytest.raises(LockNotAvailable, match="in the middle of a transaction"):
            maintain.maintain(job)

    between_parts(monkeypatch, maintained)
    assert pump(app, connection, bytes_max=PART_BYTES).commits > 3
    same(app, connection, T)


def test_parts_that_were_taken_out_are_read_again(giant: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = giant
    before = frontier(connection, T)

    def rolled_back() -> None:
        with app.job(T) as job:
            roll_back(job.lake_table(), tables.published_snapshot(connection, job.table_id))

    between_parts(monkeypatch, rolled_back)
    assert list(pump(app, connection, bytes_max=PART_BYTES).failed) == ["public.items"]
    assert (frontier(connection, T), len(lake_rows(app, connection, T))) == (before, 10)
    pump(app, connection, bytes_max=PART_BYTES)
    same(app, connection, T)


def test_a_new_copy_ends_the_pass_of_its_table(giant: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pass had collected is older than the copy."""
    app, connection = giant

    def copied() -> None:
        connection.execute("update items set note = 'newer' where id = 100")
        copy(app, T, again=True)

    between_parts(monkeypatch, copied)
    assert list(pump(app, connection, bytes_max=PART_BYTES).failed) == ["public.items"]
    assert state(connection, T).is_followed
    same(app, connection, T)
    connection.execute("delete from items where id = 100")
    pump(app, connection)
    same(app, connection, T)


def test_what_a_pump_left_is_taken_out_by_whoever_comes(giant: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = giant

    def died() -> None:
        raise RuntimeError("gone")

    between_parts(monkeypatch, died)
    with pytest.raises(RuntimeError, match="gone"):
        pump(app, connection, bytes_max=PART_BYTES)
    with app.job(T) as job:
        foreign.settle(job, "refuse")
        current = job.lake_table().current_snapshot()
        assert current is not None
        assert current.snapshot_id == tables.published_snapshot(connection, job.table_id)
    pump(app, connection)
    same(app, connection, T)
