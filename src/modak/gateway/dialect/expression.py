"""The translator of expressions: Postgres's syntax tree in, DuckDB's SQL and Postgres's type out.

It knows a fixed set of nodes, operators, casts and functions, each tested against Postgres on edge values. Whatever it does not know is
Untranslatable, so that nothing is ever evaluated by rules that merely look alike.
"""

from __future__ import annotations

from sqlglot import exp

from modak.gateway.dialect import arithmetic, calls, casts, comparison, datetimes
from modak.gateway.dialect.coerce import coerced, unified
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.literals import literal
from modak.gateway.dialect.parse import identifier, literal_text, only
from modak.gateway.dialect.remote import parameter_number
from modak.gateway.dialect.scope import At, Handlers, Relation, Scope, Typed
from modak.gateway.dialect.types import BOOL, INT4, INT8, NUMERIC_TEXT, UNKNOWN, SqlType

__all__ = ["Relation", "Scope", "SqlType", "Typed", "Untranslatable", "condition", "translate"]

# Each step may repeat its operands; a statement that grows beyond this is Postgres's.
_SQL_CHARS_MAX = 500_000


def translate(node: exp.Expr, scope: Scope) -> Typed:
    """An expression for DuckDB with its Postgres type, or Untranslatable."""

    def visit(child: exp.Expr) -> Typed:
        return translate(child, scope)

    special = scope.call(node, scope) if scope.call else None
    if special is not None:
        return special
    handler = _HANDLERS.get(type(node))
    if handler is None:
        raise Untranslatable(f"{type(node).__name__}: {node.sql('postgres')[:80]}")
    typed = handler(At(node, scope, visit))
    if len(typed.sql) > _SQL_CHARS_MAX:
        raise Untranslatable("an expression that grows too long")
    return typed


def condition(node: exp.Expr, scope: Scope) -> str:
    """A WHERE, ON, HAVING or FILTER condition."""
    return coerced_bool(translate(node, scope), scope).sql


def coerced_bool(value: Typed, scope: Scope) -> Typed:
    if value.type.name != "bool" and not value.null:
        raise Untranslatable(f"a condition of type {value.type.name}")
    return coerced(value, BOOL, scope)


def _paren(at: At) -> Typed:
    node, visit = at.node, at.visit
    only(node, "this")
    return visit(node.this)


def _column(at: At) -> Typed:
    node, scope = at.node, at.scope
    only(node, "this", "table", "db")
    table, schema = node.args.get("table"), node.args.get("db")
    return scope.column(identifier(node.this), identifier(table) if table else None, identifier(schema) if schema else None)


def _string(at: At) -> Typed:
    node = at.node
    text = literal_text(node)
    if text is not None:
        return Typed("", UNKNOWN, text)
    return _number(node)


def _number(node: exp.Expr) -> Typed:
    text = str(node.this)
    if text.isdigit() and int(text) < 2**63:
        value = int(text)
        kind = INT4 if value < 2**31 else INT8
        return Typed(literal(str(value), kind).sql, kind, str(value))
    read = literal(text, NUMERIC_TEXT)
    return Typed(read.sql, read.type, read.text)


def _null(at: At) -> Typed:
    only(at.node)
    return Typed("NULL", UNKNOWN, null=True)


def _boolean(at: At) -> Typed:
    node = at.node
    only(node, "this")
    return Typed("TRUE" if node.this else "FALSE", BOOL, "t" if node.this else "f")


def _parameter(at: At) -> Typed:
    node, scope = at.node, at.scope
    assert isinstance(node, exp.Parameter)
    only(node, "this")
    number = parameter_number(node)
    if number not in scope.parameters:
        raise Untranslatable(f"parameter ${number} has no value")
    text, kind = scope.parameters[number]
    if kind.name == "unknown":
        return Typed("", UNKNOWN, text) if text is not None else Typed("NULL", UNKNOWN, null=True)
    value = Typed("", UNKNOWN, text) if text is not None else Typed("NULL", UNKNOWN, null=True)
    return coerced(value, kind, scope)


def _case(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "ifs", "default")
    subject = node.args.get("this")
    conditions, results = [], []
    for branch in node.args["ifs"]:
        only(branch, "this", "true")
        test = exp.EQ(this=subject.copy(), expression=branch.this.copy()) if subject is not None else branch.this
        conditions.append(coerced_bool(visit(test), scope).sql)
        results.append(visit(branch.args["true"]))
    default = node.args.get("default")
    results.append(visit(default) if default is not None else Typed("NULL", UNKNOWN, null=True))
    # Postgres looks at the ELSE branch first when it chooses the type.
    values, kind = unified([results[-1], *results[:-1]], scope)
    values = [*values[1:], values[0]]
    whens = " ".join(f"WHEN {test} THEN {value.sql}" for test, value in zip(conditions, values, strict=False))
    scales = " ".join(f"WHEN {test} THEN {value.scale}" for test, value in zip(conditions, values, strict=False))
    scale = f"(CASE {scales} ELSE {values[-1].scale} END)" if values[-1].scale else None
    return Typed(f"(CASE {whens} ELSE {values[-1].sql} END)", kind, scale=scale)


def _subquery(at: At) -> Typed:
    """A scalar subquery: one column, at most one row."""
    node, scope = at.node, at.scope
    if scope.subquery is None:
        raise Untranslatable("a subquery")
    only(node, "this")
    sql, types = scope.subquery(node.this, scope)
    if len(types) != 1:
        raise Untranslatable("a subquery of several columns as a value")
    if types[0].name == "numeric" and types[0].digits is None:
        raise Untranslatable("a numeric without known digits as a value")
    return Typed(f"({sql})", types[0])


def _exists(at: At) -> Typed:
    node, scope = at.node, at.scope
    if scope.subquery is None:
        raise Untranslatable("a subquery")
    only(node, "this")
    sql, _ = scope.subquery(node.this, scope)
    return Typed(f"EXISTS ({sql})", BOOL)


_HANDLERS: Handlers = {
    exp.Paren: _paren,
    exp.Column: _column,
    exp.Literal: _string,
    exp.ByteString: _string,
    exp.RawString: _string,
    exp.Null: _null,
    exp.Boolean: _boolean,
    exp.Parameter: _parameter,
    exp.Case: _case,
    exp.Subquery: _subquery,
    exp.Exists: _exists,
    **comparison.HANDLERS,
    **arithmetic.HANDLERS,
    **casts.HANDLERS,
    **datetimes.HANDLERS,
    **calls.HANDLERS,
}
