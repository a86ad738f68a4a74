"""Small things that are done with the engine for rows of decoupled tables."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import duckdb

from modak.core.decoupled import DecoupledColumn
from modak.gateway.decoupled.values import remote_name
from modak.scan.engine import Cursor
from modak.scan.sqltext import quoted

# The name by which a cursor knows the Arrow table that is being read into the engine.
BATCH = "modak_batch"
_NUMBERS = itertools.count(1)


def made(cursor: Cursor, what: str, columns: str) -> str:
    """A new table that every cursor of the engine sees, by a name that no other one has."""
    name = quoted(f"modak_{what}_{next(_NUMBERS)}")
    cursor.execute(f"CREATE TABLE {name} ({columns})")
    return name


@contextlib.contextmanager
def in_one_go(cursor: Cursor) -> Iterator[None]:
    """What the block does is done when it ends, or never was. It sees no table that others make meanwhile."""
    cursor.begin()
    try:
        yield
        cursor.commit()
    except BaseException:
        with contextlib.suppress(duckdb.Error):  # a commit that failed has ended it already
            cursor.rollback()
        raise


@contextlib.contextmanager
def registered(cursor: Cursor, rows: Any) -> Iterator[str]:
    """An Arrow table by a name that the cursor knows, while the block runs."""
    cursor.register(BATCH, rows)
    try:
        yield BATCH
    finally:
        cursor.unregister(BATCH)


def from_arrow(column: DecoupledColumn, alias: str | None = None) -> str:
    name = f"{alias}.{quoted(remote_name(column))}" if alias else quoted(remote_name(column))
    return f"lower(hex({name}))" if column.lake.duckdb == "UUID" else name


def to_arrow(column: DecoupledColumn) -> str:
    name = quoted(remote_name(column))
    return f"unhex(replace(CAST({name} AS VARCHAR), '-', ''))" if column.lake.duckdb == "UUID" else name
