"""Arrow columns as COPY text. Arrow's own text is Postgres's for most types; the others are written value by value."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from modak.core.tier_key import MICROSECONDS_PER_DAY, TierKeyType, civil_to_days
from modak.load.columns import FAILURES, escaped
from modak.load.errors import LoadRejected
from modak.load.values import Form, text_of

_TEXT = pa.string()
# Arrow prints years as ISO does, with four digits and a year 0; Postgres has eras.
_FIRST_DAY, _LAST_DAY = civil_to_days(1, 1, 1), civil_to_days(9999, 12, 31)


def texts_of_array(values: pa.Array, form: Form, column: str, first_line: int) -> pa.Array:
    try:
        return _texts(values, form)
    except FAILURES as cause:
        for number in range(len(values)):
            _check(values.slice(number, 1), form, column, first_line + number)
        raise LoadRejected(f'column "{column}" cannot be read as text: {cause}', column=column, type=str(values.type)) from cause


def _check(value: pa.Array, form: Form, column: str, line: int) -> None:
    try:
        _texts(value, form)
    except FAILURES as cause:
        raise LoadRejected(f'line {line}, column "{column}": {cause}', line=line, column=column, value=str(value[0])) from cause


def _texts(values: pa.Array, form: Form) -> pa.Array:
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _texts(values.storage, form)
    if pa.types.is_dictionary(kind):
        return _texts(values.dictionary_decode(), form)
    if pa.types.is_null(kind):
        return pa.nulls(len(values), _TEXT)
    for matches, texts in _KINDS:
        if matches(kind):
            return texts(values)
    # Bytes, lists, structs and maps.
    return escaped(pa.array([text_of(value, form) for value in values.to_pylist()], _TEXT))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _strings(values: pa.Array) -> pa.Array:
    # A slice shares its neighbours' buffer, and would be searched for their special characters too.
    return escaped(pa.concat_arrays([values.cast(_TEXT)]))


def _plain(values: pa.Array) -> pa.Array:
    return values.cast(_TEXT)


def _half(values: pa.Array) -> pa.Array:
    return values.cast(pa.float32()).cast(_TEXT)


def _dates(values: pa.Array) -> pa.Array:
    days = values.cast(pa.date32())
    return _printed(days, days.cast(pa.int32()), 1, TierKeyType.DATE)


def _timestamps(values: pa.Array) -> pa.Array:
    """In microseconds, exactly or not at all; a time with a zone is one moment, whatever the zone."""
    zoned = values.type.tz is not None
    exact = values.cast(pa.timestamp("us", "UTC" if zoned else None))
    return _printed(exact, exact.cast(pa.int64()), MICROSECONDS_PER_DAY, TierKeyType.TIMESTAMPTZ if zoned else TierKeyType.TIMESTAMP)


def _printed(values: pa.Array, numbers: pa.Array, per_day: int, key_type: TierKeyType) -> pa.Array:
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (_FIRST_DAY * per_day <= ends["min"] and ends["max"] < (_LAST_DAY + 1) * per_day):
        return values.cast(_TEXT)
    return pa.array([None if number is None else key_type.encode(number) for number in numbers.to_pylist()], _TEXT)


def _times(values: pa.Array) -> pa.Array:
    return values.cast(pa.time64("us")).cast(_TEXT)


def _durations(values: pa.Array) -> pa.Array:
    exact = values.cast(pa.duration("us")).cast(pa.int64()).cast(_TEXT)
    return pc.binary_join_element_wise(exact, pa.scalar("microseconds"), pa.scalar(" "))


def _intervals(values: pa.Array) -> pa.Array:
    return pa.array([None if value is None else _interval(*value) for value in values.to_pylist()], _TEXT)


def _interval(months: int, days: int, nanoseconds: int) -> str:
    microseconds, lost = divmod(nanoseconds, 1000)
    if lost:
        raise ValueError(f"{nanoseconds} nanoseconds are no whole microseconds")
    return f"{months} months {days} days {microseconds} microseconds"


_KINDS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (_is_string, _strings),
    (pa.types.is_boolean, _plain),
    (pa.types.is_integer, _plain),
    (pa.types.is_float16, _half),
    (pa.types.is_floating, _plain),
    (pa.types.is_decimal, _plain),
    (pa.types.is_date, _dates),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_time, _times),
    (pa.types.is_duration, _durations),
    (pa.types.is_interval, _intervals),
)
