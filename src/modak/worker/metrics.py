"""What the worker counts, in Prometheus's form. One object per server, with a registry of its own.

``HELP`` is the list of all of them: the page and docs/reference/metrics.md are made of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from modak.catalog import mirrors, overview
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import ModakError
from modak.sqlfiles import SqlFiles
from modak.worker.samples import Figures, Samples
from modak.worker.state import LoopState

SQL = SqlFiles("modak.worker")
_log = logging.getLogger(__name__)

# When a counter began is no figure that anybody asked for.
disable_created_metrics()  # type: ignore[no-untyped-call]

Connect = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True)
class Described:
    """``source``: where the figure comes from; the catalog's are the same on every worker, the process's are its own."""

    kind: str
    meaning: str
    labels: tuple[str, ...] = ()
    source: str = "catalog"


_TABLE = ("table",)
HELP: dict[str, Described] = {
    "modak_load_total": Described("counter", "Batches by what became of them.", ("table", "state"), "process"),
    "modak_load_rows_total": Described("counter", "Rows of applied batches, by the path they took.", ("table", "path"), "process"),
    "modak_catalog_up": Described("gauge", "Whether the catalog answered this scrape."),
    "modak_load_staged_labels": Described("gauge", "Labels that wait for adoption.", _TABLE),
    "modak_load_adoption_lag_seconds": Described("gauge", "How long the oldest staged label has waited.", _TABLE),
    "modak_mirror_lag_bytes": Described("gauge", "WAL that the lake has not followed yet.", _TABLE),
    "modak_mirror_lag_seconds": Described("gauge", "How old what the lake has is; 0 if nothing was written since.", _TABLE),
    "modak_mirror_changes_total": Described("counter", "Changes of the stream that were put into the lake.", _TABLE, "process"),
    "modak_mirror_rows_total": Described(
        "counter", "Rows that were written and deleted for them: a key's changes within a batch are one.", ("table", "what"), "process"
    ),
    "modak_mirror_parked": Described("gauge", "Whether the table waits for modak resync.", _TABLE),
    "modak_mirror_retained_wal_bytes": Described("gauge", "WAL that the slot keeps.", _TABLE),
    "modak_mirror_retained_wal_limit_bytes": Described("gauge", "A failing table is parked when the slot keeps more.", _TABLE),
    "modak_slot_retained_bytes": Described("gauge", "WAL that a replication slot of Modak keeps.", ("slot",)),
    "modak_slot_active": Described("gauge", "Whether somebody reads the slot.", ("slot",)),
    "modak_delta_rows": Described("gauge", "Corrections that wait for a fold, as Postgres's counters estimate them.", _TABLE),
    "modak_read_pins": Described("gauge", "Readers that hold a cut-line.", _TABLE),
    "modak_partitions": Described("gauge", "Partitions by state.", ("table", "state")),
    "modak_problems": Described("gauge", "Jobs that do not get on; modak.problems and modak.lake_problems say why.", ("table", "job")),
    "modak_operations_open": Described("gauge", "Operations of the journal that are not over.", ("table", "kind", "phase")),
    "modak_cutline_lag_seconds": Described("gauge", "Since the cut-line's row moved: T, S or F.", _TABLE),
    "modak_hot_period": Described(
        "gauge", "The newest key of the heap minus T: seconds, or keys where the tier key is a number.", ("table", "unit"), "sample"
    ),
    "modak_partitions_due": Described("gauge", "Partitions that the policy would tier now.", _TABLE, "sample"),
    "modak_hot_bytes": Described("gauge", "What the heap's partitions take on disk, with indexes.", _TABLE, "sample"),
    "modak_cold_bytes": Described("gauge", "What the lake's files at S take.", _TABLE, "sample"),
    "modak_cold_rows": Described("gauge", "Rows of the lake at S.", _TABLE, "sample"),
    "modak_worker_leader": Described("gauge", "Whether this worker leads.", (), "process"),
    "modak_worker_epoch": Described("gauge", "Number of its leadership; 0 while it stands by.", (), "process"),
    "modak_worker_cycle_timestamp_seconds": Described("gauge", "When it last looked for work.", (), "process"),
    "modak_worker_running_tables": Described("gauge", "Tables whose jobs are at work.", (), "process"),
    "modak_worker_failing": Described("gauge", "Tables whose last round failed.", _TABLE, "process"),
    "modak_job_running": Described("gauge", "A job that is at work in this process.", ("table", "job"), "process"),
    "modak_job_total": Described("counter", "Runs of jobs: done, waited (for a lock) or failed.", ("table", "job", "result"), "process"),
    "modak_job_seconds_total": Described("counter", "Seconds these runs took.", ("table", "job", "result"), "process"),
}


class Metrics:
    """Counters of this process, and gauges that the catalog answers when somebody looks."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, connect: Connect, state: LoopState | None = None, samples: Samples | None = None) -> None:
        self._registry = CollectorRegistry()
        self._loads = self._counter("modak_load_total")
        self._rows = self._counter("modak_load_rows_total")
        self._registry.register(_Catalog(connect, samples or Samples()))
        if state is not None:
            self._registry.register(_Process(state))

    def loaded(self, table: Name, state: str, **rows: int) -> None:
        """A batch was answered; ``rows`` by the path they took, where this answer is the one that applied them."""
        self._loads.labels(str(table), state).inc()
        for path, count in rows.items():
            self._rows.labels(str(table), path).inc(count)

    def text(self) -> bytes:
        """The page for a scraper. Asks the catalog, so not in an event loop."""
        return generate_latest(self._registry)

    def _counter(self, name: str) -> Counter:
        described = HELP[name]
        return Counter(name, described.meaning, described.labels, registry=self._registry)


