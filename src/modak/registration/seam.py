"""A mirrored table gets its second tier: view, spill and corrections, so that it can shed partitions from now on."""

from __future__ import annotations

import psycopg
from psycopg import sql

from modak.catalog import tables
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.core.registration import Options
from modak.errors import LockNotAvailable
from modak.registration import register
from modak.source.spill import identifier


def add(connection: Connection, table: Registered, heap_retention: str, *, surface: str = "view", dependents: str = "refuse") -> Registered:
    """One short transaction with the table's lock. By default the name becomes the view's, so that it goes on meaning all rows."""
    options = Options(
        tier_key=table.tier_key_col,
        primary_key=table.primary_key_cols,
        mode="mirrored",
        surface=surface,
        heap_retention=heap_retention,
        text_columns=table.text_cols,
        dependents=dependents,
    )
    register.refuse_if_wrong(register.look(connection, table.heap, options))
    try:
        with connection.transaction():
            connection.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(register.LOCK_TIMEOUT_MS)))
            connection.execute(sql.SQL("lock table {} in access exclusive mode").format(identifier(table.heap)))
            plan = register.look(connection, table.heap, options)
            register.refuse_if_wrong(plan)
            made = register.change_relations(connection, plan, table.storage_profile)
            register.record_partitions(connection, plan)
            return tables.save_surface(connection, table, made, tier_key_hi=plan.lowest)
    except psycopg.errors.LockNotAvailable as cause:
        raise LockNotAvailable(f"{table.name} is in use; nothing was changed", hint="try again when long transactions on it end") from cause
