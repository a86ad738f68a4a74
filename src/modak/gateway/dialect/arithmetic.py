"""Arithmetic that fails where Postgres's does: overflow, underflow and division by zero are errors, never NULL or infinity."""

from __future__ import annotations

from sqlglot import exp

from modak.gateway.dialect import datetimes
from modak.gateway.dialect.coerce import as_float8, as_numeric, coerced, refuse_opaque
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.output import decimal_text
from modak.gateway.dialect.parse import only
from modak.gateway.dialect.scope import At, Handlers, Scope, Typed, Unchecked, guarded
from modak.gateway.dialect.types import FLOATS, INT2, INT4, INT8, INTEGERS, MAX_DIGITS, NUMBERS, NUMERIC_TEXT, SqlType, duckdb_name, numeric

DIVISION_BY_ZERO = "error('22012: division by zero')"
_OVERFLOW = "error('22003: value out of range: overflow')"
_UNDERFLOW = "error('22003: value out of range: underflow')"
_SYMBOLS: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_INTEGER_TYPES = {"int2": INT2, "int4": INT4, "int8": INT8}
# Operands are named more than once in a checked float operation; long ones are computed first, in a lambda.
_REPEATED_CHARS_MAX = 120


def _binary(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "expression", "typed", "safe")
    return operation(visit(node.this), _SYMBOLS[type(node)], visit(node.expression), scope)


def operation(left: Typed, symbol: str, right: Typed, scope: Scope) -> Typed:
    """One arithmetic operation by the operand types Postgres resolves it with."""
    result = _resolved(left, symbol, right, scope)
    if left.null or right.null:
        # Operators are strict: with a bare NULL Postgres computes neither side.
        return Typed(f"CAST(NULL AS {duckdb_name(result.type)})", result.type)
    return result


def _resolved(left: Typed, symbol: str, right: Typed, scope: Scope) -> Typed:
    timed = datetimes.operation(left, symbol, right, scope)
    if timed is not None:
        return timed
    if left.unknown and right.unknown:
        raise Untranslatable(f"{symbol} without a type")
    if left.unknown or right.unknown:
        other = (right if left.unknown else left).type
        refuse_opaque(other)
        left, right = (coerced(side, other.plain(), scope) if side.unknown else side for side in (left, right))
    names = {left.type.name, right.type.name}
    if not names <= set(NUMBERS):
        raise Untranslatable(f"{symbol} on {' and '.join(sorted(names))}")
    if names <= set(INTEGERS):
        return _integers(left, symbol, right)
    if names & set(FLOATS):
        return _floats(left, symbol, right, names)
    return _numerics(as_numeric(left), symbol, as_numeric(right), scope)


def _integers(left: Typed, symbol: str, right: Typed) -> Typed:
    kind = _INTEGER_TYPES[max((left.type.name, right.type.name), key=INTEGERS.index)]
    if duckdb_name(left.type) != duckdb_name(right.type):
        left, right = (Typed(f"CAST({side.sql} AS {duckdb_name(kind)})", kind, side.text) for side in (left, right))
    sql = _integer_division(left, symbol, right) if symbol in "/%" else guarded(f"{left.sql} {symbol} {right.sql}")
    return Typed(small(sql) if kind == INT2 else sql, kind)


def small(sql: str) -> str:
    """An integer that must be a smallint; the lake has no type for those."""
    return f"CAST({guarded(f'CAST({sql} AS SMALLINT)')} AS INTEGER)"


def _integer_division(left: Typed, symbol: str, right: Typed) -> str:
    """DuckDB gives NULL for a zero divisor, and an overflow for the remainder of the least number by -1, which is 0."""
    divided = guarded(f"{left.sql} {'//' if symbol == '/' else '%'} {right.sql}")
    if right.text is not None and int(right.text) not in (0, -1):
        return divided
    minus_one = f"WHEN {right.sql} = -1 THEN {left.sql} - {left.sql} " if symbol == "%" else ""
    return f"(CASE WHEN {right.sql} = 0 THEN {_unless_null(left, DIVISION_BY_ZERO)} {minus_one}ELSE {divided} END)"


def _unless_null(value: Typed, error: str) -> str:
    """Operators are strict: NULL / 0 is NULL."""
    return error if value.text is not None else f"CASE WHEN {value.sql} IS NOT NULL THEN {error} END"


def _numerics(left: Typed, symbol: str, right: Typed, scope: Scope) -> Typed:
    if left.type.digits is None or right.type.digits is None:
        raise Untranslatable("arithmetic on a numeric without known digits")
    (left_precision, left_scale), (right_precision, right_scale) = left.type.digits, right.type.digits
    if symbol == "/":
        return quotient(left, right)
    if symbol == "%":
        raise Untranslatable("% on numeric")
    if symbol == "*":
        kind = _bounded(left_precision + right_precision, left_scale + right_scale, scope)
        return Typed(f"({left.sql} * {right.sql})", kind, scale=_scales(left, right, "+"))
    scale = max(left_scale, right_scale)
    kind = _bounded(max(left_precision - left_scale, right_precision - right_scale) + scale + 1, scale, scope)
    return Typed(f"({left.sql} {symbol} {right.sql})", kind, scale=_scales(left, right, "max"))


