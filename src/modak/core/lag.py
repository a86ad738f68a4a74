"""How far behind the newest row something happens: a number for integer keys, a calendar interval for the others.

An interval keeps months, days and microseconds apart, as Postgres does, because a month has no fixed length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from modak.core.tier_key import (
    KEY_MAX,
    KEY_MIN,
    MICROSECONDS_PER_DAY,
    TierKeyType,
    civil_to_days,
    days_in_month,
    days_to_civil,
)
from modak.errors import UsageError

_DAYS_PER_MONTH = 30  # what Postgres takes a month for when it compares intervals
_PART_MAX = 2**31 - 1  # months and days of a Postgres interval are int4

# unit: (part of the interval, how much of it, spellings). A lone "m" is missing on purpose: Postgres reads minutes where
# people often mean months, and a lag decides what is deleted.
_UNITS: dict[str, tuple[str, int, str]] = {
    "year": ("months", 12, "y yr yrs year years"),
    "month": ("months", 1, "mon mons month months"),
    "week": ("days", 7, "w week weeks"),
    "day": ("days", 1, "d day days"),
    "hour": ("microseconds", 3_600_000_000, "h hr hrs hour hours"),
    "minute": ("microseconds", 60_000_000, "min mins minute minutes"),
    "second": ("microseconds", 1_000_000, "s sec secs second seconds"),
    "millisecond": ("microseconds", 1_000, "ms msec msecs millisecond milliseconds"),
    "microsecond": ("microseconds", 1, "us usec usecs microsecond microseconds"),
}
_UNIT_OF_SPELLING = {spelling: unit for unit, (_, _, spellings) in _UNITS.items() for spelling in spellings.split()}

_AMOUNT = r"[0-9]{1,19}(?:\.[0-9]{1,19})?"
_TERM = rf"({_AMOUNT})\s*([a-z]+)\s*"
_CLOCK = r"(?:(?P<hour>[0-9]{1,10}):(?P<minute>[0-5][0-9])(?::(?P<second>[0-5][0-9](?:\.[0-9]{1,6})?))?)?"
_WORDS = re.compile(rf"(?P<terms>(?:{_TERM})*){_CLOCK}", re.IGNORECASE)
_ISO_DATE = "".join(rf"(?:(?P<{unit}>{_AMOUNT}){letter})?" for letter, unit in zip("YMWD", _UNITS, strict=False))
_ISO_TIME = "".join(rf"(?:(?P<{unit}>{_AMOUNT}){letter})?" for letter, unit in zip("HMS", list(_UNITS)[4:], strict=False))
_ISO = re.compile(rf"P(?=.){_ISO_DATE}(?:T(?=.){_ISO_TIME})?", re.IGNORECASE)


@dataclass(frozen=True)
class Lag:
    """Either ``number`` or the three parts of an interval; none of them negative."""

    months: int = 0
    days: int = 0
    microseconds: int = 0
    number: int | None = None

    def __post_init__(self) -> None:
        limits = ((self.months, _PART_MAX), (self.days, _PART_MAX), (self.microseconds, KEY_MAX), (self.number or 0, KEY_MAX))
        if any(not 0 <= part <= limit for part, limit in limits):
            raise UsageError("a lag is not negative and fits a Postgres interval", lag=repr(self))
        if self.number is not None and (self.months or self.days or self.microseconds):
            raise UsageError("a lag is a number or an interval, not both", lag=repr(self))

    @classmethod
    def parse(cls, text: str, key_type: TierKeyType) -> Lag:
        """Read what a person or Postgres wrote; the type of the key decides between number and interval."""
        lag = _parse_interval(text) if key_type.is_time else _parse_number(text)
        lag._check_fits(key_type)
        return lag

    @property
    def text(self) -> str:
        """The spelling that Postgres prints, which ``parse`` reads back as an equal lag."""
        if self.number is not None:
            return str(self.number)
        years, months = divmod(self.months, 12)
        counted = ((years, "year"), (months, "mon"), (self.days, "day"))
        words = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in counted if count]
        if self.microseconds or not words:
            words.append(_format_clock(self.microseconds))
        return " ".join(words)

    def before(self, key: int, key_type: TierKeyType) -> int:
        """``key`` minus this lag as Postgres subtracts in UTC: months first, day held inside the month, then days, then time."""
        self._check_fits(key_type)
        if self.number is not None:
            return max(KEY_MIN, key - self.number)
        if key_type is TierKeyType.DATE:
            return max(KEY_MIN, _months_before(key, self.months) - self.days)
        days, microsecond = divmod(key, MICROSECONDS_PER_DAY)
        days = _months_before(days, self.months) - self.days
        return max(KEY_MIN, days * MICROSECONDS_PER_DAY + microsecond - self.microseconds)

    def approximate(self, key_type: TierKeyType) -> int:
        """The length in canonical units, to compare lags with each other and with widths; a month counts 30 days."""
        self._check_fits(key_type)
        if self.number is not None:
            return self.number
        days = self.months * _DAYS_PER_MONTH + self.days
        return days if key_type is TierKeyType.DATE else days * MICROSECONDS_PER_DAY + self.microseconds

    def _check_fits(self, key_type: TierKeyType) -> None:
        if key_type.is_time == (self.number is not None):
            wanted = "an interval such as 30 days" if key_type.is_time else "a number such as 100"
            raise UsageError(f"a lag on this key is {wanted}", lag=self.text, key_type=key_type.value)
        if key_type is TierKeyType.DATE and self.microseconds:
            raise UsageError("a lag on a date key has no part below a day", hint="say 1 day, not 24 hours", lag=self.text)


def _parse_number(text: str) -> Lag:
    if re.fullmatch(r"[0-9]{1,19}", text.strip()) is None or int(text) > KEY_MAX:
        raise UsageError("a lag on an integer key is a whole number, not negative", hint="say 100, digits only", lag=text)
    return Lag(number=int(text))


def _parse_interval(text: str) -> Lag:
    stripped = text.strip()
    if re.fullmatch(r"[0-9]+", stripped):
        raise UsageError("a lag on a time key needs a unit", hint=f"say {stripped} days", lag=text)
    iso = _ISO.fullmatch(stripped)
    if iso is not None:
        return _sum_terms(_named_terms(iso), text)
    words = _WORDS.fullmatch(stripped)
    if words is None or not stripped:
        raise _not_an_interval(text)
    return _sum_terms(_word_terms(words, text), text)


def _named_terms(match: re.Match[str]) -> Iterator[tuple[Fraction, str]]:
    return ((Fraction(amount), name) for name, amount in match.groupdict().items() if amount is not None and name in _UNITS)


def _word_terms(match: re.Match[str], text: str) -> Iterator[tuple[Fraction, str]]:
    for amount, spelling in re.findall(_TERM, match["terms"], re.IGNORECASE):
        unit = _UNIT_OF_SPELLING.get(spelling.lower())
        if unit is None:
            raise _not_an_interval(text)
        yield Fraction(amount), unit
    yield from _named_terms(match)


def _sum_terms(terms: Iterable[tuple[Fraction, str]], text: str) -> Lag:
    parts = {"months": Fraction(0), "days": Fraction(0), "microseconds": Fraction(0)}
    seen: set[str] = set()
    for amount, unit in terms:
        if unit in seen:
            raise UsageError("a lag names each unit once", lag=text, unit=unit)
        seen.add(unit)
        part, size, _ = _UNITS[unit]
        parts[part] += amount * size
    # Part of a day is a time; part of a month is nothing that a calendar knows.
    part_of_day = parts["days"] % 1
    parts["days"] -= part_of_day
    parts["microseconds"] += part_of_day * MICROSECONDS_PER_DAY
    if any(part.denominator != 1 for part in parts.values()):
        raise UsageError("a lag has whole months and whole microseconds", hint="say 45 days, not 1.5 months", lag=text)
    return Lag(int(parts["months"]), int(parts["days"]), int(parts["microseconds"]))


def _not_an_interval(text: str) -> UsageError:
    hint = "say 30 days, 6 hours, 1 year 2 mons, 1 day 02:03:04 or P1Y2M; 'm' alone could be minutes or months: say min or mon"
    return UsageError("not an interval that is positive or zero", hint=hint, lag=text)


def _format_clock(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    shown_fraction = f".{fraction:06}".rstrip("0") if fraction else ""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{shown_fraction}"


def _months_before(days: int, months: int) -> int:
    year, month, day = days_to_civil(days)
    year, month_from_zero = divmod(year * 12 + month - 1 - months, 12)
    month = month_from_zero + 1
    return civil_to_days(year, month, min(day, days_in_month(year, month)))
