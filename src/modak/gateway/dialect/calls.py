"""Functions by name. Each is listed with the types it takes; a call that Postgres would resolve otherwise is not in the list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from modak.gateway.dialect import arithmetic, datetimes
from modak.gateway.dialect.coerce import coerced, unified
from modak.gateway.dialect.comparison import comparable, ordered
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.parse import only
from modak.gateway.dialect.scope import At, Handlers, Scope, Typed, guarded
from modak.gateway.dialect.types import BOOL, FLOATS, INT4, INTEGERS, NUMBERS, NUMERIC_TEXT, STRINGS, TEXT, SqlType, duckdb_name, numeric

Function = Callable[[list[Typed], Scope], Typed]


def _text(value: Typed, scope: Scope) -> Typed:
    if not value.unknown and value.type.name not in STRINGS:
        raise Untranslatable(f"a text function on {value.type.name}")
    return coerced(value, TEXT, scope)


def _integer(value: Typed, scope: Scope) -> Typed:
    if value.type.name not in ("int2", "int4") and not value.unknown:
        raise Untranslatable(f"an integer argument of type {value.type.name}")
    return coerced(value, INT4, scope)


def _strings(template: str, kind: SqlType) -> Function:
    """A function of text arguments only, with a template of DuckDB SQL."""

    def call(arguments: list[Typed], scope: Scope) -> Typed:
        return Typed(template.format(*(_text(argument, scope).sql for argument in arguments)), kind)

    return call


def _folded(function: str) -> Function:
    """lower and upper: what happens beyond ASCII is the locale's business."""

    def call(arguments: list[Typed], scope: Scope) -> Typed:
        if not scope.collation_is_c:
            raise Untranslatable(f"{function} under a locale")
        value = _text(arguments[0], scope).sql
        beyond = scope.fail_over(f"{function} beyond ASCII")
        return Typed(
            f"(CASE WHEN strlen({value}) = length({value}) THEN {function}({value}) WHEN {value} IS NOT NULL THEN {beyond} END)", TEXT
        )

    return call


def _substring(arguments: list[Typed], scope: Scope) -> Typed:
    """Positions before the first count as empty; DuckDB would count them from the end."""
    text = _text(arguments[0], scope).sql
    start = _integer(arguments[1], scope)
    first = (
        start.sql
        if start.text and int(start.text) > 0
        else f"(CASE WHEN {start.sql} > 1 THEN {start.sql} WHEN {start.sql} <= 1 THEN 1 END)"
    )
    if len(arguments) == 2:
        return Typed(f"substring({text}, {first})", TEXT)
    length = _integer(arguments[2], scope)
    end = f"CAST({start.sql} AS BIGINT) + {length.sql}"
    negative = f"WHEN {length.sql} < 0 AND {text} IS NOT NULL AND {start.sql} IS NOT NULL"
    negative += " THEN error('22011: negative substring length not allowed')"
    left = f"({end} - {first})"
    return Typed(
        f"(CASE {negative} WHEN {left} > 0 THEN substring({text}, {first}, {left}) WHEN {left} <= 0 THEN left({text}, 0) END)", TEXT
    )


def _sided(function: str) -> Function:
    def call(arguments: list[Typed], scope: Scope) -> Typed:
        count = _integer(arguments[1], scope)
        if count.text is None:
            raise Untranslatable(f"{function} of a computed length")
        return Typed(f"{function}({_text(arguments[0], scope).sql}, {count.sql})", TEXT)

    return call


def _trimmed(function: str) -> Function:
    def call(arguments: list[Typed], scope: Scope) -> Typed:
        characters = _text(arguments[1], scope).sql if len(arguments) == 2 else "' '"
        return Typed(f"{function}({_text(arguments[0], scope).sql}, {characters})", TEXT)

    return call


def _concat(arguments: list[Typed], scope: Scope) -> Typed:
    parts = [_concatenable(argument, scope) for argument in arguments]
    return Typed(f"concat({', '.join(parts)})", TEXT)


def _concatenable(value: Typed, scope: Scope) -> str:
    if value.null:
        return "CAST(NULL AS VARCHAR)"
    if value.type.name in INTEGERS:
        return f"CAST({value.sql} AS VARCHAR)"
    if value.type.name == "bpchar":
        raise Untranslatable("concat of char(n)")
    return _text(value, scope).sql


def _pipe(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "expression", "safe")
    left, right = visit(node.this), visit(node.expression)
    if not any(side.type.name in STRINGS for side in (left, right)):
        raise Untranslatable("|| without text")
    parts = [f"CAST({side.sql} AS VARCHAR)" if side.type.name in INTEGERS else _text(side, scope).sql for side in (left, right)]
    return Typed(f"({parts[0]} || {parts[1]})", TEXT)


