"""Binary wire forms by Postgres type: what each type's send function would write, made from Arrow columns as DuckDB hands them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from modak.errors import ValueRefused
from modak.gateway.wire.cells import Cells, Mask, Unsupported, as_bytes, fixed, numbers, strings, valid_mask
from modak.gateway.wire.numeric import numeric

# Arrow counts from 1970, Postgres from 2000.
_EPOCH_DAYS: Final = 10_957
_EPOCH_MICROS: Final = _EPOCH_DAYS * 86_400_000_000
# What Postgres can hold, counted from 2000: from 4714-11-24 BC to the last day of 5874897, or of 294276 for timestamps.
_DATES: Final = (-2_451_545, 2_145_031_948)
_TIMESTAMPS: Final = (-211_813_488_000_000_000, 9_223_371_331_199_999_999)


def _cast(column: Any, kind: pa.DataType) -> Any:
    """Exact or refused: DuckDB may hand out a wider type (a sum is a hugeint) than the one Postgres declares."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowNotImplementedError as cause:
        raise Unsupported("no binary form from this column", arrow=column.type, wanted=kind) from cause
    except pa.ArrowInvalid as cause:
        raise ValueRefused("value out of range for the column's type", arrow=column.type, wanted=kind) from cause


def _number(kind: pa.DataType, stored: str) -> Callable[[Any], Cells]:
    def send(column: Any) -> Cells:
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
            raise Unsupported("no binary number from this column", arrow=column.type, wanted=kind)
        column = _cast(column, kind)
        return fixed(as_bytes(numbers(column, stored).astype(f">{stored}")), valid_mask(column))

    return send


def _bool(column: Any) -> Cells:
    if not pa.types.is_boolean(column.type):
        raise Unsupported("no binary bool from this column", arrow=column.type)
    column = column.cast(pa.uint8())  # Arrow packs eight into a byte
    return fixed(as_bytes(numbers(column, "u1")), valid_mask(column))


def _text(column: Any) -> Cells:
    if not _is_text(column):
        raise Unsupported("no binary text from this column", arrow=column.type)
    return strings(column)


def _jsonb(column: Any) -> Cells:
    if not _is_text(column):
        raise Unsupported("no binary jsonb from this column", arrow=column.type)
    text = strings(column)
    # The version of the format. NULLs stay NULLs.
    data = pc.binary_join_element_wise(pa.scalar(b"\x01"), text.data, pa.scalar(b""))
    return Cells(np.where(text.lengths >= 0, text.lengths + np.int32(1), np.int32(-1)), data=data)


def _bytea(column: Any) -> Cells:
    if _is_text(column):
        raise Unsupported("no binary bytea from text", arrow=column.type)
    return strings(column)


def _is_text(column: Any) -> bool:
    kind = column.type
    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind))


_HEX: Final = np.full(256, 255, dtype=np.uint8)
for _value, _digits in enumerate(zip("0123456789abcdef", "0123456789ABCDEF", strict=True)):
    _HEX[[ord(digit) for digit in _digits]] = _value
_UUID_HYPHENS: Final = (8, 13, 18, 23)
_UUID_DIGITS: Final = np.array([at for at in range(36) if at not in _UUID_HYPHENS])


def _uuid(column: Any) -> Cells:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if not _is_text(column) and column.type != pa.binary(16):
        raise Unsupported("no binary uuid from this column", arrow=column.type)
    valid = valid_mask(column)
    present = strings(column if valid is None else column.drop_null())
    width = 36 if _is_text(column) else 16
    if not (present.lengths == width).all():
        raise ValueRefused("invalid uuid", hint="cast the column to uuid first")
    present_bytes = _dense(present.data, width)
    raw = _uuid_from_text(present_bytes) if width == 36 else present_bytes
    if valid is None:
        return fixed(raw, None)
    block = np.zeros((len(column), 16), dtype=np.uint8)
    block[valid] = raw
    return fixed(block, valid)


def _dense(data: Any, width: int) -> NDArray[np.uint8]:
    """The bytes of values that are all there and all of one width."""
    if len(data) == 0:
        return np.zeros((0, width), dtype=np.uint8)
    start = int(np.frombuffer(data.buffers()[1], dtype=np.int32, count=1, offset=data.offset * 4)[0])
    return np.frombuffer(data.buffers()[2], dtype=np.uint8, count=len(data) * width, offset=start).reshape(-1, width)


