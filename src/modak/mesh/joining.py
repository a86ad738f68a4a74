"""The part of joining that no SQL function can do: a subscription made without its peer learns that peer's tables outside of a transaction.

``modak.join_mesh`` makes everything else. A peer that was there when it was called leaves nothing to do here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import psycopg
from psycopg import sql

from modak.connection import Connection

log = logging.getLogger("modak.mesh")


def complete(connection: Connection, subscriptions: Iterable[str]) -> list[str]:
    """Those that are complete now. The others' peers do not answer yet, or have no catalog; the next round asks again."""
    return [name for name in subscriptions if _complete(connection, name)]


def _complete(connection: Connection, subscription: str) -> bool:
    name = sql.Identifier(subscription)
    try:
        # Only an enabled subscription can be refreshed; its worker then waits for the slot that the peer makes when it joins.
        connection.execute(sql.SQL("alter subscription {} enable").format(name))
        connection.execute(sql.SQL("alter subscription {} refresh publication with (copy_data = false)").format(name))
    except psycopg.Error as cause:
        log.debug("subscription %s waits for its peer: %s", subscription, cause.diag.message_primary or cause)
        return False
    row = connection.execute("select modak.is_subscribed(%s) as done", [subscription]).fetchone()
    return row is not None and bool(row["done"])
