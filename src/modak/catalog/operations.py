"""The journal: every operation that writes to the lake leaves its phases here, so that a restart knows what to finish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.core.operation import OperationKind, Phase, check


@dataclass(frozen=True)
class Operation:
    op_id: str
    table_id: int
    kind: OperationKind
    phase: Phase
    snapshot: int | None
    details: Mapping[str, Any]


def start(connection: Connection, table_id: int, kind: OperationKind, details: Mapping[str, Any]) -> Operation:
    row = connection.execute(
        SQL.query("start_operation"), {"table_id": table_id, "op_kind": kind.value, "details": Jsonb(dict(details))}
    ).fetchone()
    assert row is not None
    return Operation(row["op_id"], table_id, kind, Phase.FLUSHING, None, dict(details))


def move(
    connection: Connection, operation: Operation, phase: Phase, *, snapshot: int | None = None, details: Mapping[str, Any] | None = None
) -> Operation:
    """Record the next phase; ``details`` are added to what is known."""
    if phase is not operation.phase:
        check(operation.phase, phase)
    merged = {**operation.details, **(details or {})}
    kept = snapshot if snapshot is not None else operation.snapshot
    connection.execute(
        SQL.query("move_operation"), {"op_id": operation.op_id, "phase": phase.value, "snapshot": kept, "details": Jsonb(merged)}
    )
    return Operation(operation.op_id, operation.table_id, operation.kind, phase, kept, merged)


def open_operations(connection: Connection, table_id: int) -> list[Operation]:
    rows = connection.execute(SQL.query("list_open_operations"), {"table_id": table_id}).fetchall()
    return [from_row(row) for row in rows]


def find(connection: Connection, op_id: str) -> Operation | None:
    row = connection.execute(SQL.query("find_operation"), {"op_id": op_id}).fetchone()
    return from_row(row) if row else None


def from_row(row: Mapping[str, Any]) -> Operation:
    return Operation(row["op_id"], row["table_id"], OperationKind(row["op_kind"]), Phase(row["phase"]), row["snapshot"], row["details"])


def rows_done(connection: Connection, op_id: str) -> int:
    row = connection.execute(SQL.query("sum_progress"), {"op_id": op_id}).fetchone()
    return int(row["n"]) if row else 0
