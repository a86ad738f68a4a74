"""The tier key as one integer, so that the cut-line, bounds and lags are compared the same way for every key type.

An integer key is itself. A timestamp is its microseconds and a date its days since 1970-01-01, both counted in UTC. The
calendar is our own: Python's ``datetime`` ends at the years 1 and 9999, Postgres does not.
"""

from __future__ import annotations

import enum
import re

from modak.errors import Refused, ValueRefused

KEY_MIN = -(2**63)
KEY_MAX = 2**63 - 1
MICROSECONDS_PER_DAY = 86_400_000_000

_DATE = r"(?P<year>[0-9]{4,7})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
# The T stands where to_jsonb wrote the value.
_TIME = r"[ T](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,6}))?"
_OFFSET = r"(?:Z|(?P<sign>[+-])(?P<offset_hour>[0-9]{2})(?::(?P<offset_minute>[0-9]{2}))?(?::(?P<offset_second>[0-9]{2}))?)"
_ERA = r"(?P<era> BC)?"
_LIMITS = {
    "year": (1, 9_999_999),
    "month": (1, 12),
    "day": (1, 31),
    "hour": (0, 23),
    "offset_hour": (0, 15),
    **dict.fromkeys(("minute", "second", "offset_minute", "offset_second"), (0, 59)),
}
_SHORT_NAMES = {
    "int2": "smallint",
    "int4": "integer",
    "int": "integer",
    "int8": "bigint",
    "timestamptz": "timestamp with time zone",
    "timestamp": "timestamp without time zone",
}


def civil_to_days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a proleptic Gregorian date; year 0 is 1 BC."""
    # Counting years from March puts the leap day last, so months have fixed starts.
    year_from_march = year - (month <= 2)
    era, year_of_era = divmod(year_from_march, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def days_to_civil(days: int) -> tuple[int, int, int]:
    """The year (0 is 1 BC), month and day that lie ``days`` after 1970-01-01."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    month = (month_from_march + 2) % 12 + 1
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    return era * 400 + year_of_era + (month <= 2), month, day


def days_in_month(year: int, month: int) -> int:
    next_year, next_month = (year + 1, 1) if month == 12 else (year, month + 1)
    return civil_to_days(next_year, next_month, 1) - civil_to_days(year, month, 1)


