"""Labels of loads: what is staged and waits for adoption."""

from __future__ import annotations

from dataclasses import dataclass

from modak.catalog.migrate import SQL
from modak.connection import Connection


@dataclass(frozen=True)
class Staged:
    """A label whose files wait. ``version`` is its age among corrections and other labels."""

    label: str
    version: int
    rows: int
    files: tuple[str, ...]


def staged(connection: Connection, table_id: int, limit: int) -> list[Staged]:
    """The oldest labels first."""
    rows = connection.execute(SQL.query("list_staged"), {"table_id": table_id, "limit": limit}).fetchall()
    return [Staged(row["label"], row["version"], row["spooled_rows"], tuple(row["staged_files"])) for row in rows]


def oldest_version(connection: Connection, table_id: int) -> int | None:
    """Corrections from here on may be newer than a staged row with the same key."""
    row = connection.execute(SQL.query("oldest_staged_version"), {"table_id": table_id}).fetchone()
    return row["version"] if row else None
