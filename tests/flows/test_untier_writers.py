"""Writers and readers beside an untier: nothing is lost, nothing doubled, and an older snapshot keeps its world."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests import events, seam
from tests.events import EVENTS, ROWS, fold, put_under_modak, tier
from tests.gateways import RunningGateway
from tests.support import value

from modak.app import App
from modak.connection import Connection
from modak.errors import LockNotAvailable
from modak.jobs import untier as untier_module
from modak.jobs import untier_copy
from modak.jobs.untier import UntierOutcome

pytestmark = [pytest.mark.spark, pytest.mark.inline]

ROWS_OF_E = sorted(ROWS)
POINTS = ["untier.after_journal", "untier.after_copy", "untier.after_commit"]


@pytest.fixture
def cold(app: App, connection: Connection, gateway: RunningGateway) -> App:
    events.create(connection)
    put_under_modak(app, connection)
    tier(app)
    events.drop_tiered(app)
    return app


@pytest.fixture
def client(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


def untier(app: App, *, lock_attempts: int = 4, **options: Any) -> UntierOutcome:
    with app.job(EVENTS) as job:
        return untier_module.untier(replace(job, lock_attempts=lock_attempts), **options)


def rows(client: psycopg.Connection, source: str = "public.events") -> list[tuple[Any, ...]]:
    return client.execute(f"select id, event_time, val from {source} order by id, event_time").fetchall()


WRITES = [
    "update public.events set val = 'again' where id = 2",
    "delete from public.events where id = 3",
    "insert into public.events values (10, 30, 'spilled'), (11, 130, 'spilled'), (12, 131, 'gone soon')",
    "delete from public.events where id = 12",
    "update public.events set val = val || '!' where id in (10, 11)",
    # Across the line and back, within the cold range, below the new line, out of it.
    "update public.events set event_time = 250 where id = 1",
    "update public.events set event_time = 140 where id = 4",
    "update public.events set event_time = 150 where id = 10",
    "update public.events set event_time = 60 where id = 11",
    "insert into public.events values (13, 61, 'x'), (14, 160, 'y')",
    "update public.events set event_time = 161 where id = 13",
    "update public.events set event_time = 62 where id = 14",
    "insert into public.events values (2, 170, 'known key, other place')",
]
# The key alone identifies a row here, so the last one replaces the row at 20.
EXPECTED = [
    (1, 250, "a"),
    (2, 170, "known key, other place"),
    (4, 140, "hot"),
    (5, 220, "hot"),
    (10, 150, "spilled!"),
    (11, 60, "spilled!"),
    (13, 161, "x"),
    (14, 62, "y"),
]


@pytest.mark.parametrize("key", [None, 100])
@pytest.mark.parametrize("point", POINTS)
def test_what_is_written_meanwhile(
    cold: App, connection: Connection, client: psycopg.Connection, at_point: Callable[..., None], point: str, key: int | None
) -> None:
    # One correction that is folded first, and one that is made in the middle of the copy.
    client.execute("update public.events set val = 'before' where id in (2, 3)")

    def write() -> None:
        for statement in WRITES:
            client.execute(statement)
        assert rows(client) == EXPECTED

    at_point(point, write)
    outcome = untier(cold, key=key)
    assert outcome.tier_key_hi == (key or 0)
    assert rows(client) == EXPECTED
    assert set(seam.read(cold, EVENTS).values()) == set(EXPECTED)
    assert rows(client, f"public.events_hot where event_time >= {key or 0}") == [row for row in EXPECTED if row[1] >= (key or 0)]
    assert value(connection, "select count(*) from public.events_spill where event_time >= %s", key or 0) == 0
    fold(cold)
    assert rows(client) == EXPECTED
    assert value(connection, "select count(*) from modak.delta") == 0
    if key is not None:
        untier(cold)
    assert rows(client, "public.events_hot") == EXPECTED
    assert value(connection, "select count(*) from modak.delta") == 0


def test_many_corrections_go_in_rounds(
    cold: App, connection: Connection, client: psycopg.Connection, at_point: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untier_copy, "CORRECTIONS_LEFT", 0)
    client.execute("insert into public.events select n, n % 200, 'late' from generate_series(1000, 2999) n")
    carried: list[int] = []
    original = untier_copy.Staging.catch_up

    def spy(self: Any, session: Any, number: int, spans: Any) -> int:
        found = original(self, session, number, spans)
        carried.append(found)
        if number in (0, 1):
            client.execute("update public.events set val = val || %s where id between 1000 and 1499", [str(number)])
        return found

    monkeypatch.setattr(untier_copy.Staging, "catch_up", spy)
    at_point("untier.after_journal", lambda: client.execute("update public.events set val = 'x' where id between 1000 and 1999"))
    untier(cold)
    assert carried == [1000, 500, 500, 0, 0]
    assert value(connection, "select count(*) from public.events_hot") == 2005
    assert value(connection, "select count(*) from public.events_hot where val = 'x01'") == 500
    assert value(connection, "select count(*) from public.events_hot where val = 'x'") == 500
    assert value(connection, "select count(*) from modak.delta") == 0
    assert value(connection, "select count(*) from modak.folded") == 0


def test_writers_that_never_stop(cold: App, connection: Connection, dsn: str) -> None:
    """A ledger: every acknowledged write to cold rows is there afterwards, once."""
    stop, acknowledged, failures = threading.Event(), dict[int, tuple[int, int]](), list[str]()

    def write(worker: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as own:
            number = 0
            while not stop.is_set():
                number += 1
                row = (worker * 100_000 + number, (number * 7) % 200)
                try:
                    own.execute("insert into public.events values (%s, %s, '0')", row)
                    acknowledged[row[0]] = (row[1], 0)
                    if number % 3 == 0:
                        own.execute("update public.events set val = '1' where id = %s and event_time = %s", row)
                        acknowledged[row[0]] = (row[1], 1)
                except (psycopg.errors.SerializationFailure, psycopg.errors.CheckViolation):
                    # The partition came while the row was on its way to the spill, as with any ATTACH: nothing was written.
                    continue
                except psycopg.Error as error:
                    failures.append(str(error))
                    return

    workers = [threading.Thread(target=write, args=(worker,)) for worker in (1, 2)]
    for worker in workers:
        worker.start()
    try:
        untier(cold, lock_attempts=40)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert failures == []
    assert len(acknowledged) > 20
    found = connection.execute("select id, event_time, val from public.events where id > 1000").fetchall()
    assert {row["id"]: (row["event_time"], int(row["val"])) for row in found} == acknowledged
    assert len(found) == len(acknowledged)
    heap = connection.execute("select count(*) as n from public.events_hot where id > 1000").fetchone()
    assert heap == {"n": len(acknowledged)}


def test_an_older_snapshot_keeps_its_world(cold: App, client: psycopg.Connection, dsn: str, gateway: RunningGateway) -> None:
    client.execute("update public.events set val = 'corrected' where id = 2")
    client.execute("insert into public.events values (10, 30, 'spilled')")
    before = rows(client)
    with psycopg.connect(dsn) as reader, psycopg.connect(dsn) as moved:
        for session in (reader, moved):
            session.execute("set transaction isolation level repeatable read")
            session.execute("select 1 from pg_class").fetchone()
        assert moved.execute("select count(*) from modak.delta").fetchone() == (2,)
        outcome = untier(cold)
        client.execute("update public.events set val = 'much later' where id in (1, 2, 3, 10)")
        client.execute("delete from public.events where id = 4")
        assert rows(reader) == before
        assert reader.execute("select count(*) from public.events where event_time < 100").fetchone() == (3,)
        assert reader.execute("select val from public.events where id = 2 and event_time = 20").fetchone() == ("corrected",)
        assert rows(reader) == before
        assert moved.execute("select tier_key_hi, lake_snapshot_id from modak.cutline").fetchone() == (200, 1)
        assert outcome.waiting is not None
        assert "held by" in outcome.waiting
    assert untier(cold).waiting is None
    gateway.stop()
    assert rows(client) == [(n, t, "much later") for n, t in ((1, 10), (2, 20), (3, 110))] + [(5, 220, "hot"), (10, 30, "much later")]


def test_an_older_snapshot_on_the_gateways_port(cold: App, client: psycopg.Connection, dsn: str, gateway: RunningGateway) -> None:
    port = psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", port=gateway.port)
    with psycopg.connect(port) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select 1 from pg_class").fetchone()
        untier(cold)
        client.execute("update public.events set val = 'much later' where id = 1")
        assert rows(reader) == ROWS_OF_E
        assert reader.execute("select count(*), sum(event_time) from public.events").fetchone() == (5, 570)
    with psycopg.connect(port) as fresh:
        assert rows(fresh)[0] == (1, 10, "much later")
        assert fresh.execute("select count(*), sum(event_time) from public.events").fetchone() == (5, 570)


def test_a_prepared_plan_follows(cold: App, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as reader:
        reader.execute("set plan_cache_mode = force_generic_plan")
        query = "select id, val from public.events where event_time >= %s and event_time < %s order by id"
        assert reader.execute(query, (0, 200)).fetchall() == [(1, "a"), (2, "b"), (3, "c")]
        untier(cold)
        assert reader.execute(query, (0, 200)).fetchall() == [(1, "a"), (2, "b"), (3, "c")]
        reader.execute("update public.events set val = 'hot' where id = 1")
        assert reader.execute(query, (0, 200)).fetchall() == [(1, "hot"), (2, "b"), (3, "c")]
        tier(cold)
        assert reader.execute(query, (0, 200)).fetchall() == [(1, "hot"), (2, "b"), (3, "c")]


def test_an_update_that_saw_the_row_cold_ends_before_the_line_falls(cold: App, connection: Connection, dsn: str) -> None:
    """Its plan holds the spill, so the publication waits for it, and then finds what it wrote."""
    with psycopg.connect(dsn) as writer:
        # READ COMMITTED: the row is seen cold, its trigger has run, and the transaction is still open.
        writer.execute("update public.events set val = val || '+' where id = 2")
        with pytest.raises(LockNotAvailable):
            untier(cold, lock_attempts=2)
        writer.commit()
        writer.execute("update public.events set val = val || '+' where id = 2 and event_time = 20")
        with pytest.raises(LockNotAvailable):
            fold(cold, lock_attempts=2)
        writer.commit()
    untier(cold)
    with psycopg.connect(dsn, autocommit=True) as fresh:
        assert rows(fresh, "public.events_hot")[1] == (2, 20, "b++")
        assert rows(fresh)[1] == (2, 20, "b++")


def test_older_writers_are_told_or_right(cold: App, client: psycopg.Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as writer:
        writer.execute("set transaction isolation level repeatable read")
        writer.execute("select 1 from pg_class").fetchone()
        untier(cold)
        with pytest.raises(psycopg.errors.SerializationFailure):
            writer.execute("update public.events set val = val || '+' where id = 2")
        writer.rollback()
        writer.execute("update public.events set val = val || '+' where id = 2")
        writer.commit()
    assert rows(client)[1] == (2, 20, "b+")
    assert rows(client, "public.events_hot")[1] == (2, 20, "b+")


def test_a_function_writes_to_either_side(cold: App, client: psycopg.Connection) -> None:
    assert client.execute("""select public.modak_upsert('public.events', '{"id": 2, "event_time": 20, "val": "u"}')""").fetchone() == (
        "cold",
    )
    untier(cold)
    assert client.execute("""select public.modak_upsert('public.events', '{"id": 2, "event_time": 20, "val": "v"}')""").fetchone() == (
        "hot",
    )
    assert rows(client)[1] == (2, 20, "v")


def test_planning_during_the_publication(cold: App, dsn: str, at_point: Callable[..., None]) -> None:
    """It knows the partitions of before, waits for the spill, and then runs at the new line: told, or right, and never without the rows."""
    answers: list[Any] = []

    def ask() -> None:
        with psycopg.connect(dsn, autocommit=True) as other:
            try:
                answers.append(rows(other))
            except psycopg.errors.SerializationFailure as error:
                answers.append(error)
            answers.append(rows(other))

    asking = threading.Thread(target=ask)

    def begin() -> None:
        asking.start()
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'select id, event_time%'"
        with psycopg.connect(dsn, autocommit=True) as watcher:
            while watcher.execute(waiting).fetchone() == (0,):
                assert asking.is_alive()

    at_point("untier.in_publish", begin)
    untier(cold)
    asking.join(30)
    assert answers[1] == ROWS_OF_E
    assert answers[0] == ROWS_OF_E or isinstance(answers[0], psycopg.errors.SerializationFailure)
