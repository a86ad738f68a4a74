"""What a scan will cost and return, for Postgres' planner. Pure.

Guesses are made per file, so that a range that cuts a few files of many is counted well; conditions on different columns are taken as
independent, as Postgres takes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from modak.scan.bounds import Range, Value, parse
from modak.scan.predicate import Predicate
from modak.scan.prune import KeyRange, surviving
from modak.scan.snapshot import Field, Snapshot

# Postgres' own guesses where nothing is known.
_DISTINCT_DEFAULT = 200
_RANGE_DEFAULT = 1 / 3
_NULLS_DEFAULT = 0.005
_TEXT_WIDTH = 32
_TRIED = 8
_WIDTHS: Mapping[str, int] = {"boolean": 1, "int": 4, "float": 4, "date": 4, "uuid": 16}
_DISCRETE = ("int", "long", "date", "timestamp", "timestamptz", "boolean")


@dataclass(frozen=True)
class Estimate:
    """``rows`` that come out, ``bytes`` and ``files`` that are read, ``width`` of a row in bytes. Rows are 0 only without files.

    ``comparisons``: they come in an order, so that all has been read and compared so often before the first of them.
    """

    rows: int
    bytes: int
    files: int
    width: int
    comparisons: int = 0


@dataclass
class _Asked:
    """All conditions on one column, brought together: x > 3 and x < 5 is one range."""

    low: Value = None
    high: Value = None
    equals: int | None = None
    wants_null: bool = False
    vague: int = 0


def estimate(
    snapshot: Snapshot,
    predicates: Sequence[Predicate],
    *,
    keys: KeyRange | None = None,
    primary_key: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> Estimate:
    """``columns`` are those a row is made of (None: all); ``primary_key`` is unique together."""
    places = surviving(snapshot, predicates, keys)
    width = sum(_width(field.type) for field in snapshot.fields if columns is None or field.name in columns)
    if not places:
        return Estimate(0, 0, 0, width)
    asked = _asked(snapshot, predicates, keys)
    ranges = [(field, conditions, snapshot.ranges(field)) for field, conditions in asked]
    rows = 0.0
    for place in places:
        share = 1.0
        for field, conditions, values in ranges:
            share *= _share(field, conditions, values[place])
        rows += snapshot.files[place].live_rows * share
    rows = min(rows, _unique_rows(predicates, primary_key) or rows)
    return Estimate(max(1, round(rows)), sum(snapshot.files[place].bytes for place in places), len(places), width)


def share_of_one(snapshot: Snapshot, column: str) -> tuple[float, float]:
    """The parts of the rows and of the files that some one value of a column finds, whichever it will be: those of a few values it has."""
    field = next((candidate for candidate in snapshot.fields if candidate.name == column), None)
    ranges = [values for values in snapshot.ranges(field) if values.rows] if field is not None else []
    known = [values.low for values in ranges if values.low is not None]
    if field is None or not known:
        return 1 / _DISTINCT_DEFAULT, 1.0
    rows = files = 0.0
    tried = known[:: math.ceil(len(known) / _TRIED)]
    for value in tried:
        found = [values for values in ranges if _may_be_in(values, value)]
        rows += sum(values.rows / _distinct(field.type, values) for values in found) / sum(values.rows for values in ranges)
        files += len(found) / len(ranges)
    return rows / len(tried), files / len(tried)


def _may_be_in(values: Range, value: Value) -> bool:
    return (values.low is None or bool(values.low <= value)) and (values.high is None or bool(value <= values.high))


def _unique_rows(predicates: Sequence[Predicate], primary_key: Sequence[str]) -> int | None:
    """How many rows a unique key lets through; None when some part of it is not given."""
    counts = {p.column: max(1, len(set(p.values))) for p in predicates if p.operator in ("=", "in")}
    if not primary_key or any(column not in counts for column in primary_key):
        return None
    product = 1
    for column in primary_key:
        product *= counts[column]
    return product


def _width(kind: str) -> int:
    if kind in ("string", "binary"):
        return _TEXT_WIDTH
    return _WIDTHS.get(kind, 8)


def _asked(snapshot: Snapshot, predicates: Sequence[Predicate], keys: KeyRange | None) -> list[tuple[Field, _Asked]]:
    fields = {field.name: field for field in snapshot.fields}
    found: dict[str, _Asked] = {}
    for predicate in predicates:
        if predicate.column in fields:
            _add(found.setdefault(predicate.column, _Asked()), predicate, fields[predicate.column].type)
    if keys is not None and keys.column in fields:
        conditions = found.setdefault(keys.column, _Asked())
        conditions.low = _higher(conditions.low, keys.low)
        conditions.high = _lower(conditions.high, keys.high)
    return [(fields[name], conditions) for name, conditions in found.items()]


def _add(conditions: _Asked, predicate: Predicate, kind: str) -> None:
    if predicate.operator == "is null":
        conditions.wants_null = True
    elif predicate.operator in ("=", "in"):
        count = max(1, len(set(predicate.values)))
        conditions.equals = count if conditions.equals is None else min(conditions.equals, count)
    elif predicate.operator != "is not null":
        value = _number(parse(kind, predicate.values[0])) if predicate.values else None
        if value is None:
            conditions.vague += 1
        elif predicate.operator in (">", ">="):
            conditions.low = _higher(conditions.low, value)
        else:
            conditions.high = _lower(conditions.high, value)


def _higher(one: Value, other: Value) -> Value:
    return max((value for value in (one, other) if value is not None), default=None)


def _lower(one: Value, other: Value) -> Value:
    return min((value for value in (one, other) if value is not None), default=None)


def _number(value: Value) -> Value:
    """Numbers measure distances; texts only compare, and NaN not even that."""
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    return value if isinstance(value, int | float) else None


def _share(field: Field, conditions: _Asked, values: Range) -> float:
    """The part of a file's rows that meets the conditions on one column."""
    nulls = _NULLS_DEFAULT if values.nulls is None else values.nulls / max(values.rows, 1)
    if field.required:
        nulls = 0.0
    if conditions.wants_null:
        return max(nulls, 1 / max(values.rows, 1))
    present = 1 - nulls
    if conditions.equals is not None:
        return present * min(1.0, conditions.equals / _distinct(field.type, values))
    return present * _overlap(field.type, conditions, values) * _RANGE_DEFAULT**conditions.vague


def _distinct(kind: str, values: Range) -> float:
    """How many different values a file holds: bounds say how many there can be, and a column is rarely unique."""
    rows = max(values.rows, 1)
    if values.low is not None and values.low == values.high:
        return 1
    guess = min(rows, max(_DISTINCT_DEFAULT, rows // 10))
    if kind in _DISCRETE and values.low is not None and values.high is not None:
        return min(guess, int(values.high) - int(values.low) + 1)
    return guess


def _overlap(kind: str, conditions: _Asked, values: Range) -> float:
    """Where the asked range lies in the file's own, as if values were spread evenly."""
    low, high = _number(values.low), _number(values.high)
    if conditions.low is None and conditions.high is None:
        return 1.0
    if low is None or high is None or math.inf in (abs(low), abs(high)):
        return _RANGE_DEFAULT
    # One step more, so that a file of a single value is no empty range.
    step = 1 if kind in _DISCRETE else (high - low) / max(values.rows, 1) or 1
    width = high + step - low
    if not width:
        return 1.0  # so large a number that a step is lost in it
    start = _higher(low, conditions.low)
    end = _lower(high + step, conditions.high if conditions.high is None else conditions.high + step)
    return float(min(1.0, max(0.0, (end - start) / width)))
