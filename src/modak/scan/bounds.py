"""Values of columns as Python values that compare as the lake compares them: from bounds, partitions and Postgres text. Pure.

Dates and times are integers, days and microseconds since 1970, because Python's own end at the years 1 and 9999. Strings compare by
code point, which is the order of their UTF-8.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol
from uuid import UUID

from modak.core.tier_key import MICROSECONDS_PER_DAY, TierKeyType, civil_to_days
from modak.errors import ModakError

# Whatever compares with its kind: int, float, Decimal, str, bytes, bool.
Value = Any
RawBounds = Mapping[int, bytes]

_KEY_TYPES = {"date": TierKeyType.DATE, "timestamp": TierKeyType.TIMESTAMP, "timestamptz": TierKeyType.TIMESTAMPTZ}
_INFINITE = {"infinity": math.inf, "-infinity": -math.inf}
_MICROSECONDS_PER_HOUR = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one column in one file. A bound that is None is unknown; ``nulls`` and ``nans`` are counts, None where unknown."""

    low: Value = None
    high: Value = None
    nulls: int | None = None
    nans: int | None = 0
    rows: int = 0

    @property
    def only_nulls(self) -> bool:
        return self.nulls is not None and self.nulls >= self.rows


class FileStatistics(Protocol):
    """What a data file says about its values."""

    @property
    def rows(self) -> int: ...
    @property
    def partition(self) -> tuple[object, ...]: ...
    @property
    def lower(self) -> RawBounds: ...
    @property
    def upper(self) -> RawBounds: ...
    @property
    def nulls(self) -> Mapping[int, int]: ...
    @property
    def nans(self) -> Mapping[int, int]: ...
    @property
    def row_groups(self) -> int | None: ...


def column_range(file: FileStatistics, field_id: int, type_name: str, transforms: Sequence[tuple[int, str]]) -> Range:
    """A file's values of one column; ``transforms`` are the parts of its partition made from that column."""
    low = decode(type_name, file.lower.get(field_id))
    high = decode(type_name, file.upper.get(field_id))
    if type_name == "uuid" and file.row_groups != 1:
        low, high = _trusted_uuids(low, high)
    for place, transform in transforms:
        part_low, part_high = partition_range(transform, type_name, file.partition[place])
        low = part_low if low is None else low
        high = part_high if high is None else high
    floating = type_name in ("float", "double")
    return Range(low, high, file.nulls.get(field_id), file.nans.get(field_id) if floating else 0, file.rows)


def decode(type_name: str, raw: bytes | None) -> Value:
    """A bound by Iceberg's single-value serialization. An older file may carry the narrower type a column was widened from."""
    if raw is None:
        return None
    if type_name in ("int", "long", "date", "time", "timestamp", "timestamptz"):
        return int.from_bytes(raw, "little", signed=True) if raw else None
    if type_name in ("float", "double"):
        number = struct.unpack("<f" if len(raw) == 4 else "<d", raw)[0] if len(raw) in (4, 8) else math.nan
        return None if math.isnan(number) else number
    if type_name == "string":
        # A bound cut in the middle of a letter says nothing we could compare.
        return _utf8(raw)
    if type_name.startswith("decimal("):
        return _scaled(int.from_bytes(raw, "big", signed=True), int(type_name.rstrip(")").split(",")[1])) if raw else None
    if type_name == "boolean":
        return raw != b"\x00"
    if type_name in ("uuid", "binary") or type_name.startswith("fixed["):
        return raw
    return None


def _utf8(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _scaled(unscaled: int, scale: int) -> Decimal:
    # Built from digits: arithmetic on decimals would round to the context's 28.
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _trusted_uuids(low: bytes | None, high: bytes | None) -> tuple[bytes | None, bytes | None]:
    """The bounds of several row groups that hold whichever order they were merged in.

    Parquet orders UUIDs by unsigned bytes, but Iceberg's Java merges row groups' bounds by two signed halves (apache/iceberg#14216). A
    merged minimum without the sign bit is smallest in both orders, and a merged maximum with it largest, as far as the first half goes.
    """
    low = low[:8] + bytes(8) if low is not None and len(low) == 16 and low[0] < 0x80 else None
    high = high[:8] + b"\xff" * 8 if high is not None and len(high) == 16 and high[0] >= 0x80 else None
    return low, high


def partition_range(transform: str, type_name: str, value: object) -> tuple[Value, Value]:
    """What a partition says about its source column; (None, None) where it says nothing."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None, None
    if transform == "identity" and type_name in ("int", "long", "date", "timestamp", "timestamptz"):
        return value, value
    width = re.fullmatch(r"truncate\[(\d+)\]", transform)
    if width and type_name in ("int", "long"):
        return value, value + int(width[1]) - 1
    if type_name in _KEY_TYPES and transform in ("hour", "day", "month", "year"):
        return _calendar_range(transform, type_name, value)
    return None, None


def _calendar_range(unit: str, type_name: str, value: int) -> tuple[Value, Value]:
    if unit == "hour":
        start, end = value * _MICROSECONDS_PER_HOUR, (value + 1) * _MICROSECONDS_PER_HOUR
        return (None, None) if type_name == "date" else (start, end - 1)
    first, last = _first_day(unit, value), _first_day(unit, value + 1)
    return (first, last - 1) if type_name == "date" else (first * MICROSECONDS_PER_DAY, last * MICROSECONDS_PER_DAY - 1)


def _first_day(unit: str, value: int) -> int:
    if unit == "day":
        return value
    years, months = divmod(value, 12) if unit == "month" else (value, 0)
    return civil_to_days(1970 + years, months + 1, 1)


def parse(type_name: str, text: str) -> Value:
    """A value from Postgres' text; None where it cannot be compared with bounds, and then refutes nothing."""
    try:
        return _parse(type_name, text)
    except (ValueError, OverflowError, InvalidOperation, ModakError):
        return None


def _parse(type_name: str, text: str) -> Value:
    if type_name in _KEY_TYPES:
        return _INFINITE[text] if text in _INFINITE else _KEY_TYPES[type_name].decode(text)
    if type_name in ("int", "long"):
        return int(text)
    if type_name == "float":
        # Bounds are of four bytes; the nearest such number is what the column holds where Postgres shows this text.
        return struct.unpack("<f", struct.pack("<f", float(text)))[0]
    if type_name == "double":
        return float(text)
    if type_name.startswith("decimal("):
        number = Decimal(text)
        return None if number.is_nan() else number
    if type_name == "boolean":
        return {"t": True, "true": True, "f": False, "false": False}.get(text)
    if type_name == "string":
        return text
    if type_name == "uuid":
        return UUID(text).bytes
    if type_name == "binary" or type_name.startswith("fixed["):
        return bytes.fromhex(text.removeprefix("\\x")) if text.startswith("\\x") else None
    return None
