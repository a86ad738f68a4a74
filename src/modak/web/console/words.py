"""Figures and moments in people's words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from modak.core.tier_key import KEY_MAX, KEY_MIN, MICROSECONDS_PER_DAY, TierKeyType, days_to_civil

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SPANS = ((365.25 * 86_400, "year"), (30.44 * 86_400, "month"), (86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


def size(count: float | None) -> str:
    """Bytes, in units of 1024."""
    if count is None:
        return "–"
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:,.0f} {unit}" if unit == "bytes" or amount >= 100 else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"


def number(count: float | None) -> str:
    if count is None:
        return "–"
    return f"{count:,.0f}" if abs(count) >= 100 or float(count).is_integer() else f"{count:,.1f}"


def short(count: float) -> str:
    """For an axis: 1.2k, 3M."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= factor:
            return f"{count / factor:.3g}{letter}"
    return f"{count:.3g}"


Scale = tuple[float, Callable[[float], str]]


def scale(top: float, kind: str) -> Scale:
    """What to divide an axis's values by, and how to write them then: ticks are round in people's units only if they are made in those."""
    steps = _AXES[kind]
    divisor, unit = next(((length, unit) for length, unit in steps if top >= 2 * length), steps[-1])
    return divisor, lambda value: f"{value:,.4g}{unit}" if value else "0"


_AXES: dict[str, tuple[tuple[float, str], ...]] = {
    "span": ((86_400.0, " d"), (3600.0, " h"), (60.0, " min"), (1.0, " s")),
    "bytes": ((1024.0**4, " TiB"), (1024.0**3, " GiB"), (1024.0**2, " MiB"), (1024.0, " KiB"), (1.0, " B")),
    "count": ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")),
}


def span(seconds: float | None) -> str:
    """A length of time, in its two largest units at most."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return "less than a second" if seconds < 0.05 else f"{seconds:.1f} s"
    for length, unit in _SPANS:
        if seconds >= length:
            count = round(seconds / length, 1)
            shown = f"{count:.0f}" if count >= 10 or count.is_integer() else f"{count:.1f}"
            return f"{shown} {unit}{'' if shown == '1' else 's'}"
    return "0 seconds"


def moment(at: datetime | None) -> str:
    if at is None:
        return "–"
    utc = at.astimezone(UTC)
    return f"{utc.day} {_MONTHS[utc.month - 1]} {utc.year}, {utc:%H:%M:%S} UTC"


def ago(at: datetime | float | None, now: datetime) -> str:
    if at is None:
        return "never"
    then = datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else at
    seconds = (now - then).total_seconds()
    if seconds < 3:
        return "just now"
    return f"{round(seconds)} seconds ago" if seconds < 60 else f"{span(seconds)} ago"


def key(value: int | None, key_type: TierKeyType) -> str:
    """A tier key as a date a person reads, or the number itself."""
    if value is None:
        return "none"
    if value <= max(KEY_MIN, key_type.minimum):
        return "the beginning"
    if value >= min(KEY_MAX, key_type.maximum):
        return "the end"
    if not key_type.is_time:
        return f"{value:,}"
    days, micros = (value, 0) if key_type is TierKeyType.DATE else divmod(value, MICROSECONDS_PER_DAY)
    year, month, day = days_to_civil(days)
    text = f"{day} {_MONTHS[month - 1]} {year if year > 0 else f'{1 - year} BC'}"
    if micros:
        second = micros // 1_000_000
        text += f", {second // 3600:02}:{second // 60 % 60:02}" + (f":{second % 60:02}" if second % 60 else "")
    return text


def lag(value: float | None, key_type: TierKeyType) -> str:
    if value is None:
        return "–"
    return span(value) if key_type.is_time else f"{value:,.0f} keys"


def sentence(text: str) -> str:
    """Our errors begin small, as they stand after a colon elsewhere; on a page they stand alone."""
    return text[:1].upper() + text[1:]


def count(amount: int, name: str) -> str:
    return f"{amount:,} {name}{'' if amount == 1 else 's'}"


def shown(value: Any) -> str:
    """Settings: lists by commas, nothing as a dash."""
    if value is None or value in ("", [], ()):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
