"""Errands: one pass of a job because a person asked for it, one at a time, in a thread. The table's own lock keeps it apart from the loop.

What waits and what was done is in memory: an errand that a restart lost is asked for again. What it does to the lake is journaled as ever.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from modak.app import App
from modak.core.table import Name
from modak.errors import ModakError, Refused

WAITING_MAX = 20
REMEMBERED_MAX = 50
# The loop has a table for the length of a pass; whoever asked does not want to ask again.
PATIENCE_SECONDS = 30.0
_log = logging.getLogger(__name__)

Work = Callable[[App, Name], str]


@dataclass(frozen=True)
class Errand:
    """``state`` is waiting, running, done or failed; ``message`` what came of it."""

    number: int
    table: str
    job: str
    asked_at: float
    state: str = "waiting"
    began_at: float | None = None
    ended_at: float | None = None
    message: str = ""
    hint: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed")


def _fold(app: App, table: Name) -> str:
    from modak.jobs import fold

    with app.job(table, wait_seconds=PATIENCE_SECONDS) as context:
        done = fold.fold(context)
    text = f"{done.corrections:,} corrections folded in {done.commits:,} commits"
    return f"{text}; {done.waiting}" if done.waiting else text


def _verify(app: App, table: Name) -> str:
    from modak.jobs.verify_mirror import verify_table

    with app.connection() as connection:
        found = verify_table(connection, app.dsn, partial(app.job, wait_seconds=PATIENCE_SECONDS), table)
    text = f"{found.partitions:,} partitions and {found.rows:,} rows compared"
    if found.differences:
        more = "at least " if found.truncated else ""
        raise ModakError(
            f"{text}: {more}{len(found.differences):,} differences",
            hint="`modak verify` shows them, `modak verify --repair` mends the lake",
        )
    return f"{text}: no difference"


JOBS: Mapping[str, Work] = {"fold": _fold, "verify": _verify}


@dataclass
class Errands:
    """``ask`` from any thread; the thread that works starts with the first errand and is a daemon."""

    app: App
    jobs: Mapping[str, Work] = field(default_factory=lambda: JOBS)
    clock: Callable[[], float] = time.time
    _known: deque[Errand] = field(default_factory=lambda: deque(maxlen=REMEMBERED_MAX))
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _names: dict[int, Name] = field(default_factory=dict)
    _thread: threading.Thread | None = None
    _stopped: bool = False

    def ask(self, table: Name, job: str) -> Errand:
        if job not in self.jobs:
            raise Refused(f"{job!r} is not something to ask for here", hint=f"known: {', '.join(self.jobs)}")
        with self._changed:
            pending = [one for one in self._known if not one.is_over]
            same = next((one for one in pending if (one.table, one.job) == (str(table), job)), None)
            if same is not None:
                return same
            if len(pending) >= WAITING_MAX:
                raise Refused(f"{WAITING_MAX} errands wait already", hint="come back when some are done")
            errand = Errand(next(self._numbers), str(table), job, self.clock())
            self._known.append(errand)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="modak-errands", daemon=True)
                self._thread.start()
            self._names[errand.number] = table
            self._changed.notify_all()
            return errand

    def listing(self, table: str | None = None) -> list[Errand]:
        """Newest first."""
        with self._changed:
            return [one for one in reversed(self._known) if table is None or one.table == table]

    def stop(self) -> None:
        """What runs is left to end; what waits is forgotten."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (errand := self._next()) is None:
                    self._changed.wait()
                if self._stopped:
                    return
                assert errand is not None
                self._put(replace(errand, state="running", began_at=self.clock()))
                name = self._names.pop(errand.number)
            self._run(errand.number, name, errand.job)

    def _next(self) -> Errand | None:
        return next((one for one in self._known if one.state == "waiting"), None)

    def _run(self, number: int, name: Name, job: str) -> None:
        state, message, hint = "failed", "", None
        try:
            message = self.jobs[job](self.app, name)
            state = "done"
        except ModakError as cause:
            message, hint = str(cause), cause.hint
        except Exception:  # noqa: BLE001 - one errand must not end the thread
            _log.exception("%s of %s, asked for by a person, failed", job, name)
            message, hint = "it failed, and the worker's log says how", None
        with self._changed:
            found = next((one for one in self._known if one.number == number), None)
            if found is not None:
                self._put(replace(found, state=state, ended_at=self.clock(), message=message[:2000], hint=hint))

    def _put(self, changed: Errand) -> None:
        place = next(place for place, one in enumerate(self._known) if one.number == changed.number)
        self._known[place] = changed
