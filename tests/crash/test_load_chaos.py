"""Everything at once: clients that retry blindly by HTTP, while connections, the worker and Postgres itself are killed, and the table is
tiered, dropped, adopted, folded and expired.

At the end the table is what was acknowledged, by value; each label is there once, and of the rows below the floor none is.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy.exc
from tests import events, seam
from tests.crash.test_http_crash import Client, kill_sessions
from tests.deaths import app_on
from tests.events import EVENTS, drop_tiered, fold, put_under_modak, retain, tier
from tests.flows.test_load_ledger import adopt
from tests.serving import WorkerProcess, until
from tests.support import rows

from modak.app import App
from modak.connection import connect
from modak.embedded.postgres import Cluster
from modak.errors import ModakError
from modak.settings import Settings

pytestmark = pytest.mark.inline

PARTITIONS = 12
FLOOR = 200
# What a job may end with while Postgres is away; whatever else it is fails the test.
AWAY = (ModakError, psycopg.OperationalError, psycopg.InterfaceError, sqlalchemy.exc.DBAPIError)


@dataclass
class Scattered(Client):
    """Rows of all ages above the floor: most of them new, some of them cold, and now and then so many that they are staged."""

    places: dict[int, int] = field(default_factory=dict)

    __hash__ = threading.Thread.__hash__

    def _rows(self, dice: random.Random, label: str) -> list[dict[str, Any]]:
        known = dice.sample(list(self.places), min(len(self.places), dice.choice([0, 1, 5])))
        first = self.number * 10_000_000 + len(self.answers) * 10_000
        count = 6000 if len(self.answers) % 40 == 20 else dice.choice([1, 10, 50])
        top = PARTITIONS * 100 - 1
        for number in range(first, first + count):
            self.places[number] = dice.randint(FLOOR + 100, 900) if count == 6000 or dice.random() < 0.3 else top - dice.randint(0, 300)
        return [
            {"id": number, "event_time": self.places[number], "val": f"{label} {number}"}
            for number in (*known, *range(first, first + count))
        ]


class Jobs(threading.Thread):
    """What a worker does with the table, over and over; when Postgres is away it tries again."""

    def __init__(self, app: App, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._app, self._ended = app, stop
        self.done: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self.once(min(PARTITIONS - 2, 3 + 2 * self.done["tier"]) * 100)
        except BaseException as failure:  # noqa: BLE001 - the test looks at it
            self.failure = failure

    def once(self, upto: int) -> None:
        steps: dict[str, Callable[[], object]] = {
            "adopt": lambda: adopt(self._app),
            "tier": lambda: tier(self._app, lock_attempts=40, upto=upto),
            "drop": lambda: drop_tiered(self._app, patience=0),
            "fold": lambda: fold(self._app, lock_attempts=40),
            "retain": lambda: retain(self._app, lock_attempts=40),
        }
        for name, step in steps.items():
            try:
                step()
                self.done[name] += 1
            except AWAY:
                self.done[f"{name} failed"] += 1
                time.sleep(0.1)


class Chaos:
    """The killer, and whoever is killed."""

    def __init__(self, app: App, folder: Path) -> None:
        self._app, self._folder = app, folder
        self._dice = random.Random(11)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.worker = self._started()
        self.deaths: Counter[str] = Counter()

    def _started(self) -> WorkerProcess:
        return WorkerProcess(self._app, self.port, "--no-jobs")

    def strike(self, what: str) -> None:
        self.deaths[what] += 1
        if what == "sessions":
            with contextlib.suppress(psycopg.OperationalError):
                kill_sessions(self._app.dsn, self._dice.choice([1, 100]))
        elif what == "worker":
            self.worker.kill()
            self.worker = self._started()
        else:
            found = Cluster.find(self._folder)
            assert found is not None
            found.stop("immediate")
            assert Cluster.start(self._folder).dsn() == self._app.dsn


def run_chaos(app: App, folder: Path, rounds: int) -> None:
    with connect(app.dsn, autocommit=True) as connection:
        events.create(connection, partitions=PARTITIONS)
        connection.execute("delete from public.events")
        connection.execute("insert into public.events select n, n %% 300, 'old' from generate_series(1, 299) n", [])
        connection.execute("insert into public.events values (0, %s, 'top')", [PARTITIONS * 100 - 1])
        put_under_modak(app, connection, lag="200", lake_retention="800", primary_key=("id", "event_time"))
    stop, chaos, jobs_stop = threading.Event(), Chaos(app, folder), threading.Event()
    clients, jobs = [Scattered(chaos.port, number, stop) for number in range(1, 5)], Jobs(app, jobs_stop)
    for thread in (*clients, jobs):
        thread.start()

    def answered() -> int:
        assert all(one.failure is None for one in (*clients, jobs)), [one.failure for one in (*clients, jobs)]
        return sum(len(client.answers) for client in clients)

    try:
        for number in range(rounds):
            for what in ("sessions", "sessions", "worker" if number % 2 else "sessions", "postgres"):
                so_far = answered()
                until(lambda more=so_far + 10: answered() >= more, 180)  # type: ignore[misc]
                chaos.strike(what)
        so_far = answered()
        until(lambda: answered() >= so_far + 20, 180)
        until(lambda: answered() and jobs.done["tier"] >= 3 and jobs.done["fold"] >= 2, 180)
    finally:
        stop.set()
        for client in clients:
            client.join(60)
        jobs_stop.set()
        jobs.join(120)
        code, log = chaos.worker.terminate()
    answered()
    assert not any(one.is_alive() for one in (*clients, jobs))
    assert code == 0, log
    assert "Traceback" not in log
    _check(app, clients)
    retries, count = sum(one.retries for one in clients), sum(len(one.ledger) for one in clients)
    print(f"{answered()} labels, {count} rows, {retries} retries, {dict(chaos.deaths)}, {dict(jobs.done)}")
    assert retries


def _check(app: App, clients: list[Scattered]) -> None:
    expected = {(number, *there) for client in clients for number, there in client.ledger.items()}
    expected |= {(0, PARTITIONS * 100 - 1, "top")} | {(number, number, "old") for number in range(FLOOR, 300)}
    settling = Jobs(app, threading.Event())
    for _ in range(2):
        settling.once((PARTITIONS - 2) * 100)
    assert not [name for name in settling.done if name.endswith("failed")], settling.done
    found = set(seam.read(app, EVENTS).values())
    assert not expected - found, f"{len(expected - found)} acknowledged rows are lost or stale: {sorted(expected - found)[:5]}"
    assert not found - expected, f"{len(found - expected)} rows that should not be there: {sorted(found - expected)[:5]}"
    with connect(app.dsn) as connection:
        recorded = rows(connection, "select label, hot_rows + delta_rows + spooled_rows, state from modak.load_labels")
    assert {state for _, _, state in recorded} == {"committed"}
    assert {label: count for label, count, _ in recorded} == {label: count for client in clients for label, count in client.answers.items()}


@pytest.mark.timeout(600)
def test_every_label_is_applied_once(settings: Settings, own_cluster: Cluster, tmp_path: Path) -> None:
    run_chaos(app_on(own_cluster, settings, tmp_path), tmp_path / "own", rounds=2)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_label_is_applied_once_for_long(settings: Settings, own_cluster: Cluster, tmp_path: Path) -> None:
    run_chaos(app_on(own_cluster, settings, tmp_path), tmp_path / "own", rounds=int(os.environ.get("SOAK_DEATHS", "40")) // 2)
