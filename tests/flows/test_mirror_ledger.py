"""Writers everywhere while a mirror sheds: whatever was acknowledged is in the table, and in the end in the lake."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
import pytest
from tests.gateways import RunningGateway
from tests.mirroring import lake_rows, pump, start

from modak.app import App
from modak.catalog import tables
from modak.connection import Connection
from modak.core.table import Name

pytestmark = pytest.mark.inline
T = Name("public", "events")
World = tuple[App, Connection]
WIDTH = 50
# A row that was seen before T passed it, a lock that lasted too long, two writers that waited for each other: run it again.
AGAIN = (psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


@dataclass
class Writer:
    """Its own rows, and what it knows of them; ``newest`` is where all of them are by now."""

    dsn: str
    number: int
    newest: list[int]
    over: threading.Event
    rest_seconds: float
    rows: dict[int, tuple[int, str]] = field(default_factory=dict)
    failure: BaseException | None = None
    again: int = 0

    def run(self) -> None:
        chance, made = random.Random(self.number), 0
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                while not self.over.wait(self.rest_seconds):
                    made += 1
                    try:
                        self._write(connection, chance, made)
                    except AGAIN:
                        self.again += 1
        except BaseException as cause:  # noqa: BLE001 - told by the test
            self.failure = cause

    def _write(self, connection: psycopg.Connection[tuple[object, ...]], chance: random.Random, made: int) -> None:
        at = max(0, self.newest[0] - chance.randint(0, 6 * WIDTH))
        what, note = chance.random(), f"{self.number}/{made}"
        key = chance.choice(list(self.rows)) if self.rows and what > 0.4 else None
        if key is None:
            new = self.number * 1_000_000 + made
            connection.execute("insert into events values (%s, %s, %s)", [new, at, note])
            self.rows[new] = (at, note)
        elif what < 0.7:
            assert connection.execute("update events set note = %s where id = %s", [note, key]).rowcount == 1
            self.rows[key] = (self.rows[key][0], note)
        elif what < 0.85:
            assert connection.execute("update events set at = %s where id = %s", [at, key]).rowcount == 1
            self.rows[key] = (at, self.rows[key][1])
        else:
            assert connection.execute("delete from events where id = %s", [key]).rowcount == 1
            del self.rows[key]


@pytest.fixture
def served(mirrored: World) -> Iterator[World]:
    running = RunningGateway(mirrored[0])
    running.start()
    yield mirrored
    running.stop()


@pytest.mark.parametrize(("seconds", "highest"), [(4, 1200), pytest.param(120, 4000, marks=pytest.mark.soak)])
def test_nothing_acknowledged_is_lost(served: World, seconds: int, highest: int) -> None:
    app, connection = served
    connection.execute("create table events (id bigint, at bigint not null, note text, primary key (id, at)) partition by range (at)")
    for lower in range(0, highest, WIDTH):
        connection.execute(f"create table events_{lower} partition of events for values from ({lower}) to ({lower + WIDTH})")
    start(app, connection, T, "at", heap_retention=str(2 * WIDTH), width=str(WIDTH), surface="view")
    newest, over = [WIDTH], threading.Event()
    # Threads that never rest would leave the pump a quarter of the interpreter, and ever more to follow: that is for the long run.
    writers = [Writer(app.dsn, number, newest, over, 0.0 if seconds > 60 else 0.004) for number in range(1, 4)]
    threads = [threading.Thread(target=writer.run) for writer in writers]
    for thread in threads:
        thread.start()
    shed, until = 0, time.monotonic() + seconds
    try:
        while (time.monotonic() < until or shed < 3) and newest[0] < highest - 1:
            newest[0] = min(highest - 1, newest[0] + WIDTH)
            done = pump(app, connection)
            assert not done.parked
            shed += len(done.shed)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert [writer.failure for writer in writers] == [None] * 3
    for _ in range(2):
        done = pump(app, connection)
    assert (done.parked, done.failed, done.corrections) == ({}, {}, 0)
    expected = sorted((key, *row) for writer in writers for key, row in writer.rows.items())
    found = connection.execute("select id, at, note from events order by id").fetchall()
    assert [tuple(row.values()) for row in found] == expected
    assert sorted((row["id"], row["at"], row["note"]) for row in lake_rows(app, connection, T)) == expected
    assert tables.cutline(connection, tables.get(connection, T).table_id).tier_key_hi >= 3 * WIDTH
