"""What a remote query costs, in Postgres's own units, as the planner reads it from EXPLAIN. Pure."""

from __future__ import annotations

from dataclasses import replace

from modak.scan.estimate import Estimate

PAGE_BYTES = 8192
# A remote query has a price before its first row, a file a seek, a page and a row what they cost there.
_STARTUP_COST, _FILE_COST, _PAGE_COST, _ROW_COST = 25.0, 2.0, 0.05, 0.01
# Below Postgres's own for a comparison: who reads the rows in columns sorts them sooner, and fewer of them travel.
_COMPARISON_COST = 0.001
_TOO_MANY_COMPARISONS = 10**15


def dissuading(found: Estimate) -> Estimate:
    """As many rows, at a price that nobody pays."""
    return replace(found, comparisons=_TOO_MANY_COMPARISONS)


def plan_line(found: Estimate) -> str:
    startup = _STARTUP_COST + found.files * _FILE_COST
    reading = found.bytes / PAGE_BYTES * _PAGE_COST + found.comparisons * _COMPARISON_COST
    total = startup + reading + found.rows * _ROW_COST
    if found.comparisons:
        startup += reading
    return f"Cold Scan  (cost={startup:.2f}..{total:.2f} rows={found.rows} width={found.width})"
