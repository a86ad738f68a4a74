"""What nobody expected does not end the worker's loop; what comes again and again ends the whole process, for a supervisor to see."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.serving import WorkerProcess, until
from tests.support import value

from modak.app import App
from modak.catalog import leadership
from modak.connection import Connection
from modak.worker import lease as lease_module
from modak.worker import loop as loop_module
from modak.worker.loop import STUMBLES_MAX, Loop


@contextlib.contextmanager
def running(app: App) -> Iterator[Loop]:
    stop = threading.Event()
    loop = Loop(app, stop, 0.02)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


class Stumbling:
    """Raises so many times, and is then what it stands for."""

    def __init__(self, times: int, original: Any) -> None:
        self.left, self.original = times, original

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self.left:
            self.left -= 1
            raise RuntimeError("can't start new thread")
        return self.original(*given, **named)


def test_a_cycle_that_fails_for_no_known_reason(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads on: a new epoch would end the sessions of its own jobs."""
    stumbling = Stumbling(STUMBLES_MAX - 1, Loop._cycle)
    monkeypatch.setattr(Loop, "_cycle", lambda *given: stumbling(*given))
    with running(app) as loop:
        until(lambda: loop.state.cycles > 2)
        assert loop._stumbles == 0, "they count in a row"
        assert value(connection, "select epoch from modak.leader") == loop.state.epoch == 1
        # As often again: what came before is forgotten.
        stumbling.left, cycles = STUMBLES_MAX - 1, loop.state.cycles
        until(lambda: loop.state.cycles > cycles + 2)
        assert not loop.state.ended


def test_no_thread_for_the_lease(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "Lease", Stumbling(3, lease_module.Lease))
    with running(app) as loop:
        until(lambda: loop.state.is_leader and loop.state.cycles > 1)


def test_a_lease_whose_life_cannot_be_shown_is_lost(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the thread that shows it; the place is taken anew."""
    monkeypatch.setattr(leadership, "show_life", Stumbling(1, leadership.show_life))
    with running(App(replace(app.settings, lease_seconds=0.3))) as loop:
        until(lambda: (loop.state.epoch or 0) > 1)


def test_what_comes_again_and_again_ends_the_loop(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module.Survey, "look", Stumbling(STUMBLES_MAX, None))
    loop = Loop(app, threading.Event(), 0.02)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        loop.run()
    assert (loop.state.ended, loop.state.is_leader) == (True, False)
    # Its place is free, as soon as Postgres has seen its session end.
    until(lambda: leadership.try_lead(connection))


def test_the_process_ends_with_it(app: App) -> None:
    worker = WorkerProcess(app, module="tests.stumbling_worker", MODAK_CYCLE_SECONDS="0.1")
    code, log = worker.wait()
    assert code == 1, log
    assert "no cycle, for the 8. time in a row: can't start new thread" in log
    assert "the loop that runs the jobs failed again and again" in log
