"""``modak status``: one line per table, or everything about one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modak.catalog import migrate, tables
from modak.catalog.tables import Registered
from modak.cli.output import Output
from modak.connection import Connection
from modak.core.partition import PartitionState
from modak.core.table import Name, quoted
from modak.registration import policy
from modak.source.sessions import horizon_holders


def show(connection: Connection, output: Output, name: Name | None) -> None:
    rows = connection.execute(migrate.SQL.query("list_status")).fetchall()
    if name is None:
        output.result(rows)
        _lines(output, rows)
        for row in rows:
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
            "settings": settings(table),
            "policy": policy.show(table),
            "partitions": partitions,
            "waits": reclaim_waits(connection, table),
        }
    )
    _lines(output, [row])
    output.table(["setting", "value"], [(key, _plain(value)) for key, value in settings(table).items()])
    output.table(["partition", "from", "to", "state"], [(part["name"], part["from"], part["to"], part["state"]) for part in partitions])
    _problems(output, row)
    for line in reclaim_waits(connection, table):
        output.note(f"waiting to be dropped: {line}")


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
