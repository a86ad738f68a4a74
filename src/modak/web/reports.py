"""What there is to tell about tables and operations: the console shows it, the API answers with it. Read only."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg

from modak.catalog import decoupled, leadership, mirrors, overview, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.decoupled import Definition
from modak.core.partition import Partition, PartitionState
from modak.core.table import Name
from modak.core.tier_key import TierKeyType
from modak.errors import ModakError
from modak.lake import inspection
from modak.lake.decoupled import shown
from modak.lake.iceberg import IcebergLake
from modak.lake.storage import Storage
from modak.registration import policy
from modak.worker.errands import Errand, Errands
from modak.worker.samples import METRICS, Samples
from modak.worker.state import LoopState, role
from modak.worker.waiting import reclaim_waits

Row = dict[str, Any]
_LAKE_CACHE_MAX = 32
_DECOUPLED_MAX = 200
_DECOUPLED_SECONDS = 15.0
HISTORY_SECONDS = 24 * 3600
HISTORY_STEP_SECONDS = 1800
_log = logging.getLogger(__name__)


@dataclass
class Reports:
    connect: Callable[[], AbstractContextManager[Connection]]
    storages: Callable[[str], Storage]
    samples: Samples
    state: LoopState | None
    errands: Errands
    _lake: OrderedDict[tuple[int, str, int], inspection.Inspection] = field(default_factory=OrderedDict)
    _lake_lock: threading.Lock = field(default_factory=threading.Lock)
    _decoupled_seen: dict[Definition, tuple[float, Row]] = field(default_factory=dict)

    def worker(self) -> Row:
        state = self.state or LoopState()
        began = state.began()
        return {
            "role": role(self.state),
            "epoch": state.epoch,
            "since": state.since,
            "last_cycle": state.cycle_at,
            "running": [{"table": name, "job": job, "since": began.get(name)} for name, job in state.running.items()],
            "failures": [
                {"table": name, "message": why, "next_attempt": state.next_attempt.get(name)} for name, why in state.failures.items()
            ],
            "waits": [{"table": name, "reason": why} for name, why in state.waits.items()],
            "errands": [_errand(one) for one in self.errands.listing()],
        }

    def workers(self) -> Row | None:
        """Who leads and who stands by; None while Postgres does not say."""
        try:
            with self.connect() as connection:
                return _workers(connection)
        except (ModakError, psycopg.Error) as cause:
            _log.warning("who leads is not known: %s", cause)
            return None

    def overview(self) -> Row:
        """Everything on one page: tables, what holds the horizon, problems."""
        with self.connect() as connection:
            followed = mirrors.lags(connection)
            return {
                "worker": self.worker(),
                "workers": _workers(connection),
                "tables": [self._line(row, followed) for row in overview.status(connection)],
                "decoupled": self._decoupled(connection),
                "pins": [_named(row) for row in overview.pins(connection)],
                "transactions": overview.oldest_transactions(connection),
                "slots": overview.slots(connection),
                "problems": [_named(row) for row in overview.problems(connection)],
                "operations": [_operation(row) for row in overview.operations(connection, limit=8)],
            }

    def tables(self) -> Row:
        with self.connect() as connection:
            followed = mirrors.lags(connection)
            lines = [self._line(row, followed) for row in overview.status(connection)]
            return {"tables": lines, "decoupled": self._decoupled(connection)}

    def table(self, name: Name) -> Row:
        with self.connect() as connection:
            table = tables.get(connection, name)
            row = next(row for row in overview.status(connection) if row["table_id"] == table.table_id)
            return {
                **self._line(row, mirrors.lags(connection)),
                "settings": overview.settings(table),
                "policy": policy.show(table),
                "partitions": _partitions(connection, table),
                "problems": [_named(one) for one in overview.problems(connection, table.table_id)],
                "pins": [_named(one) for one in overview.pins(connection, table.table_id)],
                "waits": reclaim_waits(connection, table),
                "operations": [_operation(one) for one in overview.operations(connection, table_id=table.table_id, limit=25)],
                "maintenance_requested": overview.maintenance_request(connection, table.table_id),
                "errands": [_errand(one) for one in self.errands.listing(str(table.name))],
                "lake": self._lake_of(table, overview.lake_pointers(connection).get(table.table_id)),
            }

    def history(self, name: Name) -> list[Row]:
        """Rows that operations moved, by step of time, of the last day."""
        with self.connect() as connection:
            table = tables.get(connection, name)
            return overview.throughput(connection, table.table_id, seconds=HISTORY_SECONDS, step_seconds=HISTORY_STEP_SECONDS)

    def operations(
        self, *, name: Name | None = None, kind: str | None = None, before: datetime | None = None, limit: int = 50
    ) -> list[Row]:
        with self.connect() as connection:
            table_id = tables.get(connection, name).table_id if name is not None else None
            found = overview.operations(connection, table_id=table_id, kind=kind, before=before, limit=limit)
        return [_operation(row) for row in found]

    def series(self, name: Name) -> Row:
        """The samples of this process's memory."""
        with self.connect() as connection:
            text = str(tables.get(connection, name).name)
        return {metric: [[at, value] for at, value in self.samples.series(text, metric)] for metric in METRICS}

    def _line(self, row: Row, followed: list[Row]) -> Row:
        key_type = TierKeyType(row["tier_key_type"])
        name = overview.name_of(row)
        figures = self.samples.latest(name)
        return {
            "table": name,
            "mode": row["mode"],
            "surface": row["surface"],
            "enabled": row["enabled"],
            "tier_key_type": key_type.value,
            "cutline": {
                "t": row["cutline"],
                "tier_key_hi": row["cutline_t"],
                "s": row["cutline_s"],
                "r": row["retention"],
                "retention_line": row["retention_line"],
                "updated_at": row["cutline_updated_at"],
            },
            "partition_states": row["partition_states"],
            "delta_rows": row["delta_backlog"],
            "staged_loads": row["staged_loads"],
            "read_pins": row["read_pins"],
            "copying": row["copying"],
            "mirror": overview.mirror(row, followed),
            "problem_count": len(row["problems"] or ()),
            "open_operations": row["operations"] or [],
            "figures": asdict(figures) if figures is not None else None,
        }

    def _decoupled(self, connection: Connection) -> list[Row]:
        """A look at one reads its metadata, so it serves for a while."""
        now, known, seen = time.monotonic(), self._decoupled_seen, {}
        for one in decoupled.listing(connection)[:_DECOUPLED_MAX]:
            at, line = known.get(one, (now, None))
            if line is None or now - at > _DECOUPLED_SECONDS:
                at, line = now, shown(one, lambda profile=one.profile: IcebergLake(self.storages(profile)))  # type: ignore[misc]
            seen[one] = at, line
        self._decoupled_seen = seen
        return [line for _, line in seen.values()]

    def _lake_of(self, table: Registered, pointer: tuple[int, str] | None) -> Row | None:
        """Read once per commit; None without one, ``error`` where the lake does not answer."""
        if pointer is None:
            return None
        snapshot_id, location = pointer
        key = table.table_id, location, snapshot_id
        with self._lake_lock:
            found = self._lake.get(key)
        if found is None:
            try:
                found = inspection.inspect(self.storages(table.storage_profile), location, snapshot_id)
            except ModakError as cause:
                return {"error": cause.message, "hint": cause.hint}
            with self._lake_lock:
                self._lake[key] = found
                while len(self._lake) > _LAKE_CACHE_MAX:
                    self._lake.popitem(last=False)
        return {
            "location": found.location,
            "totals": asdict(found.totals),
            "snapshots": [asdict(one) for one in found.snapshots],
            "files": None if found.files is None else [asdict(one) for one in found.files],
            "bands": [{"partition": name, "files": count, "bytes": size} for name, count, size in found.bands],
        }


