"""Postgres's implicit conversions: how the two sides of an operator, or the branches of a CASE, come to one type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from modak.gateway.dialect.errors import NEEDS_POSTGRES, Untranslatable
from modak.gateway.dialect.literals import is_utc, literal
from modak.gateway.dialect.scope import Scope, Typed
from modak.gateway.dialect.types import (
    FLOAT8,
    INTEGER_DIGITS,
    INTEGERS,
    MAX_DIGITS,
    NUMBERS,
    STRINGS,
    TEXT,
    SqlType,
    duckdb_name,
    numeric,
)

# A decimal of so many digits divided by its power of ten is the nearest float8; more digits would be rounded twice.
_EXACT_FLOAT_DIGITS = 15
_RANK = {name: rank for rank, name in enumerate(NUMBERS)}


def coerced(value: Typed, wanted: SqlType, scope: Scope) -> Typed:
    """A value as another type, by an implicit conversion that is exact; anything else is refused."""
    if value.null:
        return Typed(f"CAST(NULL AS {duckdb_name(wanted)})", wanted)
    if value.unknown:
        return _literal(value, wanted, scope)
    given, name = value.type.name, wanted.name
    if given == name:
        return _same(value, wanted)
    if given in INTEGERS and name in INTEGERS and _RANK[given] < _RANK[name]:
        return Typed(value.sql if (given, name) == ("int2", "int4") else f"CAST({value.sql} AS {duckdb_name(wanted)})", wanted, value.text)
    if given in INTEGERS and name == "numeric":
        return as_numeric(value)
    if name == "float8" and given in NUMBERS:
        return as_float8(value)
    if (name == "text" and given in STRINGS) or (name, given) == ("varchar", "text"):
        return replace(value, type=wanted)
    if name == "timestamp" and given == "date":
        return Typed(_midnight(value), wanted)
    if name == "timestamptz" and given in ("date", "timestamp") and is_utc(scope.timezone):
        return Typed(f"make_timestamptz(epoch_us({_midnight(value) if given == 'date' else value.sql}))", wanted)
    raise Untranslatable(f"{given} as {name}")


def _midnight(value: Typed) -> str:
    """A date as a timestamp. Postgres's timestamps end in 294276, DuckDB's thirty years earlier."""
    if value.text is not None and not value.text.endswith("BC") and len(value.text) == 10:
        return literal(value.text, SqlType("timestamp")).sql
    late = f"CASE WHEN {value.sql} > DATE '294276-12-31' THEN error('22008: date out of range for timestamp')"
    late += f" ELSE error('{NEEDS_POSTGRES}: a date after 294246') END"
    return f"(CASE WHEN {value.sql} > DATE '294246-12-31' THEN {late} ELSE CAST({value.sql} AS TIMESTAMP) END)"


def _literal(value: Typed, wanted: SqlType, scope: Scope) -> Typed:
    known = scope.enum_labels.get(wanted.pg.display, frozenset()) if wanted.pg is not None and scope.enum_labels is not None else None
    if wanted.name == "enum" and known is not None and value.text not in known:
        raise Untranslatable(f"no label {value.text!r} in its enum")
    read = literal(value.text or "", replace(wanted, modifier=-1), scope.timezone)
    return Typed(read.sql, replace(read.type, pg=wanted.pg), read.text)


def _same(value: Typed, wanted: SqlType) -> Typed:
    if wanted.name != "numeric" or wanted.digits is None or value.type.digits == wanted.digits:
        return value
    if value.type.digits is None:
        raise Untranslatable("a numeric without known digits")
    return replace(value, sql=f"CAST({value.sql} AS {duckdb_name(wanted)})", type=wanted)


def as_numeric(value: Typed) -> Typed:
    """An integer as a numeric without decimals."""
    if value.type.name == "numeric":
        return value
    digits = len(value.text.lstrip("-")) if value.text else INTEGER_DIGITS[value.type.name]
    wanted = numeric(digits, 0)
    return Typed(f"CAST({value.sql} AS {duckdb_name(wanted)})", wanted, value.text)


def as_float8(value: Typed) -> Typed:
    """A number as float8, if the conversion rounds once."""
    name = value.type.name
    if name == "float8":
        return value
    if name == "numeric":
        if value.text is not None:
            read = literal(value.text, FLOAT8)
            return Typed(read.sql, FLOAT8, value.text)
        if value.type.digits is None or value.type.digits[0] > _EXACT_FLOAT_DIGITS:
            raise Untranslatable("a numeric of many digits as float8")
    return Typed(f"CAST({value.sql} AS DOUBLE)", FLOAT8)


def common_digits(types: Sequence[SqlType]) -> SqlType:
    """A decimal that holds all of some numerics."""
    known = [of.digits for of in types]
    if any(digits is None for digits in known):
        raise Untranslatable("a numeric without known digits")
    scale = max(digits[1] for digits in known if digits)
    whole = max(digits[0] - digits[1] for digits in known if digits)
    if whole + scale > MAX_DIGITS:
        raise Untranslatable("numerics that need more than 38 digits")
    return numeric(whole + scale, scale)


def common_type(values: Sequence[Typed]) -> SqlType:
    """The type of a CASE, COALESCE or VALUES column by Postgres's rules, for those that are followed exactly."""
    types = [value.type for value in values if not value.unknown]
    if not types:
        return TEXT
    names = {of.name for of in types}
    if names == {"numeric"} or ("numeric" in names and names <= {*INTEGERS, "numeric"}):
        return common_digits([as_numeric(value).type for value in values if not value.unknown])
    if len(names) == 1:
        return types[0] if all(of == types[0] for of in types) else types[0].plain()
    if names <= set(INTEGERS):
        return max(types, key=lambda of: _RANK[of.name]).plain()
    if "float8" in names and names <= set(NUMBERS):
        return FLOAT8
    if names <= {"text", "varchar"}:
        return types[0].plain()
    raise Untranslatable(f"a common type of {', '.join(sorted(names))}")


def unified(values: Sequence[Typed], scope: Scope, wanted: SqlType | None = None) -> tuple[list[Typed], SqlType]:
    """Values brought to one type. Numerics that differ in display scale each carry their own."""
    wanted = wanted or common_type(values)
    refuse_opaque(wanted)
    if wanted.name == "bpchar" and any(not value.null and value.type.modifier != wanted.modifier for value in values):
        raise Untranslatable("char(n) of several lengths")
    if wanted.name != "numeric":
        return [coerced(value, wanted, scope) for value in values], wanted
    if wanted.digits is None:
        raise Untranslatable("a numeric without known digits")
    plain = [
        as_numeric(value if not value.unknown or value.null else coerced(value, wanted, scope)) if not value.null else value
        for value in values
    ]
    if any(not value.null and value.type.digits and value.type.digits[1] > wanted.digits[1] for value in plain):
        wanted = common_digits([value.type for value in plain if not value.null])
    assert wanted.digits is not None
    mixed = any(
        not value.null and (value.scale or value.type.digits is None or value.type.digits[1] != wanted.digits[1]) for value in plain
    )
    return [_rescaled(value, wanted, scope, mixed) for value in plain], wanted


def _rescaled(value: Typed, wanted: SqlType, scope: Scope, mixed: bool) -> Typed:
    own = value.scale or (str(value.type.digits[1]) if value.type.digits and not value.null else "0")
    return replace(coerced(value, wanted, scope), scale=own if mixed else None)


def refuse_opaque(of: SqlType) -> None:
    if of.name in ("opaque", "oid", "interval"):
        raise Untranslatable(f"computing with {of.pg.display if of.pg else of.name}")
