"""The ledger of loads: clients that retry blindly, while their connections are killed and the table is tiered, dropped and folded.

Every label that was answered is written down with its rows. At the end the table must be the ledger, by value: nothing lost, nothing twice,
nothing brought back by an attempt that came late.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest
from tests import events, seam
from tests.events import EVENTS, drop_tiered, fold, put_under_modak, tier
from tests.gateways import RunningGateway

from modak import failpoints
from modak.app import App
from modak.connection import Connection
from modak.core.profile import Profile
from modak.errors import ModakError
from modak.jobs import adopt as adoption
from modak.jobs.adopt import AdoptOutcome
from modak.lake.storage import Storage
from modak.load import LoadClient, LoadOptions, LoadRejected, LoadRequest, LoadResult

pytestmark = pytest.mark.spark

PARTITIONS = 12
PASSES_MIN = 4
LABELS_MAX = 150
APPLICATION = "modak-load-ledger"
Key = tuple[int, ...]


@dataclass
class Client(threading.Thread):
    """Batches with keys of its own, one label after the other; a label is loaded until it is answered."""

    dsn: str
    number: int
    by_id: bool  # the registered key is the id alone, so that a row may move
    stop: threading.Event
    storage: Storage
    labels_max: int
    ledger: dict[Key, dict[str, Any]] = field(default_factory=dict)
    answers: list[LoadResult] = field(default_factory=list)
    retries: int = 0
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        dice = random.Random(self.number)
        # Half of the clients stage what is cold, as soon as it is more than a few rows.
        threshold = 6 if self.number % 2 else 1000
        options = LoadOptions(
            self.dsn, "public.events", application=APPLICATION, attempts=2, storage=self.storage, spool_threshold=threshold
        )
        try:
            with LoadClient(options) as client:
                while not self.stop.is_set() and len(self.answers) < self.labels_max:
                    self._batch(client, dice, f"client {self.number} batch {len(self.answers)}")
        except BaseException as failure:  # noqa: BLE001 - the test looks at it
            self.failure = failure

    def _batch(self, client: LoadClient, dice: random.Random, label: str) -> None:
        rows = self._rows(dice, label)
        answer = self._answered(client, label, rows, dice)
        assert answer.state == ("staged" if answer.spooled_rows else "committed")
        assert answer.hot_rows + answer.delta_rows + answer.spooled_rows == len(rows)
        assert answer.warning is None
        if dice.random() < 0.2:
            # The answer got lost on its way: once more, and it must change nothing.
            assert self._answered(client, label, rows, dice).replay
        for row in rows:
            self.ledger[self._key(row)] = {**self.ledger.get(self._key(row), {"val": None}), **row}
        self.answers.append(answer)

    def _answered(self, client: LoadClient, label: str, rows: list[dict[str, Any]], dice: random.Random) -> LoadResult:
        while True:
            try:
                return client.load(LoadRequest(label, iter(rows) if dice.random() < 0.3 else rows))
            except LoadRejected:
                raise
            except ModakError:
                self.retries += 1
                time.sleep(0.02)

    def _key(self, row: dict[str, Any]) -> Key:
        return (row["id"],) if self.by_id else (row["id"], row["event_time"])

    def _rows(self, dice: random.Random, label: str) -> list[dict[str, Any]]:
        known = dice.sample(list(self.ledger), min(len(self.ledger), dice.choice([0, 0, 1, 5])))
        rows = [self._change(dice, self.ledger[key], label) for key in known]
        # Mostly new rows, mostly at the top: what streams bring. Their ids do not meet those of the rows above.
        fresh = self.number * 10_000_000 + len(self.answers) * 100
        for number in range(dice.choice([1, 5, 40])):
            place = dice.randint(0, PARTITIONS * 100 - 1) if dice.random() < 0.3 else PARTITIONS * 100 - 1 - dice.randint(0, 400)
            rows.append({"id": fresh + number, "event_time": place, "val": f"{label} {number}"})
        dice.shuffle(rows)
        return rows

    def _change(self, dice: random.Random, row: dict[str, Any], label: str) -> dict[str, Any]:
        place = dice.randint(0, PARTITIONS * 100 - 1) if self.by_id and dice.random() < 0.4 else row["event_time"]
        given = {} if dice.random() < 0.3 else {"val": f"{label} changed {row['id']}"}
        return {"id": row["id"], "event_time": place, **given}


class Killer(threading.Thread):
    """Ends sessions of clients, wherever they are: in a COPY, between two statements, in the middle of a commit."""

    def __init__(self, dsn: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._dsn, self._ended = dsn, stop
        self.killed = 0

    def run(self) -> None:
        dice = random.Random(99)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ended.wait(dice.uniform(0.05, 0.4)):
                found = connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s order by random() limit 1",
                    [APPLICATION],
                ).fetchall()
                self.killed += len(found)


def run_ledger(
    app: App, connection: Connection, dsn: str, *, seconds: float, by_id: bool, on_spark: bool
) -> tuple[list[Client], Killer, int]:
    events.create(connection, partitions=PARTITIONS)
    connection.execute("delete from public.events")
    connection.execute("insert into public.events values (1, %s, 'top')", [PARTITIONS * 100 - 1])
    put_under_modak(app, connection, lag="200", primary_key=("id",) if by_id else ("id", "event_time"))
    if on_spark:
        app.spark(Profile("default"))  # a cold start would eat the time that passes should have
    stop, storage = threading.Event(), app.storage(Profile("default"))
    # What a short run has to fold and to compare depends on no machine's speed.
    most = 10**9 if on_spark else LABELS_MAX
    clients, killer = [Client(dsn, number, by_id, stop, storage, most) for number in range(1, 5)], Killer(dsn, stop)
    for thread in (*clients, killer):
        thread.start()
    passes, deadline, dice = 0, time.monotonic() + seconds, random.Random(7)
    while (time.monotonic() < deadline or passes < PASSES_MIN) and all(client.failure is None for client in clients):
        passes += 1
        _work(app, dice, min(PARTITIONS - 2, passes * 3) * 100, dies=passes % 2 == 1)
    stop.set()
    killer.join(60)
    # A client may wait for the adoption of a row that it gave some columns of.
    deadline = time.monotonic() + 60
    while any(client.is_alive() for client in clients):
        assert time.monotonic() < deadline
        with contextlib.suppress(ModakError):
            adopt(app)
        time.sleep(0.05)
    for client in clients:
        assert client.failure is None, client.failure
    return clients, killer, passes


def _work(app: App, dice: random.Random, upto: int, *, dies: bool) -> None:
    """One pass of everything that moves rows; half of them die on the way, as a worker may."""
    points = ["tier.after_seal", "tier.after_files", "tier.after_commit", "tier.in_advance", "tier.after_advance", "fold.after_commit"]
    points += ["adopt.after_files", "adopt.after_commit", "incoming.in_publish"]
    with failpoints.armed(dice.choice(points) if dies else "nowhere"):
        steps: list[Callable[[], object]] = [
            lambda: adopt(app),
            lambda: tier(app, lock_attempts=40, upto=upto),
            lambda: drop_tiered(app, patience=0),
            lambda: fold(app, lock_attempts=40),
        ]
        for step in steps:
            try:
                step()
            except (failpoints.FailpointError, ModakError):
                continue


def adopt(app: App) -> AdoptOutcome:
    with app.job(EVENTS) as job:
        return adoption.adopt(replace(job, lock_attempts=40))


def check(app: App, connection: Connection, clients: list[Client]) -> None:
    expected = {
        "\x1f".join(map(str, key)): (row["id"], row["event_time"], row["val"]) for client in clients for key, row in client.ledger.items()
    }
    adopt(app)
    for moment in ("as the clients left it", "after a last pass"):
        found = {key: row for key, row in seam.read(app, EVENTS).items() if row[0] != 1}
        lost = {key: row for key, row in expected.items() if found.get(key) != row}
        risen = {key: row for key, row in found.items() if key not in expected}
        assert not lost, f"{moment}: {len(lost)} rows are lost or stale: {[(row, found.get(key)) for key, row in lost.items()][:5]}"
        assert not risen, f"{moment}: {len(risen)} rows that should not be there: {list(risen.items())[:5]}"
        shown = connection.execute("select id, event_time, val from public.events where id <> 1").fetchall()
        assert sorted(tuple(row.values()) for row in shown) == sorted(expected.values()), f"{moment}: the name shows something else"
        tier(app, lock_attempts=40, upto=(PARTITIONS - 2) * 100)
        drop_tiered(app)
        fold(app, lock_attempts=40)
    answers = {answer.label: (answer.hot_rows, answer.delta_rows, answer.spooled_rows) for client in clients for answer in client.answers}
    recorded = connection.execute("select label, hot_rows, delta_rows, spooled_rows, state from modak.load_labels").fetchall()
    assert {row["state"] for row in recorded} == {"committed"}
    assert {row["label"]: (row["hot_rows"], row["delta_rows"], row["spooled_rows"]) for row in recorded} == answers
    assert any(spooled for _, _, spooled in answers.values())


@pytest.mark.inline
@pytest.mark.parametrize(
    "by_id", [pytest.param(False, id="key with the tier key", marks=pytest.mark.soak), pytest.param(True, id="key without it")]
)
def test_the_table_is_the_ledger(app: App, connection: Connection, dsn: str, gateway: RunningGateway, by_id: bool) -> None:
    clients, killer, passes = run_ledger(app, connection, dsn, seconds=6, by_id=by_id, on_spark=False)
    labels, rows = sum(len(client.answers) for client in clients), sum(len(client.ledger) for client in clients)
    retries = sum(client.retries for client in clients)
    print(f"{labels} labels, {rows} rows, {killer.killed} sessions killed, {retries} retries, {passes} passes")
    check(app, connection, clients)
    assert labels > 50
    assert killer.killed > 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("by_id", [False, True])
def test_the_table_is_the_ledger_for_long(app: App, connection: Connection, dsn: str, gateway: RunningGateway, by_id: bool) -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "900")) / 2
    clients, killer, passes = run_ledger(app, connection, dsn, seconds=seconds, by_id=by_id, on_spark=True)
    labels = sum(len(client.answers) for client in clients)
    print(f"{labels} labels, {killer.killed} sessions killed, {sum(client.retries for client in clients)} retries, {passes} passes")
    check(app, connection, clients)
    assert labels > 1000
