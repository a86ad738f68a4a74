"""Bound values as typed literals in the tree: what a client sent, as text or binary, in the forms that the translator reads."""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from sqlglot import exp

from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.literals import date_text, timestamp_text
from modak.gateway.dialect.remote import parameter_number
from modak.gateway.interception import Parameter

# Postgres counts from 2000, texts and the lake from 1970.
_EPOCH_DAYS = 10_957
_EPOCH_MICROS = _EPOCH_DAYS * 86_400_000_000
# OIDs of built-in types never change.
TYPE_NAMES: Mapping[int, str] = {
    16: "BOOLEAN",
    17: "BYTEA",
    20: "BIGINT",
    21: "SMALLINT",
    23: "INT",
    25: "TEXT",
    700: "REAL",
    701: "DOUBLE PRECISION",
    1042: "BPCHAR",
    1043: "VARCHAR",
    1082: "DATE",
    1114: "TIMESTAMP",
    1184: "TIMESTAMPTZ",
    1700: "NUMERIC",
    2950: "UUID",
}
ARRAYS: Mapping[int, int] = {
    1000: 16,
    1001: 17,
    1005: 21,
    1007: 23,
    1009: 25,
    1014: 1042,
    1015: 1043,
    1016: 20,
    1021: 700,
    1022: 701,
    1115: 1114,
    1182: 1082,
    1185: 1184,
    1231: 1700,
    2951: 2950,
}


def bound(tree: exp.Expr, parameters: Sequence[Parameter], oids: Sequence[int]) -> exp.Expr:
    """A copy of the tree with each ``$n`` replaced by its value, typed as Postgres understood the parameter."""
    copy = tree.copy()
    for node in list(copy.find_all(exp.Parameter)):
        place = parameter_number(node) - 1
        if place >= len(parameters) or place >= len(oids):
            raise Untranslatable(f"parameter ${place + 1} has no value")
        text = value_text(parameters[place], oids[place])
        literal: exp.Expr = exp.Null() if text is None else exp.Literal.string(text)
        node.replace(exp.Cast(this=literal, to=data_type(oids[place])))
    return copy


def data_type(oid: int) -> exp.DataType:
    """A type by its OID, as the parser writes it."""
    name = TYPE_NAMES.get(ARRAYS.get(oid, oid))
    if name is None:
        raise Untranslatable(f"a parameter of type {oid}")
    return exp.DataType.build(f"{name}[]" if oid in ARRAYS else name, dialect="postgres")


def value_text(parameter: Parameter, oid: int) -> str | None:
    """A parameter's value as Postgres would print it in UTC and ISO; a text is taken as it came."""
    if parameter.value is None:
        return None
    if parameter.format == 0:
        return _decoded(parameter.value)
    if oid in ARRAYS:
        return _array(parameter.value, ARRAYS[oid])
    return _binary(parameter.value, oid)


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as cause:
        raise Untranslatable("a parameter that is not UTF-8") from cause


def _binary(value: bytes, oid: int) -> str:
    reader = _READERS.get(oid)
    if reader is None:
        raise Untranslatable(f"a binary parameter of type {oid}")
    try:
        return reader(value)
    except (struct.error, ValueError, IndexError) as cause:
        raise Untranslatable("a binary parameter of the wrong length") from cause


def _integer(form: str) -> Callable[[bytes], str]:
    return lambda value: str(struct.unpack(form, value)[0])


def _float8(value: bytes) -> str:
    return _float_text(struct.unpack("!d", value)[0], repr)


def _float4(value: bytes) -> str:
    return _float_text(struct.unpack("!f", value)[0], lambda number: str(np.float32(number)))


def _float_text(number: float, show: Callable[[float], str]) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return show(number)


def _finite(form: str, value: bytes) -> int:
    number: int = struct.unpack(form, value)[0]
    bits = len(value) * 8 - 1
    if number in (2**bits - 1, -(2**bits)):
        raise Untranslatable("an infinite date or time")
    return number


def _date(value: bytes) -> str:
    text, before = date_text(_finite("!i", value) + _EPOCH_DAYS)
    return text + (" BC" if before else "")


def _timestamp(suffix: str) -> Callable[[bytes], str]:
    return lambda value: timestamp_text(_finite("!q", value) + _EPOCH_MICROS, suffix)


_NUMERIC_SIGNS = {0x0000: "", 0x4000: "-"}


def _numeric(value: bytes) -> str:
    """Digits in base 10,000, the first of them worth 10,000 to the power of ``weight``."""
    count, weight, sign, scale = struct.unpack_from("!hhHh", value)
    if sign not in _NUMERIC_SIGNS:
        raise Untranslatable("a numeric that is no number")
    digits = struct.unpack_from(f"!{count}h", value, 8)
    whole = "".join(f"{_digit(digits, place):04d}" for place in range(weight + 1)).lstrip("0") or "0"
    fraction = "".join(f"{_digit(digits, weight + 1 + place):04d}" for place in range((scale + 3) // 4))[:scale]
    return f"{_NUMERIC_SIGNS[sign]}{whole}" + (f".{fraction}" if fraction else "")


def _digit(digits: Sequence[int], place: int) -> int:
    return digits[place] if 0 <= place < len(digits) else 0


_READERS: Mapping[int, Callable[[bytes], str]] = {
    16: lambda value: "t" if struct.unpack("!?", value)[0] else "f",
    17: lambda value: "\\x" + value.hex(),
    20: _integer("!q"),
    21: _integer("!h"),
    23: _integer("!i"),
    **dict.fromkeys((25, 1042, 1043), _decoded),
    700: _float4,
    701: _float8,
    1082: _date,
    1114: _timestamp(""),
    1184: _timestamp("+00"),
    1700: _numeric,
    2950: lambda value: str(uuid.UUID(bytes=value)),
}


def _array(value: bytes, element: int) -> str:
    """A one-dimensional array as its literal."""
    dimensions, _, kind = struct.unpack_from("!iiI", value)
    if dimensions == 0:
        return "{}"
    length, lower = struct.unpack_from("!ii", value, 12)
    if dimensions != 1 or lower != 1 or kind != element:
        raise Untranslatable("an array of an unusual shape")
    elements, place = [], 20
    for _ in range(length):
        size: int = struct.unpack_from("!i", value, place)[0]
        place += 4
        if size < 0:
            elements.append("NULL")
            continue
        text = _binary(value[place : place + size], element)
        elements.append('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
        place += size
    return "{" + ",".join(elements) + "}"
