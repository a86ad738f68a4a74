"""Comparisons, their lists and ranges, null tests, logic and pattern matching."""

from __future__ import annotations

from sqlglot import exp

from modak.gateway.dialect.arithmetic import numeric_text
from modak.gateway.dialect.arrays import array_elements
from modak.gateway.dialect.coerce import as_float8, as_numeric, coerced, common_digits, refuse_opaque
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.literals import is_utc
from modak.gateway.dialect.parse import literal_text, only, string, unwrapped
from modak.gateway.dialect.scope import At, Handlers, Scope, Typed, Visit
from modak.gateway.dialect.types import (
    BOOL,
    FLOATS,
    INTEGERS,
    NUMBERS,
    STRINGS,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    SqlType,
    declared_type,
)

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
}
_ORDERINGS = frozenset({"<", "<=", ">", ">="})
_SAME_ONLY = frozenset({"bool", "uuid", "bytea", "date", "timestamp", "timestamptz", "enum"})


def comparable(left: Typed, right: Typed, scope: Scope) -> tuple[Typed, Typed]:
    """Both sides in one type, by which Postgres would compare them."""
    if left.unknown and right.unknown:
        return coerced(left, TEXT, scope), coerced(right, TEXT, scope)
    if left.unknown or right.unknown:
        other = right if left.unknown else left
        refuse_opaque(other.type)
        if other.type.name == "numeric" and not (left.null or right.null):
            return _numerics(_read(left, other.type, scope), _read(right, other.type, scope), scope)
        return coerced(left, other.type.plain(), scope), coerced(right, other.type.plain(), scope)
    names = {left.type.name, right.type.name}
    for side in (left, right):
        refuse_opaque(side.type)
    if names <= set(INTEGERS):
        return left, right
    if names <= {*INTEGERS, "numeric"}:
        return _numerics(as_numeric(left), as_numeric(right), scope)
    if names == {"float4"}:
        return left, right
    if names & set(FLOATS) and names <= set(NUMBERS):
        return as_float8(left), as_float8(right)
    if names <= {"text", "varchar"} or names == {"bpchar"} or names == {"bpchar", "text"}:
        return left, right
    if len(names) == 1 and names <= _SAME_ONLY:
        _same_enum(left.type, right.type)
        return left, right
    return _times(left, right, scope)


def _read(value: Typed, wanted: SqlType, scope: Scope) -> Typed:
    return coerced(value, wanted, scope) if value.unknown else value


def _numerics(left: Typed, right: Typed, scope: Scope) -> tuple[Typed, Typed]:
    if left.type.digits is None or right.type.digits is None:
        return _sort_key(left), _sort_key(right)
    wanted = common_digits([left.type, right.type])
    return coerced(left, wanted, scope), coerced(right, wanted, scope)


def _sort_key(value: Typed) -> Typed:
    """A quotient is text; its key compares as the number does."""
    return Typed(f"modak_numeric_key({numeric_text(value)})", TEXT)


def _same_enum(left: SqlType, right: SqlType) -> None:
    if left.name == "enum" and left.pg != right.pg:
        raise Untranslatable("two enums")


def _times(left: Typed, right: Typed, scope: Scope) -> tuple[Typed, Typed]:
    """Postgres compares across date, timestamp and timestamptz without overflow: a late date is above every timestamp."""
    names = {left.type.name, right.type.name}
    if names == {"date", "timestamp"}:
        return _timestamp(left), _timestamp(right)
    if names <= {"date", "timestamp", "timestamptz"} and is_utc(scope.timezone):
        return _timestamptz(left), _timestamptz(right)
    raise Untranslatable(f"comparing {' with '.join(sorted(names))}")


def _timestamp(value: Typed) -> Typed:
    if value.type.name == "timestamp":
        return value
    late = f"CASE WHEN {value.sql} IS NOT NULL THEN TIMESTAMP 'infinity' END"
    return Typed(f"coalesce(TRY_CAST({value.sql} AS TIMESTAMP), {late})", TIMESTAMP)


def _timestamptz(value: Typed) -> Typed:
    if value.type.name == "timestamptz":
        return value
    exact = f"make_timestamptz(epoch_us(TRY_CAST({value.sql} AS TIMESTAMP)))"
    late = f"CASE WHEN {value.sql} IS NOT NULL THEN TIMESTAMPTZ 'infinity' END"
    return Typed(f"coalesce({exact}, {late})", TIMESTAMPTZ)


