"""What people look at: the state of every table, the journal, who holds what. ``modak status``, the console and the API share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from modak.catalog import mirrors, tables
from modak.catalog.migrate import SQL
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.lag import Lag
from modak.core.table import Name

Row = dict[str, Any]
OPERATIONS_MAX = 500


def status(connection: Connection) -> list[Row]:
    """Every row of modak.status."""
    return connection.execute(SQL.query("list_status")).fetchall()


def watched(connection: Connection) -> list[Row]:
    """Every table for whoever looks all the time: corrections are estimated, and nothing is counted that may be many."""
    return connection.execute(SQL.query("list_watched")).fetchall()


def partition_states(connection: Connection) -> list[Row]:
    return connection.execute(SQL.query("list_partition_states")).fetchall()


def lake_troubles(connection: Connection) -> list[Row]:
    """How many problems each job of each decoupled table has."""
    return connection.execute(SQL.query("list_lake_troubles")).fetchall()


def settings(table: Registered) -> Row:
    """How a table was registered; what export writes and import reads."""
    return {
        "table": str(table.name),
        "tier_key": table.tier_key_col,
        "tier_key_type": table.tier_key_type,
        "primary_key": list(table.primary_key_cols),
        "mode": table.mode,
        "surface": table.surface,
        "heap": str(table.heap),
        "view": str(table.view),
        "lake_table": table.lake_table_ref,
        "profile": table.storage_profile,
        "layout": table.layout,
        "as_text": list(table.text_cols),
        "keep_heap": table.keep_heap,
        "check_cold_keys": table.check_cold_keys,
    }


def partitions(connection: Connection, table: Registered) -> list[Row]:
    """In the order of their bounds, which are given as text and as canonical keys."""
    key = table.key_type
    return [
        {
            "name": part.name,
            "from": key.encode_bound(part.lower),
            "to": key.encode_bound(part.upper),
            "tier_key_lo": part.lower,
            "tier_key_hi": part.upper,
            "state": part.state.value,
            "rows": part.rows,
        }
        for part in tables.partitions(connection, table.table_id)
    ]


def mirror(row: Mapping[str, Any], followed: Sequence[Mapping[str, Any]]) -> Row | None:
    """How a mirrored table gets on, out of ``mirrors.lags``; None for a tiered one."""
    found = next((one for one in followed if one["table_id"] == row["table_id"]), None)
    if found is None:
        return None
    state = "parked" if found["is_parked"] else "copying" if found["is_copying"] else "followed"
    at = found["frontier"]
    kept = {name: found[name] for name in ("lag_bytes", "lag_seconds", "retained_bytes")}
    return {
        "state": state,
        "frontier": f"{at >> 32:X}/{at & 0xFFFFFFFF:X}" if at is not None else None,
        **kept,
        "warning": _wal_warning(found),
    }


def _wal_warning(found: Mapping[str, Any]) -> str | None:
    limit = found["limit_bytes"]
    if found["retained_bytes"] <= (limit or mirrors.WAL_BYTES_MAX) // 2:
        return None
    if not limit:
        return f"slot {found['slot_name']} keeps {found['retained_bytes']:,} bytes of WAL, and the table's policy never parks it"
    return f"slot {found['slot_name']} keeps more than half of the {limit:,} bytes of WAL at which the table, if it is stuck, is parked"


def operations(
    connection: Connection, *, table_id: int | None = None, kind: str | None = None, before: datetime | None = None, limit: int = 50
) -> list[Row]:
    """The journal, newest first."""
    wanted = {"table_id": table_id, "kind": kind, "before": before, "limit": min(limit, OPERATIONS_MAX)}
    return connection.execute(SQL.query("list_operations"), wanted).fetchall()


def throughput(connection: Connection, table_id: int, *, seconds: int, step_seconds: int) -> list[Row]:
    wanted = {"table_id": table_id, "seconds": seconds, "step_seconds": step_seconds}
    return connection.execute(SQL.query("list_throughput"), wanted).fetchall()


def open_operations(connection: Connection) -> list[Row]:
    return connection.execute(SQL.query("list_open_everywhere")).fetchall()


def problems(connection: Connection, table_id: int | None = None) -> list[Row]:
    return connection.execute(SQL.query("list_problems"), {"table_id": table_id}).fetchall()


def pins(connection: Connection, table_id: int | None = None) -> list[Row]:
    return connection.execute(SQL.query("list_pins"), {"table_id": table_id}).fetchall()


def oldest_transactions(connection: Connection) -> list[Row]:
    return connection.execute(SQL.query("list_oldest_transactions")).fetchall()


def slots(connection: Connection) -> list[Row]:
    return connection.execute(SQL.query("list_slots")).fetchall()


def heap_sizes(connection: Connection, table_id: int) -> dict[tuple[str, str], Row]:
    """What each partition takes on disk, by schema and name. Waits for locks on them."""
    rows = connection.execute(SQL.query("list_heap_sizes"), {"table_id": table_id}).fetchall()
    return {(row["schema_name"], row["name"]): row for row in rows}


def heap_bytes(connection: Connection, ids: Sequence[int]) -> dict[int, int]:
    """What these tables take on disk. Waits for locks on their partitions."""
    rows = connection.execute(SQL.query("sum_heap_bytes"), {"ids": list(ids)}).fetchall()
    return {row["table_id"]: row["bytes"] for row in rows}


def sampled(connection: Connection) -> dict[int, Row]:
    return {row["table_id"]: row for row in connection.execute(SQL.query("list_sampled")).fetchall()}


def lake_pointers(connection: Connection) -> dict[int, tuple[int, str]]:
    """The Iceberg snapshot of S and the metadata file that knows it, by table; none before the first commit."""
    rows = connection.execute(SQL.query("list_lake_pointers")).fetchall()
    return {
        row["table_id"]: (int(row["snapshot_id"]), row["metadata_location"])
        for row in rows
        if row["snapshot_id"] and row["metadata_location"]
    }


def request_maintenance(connection: Connection, table_id: int, requested_by: str | None = None) -> datetime:
    """At most one per table waits for the leader; without a name it is the session's user who asks. Returns when it was asked for."""
    row = connection.execute(SQL.query("request_maintenance"), {"table_id": table_id, "requested_by": requested_by}).fetchone()
    assert row is not None
    asked: datetime = row["requested_at"]
    return asked


def maintenance_request(connection: Connection, table_id: int) -> Row | None:
    return connection.execute(SQL.query("find_maintenance_request"), {"table_id": table_id}).fetchone()


def lag_of(table: Registered) -> Lag | None:
    return Lag.parse(table.tier_lag, table.key_type) if table.tier_lag is not None else None


def name_of(row: Mapping[str, Any]) -> str:
    return str(Name(row["schema_name"], row["table_name"]))