def _number(value: Typed) -> Typed:
    if value.type.name not in NUMBERS:
        raise Untranslatable(f"a number function on {value.type.name}")
    return value


def _abs(arguments: list[Typed], scope: Scope) -> Typed:
    value = _number(arguments[0])
    if value.type.name == "numeric" and value.type.digits is None:
        raise Untranslatable("abs of a numeric without known digits")
    if value.null:
        return coerced(value, INT4, scope)
    sql = guarded(f"abs({value.sql})")
    if value.type.name == "int2":
        sql = arithmetic.small(sql)
    return Typed(sql, value.type.plain(), scale=value.scale)


def _round(arguments: list[Typed], scope: Scope) -> Typed:
    value = _number(arguments[0])
    if value.type.name in ("float8", *INTEGERS) and len(arguments) == 1:
        # An integer is rounded as float8, Postgres's preferred number.
        return Typed(f"round_even({coerced(value, SqlType('float8'), scope).sql}, 0)", SqlType("float8"))
    if value.type.name != "numeric":
        raise Untranslatable(f"round of {value.type.name}")
    decimals = _integer(arguments[1], scope) if len(arguments) == 2 else Typed("0", INT4, "0")
    if decimals.text is None:
        raise Untranslatable("round to a computed number of decimals")
    places = int(decimals.text)
    if value.type.digits is None:
        return Typed(f"modak_numeric_round({value.sql}, {places})", NUMERIC_TEXT)
    if value.scale is not None or places < 0:
        return Typed(f"modak_numeric_round({arithmetic.numeric_text(value)}, {places})", NUMERIC_TEXT)
    precision, scale = value.type.digits
    wanted = numeric(precision - scale + places + (1 if places < scale else 0), places)
    if precision - scale + places + 1 > 38:
        scope.fail_over("more than 38 digits")
    return Typed(f"CAST({value.sql} AS {duckdb_name(wanted)})", wanted)


def _whole(function: str) -> Function:
    """floor and ceil."""

    def call(arguments: list[Typed], scope: Scope) -> Typed:
        value = _number(arguments[0])
        if value.type.name in (*FLOATS, *INTEGERS):
            return Typed(f"{function}({coerced(value, SqlType('float8'), scope).sql})", SqlType("float8"))
        if value.type.name != "numeric" or value.type.digits is None:
            raise Untranslatable(f"{function} of {value.type.name}")
        precision, scale = value.type.digits
        wanted = numeric(precision - scale + 1, 0)
        return Typed(f"CAST({function}({value.sql}) AS {duckdb_name(wanted)})", wanted)

    return call


def _mod(arguments: list[Typed], scope: Scope) -> Typed:
    if not all(argument.type.name in INTEGERS for argument in arguments):
        raise Untranslatable("mod of other than integers")
    return arithmetic.operation(arguments[0], "%", arguments[1], scope)


def _coalesce(arguments: list[Typed], scope: Scope) -> Typed:
    if not arguments:
        raise Untranslatable("coalesce of nothing")
    values, kind = unified(arguments, scope)
    sql = f"coalesce({', '.join(value.sql for value in values)})"
    if values[0].scale is None:
        return Typed(sql, kind)
    scales = " ".join(f"WHEN {value.sql} IS NOT NULL THEN {value.scale}" for value in values)
    return Typed(sql, kind, scale=f"(CASE {scales} END)")


def _extreme(function: str) -> Function:
    """greatest and least skip NULL on both sides."""

    def call(arguments: list[Typed], scope: Scope) -> Typed:
        values, kind = unified(arguments, scope)
        if not values or kind.name not in (*NUMBERS, "text", "varchar", "date", "timestamp", "timestamptz"):
            raise Untranslatable(f"{function} of {kind.name}")
        if kind.name in FLOATS or any(value.scale for value in values):
            raise Untranslatable(f"{function} of values that are equal and read differently")
        ordered(kind, scope)
        return Typed(f"{function}({', '.join(value.sql for value in values)})", kind)

    return call


def _nullif(arguments: list[Typed], scope: Scope) -> Typed:
    """The first value as the = operator takes it: promoted where there is no operator for its own type."""
    left, right = comparable(arguments[0], arguments[1], scope)
    kept = left
    if arguments[0].type.name in ("float4", "date", "timestamp", "timestamptz"):
        kept = arguments[0]
    elif left.type.name == "numeric" or (arguments[0].type.name in (*INTEGERS, "numeric") and arguments[1].type.name == "numeric"):
        kept = coerced(arguments[0], SqlType("numeric"), scope)
    if kept.type.name == "varchar":
        kept = replace(kept, type=TEXT)
    return Typed(f"(CASE WHEN {left.sql} = {right.sql} THEN NULL ELSE {kept.sql} END)", kept.type.plain(), scale=kept.scale)


