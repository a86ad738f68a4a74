"""Figures over time: one sample of every table now and then, in a ring of this process's memory. Gone when the worker ends.

What should outlive it is what Prometheus scrapes; the journal in the catalog keeps what the jobs did.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import psycopg

from modak.catalog import mirrors, overview, profiles, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core import policy
from modak.core.cutline import Cutline
from modak.core.partition import Partition
from modak.core.schedule import Limits, Sight
from modak.core.tier_key import KEY_MIN, TierKeyType
from modak.errors import ModakError
from modak.lake import inspection
from modak.lake.storage import Storage
from modak.source.partitions import newest_key
from modak.source.relation import describe
from modak.worker.survey import Survey

SAMPLES_MAX = 720
# Of all tables together: the more there are, the shorter a time is remembered of each.
POINTS_MAX = 150_000
SAMPLE_SECONDS = 10.0
# Sizes and the newest key take a look at the table itself: of so many tables with one sample, and of one at rest now and then.
LOOKS_MAX = 50
_ROUND_SECONDS = 300.0
# So many corrections of a table are counted; more are estimated. A sample must not take longest when most waits.
COUNTED_MAX = 100_000
# The newest key may be a scan of the newest partition, where no index leads to it: not at every sample.
_NEWEST_SECONDS = 60.0
_NEWEST_PAUSE_SECONDS = 900.0
_log = logging.getLogger(__name__)

Connect = Callable[[], AbstractContextManager[Connection]]
Storages = Callable[[str], Storage]


@dataclass(frozen=True)
class Figures:
    """One table at one moment. None: not known, because something was locked, away or not asked for."""

    delta_rows: int = 0
    staged_loads: int = 0
    read_pins: int = 0
    hot_bytes: int | None = None
    cold_bytes: int | None = None
    cold_rows: int | None = None
    hot_period: float | None = None  # newest key minus T: seconds, or keys of an integer tier key
    partitions_due: int | None = None
    mirror_lag_bytes: int | None = None
    slot_bytes: int | None = None


METRICS = tuple(one.name for one in fields(Figures))


class Samples:
    """The ring. One thread adds, any reads."""

    def __init__(self, samples_max: int = SAMPLES_MAX, points_max: int = POINTS_MAX) -> None:
        self._lock = threading.Lock()
        self._samples_max, self._points_max = samples_max, points_max
        self._rings: dict[str, deque[tuple[float, Figures]]] = {}
        self.taken_at: float | None = None

    def add(self, at: float, found: dict[str, Figures]) -> None:
        with self._lock:
            self.taken_at = at
            for name in [name for name in self._rings if name not in found]:
                del self._rings[name]
            kept = max(1, min(self._samples_max, self._points_max // max(1, len(found))))
            for name, figures in found.items():
                ring = self._rings.setdefault(name, deque())
                # A table at rest is one object, however often it is remembered.
                ring.append((at, ring[-1][1] if ring and ring[-1][1] == figures else figures))
                while len(ring) > kept:
                    ring.popleft()

    def latest(self, table: str) -> Figures | None:
        with self._lock:
            ring = self._rings.get(table)
            return ring[-1][1] if ring else None

    def series(self, table: str, metric: str) -> list[tuple[float, float]]:
        """Known values only, oldest first."""
        with self._lock:
            ring = list(self._rings.get(table, ()))
        return [(at, float(found)) for at, figures in ring if (found := getattr(figures, metric)) is not None]

    def tables(self) -> list[str]:
        with self._lock:
            return list(self._rings)


@dataclass(frozen=True)
class _Seen:
    """What the last look at a table found, and the survey's word for the state that it found it in."""

    at: float = 0.0
    activity: str | None = None
    hot_bytes: int | None = None
    newest: int | None = None
    due: int | None = None


@dataclass
class _Newest:
    at: float
    key: int | None


