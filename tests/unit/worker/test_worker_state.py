"""What a worker tells about itself: its state, samples, health, errands and logs, without a database."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from modak.core.table import Name
from modak.errors import ConnectionFailed, LockNotAvailable, Refused
from modak.logs import JsonFormatter, Steps
from modak.worker import errands as errands_module
from modak.worker.errands import Errands
from modak.worker.health import SLOW_SECONDS, HealthCheck, leaderless, of_state
from modak.worker.metrics import HELP, Metrics
from modak.worker.samples import Figures, Samples
from modak.worker.state import LoopState, role


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# State


def test_roles() -> None:
    assert (role(None), role(LoopState()), role(LoopState(is_leader=True))) == ("server", "standby", "leader")


def test_jobs_are_seen_while_they_run_and_counted_after() -> None:
    clock = Clock()
    state = LoopState(clock=clock)
    with state.job("public.a", "tiering"):
        clock.now += 3
        assert (state.running, state.began()["public.a"].timestamp()) == ({"public.a": "tiering"}, 1000.0)
    with pytest.raises(LockNotAvailable), state.job("public.a", "tiering"):
        raise LockNotAvailable("busy")
    with pytest.raises(ValueError, match="broken"), state.job("public.a", "fold"):
        raise ValueError("broken")
    assert (state.running, state.began()) == ({}, {})
    found = {key: (tally.count, tally.seconds) for key, tally in state.tallies().items()}
    assert found == {
        ("public.a", "tiering", "done"): (1, 3.0), ("public.a", "tiering", "waited"): (1, 0.0), ("public.a", "fold", "failed"): (1, 0.0),
    }  # fmt: skip


# Samples


def test_the_ring_is_bounded_and_forgets_tables() -> None:
    samples = Samples(samples_max=3)
    for at in range(5):
        samples.add(float(at), {"a": Figures(delta_rows=at), "b": Figures(hot_bytes=None), "c": Figures()})
    assert samples.series("a", "delta_rows") == [(2.0, 2.0), (3.0, 3.0), (4.0, 4.0)]
    assert samples.series("b", "hot_bytes") == [], "what is not known is a gap"
    assert samples.tables() == ["a", "b", "c"]
    samples.add(9.0, {"b": Figures()})
    assert (samples.tables(), samples.latest("a"), samples.taken_at) == (["b"], None, 9.0)


def test_many_tables_are_remembered_for_a_shorter_time_and_none_is_left_out() -> None:
    samples, names = Samples(samples_max=10, points_max=12), ["a", "b", "c", "d"]
    for at in range(10):
        samples.add(float(at), {name: Figures(delta_rows=at) for name in names})
    assert [len(samples.series(name, "delta_rows")) for name in names] == [3, 3, 3, 3]
    samples.add(10.0, {"a": Figures()})
    assert len(samples.series("a", "delta_rows")) == 4, "fewer tables leave more room"


# Health


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(hours=1)


@pytest.mark.parametrize(
    ("state", "wrong"),
    [
        (None, False),
        (LoopState(), False),
        (LoopState(is_leader=True, since=NOW - timedelta(seconds=10)), False),
        (LoopState(is_leader=True, since=LONG_AGO), True),
        (LoopState(is_leader=True, since=LONG_AGO, running={"public.a": "tiering"}), False),
        (LoopState(is_leader=True, since=LONG_AGO, cycle_at=NOW - timedelta(seconds=5)), False),
        (LoopState(ended=True), True),
    ],
)
def test_health_by_state(state: LoopState | None, wrong: bool) -> None:
    assert bool(of_state(state, NOW, 10.0)) == wrong


@pytest.mark.parametrize(
    ("seen", "up", "wrong"),
    [(None, 10.0, False), (None, 100.0, True), (3.0, 1000.0, False), (1000.0, 10.0, False), (76.0, 1000.0, True)],
)
def test_health_fails_when_nobody_leads(seen: float | None, up: float, wrong: bool) -> None:
    assert bool(leaderless(LoopState(), seen, up, 15.0)) == wrong
    assert leaderless(None, seen, up, 15.0) == []


def test_health_without_postgres_tells_no_secret() -> None:
    @contextlib.contextmanager
    def away() -> Iterator[Any]:
        raise ConnectionFailed("cannot connect: password=hunter2 host=db.internal")
        yield

    found = HealthCheck(away, LoopState(), Samples())()
    assert (found.is_fine, found.postgres, found.reasons) == (False, "away", ("Postgres does not answer",))
    assert "hunter2" not in json.dumps(found.as_dict())


def test_a_slow_postgres_is_not_away() -> None:
    """Not for a while: nobody restarts a worker because a look at the catalog took too long."""
    now = [NOW]

    @contextlib.contextmanager
    def slow() -> Iterator[Any]:
        raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        yield

    health = HealthCheck(slow, LoopState(), Samples(), clock=lambda: now[0])
    assert (health().postgres, health().is_fine) == ("slow", True)
    now[0] += timedelta(seconds=SLOW_SECONDS + 1)
    assert health().reasons == ("Postgres has answered no look at the catalog in time for 301 s",)
    # What the loop itself knows is said all the same.
    assert HealthCheck(slow, LoopState(ended=True), Samples())().reasons == ("the loop that runs the jobs has ended",)


# Metrics


def test_process_metrics_need_no_postgres() -> None:
    @contextlib.contextmanager
    def away() -> Iterator[Any]:
        raise ConnectionFailed("away")
        yield

    state = LoopState(is_leader=True, epoch=3, cycle_at=datetime.fromtimestamp(1000, UTC), clock=Clock())
    state.fails("public.b", "why")
    with state.job("public.a", "fold"):
        page = Metrics(away, state).text().decode()
    assert 'modak_job_running{job="fold",table="public.a"} 1.0' in page
    page = Metrics(away, state).text().decode()
    for line in ("modak_worker_leader 1.0", "modak_worker_epoch 3.0", "modak_catalog_up 0.0", "modak_worker_cycle_timestamp_seconds 1000.0",
                 'modak_worker_failing{table="public.b"} 1.0',
                 'modak_job_total{job="fold",result="done",table="public.a"} 1.0', "# TYPE modak_job_total counter"):  # fmt: skip
        assert line in page


def test_every_metric_has_its_prefix_and_a_meaning() -> None:
    for name, described in HELP.items():
        assert name.startswith("modak_")
        assert described.meaning.endswith(".")
        assert name.endswith("_total") == (described.kind == "counter")


# Errands


class FakeApp:
    def __init__(self) -> None:
        self.begun, self.release = threading.Event(), threading.Event()
        self.tables: list[str] = []

    def work(self, name: Name) -> None:
        self.tables.append(str(name))
        self.begun.set()
        assert self.release.wait(60)


def over(errands: Errands) -> None:
    for _ in range(1000):
        if all(one.is_over for one in errands.listing()):
            return
        threading.Event().wait(0.01)
    raise AssertionError("an errand does not end")


def test_errands_run_one_at_a_time_and_are_remembered() -> None:
    app = FakeApp()

    def folds(app: Any, name: Name) -> str:
        app.work(name)
        return "folded"

    def fails(app: Any, name: Name) -> str:
        app.work(name)
        raise Refused("not now", hint="later")

    def breaks(app: Any, name: Name) -> str:
        app.work(name)
        raise RuntimeError("secret of the machine")

    errands = Errands(app, {"fold": folds, "verify": fails, "other": breaks})  # type: ignore[arg-type]
    one = errands.ask(Name("public", "a"), "fold")
    assert app.begun.wait(60)
    again = errands.ask(Name("public", "a"), "fold")
    assert again.number == one.number, "asked twice is one errand"
    errands.ask(Name("public", "b"), "verify")
    errands.ask(Name("public", "b"), "other")
    assert [found.state for found in errands.listing()] == ["waiting", "waiting", "running"]
    app.release.set()
    over(errands)
    found = {found.job: (found.state, found.message, found.hint) for found in errands.listing()}
    assert found["fold"] == ("done", "folded", None)
    assert found["verify"] == ("failed", "not now", "later")
    assert found["other"] == ("failed", "it failed, and the worker's log says how", None)
    assert app.tables == ["public.a", "public.b", "public.b"]
    assert [one.job for one in errands.listing("public.a")] == ["fold"]


def test_errands_are_bounded() -> None:
    app = FakeApp()
    errands = Errands(app, {"fold": lambda app, name: app.work(name) or ""})  # type: ignore[arg-type, attr-defined]
    with pytest.raises(Refused):
        errands.ask(Name("public", "a"), "drop everything")
    for number in range(errands_module.WAITING_MAX):
        errands.ask(Name("public", f"t{number}"), "fold")
    with pytest.raises(Refused, match="wait already"):
        errands.ask(Name("public", "more"), "fold")
    errands.stop()
    app.release.set()


# Logs


def test_json_logs_are_one_object_per_line() -> None:
    try:
        raise ValueError("line one\nline two")
    except ValueError:
        record = logging.LogRecord("modak.x", logging.WARNING, "f", 1, "table %s\nnext", ("é",), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("warning", "modak.x", "table é\nnext")
    assert "ValueError" in found["error"]
    assert found["at"].endswith("+00:00")


def test_steps_of_a_job_are_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps()
    with caplog.at_level(logging.INFO, "modak.steps"), steps.task("Copying 100% of it") as task:
        task.advance(1)
        task.note("half of it")
    assert caplog.messages == ["Copying 100% of it: done"]
