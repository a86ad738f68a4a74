"""Literals: the text forms that every Postgres reads in one way, and the same value for DuckDB.

Postgres's input functions accept far more (month names, ``today``, hexadecimal floats). Whatever is not a plain form here is left to
Postgres, so that its own answer or its own error comes back.
"""

from __future__ import annotations

import math
import re
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from modak.core.tier_key import civil_to_days, days_in_month, days_to_civil
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.parse import string
from modak.gateway.dialect.types import INTEGER_RANGE, MAX_DIGITS, SqlType, duckdb_name, numeric, numeric_digits

UTC_NAMES = frozenset(
    {"utc", "gmt", "etc/utc", "etc/gmt", "z", "zulu", "etc/zulu", "uct", "etc/uct", "universal", "etc/universal", "utc0", "gmt0"}
)
# The years that Postgres and DuckDB both know, with room for a time zone's offset.
_YEAR_MIN, _YEAR_MAX = -4712, 294246
_DATE_YEAR_MAX = 5874896


@dataclass(frozen=True)
class LiteralValue:
    """A value in Postgres's own output form (ISO, UTC) and as DuckDB SQL."""

    text: str
    sql: str
    type: SqlType


def is_utc(timezone: str | None) -> bool:
    return timezone is not None and timezone.lower() in UTC_NAMES


def literal(text: str, wanted: SqlType, timezone: str | None = None) -> LiteralValue:
    """A string literal read as a type. ``timezone`` is the session's: without it a timestamptz must say its offset."""
    if "\0" in text:
        raise Untranslatable("a NUL character")
    if wanted.name == "timestamptz":
        return _timestamptz(text, wanted, timezone)
    reader = _READERS.get(wanted.name)
    if reader is None:
        raise Untranslatable(f"a literal of type {wanted.name}")
    return reader(text, wanted)


def _strict(match: re.Match[str] | None, text: str, wanted: SqlType) -> re.Match[str]:
    if match is None:
        raise Untranslatable(f"literal {text[:40]!r} as {wanted.name}")
    return match


def _cast(text: str, wanted: SqlType) -> str:
    return f"CAST({string(text)} AS {duckdb_name(wanted)})"


def _bool(text: str, wanted: SqlType) -> LiteralValue:
    value = {"t": True, "true": True, "f": False, "false": False}.get(text.lower())
    if value is None:
        raise Untranslatable(f"literal {text[:40]!r} as bool")
    return LiteralValue("t" if value else "f", "TRUE" if value else "FALSE", wanted)


def _integer(text: str, wanted: SqlType) -> LiteralValue:
    value = int(_strict(re.fullmatch(r"[+-]?[0-9]{1,20}", text), text, wanted)[0])
    low, high = INTEGER_RANGE[wanted.name]
    if not low <= value <= high:
        raise Untranslatable(f"{value} is out of range for {wanted.name}")
    return LiteralValue(str(value), f"CAST({value} AS {duckdb_name(wanted)})", wanted)


_DECIMAL = re.compile(r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?:[eE](?P<exponent>[+-]?[0-9]{1,3}))?")


def _numeric(text: str, wanted: SqlType) -> LiteralValue:
    match = _strict(_DECIMAL.fullmatch(text), text, wanted)
    whole, fraction = match["whole"], match["fraction"] or ""
    if not whole + fraction:
        raise Untranslatable(f"literal {text[:40]!r} as numeric")
    exponent = int(match["exponent"] or 0)
    scale = max(len(fraction) - exponent, 0)
    digits = int(whole + fraction) * 10 ** max(exponent - len(fraction), 0)
    if len(str(digits)) > MAX_DIGITS or scale > MAX_DIGITS:
        raise Untranslatable("a numeric literal of more than 38 digits")
    bounded = numeric_digits(wanted.modifier)
    if bounded and (scale > bounded[1] or len(str(digits)) - scale > bounded[0] - bounded[1]):
        raise Untranslatable("a numeric literal that does not fit its type")
    plain = str(digits).rjust(scale + 1, "0")
    plain = f"{plain[:-scale]}.{plain[-scale:]}" if scale else plain
    if bounded:
        plain += ("" if scale or not bounded[1] else ".") + "0" * (bounded[1] - scale)
    sign = "-" if match["sign"] == "-" and digits else ""
    precision, shown = bounded or (len(str(digits)), scale)
    of = replace(numeric(precision, shown), modifier=wanted.modifier)
    return LiteralValue(sign + plain, f"CAST({string(sign + plain)} AS {duckdb_name(of)})", of)


_FLOAT = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def _float(text: str, wanted: SqlType) -> LiteralValue:
    special = {"nan": "nan", "infinity": "inf", "inf": "inf", "+infinity": "inf", "-infinity": "-inf", "-inf": "-inf"}.get(text.lower())
    if special is None:
        _strict(_FLOAT.fullmatch(text), text, wanted)
    value = float(special or text)
    if wanted.name == "float4":
        value = _single(value)
    if special is None and (math.isinf(value) or (value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]))):
        raise Untranslatable(f"{text[:40]} is out of range for {wanted.name}")
    shown = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(special or "", repr(value))
    return LiteralValue(shown if special else text, _cast(shown, wanted), wanted)