class TierKeyType(enum.Enum):
    """The types a tier key may have, by the name that Postgres' ``format_type`` gives them."""

    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    TIMESTAMPTZ = "timestamp with time zone"
    TIMESTAMP = "timestamp without time zone"
    DATE = "date"

    @classmethod
    def from_pg(cls, name: str) -> TierKeyType:
        without_precision = re.sub(r"\([0-6]\)", "", name)
        full_name = _SHORT_NAMES.get(without_precision, without_precision)
        for member in cls:
            if member.value == full_name:
                return member
        supported = ", ".join(member.value for member in cls)
        raise Refused("a tier key cannot have this type", hint=f"supported: {supported}", type=name)

    @property
    def is_time(self) -> bool:
        """Whether lags on this key are calendar intervals; true of dates as well."""
        return self in _PATTERNS

    @property
    def unit(self) -> str:
        """What one step of the canonical integer means."""
        if self is TierKeyType.DATE:
            return "days"
        return "µs" if self.is_time else ""

    @property
    def minimum(self) -> int:
        """The lowest canonical value that a column of this type can hold."""
        return _RANGES[self][0]

    @property
    def maximum(self) -> int:
        """The highest canonical value; for timestamps where int64 ends, 29 years before Postgres does."""
        return _RANGES[self][1]

    def decode(self, text: str) -> int:
        """The canonical integer of a value in Postgres' ISO output."""
        if text in ("infinity", "-infinity"):
            raise ValueRefused(
                "an infinite tier key lies on no side of the cut-line",
                hint="give the row a finite key",
                value=text,
                type=self.value,
            )
        return self._checked(self._parse(text), text)

    def encode(self, key: int) -> str:
        """A literal that Postgres reads back as the same value: what it prints itself under ISO and UTC."""
        self._checked(key, str(key))
        if not self.is_time:
            return str(key)
        days, microsecond = (key, 0) if self is TierKeyType.DATE else divmod(key, MICROSECONDS_PER_DAY)
        date, era = _format_date(days)
        time = "" if self is TierKeyType.DATE else _format_time(microsecond)
        offset = "+00" if self is TierKeyType.TIMESTAMPTZ else ""
        return f"{date}{time}{offset}{era}"

    def decode_bound(self, text: str) -> int:
        """Like ``decode`` for a partition bound, which may be open; a bound past int64 counts as open and so stays hot."""
        if text in ("MINVALUE", "-infinity"):
            return KEY_MIN
        if text in ("MAXVALUE", "infinity"):
            return KEY_MAX
        key = self._parse(text)
        return KEY_MAX if key > KEY_MAX else self._checked(key, text)

    def encode_bound(self, key: int) -> str:
        """The text of a bound or of T, where a key outside the type reads as open."""
        if key == KEY_MIN or key < self.minimum:
            return "MINVALUE"
        if key == KEY_MAX or key > self.maximum:
            return "MAXVALUE"
        return self.encode(key)

    def _parse(self, text: str) -> int:
        if not self.is_time:
            return self._parse_integer(text)
        match = re.fullmatch(_PATTERNS[self], text)
        if match is None:
            raise self._malformed(text)
        fields = {name: int(digits) for name, digits in match.groupdict("0").items() if digits.isdecimal()}
        if not _fields_in_range(fields):
            raise self._malformed(text)
        return self._assemble(fields, match)

    def _parse_integer(self, text: str) -> int:
        if re.fullmatch(r"-?[0-9]{1,19}", text) is None:
            raise self._malformed(text)
        return int(text)

    def _assemble(self, fields: dict[str, int], match: re.Match[str]) -> int:
        year = 1 - fields["year"] if match["era"] else fields["year"]
        if fields["day"] > days_in_month(year, fields["month"]):
            raise self._malformed(match.string)
        days = civil_to_days(year, fields["month"], fields["day"])
        if self is TierKeyType.DATE:
            return days
        seconds = fields["hour"] * 3600 + fields["minute"] * 60 + fields["second"] - _offset_seconds(fields, match)
        return days * MICROSECONDS_PER_DAY + seconds * 1_000_000 + int((match["fraction"] or "").ljust(6, "0"))

    def _checked(self, key: int, text: str) -> int:
        if self.minimum <= key <= self.maximum:
            return key
        hint = f"keys from {self.encode(self.minimum)} to {self.encode(self.maximum)} can be tiered"
        raise ValueRefused("tier key out of range", hint=hint, value=text, type=self.value)

    def _malformed(self, text: str) -> ValueRefused:
        hint = f"expected what Postgres prints with DateStyle ISO, such as {self.encode(0)}"
        return ValueRefused("not a tier key of this type", hint=hint, value=text, type=self.value)


def _fields_in_range(fields: dict[str, int]) -> bool:
    return all(low <= fields[name] <= high for name, (low, high) in _LIMITS.items() if name in fields)


def _offset_seconds(fields: dict[str, int], match: re.Match[str]) -> int:
    if "sign" not in match.groupdict():
        return 0
    seconds = fields["offset_hour"] * 3600 + fields["offset_minute"] * 60 + fields["offset_second"]
    return -seconds if match["sign"] == "-" else seconds


def _format_date(days: int) -> tuple[str, str]:
    year, month, day = days_to_civil(days)
    shown_year, era = (year, "") if year > 0 else (1 - year, " BC")
    return f"{shown_year:04}-{month:02}-{day:02}", era


def _format_time(microsecond: int) -> str:
    seconds, fraction = divmod(microsecond, 1_000_000)
    minutes, second = divmod(seconds, 60)
    shown_fraction = f".{fraction:06}".rstrip("0") if fraction else ""
    return f" {minutes // 60:02}:{minutes % 60:02}:{second:02}{shown_fraction}"


_PATTERNS = {
    TierKeyType.TIMESTAMPTZ: _DATE + _TIME + _OFFSET + _ERA,
    # A zone on a naive value is refused: Postgres would ignore it without a word.
    TierKeyType.TIMESTAMP: _DATE + _TIME + _ERA,
    TierKeyType.DATE: _DATE + _ERA,
}
# Postgres counts Julian days, so its calendar starts with day zero of those.
_FIRST_DAY = civil_to_days(-4713, 11, 24)
_RANGES = {
    TierKeyType.SMALLINT: (-(2**15), 2**15 - 1),
    TierKeyType.INTEGER: (-(2**31), 2**31 - 1),
    TierKeyType.BIGINT: (KEY_MIN, KEY_MAX),
    TierKeyType.TIMESTAMPTZ: (_FIRST_DAY * MICROSECONDS_PER_DAY, KEY_MAX),
    TierKeyType.TIMESTAMP: (_FIRST_DAY * MICROSECONDS_PER_DAY, KEY_MAX),
    TierKeyType.DATE: (_FIRST_DAY, civil_to_days(5_874_897, 12, 31)),
}
