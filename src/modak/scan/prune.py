"""Which files of a snapshot may hold a row that meets the conditions. Pure; a file is dropped only when its statistics exclude it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from modak.scan.bounds import Range, Value, parse
from modak.scan.predicate import Predicate
from modak.scan.snapshot import DataFile, Field, Snapshot

Test = Callable[[Range], bool]


@dataclass(frozen=True)
class KeyRange:
    """The tier keys asked for, as canonical integers: from ``low`` up to, not including, ``high``; None is open."""

    column: str
    low: int | None = None
    high: int | None = None


def prune(snapshot: Snapshot, predicates: Sequence[Predicate], keys: KeyRange | None = None) -> list[DataFile]:
    """The files in which every condition may hold for some row. Ranges of strings are meant in binary order (collation C)."""
    return [snapshot.files[place] for place in surviving(snapshot, predicates, keys)]


def surviving(snapshot: Snapshot, predicates: Sequence[Predicate], keys: KeyRange | None = None) -> list[int]:
    """Like ``prune``, as places in ``snapshot.files``."""
    places: Iterable[int] = (place for place, file in enumerate(snapshot.files) if file.rows > 0)
    for column, test in _tests(snapshot, predicates, keys):
        ranges = snapshot.ranges(column)
        places = [place for place in places if test(ranges[place])]
    return list(places)


def _tests(snapshot: Snapshot, predicates: Sequence[Predicate], keys: KeyRange | None) -> list[tuple[Field, Test]]:
    fields = {field.name: field for field in snapshot.fields}
    found: list[tuple[Field, Test]] = []
    for predicate in predicates:
        # A column that the lake does not have yet excludes nothing.
        column = fields.get(predicate.column)
        test = _test(predicate, column) if column is not None else None
        if column is not None and test is not None:
            found.append((column, test))
    if keys is not None and keys.column in fields:
        found.append((fields[keys.column], lambda values: _overlaps(values, keys)))
    return found


def _overlaps(values: Range, keys: KeyRange) -> bool:
    too_low = keys.low is not None and values.high is not None and values.high < keys.low
    too_high = keys.high is not None and values.low is not None and values.low >= keys.high
    return not (too_low or too_high)


def _test(predicate: Predicate, column: Field) -> Test | None:
    """None where the condition cannot be judged by statistics."""
    if predicate.operator == "is null":
        return lambda values: values.nulls is None or values.nulls > 0
    if predicate.operator == "is not null":
        return lambda values: not values.only_nulls
    given = [parse(column.type, text) for text in predicate.values]
    if not given or any(value is None or _is_nan(value) for value in given):
        return None
    # Floats were rounded to four bytes, and the bounds of texts may be cut short.
    loose = column.type in ("float", "string", "binary")
    operator = predicate.operator
    if len(given) == 1:
        only = given[0]
        return lambda values: not values.only_nulls and _may_hold(values, operator, only, loose=loose)
    return lambda values: not values.only_nulls and any(_may_hold(values, operator, value, loose=loose) for value in given)


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _may_hold(values: Range, operator: str, value: Value, *, loose: bool) -> bool:
    """``loose``: the value may have been rounded onto a bound, so a strict comparison is not taken at its word."""
    if operator in ("=", "in"):
        return _starts_by(values, value) and _reaches(values, value)
    if operator in ("<", "<="):
        return _starts_by(values, value) and (operator == "<=" or loose or values.low is None or bool(values.low < value))
    if _has_nans(values):
        return True
    return _reaches(values, value) and (operator == ">=" or loose or values.high is None or bool(values.high > value))


def _has_nans(values: Range) -> bool:
    """Postgres and DuckDB sort NaN above all numbers; bounds leave it out."""
    return values.nans is None or values.nans > 0


def _starts_by(values: Range, value: Value) -> bool:
    """Some value may be at or below this one. A lower bound that was cut short is only lower."""
    return values.low is None or bool(values.low <= value)


def _reaches(values: Range, value: Value) -> bool:
    """Some value may be at or above this one.

    An upper bound of text is often cut short. The format wants it raised then, but a writer that forgot to would hide rows, and what
    begins with the bound costs little to keep.
    """
    if values.high is None or bool(values.high >= value):
        return True
    return isinstance(value, str | bytes) and value.startswith(values.high)
