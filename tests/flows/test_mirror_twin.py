"""The mirror and the heap are twins: at every F the lake is, for all tables at once, what the heap was at that place in the WAL.

Sessions write whatever the stream can carry while the pump dies at random. The heap is read under a snapshot whose place in the stream is
known, the pump is told to stop there, and the two are compared by value.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from typing import Any

import psycopg
import pytest
from tests import deaths
from tests.mirroring import copy, frontier, heap_rows, lake_rows, pump, start

from modak.app import App
from modak.connection import Connection, connect
from modak.core.table import Name
from modak.failpoints import FailpointError, armed
from modak.jobs import maintain
from modak.source import heap
from modak.source.replication import slot_snapshot

pytestmark = pytest.mark.inline
World = tuple[App, Connection]
PLAIN, PARTED, DOUBLE = (Name("public", name) for name in ("plain", "parted", "double"))
TABLES = (PLAIN, PARTED, DOUBLE)
POINTS = ("mirror.after_journal", "mirror.after_files", "mirror.after_commit", "mirror.in_publish", "mirror.after_publish")
KEYS = 300
GIANT = 0  # the round with a transaction that goes in parts, which a death leaves behind for maintenance to meet
KILLED = 2  # the round in which a pump's whole process dies
# Columns that change, by the round; a row after it is certain to be in the stream.
ALTERED = {
    1: ("add column later text", "rename column small to little"),
    2: ("alter column wide type bigint",),
    3: ("drop column later",),
}
# A TRUNCATE empties a table for older snapshots too: none may come between a snapshot and its reading.
TRUNCATING = threading.Lock()
EXPECTED = (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure, psycopg.Rollback)


def create(connection: Connection) -> None:
    connection.execute("create table plain (id int primary key, n bigint, small text, large text, wide int default 1)")
    connection.execute("alter table plain alter large set storage external")
    connection.execute("create table parted (id int, at int, note text, primary key (id, at)) partition by range (at)")
    for low in range(0, 400, 100):
        connection.execute(f"create table parted_{low} partition of parted for values from ({low}) to ({low + 100})")
    connection.execute("create table double (a text, b uuid, v numeric(12,3), j jsonb, primary key (a, b))")
    connection.execute("insert into plain select i, 0, 's', repeat('x' || i, 3000) from generate_series(1, 200) i")
    connection.execute("insert into parted select i, i, 'p' from generate_series(1, 200) i")
    connection.execute("insert into double select i::text, gen_random_uuid(), i, '{}' from generate_series(1, 100) i")


def statement(choice: random.Random) -> str:
    key, other = choice.randint(1, KEYS), choice.randint(1, KEYS)
    few = f"between {key} and {key + choice.choice([0, 3, 40])}"
    return choice.choice(
        [
            f"insert into plain values ({key}, 1, 'new', repeat('n', {choice.choice([5, 4000])})) on conflict do nothing",
            f"insert into plain select i, 2, 'many', 'm' from generate_series({key}, {key + 30}) i"
            " on conflict (id) do update set n = plain.n + 1",
            f"update plain set n = n + 1 where id {few}",
            f"update plain set large = repeat('c{key}', 2000) where id = {key}",
            f"update plain set id = {other} where id = {key} and not exists (select from plain where id = {other})",
            f"delete from plain where id {few}",
            f"insert into parted values ({key}, {other}, 'i') on conflict do nothing",
            f"update parted set note = note || 'u' where at {few}",
            f"update parted set at = (at + 100) % 400 where id = {key}"
            f" and not exists (select from parted o where o.id = {key} and o.at >= 100)",
            f"delete from parted where id {few}",
            f"insert into double values ('{key}', gen_random_uuid(), {key}.125, '{{\"k\": {key}}}')",
            f"update double set v = v + 0.001, j = jsonb_build_object('z', {other}) where a = '{key}'",
            f"update double set a = '{other}' where a = '{key}'",
            f"delete from double where a = '{key}'",
        ]
    )


def write(dsn: str, seed: int, stop: threading.Event, done: list[int]) -> None:
    choice = random.Random(seed)
    with connect(dsn, autocommit=True) as session:
        session.execute("set search_path = public")
        while not stop.is_set():
            empties = choice.random() < 0.02
            with contextlib.suppress(*EXPECTED), TRUNCATING if empties else contextlib.nullcontext():
                with session.transaction():
                    if empties:
                        session.execute(f"truncate {choice.choice(['plain', 'double'])}")
                    for _ in range(choice.choice([1, 1, 2, 5, 30])):
                        with contextlib.suppress(psycopg.Rollback), session.transaction():
                            session.execute(statement(choice))
                            if choice.random() < 0.1:
                                raise psycopg.Rollback
                    if choice.random() < 0.1:
                        raise psycopg.Rollback
                done[0] += 1
            stop.wait(choice.random() * 0.1)


def ordered(rows: list[dict[str, Any]]) -> list[str]:
    def text(value: object) -> str:
        return json.dumps(value) if isinstance(value, dict) else str(value)

    return sorted(repr(sorted((name, text(value)) for name, value in row.items())) for row in rows)


@pytest.mark.parametrize(("seed", "rounds"), [(1, 4), pytest.param(2, 16, marks=pytest.mark.soak)])
def test_the_lake_is_the_heap_at_every_frontier(mirrored: World, seed: int, rounds: int) -> None:
    app, connection = mirrored
    choice = random.Random(seed)
    create(connection)
    stop, done = threading.Event(), [0]
    writers = [threading.Thread(target=write, args=(app.dsn, seed * 10 + n, stop, done)) for n in range(3)]
    for writer in writers:
        writer.start()
    try:
        for name, tier_key in ((PLAIN, "id"), (PARTED, "at")):
            start(app, connection, name, tier_key)
        connection.execute("alter table double add column t int not null default 0")
        start(app, connection, DOUBLE, "t")
        for round_number in range(rounds):
            if round_number in ALTERED:
                alter(connection, round_number)
            if round_number == KILLED + 1:
                copy(app, DOUBLE, again=True)
            compare(app, connection, choice, round_number % 4)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert done[0] > 50
    pump(app, connection)
    for name in TABLES:
        assert ordered(lake_rows(app, connection, name)) == ordered(heap_rows(connection, name))


def alter(connection: Connection, round_number: int) -> None:
    for change in ALTERED[round_number]:
        connection.execute(f"alter table plain {change}")
    connection.execute("insert into plain values (%s, 0, 'altered', 'x')", [KEYS + 1000 + round_number])


def compare(app: App, connection: Connection, choice: random.Random, round_number: int) -> None:
    if round_number == KILLED:
        # It follows the stream as far as it comes: the place to compare at is found afterwards.
        deaths.killed_worker(app.settings, app.dsn, None, choice.choice(POINTS), "mirror")
    if round_number == GIANT:
        with connection.transaction():
            # Row by row it would come to a deadlock with the writers.
            connection.execute("lock table plain in exclusive mode")
            connection.execute("update plain set n = n + 1, large = repeat('g', 6000)")
    with TRUNCATING, slot_snapshot(app.dsn) as (snapshot, lsn), heap.within(app.dsn, snapshot) as session:
        twins = {name: heap_rows(session, name) for name in TABLES}
    size = 300_000 if round_number == GIANT else choice.choice([300_000, 3_000_000, 100_000_000])
    if round_number != KILLED:
        with contextlib.suppress(FailpointError), armed("mirror.after_commit" if round_number == GIANT else choice.choice(POINTS)):
            pump(app, connection, upto=lsn, bytes_max=size)
    if round_number == GIANT:
        with app.job(PLAIN) as job:
            maintain.maintain(job)
    done = pump(app, connection, upto=lsn, bytes_max=size)
    assert not done.parked
    if any("ends before that" in why for why in done.failed.values()):
        # A TRUNCATE after that place gave a table that was altered before it another file: what that means is only known further on.
        pump(app, connection)
        compare(app, connection, choice, round_number)
        return
    assert not done.failed
    for name in TABLES:
        assert frontier(connection, name) == lsn
        assert ordered(lake_rows(app, connection, name)) == ordered(twins[name]), name