def _bounded(precision: int, scale: int, scope: Scope) -> SqlType:
    """DuckDB has 38 digits; a result that may need more is checked when it is computed."""
    if precision > MAX_DIGITS:
        scope.fail_over("more than 38 digits")
    return numeric(precision, scale)


def _scales(left: Typed, right: Typed, how: str) -> str | None:
    if left.scale is None and right.scale is None:
        return None
    own = [side.scale or str(side.type.digits[1]) for side in (left, right) if side.type.digits]
    return f"({own[0]} + {own[1]})" if how == "+" else f"greatest({own[0]}, {own[1]})"


def numeric_text(value: Typed) -> str:
    """A numeric's text with the display scale of its own."""
    text = decimal_text(value.sql, value.type)
    if value.scale is None or value.type.digits is None:
        return text
    most = value.type.digits[1]
    cut = f"{most} - {value.scale} + (CASE WHEN {value.scale} = 0 THEN 1 ELSE 0 END)"
    return f"(CASE WHEN {value.scale} >= {most} THEN {text} ELSE left({text}, length({text}) - ({cut})) END)"


def quotient(left: Typed, right: Typed) -> Typed:
    """A numeric quotient: its scale depends on the values, so it is text from here on."""
    divided = f"modak_numeric_div({numeric_text(left)}, {numeric_text(right)})"
    sql = f"(CASE WHEN {right.sql} = 0 THEN {_unless_null(left, DIVISION_BY_ZERO)} ELSE {divided} END)"
    return Typed(divided if right.text and right.text.strip("-0.") else sql, NUMERIC_TEXT)


def _floats(left: Typed, symbol: str, right: Typed, names: set[str]) -> Typed:
    if symbol == "%":
        raise Untranslatable("% on floats")
    if names != {"float4"}:
        left, right = as_float8(left), as_float8(right)
    bare = [side.unchecked or Unchecked(side.sql, (), side.sql) for side in (left, right)]
    sql = f"({bare[0].sql} {symbol} {bare[1].sql})"
    # Infinity and NaN survive every further step but a division, so that one look at the end is enough; a vanished product does not.
    nonzero = (*bare[0].nonzero, *bare[1].nonzero, *((sql,) if symbol in "*/" else ()))
    careful = _careful(bare[0].careful, symbol, bare[1].careful)
    fine = " AND ".join([f"isfinite({sql})", *(f"{product} <> 0" for product in nonzero)])
    return Typed(f"(CASE WHEN {fine} THEN {sql} ELSE {careful} END)", left.type, unchecked=Unchecked(sql, nonzero, careful))


def _careful(left: str, symbol: str, right: str) -> str:
    """Each step with its own check; long operands are computed first, in a lambda, instead of being repeated."""
    if len(left) + len(right) <= 2 * _REPEATED_CHARS_MAX:
        return _checked(left, symbol, right)
    return f"list_transform([{{'l': {left}, 'r': {right}}}], lambda x: {_checked('x.l', symbol, 'x.r')})[1]"


def _checked(left: str, symbol: str, right: str) -> str:
    result = f"({left} {symbol} {right})"
    if symbol == "/":
        return (
            f"(CASE WHEN {right} = 0 THEN CASE WHEN isnan({left}) THEN {left} WHEN {left} IS NOT NULL THEN {DIVISION_BY_ZERO} END "
            f"WHEN isinf({result}) AND NOT isinf({left}) THEN {_OVERFLOW} "
            f"WHEN {result} = 0 AND {left} <> 0 AND NOT isinf({right}) THEN {_UNDERFLOW} ELSE {result} END)"
        )
    underflow = f"WHEN {result} = 0 AND {left} <> 0 AND {right} <> 0 THEN {_UNDERFLOW} " if symbol == "*" else ""
    return f"(CASE WHEN NOT isfinite({result}) AND isfinite({left}) AND isfinite({right}) THEN {_OVERFLOW} {underflow}ELSE {result} END)"


def _negation(at: At) -> Typed:
    node, visit = at.node, at.visit
    only(node, "this")
    value = visit(node.this)
    name = value.type.name
    if name not in NUMBERS or (name == "numeric" and value.type.digits is None):
        raise Untranslatable(f"- on {name}")
    if value.text is not None and not value.text.startswith("-") and name in (*INTEGERS, "numeric"):
        text = f"-{value.text}" if value.text.strip("0.") else value.text
        quoted = f"'{text}'" if name == "numeric" else text
        return Typed(f"CAST({quoted} AS {duckdb_name(value.type)})", value.type.plain(), text)
    if name == "int2":
        return Typed(small(f"-({value.sql})"), INT2)
    sql = guarded(f"-({value.sql})") if name in INTEGERS else f"(-({value.sql}))"
    return Typed(sql, value.type.plain(), scale=value.scale)


HANDLERS: Handlers = {**dict.fromkeys(_SYMBOLS, _binary), exp.Neg: _negation}
