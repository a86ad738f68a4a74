"""Values as Postgres writes them, in Arrow columns of the lake's types: exact, or refused.

Whole columns go through Arrow's own parsers. What those do not read, years before 1 or after 9999 above all, is read value by value.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from modak.core.tier_key import MICROSECONDS_PER_DAY, civil_to_days
from modak.errors import ValueRefused

_MOMENT = re.compile(
    r"(\d{4,7})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?)?(?P<era> BC)?"
)
# One microsecond later is infinity to the engine that reads it.
_MICROSECONDS_MAX = 2**63 - 2
_ESCAPED = re.compile(rb"\\\\|\\[0-3][0-7]{2}")
_FULL_MASK = {False: b"/32", True: b"/128"}
_BOOLEANS = {b"t": b"true", b"f": b"false"}

Values = Sequence[bytes | None]
Given: TypeAlias = "Values | pa.Array"


def arrow_column(values: Given, iceberg: str, pg_base: str, name: str) -> pa.Array:
    """``iceberg`` is the lake's type, ``pg_base`` the Postgres type under any domain. Raises ValueRefused for what the lake cannot hold.

    ``values`` are a list, or a binary array already.
    """
    if iceberg == "string":
        return _strings(_text(values, pg_base))
    try:
        return _parsed(values, iceberg)
    except (pa.ArrowInvalid, ValueError, OverflowError) as cause:
        bad = _first_bad(values, iceberg)
        raise ValueRefused(
            f"column {name} holds a value that the lake's {iceberg} cannot", hint="correct the row, then run `modak resync`", value=bad
        ) from cause


def _parsed(values: Given, iceberg: str) -> pa.Array:
    return _decimals(values, iceberg) if iceberg.startswith("decimal(") else _PARSERS[iceberg](values)


def _listed(values: Given) -> Values:
    return values.to_pylist() if isinstance(values, pa.Array) else values


def _text(values: Given, pg_base: str) -> Given:
    """The form that a cast to text has, which is what a copy of the heap brings: here and there it is another one."""
    if pg_base == "bpchar":
        return [None if value is None else value.rstrip(b" ") for value in _listed(values)]
    if pg_base == "bool":
        return [None if value is None else _BOOLEANS[value] for value in _listed(values)]
    if pg_base == "inet":
        return [value if value is None or b"/" in value else value + _FULL_MASK[b":" in value] for value in _listed(values)]
    return values


def _strings(values: Given) -> pa.Array:
    return (values if isinstance(values, pa.Array) else pa.array(values, pa.binary())).cast(pa.string())


def _decimals(values: Given, iceberg: str) -> pa.Array:
    digits, scale = iceberg.removeprefix("decimal(").rstrip(")").split(",")
    return _strings(values).cast(pa.decimal128(int(digits), int(scale)))


def _booleans(values: Given) -> pa.Array:
    known = {b"t": True, b"f": False, None: None}
    return pa.array([known[value] for value in _listed(values)], pa.bool_())


def _dates(values: Given) -> pa.Array:
    try:
        return _strings(values).cast(pa.date32())
    except pa.ArrowInvalid:
        return pa.array(
            [None if value is None else _microseconds(value) // MICROSECONDS_PER_DAY for value in _listed(values)], pa.int32()
        ).cast(pa.date32())


def _moments(values: Given) -> pa.Array:
    try:
        return _strings(values).cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return _one_by_one(values).cast(pa.timestamp("us"))


def _zoned_moments(values: Given) -> pa.Array:
    """With the offset of the session's zone, which had seconds before there were railways."""
    try:
        return _strings(values).cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        return _one_by_one(values).cast(pa.timestamp("us", "UTC"))


def _one_by_one(values: Given) -> pa.Array:
    return pa.array([None if value is None else _microseconds(value) for value in _listed(values)], pa.int64())


def _microseconds(value: bytes) -> int:
    """Since 1970, in the calendar that Postgres uses for all time."""
    match = _MOMENT.fullmatch(value.decode())
    if match is None:
        raise ValueError(value)
    year = 1 - int(match[1]) if match["era"] else int(match[1])
    moment = civil_to_days(year, int(match[2]), int(match[3])) * MICROSECONDS_PER_DAY
    if match[4]:
        moment += (int(match[4]) * 3600 + int(match[5]) * 60 + int(match[6])) * 1_000_000 + int((match[7] or "0").ljust(6, "0"))
    east = sum(int(match[place] or 0) * unit for place, unit in ((9, 3600), (10, 60), (11, 1))) * 1_000_000
    moment += east if match[8] == "-" else -east
    if moment > _MICROSECONDS_MAX and match[4]:
        raise ValueError(value)
    return moment


def _uuids(values: Given) -> pa.Array:
    return pa.array([None if value is None else uuid.UUID(value.decode()).bytes for value in _listed(values)], pa.binary(16))


def _bytes(values: Given) -> pa.Array:
    return pa.array([None if value is None else _bytea(value) for value in _listed(values)], pa.binary())


def _bytea(value: bytes) -> bytes:
    """In hexadecimal, or as sessions with bytea_output = escape have it: postgres_fdw does not change that of its client."""
    if value.startswith(b"\\x"):
        return bytes.fromhex(value[2:].decode())
    return _ESCAPED.sub(lambda found: b"\\" if found[0] == b"\\\\" else bytes([int(found[0][1:], 8)]), value)


def _cast(wanted: pa.DataType) -> Callable[[Given], pa.Array]:
    return lambda values: _strings(values).cast(wanted)


_PARSERS: dict[str, Callable[[Given], pa.Array]] = {
    "boolean": _booleans,
    "int": _cast(pa.int32()),
    "long": _cast(pa.int64()),
    "float": _cast(pa.float32()),
    "double": _cast(pa.float64()),
    "date": _dates,
    "timestamp": _moments,
    "timestamptz": _zoned_moments,
    "uuid": _uuids,
    "binary": _bytes,
}


def _first_bad(values: Given, iceberg: str) -> Any:
    for value in _listed(values):
        if value is None:
            continue
        try:
            _parsed([value], iceberg)
        except (pa.ArrowInvalid, ValueError, OverflowError, KeyError):
            return value.decode(errors="replace")[:100]
    return None
