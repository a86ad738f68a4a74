"""What the worker counts, in Prometheus's form. One object per server, with a registry of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from modak.catalog import mirrors
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import ModakError
from modak.sqlfiles import SqlFiles

SQL = SqlFiles("modak.worker")
_log = logging.getLogger(__name__)

# When a counter began is no figure that anybody asked for.
disable_created_metrics()  # type: ignore[no-untyped-call]

Connect = Callable[[], AbstractContextManager[Connection]]


class Metrics:
    """Counters of this process, and gauges that the catalog answers when somebody looks."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, connect: Connect) -> None:
        self._registry = CollectorRegistry()
        self._loads = Counter("modak_load_total", "Batches by what became of them.", ["table", "state"], registry=self._registry)
        self._rows = Counter("modak_load_rows_total", "Rows of applied batches.", ["table", "path"], registry=self._registry)
        self._registry.register(_Backlog(connect))

    def loaded(self, table: Name, state: str, **rows: int) -> None:
        """A batch was answered; ``rows`` by the path they took, where this answer is the one that applied them."""
        self._loads.labels(str(table), state).inc()
        for path, count in rows.items():
            self._rows.labels(str(table), path).inc(count)

    def text(self) -> bytes:
        """The page for a scraper. Asks the catalog, so not in an event loop."""
        return generate_latest(self._registry)


class _Backlog:
    """Staged labels. Where Postgres does not answer, the page says so and has the rest."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    def describe(self) -> list[Metric]:
        """Nothing is asked before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("modak_catalog_up", "Whether the catalog answered this scrape.")
        labels = GaugeMetricFamily("modak_load_staged_labels", "Labels that wait for adoption.", labels=["table"])
        lag = GaugeMetricFamily("modak_load_adoption_lag_seconds", "How long the oldest staged label has waited.", labels=["table"])
        try:
            with self._connect() as connection:
                found = connection.execute(SQL.query("staged_backlog")).fetchall()
                followed = mirrors.lags(connection)
        except (ModakError, psycopg.Error) as cause:
            _log.warning("no figures of staged loads: %s", cause)
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        for row in found:
            name = str(Name(row["schema_name"], row["table_name"]))
            labels.add_metric([name], row["labels"])
            lag.add_metric([name], row["lag_seconds"])
        yield from (up, labels, lag)
        yield from _mirror_metrics(followed)


def _mirror_metrics(followed: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """How far mirrored tables are behind; the WAL is the slot's, and the same for all of them."""
    figures = {
        "lag_bytes": GaugeMetricFamily("modak_mirror_lag_bytes", "WAL that the lake has not followed yet.", labels=["table"]),
        "lag_seconds": GaugeMetricFamily("modak_mirror_lag_seconds", "Since the frontier F moved.", labels=["table"]),
        "is_parked": GaugeMetricFamily("modak_mirror_parked", "Whether the table waits for modak resync.", labels=["table"]),
        "retained_bytes": GaugeMetricFamily("modak_mirror_retained_wal_bytes", "WAL that the slot keeps.", labels=["table"]),
    }
    for row in followed:
        for figure, metric in figures.items():
            metric.add_metric([str(Name(row["schema_name"], row["table_name"]))], float(row[figure]))
    yield from figures.values()
