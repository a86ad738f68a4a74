"""The pin and the snapshot behind a pinned read: what is held, for how long, and what happens when the line moves meanwhile.

Also what the tests of both readers share: tiering inside this process, so that cold rows need no JVM,
and a writer with a ledger.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from tests import events
from tests.events import put_under_modak
from tests.serving import until
from tests.support import rows, value

from modak.app import App
from modak.connection import Connection, connect
from modak.errors import CutlineMoved, LockNotAvailable, NotRegistered, UsageError
from modak.jobs import flush
from modak.pinned import pin as pins
from modak.pinned import seam as seams
from modak.pinned.seam import Seam, pinned
from modak.pinned.statements import hot_predicate, hot_rows, hot_source
from modak.source.heap import Chunk

Row = tuple[Any, ...]


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flush's tasks run here, one after the other: the same reading and writing, without the engine that spreads it."""

    def run(_: Any, task: flush.FlushTask) -> list[dict[str, Any]]:
        return [task.run(number) for number in range(len(task.chunks))]

    monkeypatch.setattr(flush, "_run", run)


@pytest.fixture
def cold_events(app: App, connection: Connection, no_spark: None) -> None:
    """Fixture E with T = 200: three cold rows, two hot ones, and the tiered partitions still standing."""
    events.create(connection)
    put_under_modak(app, connection)
    assert events.tier(app).tier_key_hi == 200


