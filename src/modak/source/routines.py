"""Functions that are made for one table: nobody but who they are for may use them, and who made them may go.

They run with more rights than their callers have. A trigger function that anybody may put on a table of his own would write there what it
writes on ours.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from modak.connection import Connection
from modak.core.table import Name
from modak.source.expressions import raw
from modak.source.relation import SQL


def entrust(connection: Connection, names: Iterable[str]) -> None:
    """What writes the catalog is the worker's role's: it may do just that, it stays when whoever registered goes, and every worker can
    replace it. The table's owner cannot have it, since he may not write corrections of other tables; docs/guides/security.md."""
    if not _may_entrust(connection):
        return
    for row in connection.execute(SQL.query("list_routines"), {"names": list(names)}).fetchall():
        if row["is_to_give"]:
            connection.execute(raw(f"alter function {row['routine']} owner to modak_worker"))


def entrust_relation(connection: Connection, kind: str, name: Name) -> None:
    """The same for what stands behind a view, which every worker has to grow."""
    if _may_entrust(connection):
        relation = sql.Identifier(name.schema, name.name)
        connection.execute(sql.SQL("alter {} {} owner to modak_worker").format(sql.SQL(kind), relation))


def _may_entrust(connection: Connection) -> bool:
    row = connection.execute(SQL.query("may_entrust")).fetchone()
    return bool(row and row["may"])


def close(connection: Connection, names: Iterable[str]) -> None:
    """Take away what Postgres gives to everybody; triggers that stand already need no such right."""
    rows = connection.execute(SQL.query("list_routines"), {"names": list(names)}).fetchall()
    for row in rows:
        connection.execute(raw(f"revoke execute on function {row['routine']} from public"))
        if row["has_worker"]:
            connection.execute(raw(f"grant execute on function {row['routine']} to modak_worker"))
