"""Dates and times: arithmetic with intervals, truncation, fields and zones, in the proleptic Gregorian calendar both sides use."""

from __future__ import annotations

import re

from sqlglot import exp

from modak.gateway.dialect.coerce import coerced
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.literals import is_utc
from modak.gateway.dialect.parse import literal_text, only
from modak.gateway.dialect.scope import At, Handlers, Scope, Typed
from modak.gateway.dialect.types import DATE, FLOAT8, INT4, INTERVAL, TIMESTAMP, TIMESTAMPTZ, UNKNOWN, SqlType, numeric

# 4714-11-24 BC, where Postgres's calendar begins; DuckDB's goes further back.
_LEAST_MICROS = -210866803200000000
_LEAST_DATE, _GREATEST_DATE = "DATE '4714-11-24 (BC)'", "DATE '5874897-12-31'"
_UNITS = {"year": (12, 0, 0), "month": (1, 0, 0), "week": (0, 7, 0), "day": (0, 1, 0)}
_UNITS |= {"hour": (0, 0, 3_600_000_000), "minute": (0, 0, 60_000_000), "second": (0, 0, 1_000_000)}
_UNIT_NAMES = {"mon": "month", "min": "minute", "sec": "second", "hr": "hour", "y": "year", "d": "day", "h": "hour"}
_TRUNCATIONS = frozenset({"second", "minute", "hour", "day", "week", "month", "quarter", "year"})
_ZONES = frozenset({"utc", "gmt", "etc/utc"})
# Terms follow each other without a gap, so that no blanks are looked at twice, however many there are.
_TERM = re.compile(r"([+-]?[0-9]{1,9})\s*+([a-zA-Z]++)\s*+")
_INTERVAL = re.compile(rf"(?:{_TERM.pattern})+")


def parse_interval(text: str) -> Typed:
    """``1 day``, ``-2 hours 30 minutes``, ``1 year 2 mons``: whole numbers of named units."""
    total = [0, 0, 0]
    stripped = text.strip()
    if not _INTERVAL.fullmatch(stripped):
        raise Untranslatable(f"interval {text[:40]!r}")
    for amount, name in _TERM.findall(stripped):
        unit = name.lower()
        unit = unit[:-1] if unit.endswith("s") and len(unit) > 1 else unit
        unit = _UNIT_NAMES.get(unit, unit)
        if unit not in _UNITS:
            raise Untranslatable(f"interval unit {name}")
        total = [sum_ + int(amount) * step for sum_, step in zip(total, _UNITS[unit], strict=True)]
    return interval(*total)


def interval(months: int, days: int, micros: int) -> Typed:
    sql = f"(to_months({months}) + to_days({days}) + to_microseconds({micros}::BIGINT))"
    return Typed(sql, INTERVAL, f"{months} {days} {micros}")


def _interval(at: At) -> Typed:
    """``interval '1 day'`` and ``interval '1' day``, which agree for whole numbers."""
    node = at.node
    only(node, "this", "unit")
    text, unit = literal_text(node.this), node.args.get("unit")
    if text is None or (unit is not None and not isinstance(unit, exp.Var)):
        raise Untranslatable("an interval that is not constant")
    return parse_interval(f"{text} {unit.name}" if unit is not None else text)


def to_timestamp(value: Typed) -> Typed:
    """The timestamp in UTC of a timestamptz, without the cost of DuckDB's time zones; other values as they are."""
    return Typed(f"make_timestamp(epoch_us({value.sql}))", TIMESTAMP) if value.type.name == "timestamptz" else value


def to_timestamptz(value: Typed) -> Typed:
    return Typed(f"make_timestamptz(epoch_us({value.sql}))", TIMESTAMPTZ)


def operation(left: Typed, symbol: str, right: Typed, scope: Scope) -> Typed | None:
    """``+`` and ``-`` where a date or time takes part; None where none does."""
    names = (left.type.name, right.type.name)
    if not {"date", "timestamp", "timestamptz", "interval"} & set(names):
        return None
    if symbol == "+" and names[0] in ("int2", "int4", "interval"):
        return operation(right, symbol, left, scope) if names[1] in ("date", "timestamp", "timestamptz") else None
    if names[0] == "date" and names[1] == "date" and symbol == "-":
        return Typed(f"CAST({left.sql} - {right.sql} AS INTEGER)", INT4)
    if names[0] == "date" and names[1] in ("int2", "int4") and symbol in "+-":
        return _date_plus(left, symbol, right)
    if names[1] == "interval" and names[0] in ("date", "timestamp", "timestamptz") and symbol in "+-":
        return _plus_interval(left, symbol, right, scope)
    if names[0] == "date" and right.unknown and right.text is not None and symbol == "-":
        return operation(left, symbol, coerced(right, DATE, scope), scope)
    raise Untranslatable(f"{names[0]} {symbol} {names[1]}")


def _date_plus(left: Typed, symbol: str, right: Typed) -> Typed:
    sql = f"({left.sql} {symbol} {right.sql})"
    outside = f"{sql} < {_LEAST_DATE} OR {sql} > {_GREATEST_DATE}"
    return Typed(f"(CASE WHEN {outside} THEN error('22008: date out of range') ELSE {sql} END)", DATE)


def _plus_interval(left: Typed, symbol: str, right: Typed, scope: Scope) -> Typed:
    months, days, _ = (int(part) for part in (right.text or "1 0 0").split())
    zoned = left.type.name == "timestamptz"
    if zoned and (months or days) and not is_utc(scope.timezone):
        raise Untranslatable("days or months on timestamptz outside UTC")
    base = coerced(left, TIMESTAMP, scope) if left.type.name == "date" else to_timestamp(left)
    moved = f"({base.sql} {symbol} {right.sql})"
    checked = _after_beginning(moved)
    return to_timestamptz(checked) if zoned else checked