def compared(left: Typed, operator: str, right: Typed, scope: Scope) -> Typed:
    """One comparison. Order of text needs the C collation, and enums have an order of their own."""
    left, right = comparable(left, right, scope)
    if operator in _ORDERINGS:
        ordered(left.type, scope)
    return Typed(f"({left.sql} {operator} {right.sql})", BOOL)


def ordered(of: SqlType, scope: Scope) -> None:
    """Refuses types whose order DuckDB does not share."""
    refuse_opaque(of)
    if of.name == "enum":
        raise Untranslatable("order of an enum")
    if of.name in STRINGS and not scope.collation_is_c:
        raise Untranslatable("order of text under a collation")


def _comparison(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "expression")
    operator, right = _OPERATORS[type(node)], node.expression
    if isinstance(right, exp.Any) or (isinstance(right, exp.Anonymous) and str(right.this).lower() in ("all", "any", "some")):
        return _quantified(node, operator, right, scope, visit)
    if isinstance(right, exp.All):
        raise Untranslatable("ALL of a subquery")
    return compared(visit(node.this), operator, visit(right), scope)


def _quantified(node: exp.Expr, operator: str, right: exp.Expr, scope: Scope, visit: Visit) -> Typed:
    """``= ANY (array)`` and ``<> ALL (array)``."""
    if isinstance(right, exp.Any):
        only(right, "this")
        word, array = "any", unwrapped(right.this)
    else:
        only(right, "this", "expressions")
        if len(right.expressions) != 1:
            raise Untranslatable("ALL of several")
        word, array = str(right.this).lower().replace("some", "any"), unwrapped(right.expressions[0])
    if (operator, word) not in (("=", "any"), ("<>", "all")):
        raise Untranslatable(f"{operator} {word.upper()}")
    if word == "any" and isinstance(array, exp.Subquery | exp.Select):
        return _in_query(visit(node.this), array.this if isinstance(array, exp.Subquery) else array, scope)
    items = _array_items(array, scope, visit)
    if not items:
        visit(node.this)
        return Typed("FALSE" if word == "any" else "TRUE", BOOL)
    return _listed(visit(node.this), items, scope, negated=word == "all")


def _array_items(array: exp.Expr, scope: Scope, visit: Visit) -> list[Typed]:
    if isinstance(array, exp.Array):
        only(array, "expressions")
        if not array.expressions:
            raise Untranslatable("an empty array without a type")
        return [visit(item) for item in array.expressions]
    if not isinstance(array, exp.Cast):
        raise Untranslatable("an array that is not constant")
    only(array, "this", "to")
    kind, text = array.args["to"], literal_text(unwrapped(array.this))
    if not isinstance(kind, exp.DataType) or kind.this != exp.DType.ARRAY or len(kind.expressions) != 1 or text is None:
        raise Untranslatable("an array that is not constant")
    element = declared_type(kind.expressions[0])
    return [coerced(_constant(item), element, scope) for item in array_elements(text)]


def _constant(text: str | None) -> Typed:
    return Typed("NULL", UNKNOWN, null=True) if text is None else Typed("", UNKNOWN, text)


def _listed(subject: Typed, items: list[Typed], scope: Scope, *, negated: bool) -> Typed:
    """A list by one IN where all items compare in one type, which is what Postgres's array of a common type does as well."""
    known = {item.type.name for item in items if not item.unknown}
    if len(known) > 1 and not known <= {*INTEGERS, "numeric"}:
        raise Untranslatable("a list of several types")
    pairs = [comparable(subject, item, scope) for item in items]
    subjects = {left.sql for left, _ in pairs}
    if len(subjects) > 1:
        tests = " OR ".join(f"{left.sql} = {right.sql}" for left, right in pairs)
        return Typed(f"(NOT ({tests}))" if negated else f"({tests})", BOOL)
    values = ", ".join(right.sql for _, right in pairs)
    return Typed(f"({pairs[0][0].sql} {'NOT IN' if negated else 'IN'} ({values}))", BOOL)


def _in(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "expressions", "query")
    query = node.args.get("query")
    if isinstance(node.this, exp.Tuple):
        raise Untranslatable("IN of rows")
    subject = visit(node.this)
    if query is not None:
        only(query, "this")
        return _in_query(subject, query.this, scope)
    if not node.expressions or subject.unknown:
        raise Untranslatable("IN without a type")
    return _listed(subject, [visit(item) for item in node.expressions], scope, negated=False)


