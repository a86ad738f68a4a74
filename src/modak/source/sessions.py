"""Who holds what: other sessions, prepared transactions and standbys, as far as they keep Modak waiting."""

from __future__ import annotations

from modak.connection import Connection
from modak.core.table import Name
from modak.source.relation import SQL


def lock_holders(connection: Connection, names: list[Name], *, readers: bool = False) -> str:
    """The sessions and prepared transactions with locks on these tables, for an error message; readers only where they are in the way."""
    wanted = {"names": [f"{name.schema}.{name.name}" for name in names], "pid": connection.info.backend_pid, "readers": readers}
    rows = connection.execute(SQL.query("list_lock_holders"), wanted).fetchall()
    return ", ".join(row["who"] for row in rows[:5])


def exclusive_holders(connection: Connection, table_id: int) -> str:
    """Who keeps even readers off a table or one of its partitions, for an error message. Asked without a lock on any of them."""
    rows = connection.execute(SQL.query("list_exclusive_holders"), {"oid": table_id, "pid": connection.info.backend_pid}).fetchall()
    return ", ".join(row["who"] for row in rows[:5])


def horizon_holders(connection: Connection, xid: int) -> list[str]:
    """Everybody whose snapshot may be older than transaction ``xid``: sessions, prepared transactions, slots, standbys."""
    rows = connection.execute(SQL.query("list_horizon_holders"), {"xid": xid, "pid": connection.info.backend_pid}).fetchall()
    return [row["who"] for row in rows]


def sees_other_sessions(connection: Connection) -> bool:
    """Without this right the horizon is invisible, and nothing may be dropped on a guess."""
    row = connection.execute("select pg_has_role(current_user, 'pg_read_all_stats', 'usage') as may").fetchone()
    return bool(row and row["may"])