def _after_beginning(sql: str) -> Typed:
    bound = f"make_timestamp({_LEAST_MICROS}::BIGINT)"
    return Typed(f"(CASE WHEN {sql} < {bound} THEN error('22008: timestamp out of range') ELSE {sql} END)", TIMESTAMP)


def date_trunc(unit: Typed, value: Typed, scope: Scope) -> Typed:
    """date_trunc for the units that both count alike; of a date it is a timestamptz to Postgres."""
    name = (unit.text or "").lower()
    if not unit.unknown or name not in _TRUNCATIONS:
        raise Untranslatable(f"date_trunc to {unit.text}")
    kind = value.type.name
    if kind == "date":
        value, kind = coerced(value, TIMESTAMPTZ, scope), "timestamptz"
    if kind not in ("timestamp", "timestamptz") or (kind == "timestamptz" and not is_utc(scope.timezone)):
        raise Untranslatable(f"date_trunc of {kind} in time zone {scope.timezone}")
    truncated = _after_beginning(f"date_trunc('{name}', {to_timestamp(value).sql})")
    return to_timestamptz(truncated) if kind == "timestamptz" else truncated


_FIELDS = {"month": 2, "day": 2, "quarter": 1, "dow": 1, "isodow": 1, "doy": 3, "week": 2, "hour": 2, "minute": 2}


def field(name: str, value: Typed, scope: Scope, *, as_float: bool) -> Typed:
    """extract (numeric) and date_part (float8)."""
    kind = value.type.name
    if kind not in ("date", "timestamp", "timestamptz"):
        raise Untranslatable(f"{name} of {kind}")
    if kind == "timestamptz" and name != "epoch" and not is_utc(scope.timezone):
        raise Untranslatable(f"{name} of timestamptz in time zone {scope.timezone}")
    if kind == "date" and name in ("hour", "minute", "second"):
        raise Untranslatable(f"{name} of a date")
    if kind == "date" and as_float:
        value, kind = coerced(value, TIMESTAMP, scope), "timestamp"
    if name in ("epoch", "second"):
        return _fraction(name, value, kind, as_float)
    if name == "year":
        # There is no year zero: DuckDB counts 1 BC as 0, Postgres as -1.
        year = f"year({to_timestamp(value).sql})"
        return _field(f"(CASE WHEN {year} <= 0 THEN {year} - 1 ELSE {year} END)", 7, as_float)
    if name not in _FIELDS:
        raise Untranslatable(f"field {name}")
    return _field(f"date_part('{name}', {to_timestamp(value).sql})", _FIELDS[name], as_float)


def _field(sql: str, digits: int, as_float: bool) -> Typed:
    return Typed(f"CAST({sql} AS DOUBLE)", FLOAT8) if as_float else _decimal(sql, numeric(digits, 0))


def _decimal(sql: str, of: SqlType) -> Typed:
    assert of.digits is not None
    return Typed(f"CAST({sql} AS DECIMAL({of.digits[0]},{of.digits[1]}))", of)


def _fraction(name: str, value: Typed, kind: str, as_float: bool) -> Typed:
    if name == "epoch" and kind == "date":
        return _field(f"((CAST({value.sql} - DATE '1970-01-01' AS BIGINT)) * 86400)", 15, as_float)
    if name == "epoch" and as_float:
        return Typed(f"(epoch_us({value.sql}) / 1000000.0::DOUBLE)", FLOAT8)
    if as_float:
        raise Untranslatable("seconds as float8")
    micros = f"epoch_us({value.sql})" if name == "epoch" else f"date_part('microseconds', {to_timestamp(value).sql})"
    digits = 19 if name == "epoch" else 8
    return Typed(f"(CAST({micros} AS DECIMAL({digits},0)) * CAST('0.000001' AS DECIMAL(6,6)))", numeric(digits + 6, 6))


def _extract(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "expression")
    name = node.this.name if isinstance(node.this, exp.Var) else ""
    return field(name.lower(), visit(node.expression), scope, as_float=False)


def _at_time_zone(at: At) -> Typed:
    node, visit = at.node, at.visit
    only(node, "this", "zone")
    zone, value = literal_text(node.args["zone"]), visit(node.this)
    if zone is None or zone.lower() not in _ZONES:
        raise Untranslatable(f"AT TIME ZONE {zone}")
    if value.type.name == "timestamptz":
        return to_timestamp(value)
    if value.type.name == "timestamp":
        return to_timestamptz(value)
    raise Untranslatable(f"AT TIME ZONE of {value.type.name}")


def now(scope: Scope) -> Typed:
    """The transaction's time, as whoever runs the query knows it."""
    if scope.now is None:
        raise Untranslatable("the transaction's time is not known here")
    return coerced(Typed("", UNKNOWN, scope.now), TIMESTAMPTZ, scope)


def _current_timestamp(at: At) -> Typed:
    node, scope = at.node, at.scope
    only(node)
    return now(scope)


def _current_date(at: At) -> Typed:
    node, scope = at.node, at.scope
    only(node)
    if not is_utc(scope.timezone):
        raise Untranslatable(f"current_date in time zone {scope.timezone}")
    return Typed(f"CAST({to_timestamp(now(scope)).sql} AS DATE)", DATE)


HANDLERS: Handlers = {
    exp.Interval: _interval,
    exp.Extract: _extract,
    exp.AtTimeZone: _at_time_zone,
    exp.CurrentTimestamp: _current_timestamp,
    exp.CurrentDate: _current_date,
}