def _workers(connection: Connection) -> Row:
    found = leadership.workers(connection)
    names = ("holder", "host", "pid", "epoch", "since", "seen_at", "leads", "is_this")
    return found | {"leader": found["leader"] and {name: found["leader"][name] for name in names}}


def _partitions(connection: Connection, table: Registered) -> list[Row]:
    try:
        sizes = overview.heap_sizes(connection, table.table_id)
    except psycopg.Error as cause:
        # One of them is locked, or went away just now.
        _log.debug("no sizes of %s: %s", table.name, cause)
        sizes = {}
    found = []
    for part in tables.partitions(connection, table.table_id):
        known = sizes.get((part.schema, part.name))
        bounds = table.key_type.encode_bound(part.lower), table.key_type.encode_bound(part.upper)
        found.append(
            {
                "name": part.name,
                "from": bounds[0],
                "to": bounds[1],
                "tier_key_lo": part.lower,
                "tier_key_hi": part.upper,
                "state": part.state.value,
                "rows": part.rows if part.rows is not None else known["estimated_rows"] if known else None,
                "bytes": known["bytes"] if known else None,
            }
        )
    return found


def partition_of(row: Row) -> Partition:
    return Partition("", row["name"], row["tier_key_lo"], row["tier_key_hi"], PartitionState(row["state"]), row["rows"], row["bytes"])


def _operation(row: Row) -> Row:
    key_type = TierKeyType(row["tier_key_type"])
    names = ("op_id", "op_kind", "phase", "snapshot", "worker", "started_at", "updated_at", "seconds", "tier_key_type")
    kept = {name: row[name] for name in (*names, "old_tier_key_hi", "new_tier_key_hi")}
    moved = {
        f"{side}_t": key_type.encode_bound(row[column]) if row[column] is not None else None
        for side, column in (("from", "old_tier_key_hi"), ("to", "new_tier_key_hi"))
    }
    return {"table": overview.name_of(row), **kept, "rows": row["rows_moved"], **moved}


def _named(row: Row) -> Row:
    return {"table": overview.name_of(row), **{name: value for name, value in row.items() if name not in ("schema_name", "table_name")}}


def _errand(errand: Errand) -> Row:
    shown = asdict(errand)
    return shown | {name: _at(shown[name]) for name in ("asked_at", "began_at", "ended_at")}


def _at(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None else None
