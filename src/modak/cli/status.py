"""``modak status``: one line per table, or everything about one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modak.catalog import migrate, mirrors, tables
from modak.catalog.tables import Registered
from modak.cli.output import Output
from modak.connection import Connection
from modak.core.partition import PartitionState
from modak.core.table import Name, quoted
from modak.registration import policy
from modak.source.replication import lsn_text
from modak.source.sessions import horizon_holders


def show(connection: Connection, output: Output, name: Name | None) -> None:
    rows = connection.execute(migrate.SQL.query("list_status")).fetchall()
    if name is None:
        followed = mirrors.lags(connection)
        output.result([{**row, "mirror": _mirror(row, followed)} for row in rows])
        _lines(output, rows)
        for row in rows:
            _follows(output, row, followed)
            _problems(output, row)
        if not rows:
            output.note("no table is registered yet: `modak register schema.table --tier-key COLUMN`")
        return
    table = tables.get(connection, name)
    row = next(row for row in rows if row["table_id"] == table.table_id)
    partitions = _partitions(connection, table)
    output.result(
        {
            **row,
            "mirror": _mirror(row, mirrors.lags(connection)),
            "settings": settings(table),
            "policy": policy.show(table),
            "partitions": partitions,
            "waits": reclaim_waits(connection, table),
        }
    )
    _lines(output, [row])
    output.table(["setting", "value"], [(key, _plain(value)) for key, value in settings(table).items()])
    output.table(["partition", "from", "to", "state"], [(part["name"], part["from"], part["to"], part["state"]) for part in partitions])
    _follows(output, row, mirrors.lags(connection))
    _problems(output, row)
    for line in reclaim_waits(connection, table):
        output.note(f"waiting to be dropped: {line}")


def _mirror(row: dict[str, Any], followed: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """How a mirrored table gets on; None for a tiered one."""
    found = next((one for one in followed if one["table_id"] == row["table_id"]), None)
    if found is None:
        return None
    state = "parked" if found["is_parked"] else "copying" if found["is_copying"] else "followed"
    at = lsn_text(found["frontier"]) if found["frontier"] is not None else None
    kept = {name: found[name] for name in ("lag_bytes", "lag_seconds", "retained_bytes")}
    return {"state": state, "frontier": at, **kept}


def _follows(output: Output, row: dict[str, Any], followed: Sequence[dict[str, Any]]) -> None:
    found = _mirror(row, followed)
    if found is not None:
        output.note(
            f"= {row['schema_name']}.{row['table_name']} {found['state']}, F {found['frontier'] or 'none'}, "
            f"{found['lag_bytes']:,} bytes behind, {found['lag_seconds']:.0f} s since F moved; "
            f"its slot keeps {found['retained_bytes']:,} bytes of WAL"
        )


def reclaim_waits(connection: Connection, table: Registered) -> list[str]:
    """Who keeps tiered partitions in the heap: pins, and sessions with an older view of the cut-line."""
    row = connection.execute(migrate.SQL.query("newest_advance"), {"table_id": table.table_id}).fetchone()
    tiered = [part for part in tables.partitions(connection, table.table_id) if part.state is PartitionState.TIERED]
    if row is None or row["xid"] is None or not tiered:
        return []
    pins = tables.count(connection, "count_pins", table.table_id)
    return [*([f"{pins} read pins"] if pins else []), *horizon_holders(connection, int(row["xid"]))]


_COLUMNS = ["table", "mode", "cut-line T", "S", "partitions", "delta", "staged", "pins", "enabled"]


def _lines(output: Output, rows: Sequence[dict[str, Any]]) -> None:
    """With R beside T where something has expired."""
    if not any(row["retention"] for row in rows):
        output.table(_COLUMNS, [_line(row) for row in rows])
        return
    columns = [*_COLUMNS[:3], "R", *_COLUMNS[3:]]
    output.table(columns, [(*_line(row)[:3], row["retention"] or "none", *_line(row)[3:]) for row in rows])


def _line(row: dict[str, Any]) -> tuple[Any, ...]:
    states = ", ".join(f"{count} {state}" for state, count in sorted(row["partition_states"].items()))
    name = f"{quoted(row['schema_name'])}.{quoted(row['table_name'])}"
    snapshot = "none" if row["cutline_s"] is None else row["cutline_s"]
    return (
        name, row["mode"], row["cutline"], snapshot, states, row["delta_backlog"], row["staged_loads"], row["read_pins"],
        "yes" if row["enabled"] else "no",
    )  # fmt: skip


def _problems(output: Output, row: dict[str, Any]) -> None:
    for operation in row["operations"] or ():
        output.note(
            f"> {row['schema_name']}.{row['table_name']} {operation['kind']}: {operation['phase']} since {operation['since']}, "
            f"{operation['rows_done']} rows so far"
        )
    for problem in row["problems"] or ():
        output.note(f"! {row['schema_name']}.{row['table_name']} {problem['job']}: {problem['message']}")
        if problem["hint"]:
            output.note(f"  {problem['hint']}")


def settings(table: Registered) -> dict[str, Any]:
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


def _partitions(connection: Connection, table: Registered) -> list[dict[str, Any]]:
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


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
