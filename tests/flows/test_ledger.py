"""The ledger: writers at full speed on the partitions being tiered, through both names, while passes run and die.

Every acknowledged change is written down by the writer that made it. At the end the table must be the ledger, by value: nothing lost,
nothing twice, nothing risen from the dead.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg
import pytest
from tests import events, seam
from tests.events import EVENTS, drop_tiered, put_under_modak, tier
from tests.gateways import RunningGateway
from tests.inline import inlined

from modak import failpoints
from modak.app import App
from modak.connection import Connection
from modak.core.profile import Profile
from modak.errors import ModakError

pytestmark = pytest.mark.spark

PARTITIONS = 12
PASSES_MIN = 3
RETRY = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable)


@dataclass
class Writer(threading.Thread):
    """One client with keys of its own. ``ledger`` is what it was told is committed."""

    dsn: str
    number: int
    isolation: psycopg.IsolationLevel
    stop: threading.Event
    rest_seconds: float
    ledger: dict[str, tuple[int, int, str] | None] = field(default_factory=dict)
    acknowledged: int = 0
    refused: int = 0
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        try:
            dice = random.Random(self.number)
            with psycopg.connect(self.dsn) as connection:
                connection.isolation_level = self.isolation
                while not self.stop.wait(self.rest_seconds):
                    self._transaction(connection, dice)
        except BaseException as failure:  # noqa: BLE001 - the test looks at it
            self.failure = failure

    def _transaction(self, connection: psycopg.Connection, dice: random.Random) -> None:
        staged: dict[str, tuple[int, int, str] | None] = {}
        try:
            for _ in range(dice.randint(1, 8)):
                self._change(connection, dice, staged)
            if dice.random() < 0.1:
                connection.rollback()
                return
            connection.commit()
        except RETRY:
            connection.rollback()
            self.refused += 1
            return
        except psycopg.errors.CheckViolation:
            # No partition for that key any more: refused, not lost.
            connection.rollback()
            self.refused += 1
            return
        self.ledger |= staged
        self.acknowledged += len(staged)

    def _change(self, connection: psycopg.Connection, dice: random.Random, staged: dict[str, tuple[int, int, str] | None]) -> None:
        # Through the registered name and through the heap's own, in turn.
        name = dice.choice(["public.events", "public.events_hot"])
        known = [key for key, row in (self.ledger | staged).items() if row is not None]
        action = dice.random()
        if action < 0.5 or not known:
            identity = self.number * 10_000_000 + dice.randint(0, 5_000_000)
            row = (identity, dice.randint(0, PARTITIONS * 100 - 1), f"v{dice.randint(0, 10**9)}")
            if (self.ledger | staged).get(str(identity)) is not None:
                return
            connection.execute(f"insert into {name} values (%s, %s, %s)", row)
            staged[str(identity)] = row
            return
        key = dice.choice(known)
        identity, tier_key, _ = (self.ledger | staged)[key]  # type: ignore[misc]
        if action < 0.8:
            value = f"u{dice.randint(0, 10**9)}"
            done = connection.execute(f"update {name} set val = %s where id = %s and event_time = %s", (value, identity, tier_key)).rowcount
            changed: tuple[int, int, str] | None = (identity, tier_key, value)
        elif action < 0.9:
            target = dice.randint(0, PARTITIONS * 100 - 1)
            done = connection.execute(
                f"update {name} set event_time = %s where id = %s and event_time = %s", (target, identity, tier_key)
            ).rowcount
            changed = (identity, target, (self.ledger | staged)[key][2])  # type: ignore[index]
        else:
            done = connection.execute(f"delete from {name} where id = %s and event_time = %s", (identity, tier_key)).rowcount
            changed = None
        assert done == 1, f"{key} at {tier_key} is not there to be changed: {done}"
        staged[key] = changed


def run_ledger(app: App, connection: Connection, dsn: str, *, seconds: float, on_spark: Sequence[int]) -> tuple[int, int, int]:
    """Passes over all partitions while four writers run, some of them on Spark; returns (acknowledged, refused, passes)."""
    events.create(connection, partitions=PARTITIONS)
    connection.execute("delete from public.events")
    connection.execute("create index on public.events (id)")
    connection.execute("insert into public.events values (1, %s, 'top')", [PARTITIONS * 100 - 1])
    put_under_modak(app, connection, lag="200")
    if on_spark:
        app.spark(Profile("default"))  # a cold start would eat the time that passes should have
    stop = threading.Event()
    levels = [psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
    # Threads that never rest would leave the passes a fifth of the interpreter: that is for the long run.
    writers = [Writer(dsn, number, levels[number % 3], stop, 0.0 if on_spark else 0.004) for number in range(1, 5)]
    for writer in writers:
        writer.start()
    passes, deadline, dice = 0, time.monotonic() + seconds, random.Random(7)
    while time.monotonic() < deadline or passes < PASSES_MIN:
        passes += 1
        upto = min(PARTITIONS - 2, passes * 3) * 100
        point = dice.choice(["tier.after_seal", "tier.after_files", "tier.after_commit", "tier.in_advance", "tier.after_advance"])
        try:
            where = contextlib.nullcontext() if passes in on_spark else inlined()
            with where, failpoints.armed(point if passes % 2 else "nowhere"):
                tier(app, lock_attempts=40, upto=upto)
        except (failpoints.FailpointError, ModakError):
            continue
    stop.set()
    for writer in writers:
        writer.join(60)
        assert writer.failure is None, writer.failure
    with inlined():
        tier(app, upto=(PARTITIONS - 2) * 100)
    expected = {key: row for writer in writers for key, row in writer.ledger.items() if row is not None}
    found = {key: row for key, row in seam.read(app, EVENTS).items() if key != "1"}
    lost = {key: row for key, row in expected.items() if found.get(key) != row}
    risen = {key: row for key, row in found.items() if key not in expected}
    assert not lost, f"{len(lost)} acknowledged rows are lost or stale: {list(lost.items())[:5]}"
    assert not risen, f"{len(risen)} rows that should not be there: {list(risen.items())[:5]}"
    # Nothing was dropped so far, and a copy that stands is kept true: the heap alone has it all as well.
    heap = connection.execute("select id, event_time, val from public.events_hot where id <> 1").fetchall()
    assert {str(row["id"]): tuple(row.values()) for row in heap} == expected, "the heap's copies are not what was acknowledged"
    with contextlib.nullcontext() if on_spark else inlined():
        dropped = drop_tiered(app, patience=0).dropped
    assert len(dropped) == PARTITIONS - 2
    assert {key: row for key, row in seam.read(app, EVENTS).items() if key != "1"} == expected
    shown = connection.execute("select id, event_time, val from public.events where id <> 1").fetchall()
    assert {str(row["id"]): tuple(row.values()) for row in shown} == expected, "the name shows something else than the seam"
    assert len(shown) == len(expected)
    return sum(writer.acknowledged for writer in writers), sum(writer.refused for writer in writers), passes


def test_the_table_is_the_ledger(app: App, connection: Connection, dsn: str, gateway: RunningGateway) -> None:
    acknowledged, refused, passes = run_ledger(app, connection, dsn, seconds=6, on_spark=[])
    print(f"{acknowledged} changes acknowledged, {refused} transactions refused, {passes} passes")
    assert acknowledged > 500
    assert passes >= PASSES_MIN


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_table_is_the_ledger_for_long(app: App, connection: Connection, dsn: str, gateway: RunningGateway) -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "900"))
    acknowledged, refused, passes = run_ledger(app, connection, dsn, seconds=seconds, on_spark=range(1, 10**6))
    print(f"{acknowledged} changes acknowledged, {refused} transactions refused, {passes} passes")
    assert acknowledged > 10_000