class _Page:
    """Families by name, each made when it gets its first value."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def add(self, name: str, value: Any, *labels: str) -> None:
        described = HELP[name]
        if name not in self._families:
            kind = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
            self._families[name] = kind(name, described.meaning, labels=list(described.labels))
        self._families[name].add_metric(list(labels), float(value))  # type: ignore[attr-defined]

    def families(self) -> Iterable[Metric]:
        return self._families.values()


class _Collector:
    def describe(self) -> list[Metric]:
        """Nothing is asked before the first scrape."""
        return []


class _Process(_Collector):
    """What the loop of this process does."""

    def __init__(self, state: LoopState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state, page = self._state, _Page()
        page.add("modak_worker_leader", state.is_leader)
        page.add("modak_worker_epoch", state.epoch or 0)
        page.add("modak_worker_cycle_timestamp_seconds", state.cycle_at.timestamp() if state.cycle_at is not None else 0)
        page.add("modak_worker_running_tables", len(state.running))
        for table in state.failures:
            page.add("modak_worker_failing", 1, table)
        for table, job in state.running.items():
            page.add("modak_job_running", 1, table, job)
        for (table, job, result), tally in state.tallies().items():
            page.add("modak_job_total", tally.count, table, job, result)
            page.add("modak_job_seconds_total", tally.seconds, table, job, result)
        for table, moved in state.moved().items():
            page.add("modak_mirror_changes_total", moved.changes, table)
            page.add("modak_mirror_rows_total", moved.written, table, "written")
            page.add("modak_mirror_rows_total", moved.deleted, table, "deleted")
        yield from page.families()


class _Catalog(_Collector):
    """What the catalog says, and the last sample. Where Postgres does not answer, the page says so and has the rest."""

    def __init__(self, connect: Connect, samples: Samples) -> None:
        self._connect, self._samples = connect, samples

    def collect(self) -> Iterator[Metric]:
        page = _Page()
        try:
            with self._connect() as connection:
                self._read(connection, page)
        except (ModakError, psycopg.Error) as cause:
            _log.warning("no figures of the catalog: %s", cause)
            page = _Page()
            page.add("modak_catalog_up", 0)
        yield from page.families()

    def _read(self, connection: Connection, page: _Page) -> None:
        page.add("modak_catalog_up", 1)
        for row in connection.execute(SQL.query("staged_backlog")).fetchall():
            page.add("modak_load_staged_labels", row["labels"], overview.name_of(row))
            page.add("modak_load_adoption_lag_seconds", row["lag_seconds"], overview.name_of(row))
        # How far mirrored tables are behind; the WAL is the slot's, and the same for all of them.
        for row in mirrors.lags(connection):
            name = overview.name_of(row)
            page.add("modak_mirror_lag_bytes", row["lag_bytes"], name)
            page.add("modak_mirror_lag_seconds", row["lag_seconds"], name)
            page.add("modak_mirror_parked", row["is_parked"], name)
            page.add("modak_mirror_retained_wal_bytes", row["retained_bytes"], name)
            page.add("modak_mirror_retained_wal_limit_bytes", row["limit_bytes"], name)
        for row in overview.slots(connection):
            page.add("modak_slot_retained_bytes", row["retained_bytes"], row["slot_name"])
            page.add("modak_slot_active", row["active"], row["slot_name"])
        for row in overview.watched(connection):
            self._table(page, row)
        for row in overview.partition_states(connection):
            page.add("modak_partitions", row["n"], overview.name_of(row), row["state"])
        for row in overview.lake_troubles(connection):
            page.add("modak_problems", 1, overview.name_of(row), row["job"])
        counts: dict[tuple[str, str, str], int] = {}
        for row in overview.open_operations(connection):
            key = overview.name_of(row), row["op_kind"], row["phase"]
            counts[key] = counts.get(key, 0) + 1
        for labels, count in counts.items():
            page.add("modak_operations_open", count, *labels)

    def _table(self, page: _Page, row: dict[str, Any]) -> None:
        name = overview.name_of(row)
        page.add("modak_delta_rows", row["delta_rows"], name)
        page.add("modak_read_pins", row["read_pins"], name)
        if row["cutline_updated_at"] is not None:
            page.add("modak_cutline_lag_seconds", (datetime.now(UTC) - row["cutline_updated_at"]).total_seconds(), name)
        for job in row["problems"]:
            page.add("modak_problems", 1, name, job)
        figures = self._samples.latest(name)
        if figures is not None:
            self._sampled(page, name, figures, "keys" if row["tier_key_type"] in ("smallint", "integer", "bigint") else "seconds")

    def _sampled(self, page: _Page, name: str, figures: Figures, unit: str) -> None:
        if figures.hot_period is not None:
            page.add("modak_hot_period", figures.hot_period, name, unit)
        for metric, value in (
            ("modak_partitions_due", figures.partitions_due),
            ("modak_hot_bytes", figures.hot_bytes),
            ("modak_cold_bytes", figures.cold_bytes),
            ("modak_cold_rows", figures.cold_rows),
        ):
            if value is not None:
                page.add(metric, value, name)
