"""What a job waits for, in words for people."""

from __future__ import annotations

from modak.catalog import migrate, tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.source.sessions import horizon_holders


def reclaim_waits(connection: Connection, table: Registered) -> list[str]:
    """Who keeps tiered partitions in the heap: pins, and sessions with an older view of the cut-line."""
    row = connection.execute(migrate.SQL.query("newest_advance"), {"table_id": table.table_id}).fetchone()
    if row is None or row["xid"] is None or not tables.has_tiered(connection, table.table_id):
        return []
    pins = tables.count(connection, "count_pins", table.table_id)
    return [*([f"{pins} read pins"] if pins else []), *horizon_holders(connection, int(row["xid"]))]
