"""What the application does with a table, as far as pg_stat_statements remembers: the statements a view cannot serve."""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg

from modak.connection import Connection
from modak.core.table import Name
from modak.source.relation import SQL

_KINDS = (
    ("ON CONFLICT", re.compile(r"on\s+conflict", re.I)),
    ("MERGE", re.compile(r"\bmerge\s+into\b", re.I)),
    ("row locks", re.compile(r"\bfor\s+(no\s+key\s+)?update\b|\bfor\s+(key\s+)?share\b", re.I)),
)


@dataclass(frozen=True)
class HeapStatement:
    """A statement that needs the heap itself."""

    kind: str
    text: str
    calls: int


def that_need_the_heap(connection: Connection, name: Name) -> list[HeapStatement] | None:
    """Statements on the table with ON CONFLICT, MERGE or row locks; None where nobody keeps statistics."""
    row = connection.execute(SQL.query("find_extension"), {"name": "pg_stat_statements"}).fetchone()
    if row is None:
        return None
    # Postgres's own word boundaries; the name is escaped, because it may hold anything.
    mentions = r"(^|[^[:alnum:]_])" + re.escape(name.name) + r"([^[:alnum:]_]|$)"
    try:
        with connection.transaction():
            connection.execute("select set_config('search_path', %s, true)", [f'pg_catalog, "{row["schema_name"]}"'])
            rows = connection.execute(SQL.query("find_locking_statements"), {"mentions": mentions}).fetchall()
    except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.InsufficientPrivilege):
        return None
    return [HeapStatement(_kind(found["query"]), " ".join(found["query"].split())[:200], found["calls"]) for found in rows]


def _kind(text: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.search(text)), "other")