def _now(arguments: list[Typed], scope: Scope) -> Typed:
    assert not arguments
    return datetimes.now(scope)


def _date_part(arguments: list[Typed], scope: Scope) -> Typed:
    if not arguments[0].unknown or arguments[0].text is None:
        raise Untranslatable("date_part of a computed field")
    return datetimes.field(arguments[0].text.lower(), arguments[1], scope, as_float=True)


_FUNCTIONS: dict[str, tuple[Sequence[int], Function]] = {
    "length": ((1,), _strings("CAST(length({0}) AS INTEGER)", INT4)),
    "char_length": ((1,), _strings("CAST(length({0}) AS INTEGER)", INT4)),
    "character_length": ((1,), _strings("CAST(length({0}) AS INTEGER)", INT4)),
    "lower": ((1,), _folded("lower")),
    "upper": ((1,), _folded("upper")),
    "substr": ((2, 3), _substring),
    "left": ((2,), _sided("left")),
    "right": ((2,), _sided("right")),
    "btrim": ((1, 2), _trimmed("trim")),
    "ltrim": ((1, 2), _trimmed("ltrim")),
    "rtrim": ((1, 2), _trimmed("rtrim")),
    "strpos": ((2,), _strings("CAST(strpos({0}, {1}) AS INTEGER)", INT4)),
    "replace": ((3,), _strings("replace({0}, {1}, {2})", TEXT)),
    "starts_with": ((2,), _strings("starts_with({0}, {1})", BOOL)),
    "md5": ((1,), _strings("md5({0})", TEXT)),
    "concat": (range(1, 100), _concat),
    "abs": ((1,), _abs),
    "round": ((1, 2), _round),
    "floor": ((1,), _whole("floor")),
    "ceil": ((1,), _whole("ceil")),
    "ceiling": ((1,), _whole("ceil")),
    "mod": ((2,), _mod),
    "coalesce": (range(1, 100), _coalesce),
    "greatest": (range(1, 100), _extreme("greatest")),
    "least": (range(1, 100), _extreme("least")),
    "nullif": ((2,), _nullif),
    "date_trunc": ((2,), lambda arguments, scope: datetimes.date_trunc(arguments[0], arguments[1], scope)),
    "date_part": ((2,), _date_part),
    "now": ((0,), _now),
    "transaction_timestamp": ((0,), _now),
}


def function_name(node: exp.Expr) -> str:
    """A call's name as Postgres folds it."""
    if not isinstance(node, exp.Anonymous):
        raise Untranslatable(f"a call by {type(node).__name__}")
    if isinstance(node.this, exp.Identifier):
        return str(node.this.this)
    return str(node.this).lower()


def _call(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "expressions")
    name = function_name(node)
    if name not in _FUNCTIONS:
        raise Untranslatable(f"function {name}")
    counts, function = _FUNCTIONS[name]
    if len(node.expressions) not in counts:
        raise Untranslatable(f"function {name} with {len(node.expressions)} arguments")
    return function([visit(argument) for argument in node.expressions], scope)


def _qualified(at: At) -> Typed:
    """``pg_catalog.lower(x)``."""
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "expression")
    if (
        not isinstance(node.this, exp.Identifier)
        or node.this.name.lower() != "pg_catalog"
        or not isinstance(node.expression, exp.Anonymous)
    ):
        raise Untranslatable(f"{node.sql('postgres')[:80]}")
    return _call(At(node.expression, scope, visit))


def _substring_syntax(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "start", "length")
    if not node.args.get("start"):
        raise Untranslatable("substring by pattern")
    arguments = [visit(node.args[key]) for key in ("this", "start", "length") if node.args.get(key)]
    if arguments[1].type.name not in INTEGERS:
        raise Untranslatable("substring by pattern")
    return _substring(arguments, scope)


def _trim_syntax(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "position", "expression")
    function = {"BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "BOTH").upper())
    if function is None:
        raise Untranslatable("trim")
    arguments = [visit(node.args[key]) for key in ("this", "expression") if node.args.get(key)]
    return _trimmed(function)(arguments, scope)


def _position_syntax(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "substr")
    return _strings("CAST(strpos({0}, {1}) AS INTEGER)", INT4)([visit(node.this), visit(node.args["substr"])], scope)


HANDLERS: Handlers = {
    exp.Anonymous: _call,
    exp.Dot: _qualified,
    exp.DPipe: _pipe,
    exp.Substring: _substring_syntax,
    exp.Trim: _trim_syntax,
    exp.StrPosition: _position_syntax,
}