class Writer(threading.Thread):
    """One client that changes rows of both tiers together. The row with id 0 carries the number of the change; the ledger has the rest."""

    def __init__(self, dsn: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.dsn, self.partitions = dsn, partitions
        self.stop, self.ready = threading.Event(), threading.Event()
        self.ledger: dict[int, list[Row]] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self.dsn) as connection:
                self._write(connection)
        except BaseException as failure:  # noqa: BLE001 - the test looks at it
            self.failure = failure
            self.ready.set()

    def _write(self, connection: psycopg.Connection) -> None:
        dice, number = random.Random(3), 0
        state: dict[int, Row] = {0: (0, self.partitions * 100 - 1, "0")}
        while not self.stop.is_set():
            number += 1
            staged = {**state, 0: (*state[0][:2], str(number))}
            try:
                connection.execute("update public.events_hot set val = %s where id = 0", [str(number)])
                for _ in range(dice.randint(1, 5)):
                    self._change(connection, dice, staged)
                connection.commit()
            except (psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                connection.rollback()
                number -= 1
                continue
            state = staged
            self.ledger[number] = sorted(state.values())
            if number > 60:
                self.ready.set()

    def _change(self, connection: psycopg.Connection, dice: random.Random, staged: dict[int, Row]) -> None:
        key = dice.randint(1, 60)
        if key not in staged:
            row = (key, dice.randint(0, self.partitions * 100 - 2), f"v{dice.randint(0, 10**6)}")
            connection.execute("insert into public.events_hot values (%s, %s, %s)", row)
            staged[key] = row
        elif dice.random() < 0.3:
            connection.execute("delete from public.events_hot where id = %s", [key])
            del staged[key]
        else:
            staged[key] = (*staged[key][:2], f"u{dice.randint(0, 10**6)}")
            connection.execute("update public.events_hot set val = %s where id = %s", [staged[key][2], key])


def pin_count(connection: Connection) -> int:
    return int(value(connection, "select count(*) from modak.read_pins"))


def test_it_says_where_the_seam_is(cold_events: None, connection: Connection, dsn: str) -> None:
    with pinned(dsn, "public.events") as (seam, _):
        line = rows(connection, "select tier_key_hi, lake_snapshot_id, lake_props from modak.cutline")[0]
        assert (seam.pin.tier_key_hi, seam.pin.lake_snapshot_id) == line[:2] == (200, 1)
        assert (seam.pin.metadata_location, str(seam.pin.snapshot_id)) == (line[2]["metadata_location"], line[2]["snapshot_id"])
        assert [part.name.name for part in seam.parts] == ["p2"]
        assert [(column.name, column.field_id) for column in seam.columns] == [("id", 1), ("event_time", 2), ("val", 3)]
        pinned_rows = rows(
            connection, "select pin_id, pinned_tier_key_hi, pinned_lake_snapshot_id, expires_at > now() from modak.read_pins"
        )
        assert pinned_rows == [(seam.pin.pin_id, 200, 1, True)]
    assert pin_count(connection) == 0


def test_before_the_first_pass_everything_is_hot(app: App, connection: Connection, dsn: str) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    with pinned(dsn, "public.events") as (seam, _):
        assert (seam.pin.tier_key_hi, seam.pin.lake_snapshot_id, seam.pin.snapshot_id) == (0, None, None)
        assert len(seam.parts) == 3


def test_a_block_that_fails_releases_too(cold_events: None, connection: Connection, dsn: str) -> None:
    def fail() -> None:
        with pinned(dsn, "public.events"):
            raise ZeroDivisionError(pin_count(connection))

    with pytest.raises(ZeroDivisionError, match="1"):
        fail()
    assert pin_count(connection) == 0
    sessions = "select count(*) from pg_stat_activity where application_name like 'modak-pin%' and datname = current_database()"
    deadline = time.monotonic() + 10  # a backend goes after its client has gone
    while value(connection, sessions) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert value(connection, sessions) == 0


def test_a_lost_session_does_not_leave_the_pin(cold_events: None, connection: Connection, dsn: str) -> None:
    with pinned(dsn, "public.events"):
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'modak-pin%'")
    assert pin_count(connection) == 0


def test_the_pin_is_renewed_while_it_is_held(cold_events: None, connection: Connection, dsn: str) -> None:
    with pinned(dsn, "public.events", ttl="1.2 seconds") as (seam, _):
        expires = "select expires_at from modak.read_pins where pin_id = %s"
        first = value(connection, expires, seam.pin.pin_id)
        until(lambda: value(connection, expires, seam.pin.pin_id) > first + timedelta(seconds=1.2))
    assert pin_count(connection) == 0


def test_no_timeout_of_the_database_ends_the_reading_transaction(cold_events: None, connection: Connection, dsn: str) -> None:
    name = value(connection, "select current_database()")
    connection.execute(f"alter database {name} set idle_in_transaction_session_timeout = '200ms'")
    connection.execute(f"alter database {name} set statement_timeout = '5s'")
    with pinned(dsn, "public.events") as (_, reading):
        time.sleep(0.6)
        assert reading.execute("select count(*) as n from public.events_hot").fetchone() == {"n": 5}


def between(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> list[Seam | None]:
    """Do something between the commit of the pin and the snapshot of the reading transaction; returns what each attempt gave."""
    outcomes: list[Seam | None] = []
    settle = seams._settle

    def interrupted(*arguments: Any) -> Seam | None:
        action()
        outcomes.append(settle(*arguments))
        return outcomes[-1]

    monkeypatch.setattr(seams, "_settle", interrupted)
    return outcomes


def test_a_line_that_moved_after_the_pin_is_pinned_again(
    cold_events: None, app: App, connection: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("insert into public.events_hot values (6, 230, 'newer')")
    lines = iter([300])
    outcomes = between(monkeypatch, lambda: [events.tier(app, upto=line) for line in lines])
    with pinned(dsn, "public.events") as (seam, _):
        assert [outcome is None for outcome in outcomes] == [True, False]
        assert (seam.pin.tier_key_hi, seam.pin.lake_snapshot_id) == (300, 2)
        assert pin_count(connection) == 1
        assert seam.parts == ()


def test_a_line_that_never_stands_still_is_an_error(
    cold_events: None, connection: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    between(monkeypatch, lambda: connection.execute("update modak.cutline set tier_key_hi = tier_key_hi + 1"))
    with pytest.raises(CutlineMoved), pinned(dsn, "public.events"):
        pass
    assert pin_count(connection) == 0


def test_a_new_partition_before_the_snapshot_is_seen(
    cold_events: None, connection: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked are the partitions seen first; what is read must be what is locked."""
    look = seams._look
    seen: list[int] = []

    def once(control: Connection, name: Any) -> Any:
        found = look(control, name)
        seen.append(len(found[1].partitions))
        if len(seen) == 1:
            events.add_partition(connection, 3, "public.events_hot")
        return found

    monkeypatch.setattr(seams, "_look", once)
    with pinned(dsn, "public.events") as (seam, _):
        assert [part.name.name for part in seam.parts] == ["p2", "p3"]


def test_what_is_read_cannot_be_truncated_and_the_rest_can_be_tiered(cold_events: None, app: App, connection: Connection, dsn: str) -> None:
    connection.execute("set lock_timeout = '100ms'")
    with pinned(dsn, "public.events") as (_, reading):
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("truncate public.p2")
        events.add_partition(connection, 3, "public.events_hot")
        assert events.tier(app, upto=300).tier_key_hi == 300
        assert reading.execute("select tier_key_hi from modak.cutline").fetchone() == {"tier_key_hi": 200}


def test_a_locked_partition_is_an_error_in_time(
    cold_events: None, connection: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seams, "LOCK_TIMEOUT", "200ms")
    with connect(dsn) as other:
        other.execute("lock table public.p2 in access exclusive mode")
        with pytest.raises(LockNotAvailable), pinned(dsn, "public.events"):
            pass
    assert pin_count(connection) == 0


def test_an_unknown_table_and_unknown_columns(cold_events: None, connection: Connection, dsn: str) -> None:
    with pytest.raises(NotRegistered), pinned(dsn, "public.nothing"):
        pass
    with pinned(dsn, "public.events") as (seam, _):
        assert [column.name for column in seam.named(["val", "id"])] == ["val", "id"]
        for names in (["nothing"], ["id", "id"], "id"):
            with pytest.raises(UsageError):
                seam.named(names)


def test_a_table_without_a_line_cannot_be_pinned(connection: Connection) -> None:
    with pytest.raises(NotRegistered):
        pins.pin(connection, 42)


def test_a_pin_in_a_transaction_that_is_rolled_back_leaves_no_trace(cold_events: None, connection: Connection) -> None:
    table_id = value(connection, "select table_id from modak.tables")
    with connection.transaction(force_rollback=True):
        connection.execute(pins._INSERT, {"table_id": table_id, "ttl": "15 minutes"})
        assert pin_count(connection) == 1
    assert pin_count(connection) == 0


def test_many_readers_at_once(cold_events: None, connection: Connection, dsn: str) -> None:
    lines: list[int] = []

    def read() -> None:
        with pinned(dsn, "public.events") as (seam, _):
            lines.append(seam.pin.tier_key_hi)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lines == [200] * 6
    assert pin_count(connection) == 0


def test_a_task_looks_at_its_own_pages_only(app: App, connection: Connection, dsn: str) -> None:
    """Spark wraps the source in a query of its own; the other partitions must fall away in planning, and pages be read by their place."""
    events.create(connection)
    put_under_modak(app, connection)
    with pinned(dsn, "public.events") as (seam, reading):
        source = hot_source(seam, seam.columns, ["c0", "c1", "c2"])
        chunk = Chunk(seam.parts[1].name, 0, 7)
        query = f"select c2 from {source} where {hot_predicate(seam, chunk)}"
        plan = "\n".join(row["QUERY PLAN"] for row in reading.execute(f"explain {query}").fetchall())  # type: ignore[call-overload]
    assert "Tid Range Scan on p1" in plan
    assert "p0" not in plan
    assert "p2" not in plan


def test_a_line_inside_a_partition(cold_events: None, connection: Connection, dsn: str) -> None:
    """Tiering moves T from bound to bound, but the protocol does not promise that."""
    connection.execute("update modak.cutline set tier_key_hi = 215")
    with pinned(dsn, "public.events") as (seam, reading):
        assert [(part.name.name, part.crosses) for part in seam.parts] == [("p2", True)]
        query = hot_rows(seam, seam.named(["id"]), Chunk(seam.parts[0].name, 0, None))
        assert [row["id"] for row in reading.execute(query).fetchall()] == [5]  # type: ignore[call-overload]
