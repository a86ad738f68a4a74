"""A Python value as the text that Postgres reads it from. Pure.

The rules are those of jsonb_populate_record: a string is the type's own text, a number or a boolean its JSON text, a list for an array
column is an array, and for json and jsonb every value is itself. NULL is None, for json as well.
"""

from __future__ import annotations

import datetime
import itertools
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from modak.core.type_map import PgType

_JSON = ("json", "jsonb")
# Types whose input reads any spelling of a number as the same value.
_NUMBERS = ("float4", "float8", "numeric")
# Stands between two values of a column that is dumped at once; no text can hold it by chance.
_MARK = "\x01" + uuid.uuid4().hex


@dataclass(frozen=True)
class Form:
    """What the text of a column must look like; ``element`` is the form of an array's elements."""

    kind: str = "plain"  # plain, json, uuid, array
    is_number: bool = False
    element: Form | None = None
    delimiter: str = ","


PLAIN = Form()


def form_of(pg: PgType) -> Form:
    if pg.element is not None:
        return Form("array", element=form_of(pg.element), delimiter=";" if pg.element.base == "box" else ",")
    own = pg.namespace == "pg_catalog"
    if own and pg.base in _JSON:
        return Form("json")
    if own and pg.base == "uuid":
        return Form("uuid")
    return Form(is_number=own and pg.base in _NUMBERS)


def text_of(value: Any, form: Form = PLAIN) -> str | None:
    """The text of one value; None is NULL. ValueError or TypeError where the value has none."""
    if value is None:
        return None
    if form.kind == "json":
        return _encoder.encode(value)
    if isinstance(value, str):
        return str.__str__(value)
    if form.element is not None and isinstance(value, list | tuple):
        return _array(value, form.element, form.delimiter)
    return _plain(value, form)


def _plain(value: Any, form: Form) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        # A type's text where the type has one made of bytes; bytea's own otherwise.
        return bytes(value).hex() if form.kind == "uuid" else "\\x" + bytes(value).hex()
    if isinstance(value, datetime.timedelta):
        return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
    if isinstance(value, Decimal | datetime.date | datetime.time | uuid.UUID):
        return str(value)
    if isinstance(value, dict | list | tuple):
        return _encoder.encode(value)
    if hasattr(value, "item") and type(value).__module__ == "numpy":
        return text_of(value.item(), form) or ""
    raise TypeError(f"a value of the Python type {type(value).__name__} has no text that Postgres reads")


def _array(values: Sequence[Any], element: Form, delimiter: str) -> str:
    return "{" + delimiter.join(_element(value, element, delimiter) for value in values) + "}"


def _element(value: Any, element: Form, delimiter: str) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple) and element.kind != "json":
        return _array(value, element, delimiter)
    text = text_of(value, element) or ""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json_of(value: Any) -> Any:
    """What JSON has no value for, inside of one: as text; a decimal as a number, if a double is that number."""
    if isinstance(value, Decimal):
        number = float(value)
        if Decimal(repr(number)) == value:
            return number
        raise ValueError(f"{value} is no number that JSON carries exactly here")
    if isinstance(value, datetime.date | datetime.time | uuid.UUID):
        return str(value)
    raise TypeError(f"a value of the Python type {type(value).__name__} has no JSON form")


# Without the test for circles, which costs a third; a circle ends as a RecursionError.
_encoder = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"), default=_json_of)


def json_texts(values: Sequence[Any]) -> list[str | None]:
    """JSON of every value, NULL for None. Dumped at once: one call per value takes four times as long."""
    present = [value for value in values if value is not None]
    marked = _encoder.encode(list(itertools.chain.from_iterable(zip(present, itertools.repeat(_MARK), strict=False))))
    parts = (marked[1:-1] + ",").split(f",{_encoder.encode(_MARK)},")
    parts.pop()
    if len(present) == len(values):
        return list(parts)
    texts = iter(parts)
    return [None if value is None else next(texts) for value in values]