@dataclass
class Sampler:
    """Takes samples until it is stopped. What fails leaves a gap, and the next sample tries again."""

    connect: Connect
    storages: Storages
    samples: Samples = field(default_factory=Samples)
    seconds: float = SAMPLE_SECONDS
    clock: Callable[[], float] = time.time
    _survey: Survey = field(default_factory=lambda: Survey(Limits(fold_rows=COUNTED_MAX, backlog_rows=COUNTED_MAX)))
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _newest: dict[int, _Newest] = field(default_factory=dict)
    _lake: dict[int, tuple[str, inspection.Totals]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _is_away: bool = False

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="modak-samples", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(15)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.take()
                self._is_away = False
            except (ModakError, psycopg.Error) as cause:
                # Once, and not every few seconds.
                _log.log(logging.DEBUG if self._is_away else logging.WARNING, "no sample: %s", cause)
                self._is_away = True
            except Exception:  # noqa: BLE001 - a look must not end the thread
                _log.exception("no sample")
            self._stop.wait(self.seconds)

    def take(self) -> None:
        """At rest a handful of statements, however many tables there are."""
        with self.connect() as connection:
            listed = {table.table_id: table for table in tables.listing(connection)}
            self._survey.begin(connection)
            sights = {sight.table_id: sight for sight in self._survey.look(connection)}
            rows = overview.sampled(connection)
            followed = {row["table_id"]: row for row in mirrors.lags(connection)} if self._survey.mirrored else {}
            pointers = overview.lake_pointers(connection)
            present = [table for table in listed.values() if table.table_id in rows]
            self._look(connection, self._chosen(present, sights), sights, rows)
            self._seen = {table.table_id: self._seen[table.table_id] for table in present if table.table_id in self._seen}
            found = {}
            for table in present:
                figures = self._figures(table, rows[table.table_id], sights.get(table.table_id), followed.get(table.table_id))
                totals = self._totals_of(table, pointers)
                found[str(table.name)] = replace(figures, cold_bytes=totals.bytes, cold_rows=totals.rows) if totals else figures
        self.samples.add(self.clock(), found)

    def _chosen(self, present: list[Registered], sights: Mapping[int, Sight]) -> list[Registered]:
        """Tables to look at: where the survey saw something new, and the others one after the other; the longest unseen first."""
        now, due = self.clock(), []
        for table in present:
            seen, sight = self._seen.get(table.table_id), sights.get(table.table_id)
            if seen is None or now - seen.at >= _ROUND_SECONDS or (sight is not None and sight.activity != seen.activity):
                due.append((seen.at if seen else 0.0, table))
        due.sort(key=lambda one: one[0])
        return [table for _, table in due[:LOOKS_MAX]]

    def _look(self, connection: Connection, chosen: list[Registered], sights: Mapping[int, Sight], rows: Mapping[int, Any]) -> None:
        if not chosen:
            return
        ids = [table.table_id for table in chosen]
        hot = _or_nothing(partial(overview.heap_bytes, connection, ids)) or {}
        partitions = tables.partitions_of(connection, ids)
        for table in chosen:
            sight, line = sights.get(table.table_id), rows[table.table_id]["tier_key_hi"]
            newest = self._newest_of(connection, table)
            self._seen[table.table_id] = _Seen(
                at=self.clock(),
                activity=sight.activity if sight else None,
                hot_bytes=hot.get(table.table_id),
                newest=newest,
                due=_due(table, partitions[table.table_id], line, newest) if table.mode == "tiered" else None,
            )

    def _figures(self, table: Registered, row: Mapping[str, Any], sight: Sight | None, mirror: Mapping[str, Any] | None) -> Figures:
        seen = self._seen.get(table.table_id) or _Seen()
        return Figures(
            delta_rows=_corrections(sight, row["delta_rows"]),
            staged_loads=row["staged"],
            read_pins=row["pins"],
            hot_bytes=seen.hot_bytes,
            hot_period=_ahead(row["tier_key_hi"], seen.newest, table.key_type) if table.mode == "tiered" else None,
            partitions_due=seen.due,
            mirror_lag_bytes=mirror["lag_bytes"] if mirror else None,
            slot_bytes=mirror["retained_bytes"] if mirror else None,
        )

    def _newest_of(self, connection: Connection, table: Registered) -> int | None:
        known, now = self._newest.get(table.table_id), self.clock()
        if known is not None and now < known.at:
            return known.key
        if table.mode != "tiered":
            return None
        try:
            key = newest_key(connection, describe(connection, table.heap), table.tier_key_col, table.key_type)
            self._newest[table.table_id] = _Newest(now + _NEWEST_SECONDS, key)
        except (ModakError, psycopg.Error) as cause:
            if connection.closed:
                raise
            # Too slow, or locked: not so soon again.
            _log.debug("the newest key of %s is not known: %s", table.name, cause)
            self._newest[table.table_id] = _Newest(now + _NEWEST_PAUSE_SECONDS, None)
        return self._newest[table.table_id].key

    def _totals_of(self, table: Registered, pointers: dict[int, tuple[int, str]]) -> inspection.Totals | None:
        """The lake's metadata is read once per commit."""
        if table.table_id not in pointers:
            return inspection.Totals()
        snapshot_id, location = pointers[table.table_id]
        known = self._lake.get(table.table_id)
        if known is not None and known[0] == f"{location} {snapshot_id}":
            return known[1]
        try:
            found = inspection.totals(self.storages(table.storage_profile), location, snapshot_id)
        except ModakError as cause:
            _log.debug("the lake of %s is not known: %s", table.name, cause)
            return None
        self._lake[table.table_id] = f"{location} {snapshot_id}", found
        return found


def _due(table: Registered, partitions: Sequence[Partition], line: int | None, newest: int | None) -> int | None:
    lag = overview.lag_of(table)
    if lag is None or newest is None or line is None:
        return 0 if lag is None else None
    return len(policy.partitions_due(partitions, Cutline(line), newest, lag, table.key_type))


def _corrections(sight: Sight | None, estimated: int) -> int:
    """The survey counts up to a limit, and leaves out tables that are disabled."""
    if sight is None:
        return estimated
    return sight.corrections if sight.corrections <= COUNTED_MAX else max(sight.corrections, estimated)


def storage_of(connect: Connect, storage: Callable[..., Storage]) -> Storages:
    """How the sampler finds a profile's storage: by name, which may change at any time."""

    def find(name: str) -> Storage:
        with connect() as connection:
            return storage(profiles.get(connection, name))

    return find


def _ahead(cutline: int | None, newest: int | None, key_type: TierKeyType) -> float | None:
    """T at the very beginning means that nothing is cold yet, and says nothing about a period."""
    if cutline is None or newest is None or cutline <= max(KEY_MIN, key_type.minimum):
        return None
    units = {"µs": 1_000_000.0, "days": 1 / 86_400}.get(key_type.unit, 1.0)
    return max(0, newest - cutline) / units


def _or_nothing(read: Callable[[], dict[int, int]]) -> dict[int, int] | None:
    """Sizes need a lock on each partition; one that is being dropped leaves a gap."""
    try:
        return read()
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled, psycopg.errors.UndefinedTable):
        return None
