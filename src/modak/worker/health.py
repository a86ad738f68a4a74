"""Whether this worker does its work. For supervisors and load balancers, so it says no secret and needs no password."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import psycopg

from modak.catalog import leadership, mirrors, overview
from modak.connection import Connection
from modak.errors import CatalogError, ModakError
from modak.worker.samples import Samples
from modak.worker.state import LoopState, role

# An operation of which nothing was heard for so long is stuck; its tasks report their rows all the time.
STUCK_SECONDS = 900.0
# A leader whose cycle neither ends nor works on anything.
_CYCLES_MISSED = 10
_ENDLESS_SECONDS = 4 * 3600.0
# A worker that stands by takes a place that is free within one lease; this long without a sign of a leader, nobody works.
LEASES_MISSED = 5
# One look that takes too long says that Postgres is busy, and nothing of this worker; none in time for so long is as if it were away.
SLOW_SECONDS = 300.0


@dataclass(frozen=True)
class Health:
    """``reasons`` are what is wrong; none of them: all is well."""

    role: str
    reasons: tuple[str, ...] = ()
    tables: int | None = None
    problems: int | None = None
    stuck: tuple[Mapping[str, Any], ...] = ()
    leader: Mapping[str, Any] | None = None
    lag: Mapping[str, Any] | None = None
    since: float | None = None
    last_cycle: float | None = None
    postgres: str = "up"

    @property
    def is_fine(self) -> bool:
        return not self.reasons

    def as_dict(self) -> dict[str, Any]:
        return {
            "status": "ok" if self.is_fine else "failing",
            "role": self.role,
            "reasons": list(self.reasons),
            "postgres": self.postgres,
            "tables": self.tables,
            "problems": self.problems,
            "stuck": [dict(one) for one in self.stuck],
            "leader": dict(self.leader) if self.leader is not None else None,
            "lag": dict(self.lag) if self.lag is not None else None,
            "since": self.since,
            "last_cycle": self.last_cycle,
        }


@dataclass
class HealthCheck:
    """Asks the catalog and the loop's own state. ``cycle_seconds`` is how often a leader comes around."""

    connect: Callable[[], AbstractContextManager[Connection]]
    state: LoopState | None
    samples: Samples
    cycle_seconds: float = 10.0
    stuck_seconds: float = STUCK_SECONDS
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    lease_seconds: float = 15.0

    def __post_init__(self) -> None:
        self._began = self.clock()
        self._slow_since: datetime | None = None

    def __call__(self) -> Health:
        reasons = of_state(self.state, self.clock(), self.cycle_seconds)
        known = Health(
            role=role(self.state),
            since=_seconds(self.state.since if self.state else None),
            last_cycle=_seconds(self.state.cycle_at if self.state else None),
        )
        try:
            with self.connect() as connection:
                opened = overview.open_operations(connection)
                rows = overview.watched(connection)
                troubles = overview.lake_troubles(connection)
                followed = mirrors.lags(connection)
                leader = leadership.read(connection)
        except CatalogError as cause:
            self._slow_since = None
            return replace(known, reasons=(*reasons, f"the catalog: {cause.message}"))
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
            return replace(known, reasons=(*reasons, *self._slow()), postgres="slow")
        except (ModakError, psycopg.Error):
            # Why is in the log: the message may name hosts and users.
            return replace(known, reasons=(*reasons, "Postgres does not answer"), postgres="away")
        self._slow_since = None
        stuck = [
            {"table": overview.name_of(one), "kind": one["op_kind"], "phase": one["phase"], "quiet_seconds": round(one["quiet_seconds"])}
            for one in opened
            if self._is_stuck(one)
        ]
        reasons += [f"{one['kind']} of {one['table']} has been silent for {one['quiet_seconds']} s" for one in stuck]
        up_seconds = (self.clock() - self._began).total_seconds()
        reasons += leaderless(self.state, leader["seen_seconds"] if leader else None, up_seconds, self.lease_seconds)
        reasons += _endless(self.state, {overview.name_of(one) for one in opened}, self.clock())
        return replace(
            known,
            reasons=tuple(reasons),
            tables=len(rows),
            problems=sum(len(row["problems"]) for row in rows) + sum(row["n"] for row in troubles),
            stuck=tuple(stuck),
            leader=_leader(leader) if leader else None,
            lag=self._lag(rows, followed),
        )

    def _is_stuck(self, operation: Mapping[str, Any]) -> bool:
        """Nobody goes on with it, and nobody says why. One that waits, for a lake that is away say, is its table's problem, and shown as
        that; nobody is meant to go on with that of a disabled table."""
        told = operation["told_seconds"]
        is_told = told is not None and told <= self.stuck_seconds
        return bool(operation["enabled"] and operation["quiet_seconds"] > self.stuck_seconds and not is_told)

    def _slow(self) -> list[str]:
        self._slow_since = self._slow_since or self.clock()
        seconds = (self.clock() - self._slow_since).total_seconds()
        return [f"Postgres has answered no look at the catalog in time for {seconds:.0f} s"] if seconds > SLOW_SECONDS else []

    def _lag(self, rows: list[dict[str, Any]], followed: list[dict[str, Any]]) -> dict[str, Any]:
        """How far behind everything is, together; the metrics have it by table."""
        figures = [found for row in rows if (found := self.samples.latest(overview.name_of(row))) is not None]
        return {
            "partitions_due": sum(one.partitions_due or 0 for one in figures) if figures else None,
            "delta_rows": sum(row["delta_rows"] for row in rows),
            "staged_loads": sum(row["staged_loads"] for row in rows),
            "mirror_bytes": max((one["lag_bytes"] for one in followed), default=None),
        }


def of_state(state: LoopState | None, now: datetime, cycle_seconds: float) -> list[str]:
    """What the loop's own state says is wrong."""
    if state is None:
        return []
    if state.ended:
        return ["the loop that runs the jobs has ended"]
    last = max((at for at in (state.cycle_at, state.since) if at is not None), default=now)
    silent = (now - last).total_seconds()
    if state.is_leader and not state.running and silent > max(60.0, _CYCLES_MISSED * cycle_seconds):
        return [f"no cycle has ended for {silent:.0f} s"]
    return []


def leaderless(state: LoopState | None, seen_seconds: float | None, up_seconds: float, lease_seconds: float) -> list[str]:
    """``seen_seconds``: since a leader's last sign of life, None if there never was one. A worker that just began is given time."""
    silent = up_seconds if seen_seconds is None else min(up_seconds, seen_seconds)
    if state is None or silent <= LEASES_MISSED * lease_seconds:
        return []
    return [f"no worker has led for {silent:.0f} s"]


def _leader(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"holder": row["holder"], "is_this": row["holder"] == leadership.holder_name(), "seen_seconds": round(row["seen_seconds"], 1)}


def _endless(state: LoopState | None, working: set[str], now: datetime) -> list[str]:
    """Jobs without an operation in the journal: comparing and dropping take their time, but not for ever."""
    if state is None:
        return []
    ages = {name: (now - at).total_seconds() for name, at in state.began().items() if name not in working}
    return [f"{state.running.get(name, 'a job')} of {name} has run for {age:.0f} s" for name, age in ages.items() if age > _ENDLESS_SECONDS]


def _seconds(at: datetime | None) -> float | None:
    return at.timestamp() if at is not None else None
