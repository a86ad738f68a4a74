"""Labels of enums: ALTER TYPE … RENAME VALUE gives every row another one without a word in the stream, and the lake has them as text.

What each value was called is remembered with the table's columns, and looked at once a pass. A value that was added is nobody's news.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modak.catalog import mirrors
from modak.catalog.mirrors import Mirror
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.source.relation import SQL

LABELS = "labels"
Labels = dict[str, str]


def read(connection: Connection, table_id: int) -> Labels:
    """By the OID of each value, of every enum that the table's columns are made of: as domains and arrays too."""
    rows = connection.execute(SQL.query("list_enum_labels"), {"oid": table_id}).fetchall()
    return {str(row["oid"]): row["label"] for row in rows}


def renamed(known: Sequence[Mapping[str, Any]], now: Mapping[str, str]) -> tuple[str, str] | None:
    """A label that was another one when the table was looked at last, with what it is now. ``known`` are the mirror's shapes."""
    before = _known(known)
    return next(((label, now[oid]) for oid, label in before.items() if now.get(oid, label) != label), None)


def remember(connection: Connection, table: Registered, state: Mirror, now: Labels) -> Mirror:
    """Values that came since, with the columns that the stream told of last."""
    if not state.shapes or _known(state.shapes) == now:
        return state
    shapes = [*state.shapes[:-1], {**state.shapes[-1], LABELS: now}]
    mirrors.save_shapes(connection, table.table_id, shapes)
    return mirrors.get(connection, table.table_id)


def _known(shapes: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    return next((shape[LABELS] for shape in reversed(shapes) if LABELS in shape), {})