def _in_query(subject: Typed, query: exp.Expr, scope: Scope) -> Typed:
    if scope.subquery is None:
        raise Untranslatable("a subquery")
    sql, types = scope.subquery(query, scope)
    if len(types) != 1:
        raise Untranslatable("IN of a subquery of several columns")
    left, right = comparable(subject, Typed('"c1"', types[0]), scope)
    if right.sql != '"c1"':
        sql = f'SELECT {right.sql} FROM ({sql}) AS "q"'  # noqa: S608
    return Typed(f"({left.sql} IN ({sql}))", BOOL)


def _between(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "low", "high")
    subject = visit(node.this)
    low = compared(subject, ">=", visit(node.args["low"]), scope)
    high = compared(subject, "<=", visit(node.args["high"]), scope)
    return Typed(f"({low.sql} AND {high.sql})", BOOL)


def _boolean(node: exp.Expr, visit: Visit, scope: Scope) -> str:
    value = visit(node)
    if value.type.name != "bool" and not value.null:
        raise Untranslatable(f"logic on {value.type.name}")
    return coerced(value, BOOL, scope).sql


def _connector(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "expression")
    word = "AND" if isinstance(node, exp.And) else "OR"
    return Typed(f"({_boolean(node.this, visit, scope)} {word} {_boolean(node.expression, visit, scope)})", BOOL)


def _not(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this")
    return Typed(f"(NOT {_boolean(node.this, visit, scope)})", BOOL)


def _is(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "expression", "negate")
    negated = " NOT" if node.args.get("negate") else ""
    if isinstance(node.expression, exp.Null):
        value = visit(node.this)
        return Typed(f"({_presence(value)} IS{negated} NULL)", BOOL)
    if isinstance(node.expression, exp.Boolean) and not negated:
        word = "TRUE" if node.expression.this else "FALSE"
        return Typed(f"({_boolean(node.this, visit, scope)} IS NOT DISTINCT FROM {word})", BOOL)
    raise Untranslatable("IS with something else")


def _presence(value: Typed) -> str:
    if value.null:
        return "NULL"
    return string(value.text or "") if value.unknown else value.sql


def _like(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "expression", "negate")
    if isinstance(node.expression, exp.Any | exp.All):
        raise Untranslatable("LIKE ANY")
    subject, pattern = visit(node.this), visit(node.expression)
    if {subject.type.name, pattern.type.name} & {"bpchar"}:
        raise Untranslatable("LIKE on char(n)")
    constant = pattern.text if pattern.unknown else None
    subject, pattern = (coerced(side, TEXT, scope) for side in (subject, pattern))
    folded = isinstance(node, exp.ILike)
    escape = _escape(constant)
    test = f"{subject.sql} {'ILIKE' if folded else 'LIKE'} {pattern.sql}{escape}"
    if folded:
        test = _ascii_only(test, subject, constant, scope)
    return Typed(f"(NOT ({test}))" if node.args.get("negate") else f"({test})", BOOL)


def _escape(constant: str | None) -> str:
    r"""Backslash escapes in Postgres and in DuckDB only on request; one at the end is Postgres's to complain about."""
    if constant is None:
        raise Untranslatable("LIKE with a pattern that is not constant")
    if "\\" not in constant:
        return ""
    if (len(constant) - len(constant.rstrip("\\"))) % 2:
        raise Untranslatable("a pattern that ends with its escape")
    return " ESCAPE '\\'"


def _ascii_only(test: str, subject: Typed, constant: str | None, scope: Scope) -> str:
    if not scope.collation_is_c or constant is None or not constant.isascii():
        raise Untranslatable("ILIKE beyond ASCII")
    beyond = scope.fail_over("ILIKE beyond ASCII")
    return f"CASE WHEN strlen({subject.sql}) = length({subject.sql}) THEN {test} WHEN {subject.sql} IS NOT NULL THEN {beyond} END"


HANDLERS: Handlers = {
    **dict.fromkeys(_OPERATORS, _comparison),
    exp.In: _in,
    exp.Between: _between,
    exp.And: _connector,
    exp.Or: _connector,
    exp.Not: _not,
    exp.Is: _is,
    exp.Like: _like,
    exp.ILike: _like,
}
