"""Whole numbers that are small in every file: DuckDB groups by a type of one byte without hashing. Pure.

It would find that out itself from Parquet's statistics, but does not look at them where it is told the schema, as we tell it.
"""

from __future__ import annotations

from modak.scan.snapshot import Snapshot

# What the engine casts to says so if a value does not fit: bounds that lie end in an error, not in a wrong group.
_BYTES = {"UTINYINT": (0, 255), "TINYINT": (-128, 127)}


def narrow_type(snapshot: Snapshot, column: str) -> str | None:
    """A type of one byte that has all values of this column, if its files say so."""
    field = snapshot.field(column)
    if field.type not in ("int", "long"):
        return None
    ranges = [values for values in snapshot.ranges(field) if values.rows and not values.only_nulls]
    if not ranges or any(values.low is None or values.high is None for values in ranges):
        return None
    low, high = min(values.low for values in ranges), max(values.high for values in ranges)
    return next((name for name, (least, most) in _BYTES.items() if least <= low and high <= most), None)
