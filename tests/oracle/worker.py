"""The worker: tiering, reclaim, fold, retention and untier in turn, and each of them dies now and then at a named point."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import psycopg

from modak import failpoints
from modak.errors import LockNotAvailable
from modak.jobs.context import JobContext
from modak.jobs.fold import fold
from modak.jobs.reclaim import reclaim
from modak.jobs.resume import resume_all
from modak.jobs.retain import retain
from modak.jobs.tier import tier
from modak.jobs.untier import untier
from tests.gateways import RunningGateway
from tests.oracle import world as worlds
from tests.oracle.journal import Journal
from tests.oracle.world import PLACES, TABLE, World

# Where a process of its own is killed.
POINTS = [
    ("fold", "fold.after_journal"),
    ("fold", "fold.after_files"),
    ("fold", "fold.after_commit"),
    ("fold", "fold.in_publish"),
    ("fold", "fold.after_publish"),
    ("tier", "tier.after_seal"),
    ("tier", "tier.after_commit"),
    ("tier", "tier.in_advance"),
    ("tier", "reclaim.in_drop"),
]

# Where each kind has one chance, most of them should come to their end.
FEWER_DEATHS = 3
WEIGHTS = {"tier": 4, "fold": 5, "reclaim": 3, "retain": 2, "untier": 2, "restart": 1}


class Dying(dict[str, str]):
    """In the place of the armed failpoints: whichever point the worker's thread passes, the dice decide whether it survives."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def get(self, name: str, default: Any = None) -> Any:
        return self._worker.passes(name) if threading.current_thread() is self._worker else None


class Worker(threading.Thread):
    """Tries so many jobs, as the dice have it, or without a number each kind once. ``deaths`` counts where it died, ``done`` what it did,
    and ``ended`` says that it is over."""

    def __init__(self, world: World, journal: Journal, gateway: RunningGateway, seed: str, jobs: int | None, *, kills: bool) -> None:
        super().__init__(name="worker", daemon=True)
        self._world, self._journal, self._gateway = world, journal, gateway
        self._dice, self._jobs, self._kills = random.Random(seed), jobs, kills
        self.ended = threading.Event()
        self._backend, self._killed = 0, False
        self.done: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self) -> None:
        before, failpoints._armed = failpoints._armed, Dying(self)
        try:
            for kind in self._chosen():
                self._job(kind)
        except BaseException as failure:  # noqa: BLE001 - the test looks at it
            self.failure = failure
        finally:
            failpoints._armed = before
            self.ended.set()

    def _chosen(self) -> list[str]:
        if self._jobs is None:
            return self._dice.sample(list(WEIGHTS), len(WEIGHTS))
        weights = {**WEIGHTS, "process": int(self._kills)}
        return self._dice.choices(list(weights), list(weights.values()), k=self._jobs)

    def passes(self, name: str) -> str | None:
        """What happens at a point: nothing, the worker's end, or that of its session."""
        fate = self._dice.random() * (1 if self._jobs is not None else FEWER_DEATHS)
        if fate > 0.12:
            return None
        self.deaths[name] += 1
        self._journal.note(self.name, f"dies at {name}")
        if fate > 0.04:
            return "raise"
        self._killed = True
        with psycopg.connect(self._world.dsn, autocommit=True) as killer:
            killer.execute("select pg_terminate_backend(%s, 5000)", [self._backend])
        return None

    def _job(self, kind: str) -> None:
        if kind in ("restart", "process"):
            getattr(self, f"_{kind}")()
            self.done[kind] += 1
            return
        self._killed = False
        try:
            with self._world.app.job(TABLE) as job:
                self._backend = job.connection.info.backend_pid
                outcome = getattr(self, f"_{kind}")(replace(job, lock_attempts=10))
            self.done[kind] += 1
            self._journal.note(self.name, f"{kind}: {outcome}")
        except (failpoints.FailpointError, LockNotAvailable) as ending:
            self._journal.note(self.name, f"{kind}: {type(ending).__name__} {ending}")
        except psycopg.OperationalError as ending:
            self._journal.note(self.name, f"{kind}: {ending}")
            if not self._killed:
                raise

    def _restart(self) -> None:
        """At once: nobody is given the time to finish."""
        server = self._gateway.gateway._server
        server._limits = replace(server._limits, drain_seconds=0.1)
        self._gateway.stop()
        self._journal.note(self.name, "the gateway is down")
        self._gateway.start()
        self._journal.note(self.name, "the gateway is back")

    def _process(self) -> None:
        """A command of its own that is killed as by SIGKILL, if it comes to the point."""
        command, point = self._dice.choice(POINTS)
        settings = self._world.app.settings
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MODAK_")}
        environment |= {
            "MODAK_DSN": self._world.dsn,
            "MODAK_DATA": str(settings.data),
            "MODAK_CACHE": str(settings.cache),
            "MODAK_FAILPOINTS": f"{point}=kill",
        }
        program = [sys.executable, "-m", "modak.cli.main", command, "public.t"]
        ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=200, check=False)
        self.deaths[point] += ended.returncode == -9
        self._journal.note(self.name, f"a process of {command} with {point}: {ended.returncode} {ended.stderr[-200:]}")
        assert ended.returncode in (0, 1, -9), ended.stderr

    def _tier(self, job: JobContext) -> object:
        """One partition or two at a time, and two stay hot."""
        line = worlds.line(job.connection, self._world)
        places = range(line + PLACES, self._world.top - PLACES, PLACES)
        return tier(job, upto=self._world.shape.canonical(self._dice.choice(places[:2]))) if places else "nothing left"

    def _fold(self, job: JobContext) -> object:
        return fold(job, batch_rows=self._dice.choice([3, 20, 250_000]))

    def _reclaim(self, job: JobContext) -> object:
        return reclaim(job)

    def _retain(self, job: JobContext) -> object:
        """As much as brings R to the floor. What a dead job left open may move T first."""
        resume_all(job)
        behind = worlds.line(job.connection, self._world) - self._world.floor
        if not self._world.floor:
            return "nothing expires yet"
        return retain(replace(job, table=replace(job.table, lake_retention_lag=self._world.shape.length(behind))))

    def _untier(self, job: JobContext) -> object:
        """The newest cold partition or two come back."""
        line = worlds.line(job.connection, self._world)
        places = range(max(self._world.floor + PLACES, line - 2 * PLACES), line, PLACES)
        return untier(job, key=self._world.shape.canonical(self._dice.choice(places))) if places else "nothing to bring back"