def _single(value: float) -> float:
    """The nearest float4. Rounded twice it may differ from one rounding of the text, so a tie is refused."""
    if math.isnan(value) or math.isinf(value):
        return value
    try:
        single: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    if value != single and bin(struct.unpack("q", struct.pack("d", value))[0] & (2**29 - 1)).count("1") == 1:
        raise Untranslatable("a float4 literal halfway between two values")
    return single


def _text(text: str, wanted: SqlType) -> LiteralValue:
    length = wanted.modifier - 4 if wanted.modifier >= 4 else None
    if length is not None and len(text) > length:
        # An explicit cast cuts, an implicit one complains: the caller cannot tell them apart here.
        raise Untranslatable(f"a literal longer than {wanted.name}({length})")
    stored = text.rstrip(" ") if wanted.name == "bpchar" else text
    return LiteralValue(stored, string(stored), wanted)


def _uuid(text: str, wanted: SqlType) -> LiteralValue:
    _strict(re.fullmatch(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text), text, wanted)
    value = str(uuid.UUID(text))
    return LiteralValue(value, _cast(value, wanted), wanted)


def _bytea(text: str, wanted: SqlType) -> LiteralValue:
    digits = _strict(re.fullmatch(r"\\x((?:[0-9a-fA-F]{2})*)", text), text, wanted)[1].lower()
    return LiteralValue("\\x" + digits, f"from_hex({string(digits)})", wanted)


_DATE = r"(?P<year>[0-9]{4,7})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
_TIME = r"(?:[ T](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,6}))?)?)"
_OFFSET = r"(?P<offset>Z|[+-][0-9]{2}(?::?[0-9]{2}(?::[0-9]{2})?)?)"
_BC = r"(?P<bc> BC)?"
_DATE_FORM = re.compile(_DATE + _BC)
_TIMESTAMP_FORM = re.compile(_DATE + _TIME + "?" + _BC)
_TIMESTAMPTZ_FORM = re.compile(_DATE + f"(?:{_TIME}{_OFFSET}?)?" + _BC)


def _day_number(match: re.Match[str], text: str, year_max: int) -> int:
    """Days since 1970 in the proleptic Gregorian calendar; years before 1 count down from 0."""
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    if match["bc"]:
        year = 1 - year
    if not _YEAR_MIN <= year <= year_max or match["year"] == "0000" or not 1 <= month <= 12:
        raise Untranslatable(f"date {text[:40]!r}")
    if not 1 <= day <= days_in_month(year, month):
        raise Untranslatable(f"date {text[:40]!r}")
    return civil_to_days(year, month, day)


def date_text(days: int) -> tuple[str, bool]:
    """A date's ISO text without era, and whether it lies before Christ."""
    year, month, day = days_to_civil(days)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}", year <= 0


def timestamp_text(micros: int, suffix: str = "") -> str:
    """A timestamp as Postgres prints it, with the zone's suffix before the era."""
    days, rest = divmod(micros, 86_400_000_000)
    seconds, fraction = divmod(rest, 1_000_000)
    date, before = date_text(days)
    shown = f"{date} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if fraction:
        shown += f".{fraction:06d}".rstrip("0")
    return shown + suffix + (" BC" if before else "")


def _date(text: str, wanted: SqlType) -> LiteralValue:
    days = _day_number(_strict(_DATE_FORM.fullmatch(text), text, wanted), text, _DATE_YEAR_MAX)
    shown, before = date_text(days)
    return LiteralValue(shown + (" BC" if before else ""), f"CAST('{shown}{' (BC)' if before else ''}' AS DATE)", wanted)


def _micros(match: re.Match[str], text: str) -> int:
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise Untranslatable(f"time {text[:40]!r}")
    days = _day_number(match, text, _YEAR_MAX)
    return ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + int((match["fraction"] or "").ljust(6, "0"))


def _timestamp(text: str, wanted: SqlType) -> LiteralValue:
    micros = _micros(_strict(_TIMESTAMP_FORM.fullmatch(text), text, wanted), text)
    return LiteralValue(timestamp_text(micros), f"make_timestamp({micros}::BIGINT)", wanted)


def _timestamptz(text: str, wanted: SqlType, timezone: str | None) -> LiteralValue:
    match = _strict(_TIMESTAMPTZ_FORM.fullmatch(text), text, wanted)
    micros = _micros(match, text)
    offset = match["offset"]
    if offset is None and not is_utc(timezone):
        raise Untranslatable("a timestamptz literal without an offset, in a session that is not in UTC")
    if offset not in (None, "Z"):
        micros -= _offset_seconds(offset) * 1_000_000
    return LiteralValue(timestamp_text(micros, "+00"), f"make_timestamptz({micros}::BIGINT)", wanted)


def _offset_seconds(offset: str) -> int:
    digits = offset[1:].replace(":", "").ljust(6, "0")
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    if hours > 15 or minutes > 59 or seconds > 59:
        raise Untranslatable(f"offset {offset}")
    return (hours * 3600 + minutes * 60 + seconds) * (-1 if offset[0] == "-" else 1)


_READERS: dict[str, Callable[[str, SqlType], LiteralValue]] = {
    "bool": _bool,
    **dict.fromkeys(("int2", "int4", "int8", "oid"), _integer),
    "numeric": _numeric,
    "float4": _float,
    "float8": _float,
    **dict.fromkeys(("text", "varchar", "bpchar", "enum"), _text),
    "uuid": _uuid,
    "bytea": _bytea,
    "date": _date,
    "timestamp": _timestamp,
}
