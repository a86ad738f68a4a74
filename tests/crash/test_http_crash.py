"""Loads by HTTP while everything dies under them: connections in the middle of a group, and the worker itself.

Clients retry blindly. What was answered is written down, and at the end the table must be just that: nothing lost, nothing twice.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from tests.serving import PATH, TOKEN, Gate, WorkerProcess, forget, gathered, jsonl, row, served_table, serving, until
from tests.support import at_failpoint, rows, value

from modak.app import App
from modak.connection import Connection, connect
from modak.embedded.postgres import Cluster
from modak.load import group
from modak.load.group import GroupLimits

QUICK = GroupLimits(committers=1)


@pytest.fixture(scope="module")
def app(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with served_table(cluster, template, tmp_path_factory.mktemp("data")) as made:
        yield made


@pytest.fixture
def connection(app: App) -> Iterator[Connection]:
    with connect(app.dsn, autocommit=True) as opened:
        yield opened


def kill_sessions(dsn: str, most: int = 100) -> int:
    with psycopg.connect(dsn, autocommit=True) as killer:
        found = killer.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'modak-http' and datname = current_database() order by random() limit %s",
            [most],
        )
        return len(found.fetchall())


@pytest.mark.parametrize("when", ["load.before_group_commit", "load.after_group_commit"])
def test_a_connection_dies_in_a_group(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Before COMMIT everything is gone, after it everything is there and nobody was told: each batch finds out by itself."""
    gate, name = Gate(monkeypatch), when.split(".")[1]
    died: list[int] = []

    def die() -> None:
        if not died:
            died.append(kill_sessions(app.dsn))
            if when == "load.after_group_commit":
                raise psycopg.OperationalError("the answer to COMMIT was lost")

    at_failpoint(monkeypatch, group, when, die)
    place = 100 if when == "load.before_group_commit" else 101
    bodies = {f"{name} {number}": [row(number, place), row(100 + number, place)] for number in range(20)}
    bad = {f"{name} bad": b"{"}
    with serving(app, group_limits=QUICK) as running, gathered(running, gate, bodies | bad) as answers:
        pass
    assert died
    assert died[0] >= 1
    found = {one: answers[one].result(60) for one in answers}
    assert {one: answer.status for one, answer in found.items()} == {one: 400 if one in bad else 200 for one in found}
    replays = {found[one].json["replay"] for one in bodies}
    assert replays == {when == "load.after_group_commit"}
    assert value(connection, "select count(*) from public.events_hot where event_time = %s", place) == 40
    assert value(connection, "select count(*) from modak.load_labels where label like %s", f"{name} %") == 20
    forget(connection, "first")


@dataclass
class Client(threading.Thread):
    """Batches of rows that nobody else has; each label is sent until it is answered with 200."""

    port: int
    number: int
    stop: threading.Event
    ledger: dict[int, tuple[int, str]] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        dice = random.Random(self.number)
        try:
            while not self.stop.is_set():
                label = f"client {self.number} batch {len(self.answers)}"
                given = self._rows(dice, label)
                found = self._answered(label, jsonl(given))
                self.answers[label] = sum(found[part] for part in ("hot_rows", "delta_rows", "spooled_rows"))
                self.ledger |= {one["id"]: (one["event_time"], one["val"]) for one in given}
                assert self.answers[label] == len(given)
        except BaseException as failure:  # noqa: BLE001 - the test looks at it
            self.failure = failure

    def _rows(self, dice: random.Random, label: str) -> list[dict[str, Any]]:
        known = dice.sample(list(self.ledger), min(len(self.ledger), dice.choice([0, 1, 5])))
        first = self.number * 10_000_000 + len(self.answers) * 10_000
        fresh = range(first, first + dice.choice([1, 10, 10, 100, 6000] if dice.random() < 0.1 else [1, 10, 100]))
        return [row(one, 500, val=f"{label} {one}") for one in (*known, *fresh)]

    def _answered(self, label: str, body: bytes) -> dict[str, Any]:
        """Until it is answered. A refusal is none of the things that may happen here."""
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            try:
                connection.request("POST", PATH, body, {"X-Modak-Token": TOKEN, "X-Modak-Label": label})
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException):
                status, text = 0, b""
            else:
                status = answer.status
            finally:
                connection.close()
            if status == 200:
                found: dict[str, Any] = json.loads(text)
                assert "warning" not in found
                return found
            assert status in (0, 409, 429, 503), (status, text)
            self.retries += 1
            time.sleep(0.01)


def run_ledger(app: App, connection: Connection, *, deaths: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    worker = WorkerProcess(app, port)
    stop, killed, dice = threading.Event(), 0, random.Random(5)
    clients = [Client(port, number, stop) for number in range(1, 7)]
    for client in clients:
        client.start()

    def answered() -> int:
        assert all(client.failure is None for client in clients), [client.failure for client in clients]
        return sum(len(client.answers) for client in clients)

    try:
        for _ in range(deaths):
            for _ in range(4):
                so_far = answered()
                until(lambda more=so_far + dice.randint(5, 30): answered() >= more, 60)  # type: ignore[misc]
                killed += kill_sessions(app.dsn, dice.choice([1, 100]))
            worker.kill()
            worker = WorkerProcess(app, port)
        so_far = answered()
        until(lambda: answered() >= so_far + 20, 60)
    finally:
        stop.set()
        for client in clients:
            client.join(60)
        code, log = worker.terminate()
    assert code == 0, log
    assert all(client.failure is None and not client.is_alive() for client in clients), [client.failure for client in clients]
    _check(connection, clients)
    retries, count = sum(one.retries for one in clients), sum(len(one.ledger) for one in clients)
    print(f"{answered()} labels, {count} rows, {retries} retries, {killed} sessions killed")
    assert killed > deaths


def _check(connection: Connection, clients: list[Client]) -> None:
    expected = {number: text for client in clients for number, (_, text) in client.ledger.items()}
    found = dict(rows(connection, "select id, val from public.events_hot where event_time = 500"))
    assert len(found) == value(connection, "select count(*) from public.events_hot where event_time = 500")
    wrong = {number for number in expected.keys() | found.keys() if expected.get(number) != found.get(number)}
    assert not wrong, [(number, expected.get(number), found.get(number)) for number in sorted(wrong)[:5]]
    labels = dict(rows(connection, "select label, hot_rows from modak.load_labels where label like 'client %'"))
    assert labels == {label: count for client in clients for label, count in client.answers.items()}


def test_the_table_is_the_ledger(app: App, connection: Connection) -> None:
    run_ledger(app, connection, deaths=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_table_is_the_ledger_for_long(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with served_table(cluster, template, tmp_path_factory.mktemp("long")) as app, connect(app.dsn, autocommit=True) as connection:
        run_ledger(app, connection, deaths=int(os.environ.get("SOAK_DEATHS", "40")))
