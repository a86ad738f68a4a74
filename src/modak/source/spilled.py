"""Late rows that leave the spill though nobody deleted them: the lake has them by now, or a partition, or they have expired.

No trigger of the user's may hear of that as a deletion, and no foreign key may act on it while the row is still to be seen. Where this
role cannot see to that, the row stays as a copy, as the rows of a partition do that is tiered and not dropped: the spill's own triggers
keep the delta in step with whatever is written to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from modak.connection import Connection
from modak.core.table import Name
from modak.source.relation import SQL
from modak.source.spill import identifier

# pg_trigger.tgenabled of what fires in a session like any other, and in one that applies what happened elsewhere.
_FIRES = {False: "OA", True: "RA"}


@dataclass(frozen=True)
class Listeners:
    """Who hears of a row that leaves a spill. ``triggers`` fire although this role silences what it may."""

    foreign_keys: tuple[str, ...]
    triggers: tuple[str, ...]
    silenced: bool


def _may_silence(connection: Connection) -> bool:
    row = connection.execute("select has_parameter_privilege(current_user, 'session_replication_role', 'set') as may").fetchone()
    return bool(row and row["may"])


def listeners(connection: Connection, spill: Name) -> Listeners:
    """As they are until the end of the transaction."""
    connection.execute(sql.SQL("lock table only {} in row exclusive mode").format(identifier(spill)))
    silenced = _may_silence(connection)
    keys = {"schema": spill.schema, "name": spill.name}
    references = [row["described"] for row in connection.execute(SQL.query("list_inbound_keys"), keys).fetchall()]
    triggers = connection.execute(SQL.query("list_delete_triggers"), keys).fetchall()
    heard = [f"trigger {row['name']}" for row in triggers if row["fires"] in _FIRES[silenced]]
    return Listeners(tuple(references), tuple(heard), silenced)


def leaving(connection: Connection, spills: Sequence[Name]) -> tuple[list[Name], list[Name]]:
    """Spills whose rows may go unheard while the lake keeps showing them, and those whose rows stay."""
    go, stay = list[Name](), list[Name]()
    for spill in spills:
        found = listeners(connection, spill)
        (stay if found.foreign_keys or found.triggers else go).append(spill)
    return go, stay


@contextlib.contextmanager
def unheard(connection: Connection) -> Iterator[None]:
    """Neither triggers nor foreign keys fire, where this role may see to that."""
    if not _may_silence(connection):
        yield
        return
    connection.execute("set local session_replication_role = replica")
    yield
    connection.execute("set local session_replication_role = origin")