def _uuid_from_text(text: NDArray[np.uint8]) -> NDArray[np.uint8]:
    digits = _HEX[text[:, _UUID_DIGITS]]
    if (digits == 255).any() or (text[:, _UUID_HYPHENS] != ord("-")).any():
        raise ValueRefused("invalid uuid", hint="cast the column to uuid first")
    return digits[:, ::2] << np.uint8(4) | digits[:, 1::2]


def _date(column: Any) -> Cells:
    if not pa.types.is_date(column.type):
        raise Unsupported("no binary date from this column", arrow=column.type)
    column = _cast(column, pa.date32())
    valid = valid_mask(column)
    days = _since_2000(numbers(column, "i4"), _EPOCH_DAYS, _DATES, valid)
    return fixed(as_bytes(days.astype(">i4")), valid)


def _timestamp(*, zone: bool) -> Callable[[Any], Cells]:
    def send(column: Any) -> Cells:
        kind = column.type
        if not pa.types.is_timestamp(kind) or (kind.tz is not None) is not zone:
            raise Unsupported("no binary timestamp from this column", arrow=kind, with_time_zone=zone)
        column = _cast(column, pa.timestamp("us", kind.tz))
        valid = valid_mask(column)
        micros = _since_2000(numbers(column, "i8"), _EPOCH_MICROS, _TIMESTAMPS, valid)
        return fixed(as_bytes(micros.astype(">i8")), valid)

    return send


def _since_2000(values: NDArray[Any], epoch: int, limits: tuple[int, int], valid: Mask | None) -> NDArray[Any]:
    """Counts from 2000 instead of 1970. Infinity is the greatest number in both; minus infinity is the least in Postgres, and in
    DuckDB the greatest with its sign turned.
    """
    greatest, least = np.iinfo(values.dtype).max, np.iinfo(values.dtype).min
    infinite = (values == greatest) | (values == -greatest)
    with np.errstate(over="ignore"):
        moved = values - values.dtype.type(epoch)
    # A difference that wrapped round is larger than what it was taken from.
    wrong = ((moved < limits[0]) | (moved > limits[1]) | (moved > values)) & ~infinite
    if (wrong if valid is None else wrong & valid).any():
        raise ValueRefused("date or timestamp out of Postgres's range")
    return np.where(infinite, np.where(values > 0, greatest, least), moved)


def _time(column: Any) -> Cells:
    if not pa.types.is_time(column.type):
        raise Unsupported("no binary time from this column", arrow=column.type)
    column = _cast(column, pa.time64("us"))
    return fixed(as_bytes(numbers(column, "i8").astype(">i8")), valid_mask(column))


def _interval(column: Any) -> Cells:
    if column.type != pa.month_day_nano_interval():
        raise Unsupported("no binary interval from this column", arrow=column.type)
    parts = numbers(column, np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")]))
    sent = np.empty(len(parts), dtype=[("micros", ">i8"), ("days", ">i4"), ("months", ">i4")])
    sent["micros"], sent["days"], sent["months"] = parts["nanos"] // 1000, parts["days"], parts["months"]
    return fixed(as_bytes(sent), valid_mask(column))


_SEND: Final[Mapping[str, Callable[[Any], Cells]]] = {
    "bool": _bool,
    "int2": _number(pa.int16(), "i2"),
    "int4": _number(pa.int32(), "i4"),
    "int8": _number(pa.int64(), "i8"),
    "oid": _number(pa.uint32(), "u4"),
    "float4": _number(pa.float32(), "f4"),
    "float8": _number(pa.float64(), "f8"),
    "numeric": numeric,
    "text": _text,
    "varchar": _text,
    "bpchar": _text,
    "name": _text,
    "json": _text,
    "jsonb": _jsonb,
    "bytea": _bytea,
    "uuid": _uuid,
    "date": _date,
    "timestamp": _timestamp(zone=False),
    "timestamptz": _timestamp(zone=True),
    "time": _time,
    "interval": _interval,
}

BINARY_TYPES: Final = frozenset(_SEND)


def send(column: Any, pg_type: str) -> Cells:
    """The column in the binary form of a Postgres type (named as in pg_type.typname); Unsupported if we have none for it."""
    form = _SEND.get(pg_type)
    if form is None:
        raise Unsupported("no binary form for this type", type=pg_type)
    return form(column)
