"""Aggregates and window functions with Postgres's result types: sums grow wider, averages of exact numbers stay exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlglot import exp

from modak.gateway.dialect.arithmetic import numeric_text
from modak.gateway.dialect.calls import function_name
from modak.gateway.dialect.coerce import unified
from modak.gateway.dialect.comparison import ordered
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.expression import condition, translate
from modak.gateway.dialect.parse import identifier, only
from modak.gateway.dialect.scope import Scope, Typed, guarded
from modak.gateway.dialect.types import BOOL, FLOAT8, INT8, INTEGERS, NUMERIC_TEXT, TEXT, SqlType, numeric

AGGREGATES = frozenset({"count", "sum", "avg", "min", "max", "bool_and", "bool_or", "every"})
_RANKINGS = frozenset({"row_number", "rank", "dense_rank"})
_NEIGHBOURS = frozenset({"lag", "lead", "first_value", "last_value"})
_EXTREME_TYPES = frozenset({*INTEGERS, "numeric", "float4", "float8", "text", "varchar", "bpchar", "date", "timestamp", "timestamptz"})
_INT8_SUM_DIGITS = 38


def groupable(of: SqlType, what: str) -> None:
    """Refuses types for which two equal values may look different to DuckDB."""
    if of.name in ("opaque", "interval") or (of.name == "numeric" and of.digits is None):
        raise Untranslatable(f"{what} by {of.pg.display if of.pg else of.name}")


@dataclass
class Calls:
    """The hook that gives a select list its aggregates and windows, and remembers whether it met any."""

    order: Callable[[exp.Expr, Scope], str]
    windows: dict[str, exp.Window]
    aggregated: bool = False

    def in_select(self, node: exp.Expr, scope: Scope) -> Typed | None:
        """Aggregates and windows are allowed here."""
        if isinstance(node, exp.Window):
            return self._window(node, scope)
        return self.grouped(node, scope)

    def grouped(self, node: exp.Expr, scope: Scope) -> Typed | None:
        """Aggregates are allowed here, windows are not."""
        if isinstance(node, exp.Window):
            raise Untranslatable("a window function here")
        found = aggregate_call(node)
        if found is None:
            return None
        self.aggregated = True
        name, arguments, filtered = found
        _refuse_outer(arguments, scope)
        return _Aggregate(replace(scope, call=None), arguments, filtered, "").of(name)

    def _window(self, node: exp.Window, scope: Scope) -> Typed:
        only(node, "this", "partition_by", "order", "spec", "over", "alias")
        if str(node.args.get("over") or "OVER").upper() != "OVER":
            raise Untranslatable("a window with more than OVER")
        definition = self._definition(node)
        inner = replace(scope, call=self.grouped)
        over = self._over(definition, inner)
        found = aggregate_call(node.this)
        if found is not None:
            name, arguments, filtered = found
            return _Aggregate(inner, arguments, filtered, f" OVER ({over})").of(name)
        return self._ranking(node.this, definition, inner, over)

    def _definition(self, node: exp.Window) -> exp.Window:
        alias = node.args.get("alias")
        if alias is None:
            return node
        name = identifier(alias)
        if name not in self.windows or any(node.args.get(key) for key in ("partition_by", "order", "spec")):
            raise Untranslatable(f"window {name}")
        return self.windows[name]

    def _over(self, node: exp.Window, scope: Scope) -> str:
        parts = []
        keys = [translate(key, scope) for key in node.args.get("partition_by") or []]
        for key in keys:
            groupable(key.type, "PARTITION")
        if keys:
            parts.append("PARTITION BY " + ", ".join(key.sql for key in keys))
        order = node.args.get("order")
        if order is not None:
            only(order, "expressions")
            parts.append("ORDER BY " + ", ".join(self.order(item, scope) for item in order.expressions))
        spec = node.args.get("spec")
        if spec is not None:
            parts.append(_frame(spec))
        return " ".join(parts)

    def _ranking(self, node: exp.Expr, definition: exp.Window, scope: Scope, over: str) -> Typed:
        only(node, "this", "expressions")
        name = function_name(node)
        if name not in _RANKINGS | _NEIGHBOURS:
            raise Untranslatable(f"window function {name}")
        if definition.args.get("order") is None:
            raise Untranslatable(f"{name} without an order")
        if name in _RANKINGS:
            if node.expressions:
                raise Untranslatable(f"{name} with arguments")
            return Typed(f"{name}() OVER ({over})", INT8)
        return _neighbour(name, [translate(argument, scope) for argument in node.expressions], scope, over)


def aggregate_call(node: exp.Expr) -> tuple[str, list[exp.Expr], exp.Expr | None] | None:
    filtered = None
    if isinstance(node, exp.Filter):
        only(node, "this", "expression")
        filtered, node = node.expression.this, node.this
    if isinstance(node, exp.Dot) and isinstance(node.this, exp.Identifier) and node.this.name == "pg_catalog":
        node = node.expression
    if not isinstance(node, exp.Anonymous) or function_name(node) not in AGGREGATES:
        if filtered is not None:
            raise Untranslatable("FILTER on something unknown")
        return None
    only(node, "this", "expressions")
    return function_name(node), node.expressions, filtered


def _refuse_outer(arguments: list[exp.Expr], scope: Scope) -> None:
    """An aggregate over nothing but outer columns belongs to the outer query."""
    columns = [column for argument in arguments for column in argument.find_all(exp.Column)]
    if scope.outer is not None and columns:
        local = replace(scope, outer=None)
        for column in columns:
            try:
                translate(column, replace(local, call=None))
            except Untranslatable:
                continue
            return
        raise Untranslatable("an aggregate of the outer query")


def _neighbour(name: str, arguments: list[Typed], scope: Scope, over: str) -> Typed:
    counts = (1, 2, 3) if name in ("lag", "lead") else (1,)
    if len(arguments) not in counts or arguments[0].unknown:
        raise Untranslatable(f"{name} with {len(arguments)} arguments")
    if arguments[0].scale is not None or arguments[0].type.name == "interval":
        raise Untranslatable(f"{name} of this type")
    parts = [arguments[0].sql]
    if len(arguments) > 1:
        if arguments[1].type.name != "int4" or arguments[1].text is None:
            raise Untranslatable(f"{name} by a computed distance")
        parts.append(arguments[1].text)
    if len(arguments) > 2:
        values, _ = unified([arguments[0], arguments[2]], scope)
        if values[0].type != arguments[0].type or any(value.scale for value in values):
            raise Untranslatable(f"{name} with a default of another type")
        parts.append(values[1].sql)
    kept = arguments[0].type
    return Typed(f"{name}({', '.join(parts)}) OVER ({over})", kept if kept.name in ("enum", "opaque", "bpchar") else kept.plain())


_SIDES = {"PRECEDING", "FOLLOWING"}


def _frame(spec: exp.Expr) -> str:
    only(spec, "kind", "start", "start_side", "end", "end_side")
    kind = str(spec.args.get("kind") or "").upper()
    if kind not in ("ROWS", "RANGE"):
        raise Untranslatable(f"frame {kind}")
    start = _bound(spec.args.get("start"), spec.args.get("start_side"), kind)
    end = _bound(spec.args.get("end"), spec.args.get("end_side"), kind) if spec.args.get("end") else "CURRENT ROW"
    return f"{kind} BETWEEN {start} AND {end}"


def _bound(value: object, side: object, kind: str) -> str:
    word = str(side or "").upper()
    if isinstance(value, str) and value.upper() == "CURRENT ROW" and not word:
        return "CURRENT ROW"
    if word not in _SIDES:
        raise Untranslatable("a frame bound")
    if isinstance(value, str) and value.upper() == "UNBOUNDED":
        return f"UNBOUNDED {word}"
    if kind == "ROWS" and isinstance(value, exp.Literal) and not value.is_string and str(value.this).isdigit():
        return f"{value.this} {word}"
    raise Untranslatable("a frame bound")


@dataclass(frozen=True)
class _Aggregate:
    scope: Scope
    arguments: list[exp.Expr]
    filtered: exp.Expr | None
    over: str

    def of(self, name: str) -> Typed:
        if len(self.arguments) != 1:
            raise Untranslatable(f"{name} with {len(self.arguments)} arguments")
        argument, distinct = self.arguments[0], ""
        if isinstance(argument, exp.Star):
            only(argument)
            if name != "count":
                raise Untranslatable(f"{name}(*)")
            return Typed(self._call("count", "*"), INT8)
        if isinstance(argument, exp.Distinct):
            only(argument, "expressions")
            if len(argument.expressions) != 1 or self.over:
                raise Untranslatable("DISTINCT in this aggregate")
            argument, distinct = argument.expressions[0], "DISTINCT "
        value = translate(argument, self.scope)
        if distinct:
            groupable(value.type, "DISTINCT")
        return self._typed(name, value, distinct)

    def _call(self, function: str, inside: str) -> str:
        only_if = f" FILTER (WHERE {condition(self.filtered, replace(self.scope, call=None))})" if self.filtered is not None else ""
        return f"{function}({inside}){only_if}{self.over}"

    def _typed(self, name: str, value: Typed, distinct: str) -> Typed:
        if name == "count":
            inside = value.sql if not value.unknown else ("NULL" if value.null else "''")
            return Typed(self._call("count", distinct + inside), INT8)
        if name in ("bool_and", "bool_or", "every"):
            if value.type.name != "bool":
                raise Untranslatable(f"{name} of {value.type.name}")
            return Typed(self._call("bool_or" if name == "bool_or" else "bool_and", value.sql), BOOL)
        if name in ("min", "max"):
            return self._extreme(name, value)
        return self._sum(value, distinct) if name == "sum" else self._average(value, distinct)

    def _extreme(self, name: str, value: Typed) -> Typed:
        of = value.type
        if of.name not in _EXTREME_TYPES or value.scale is not None or (of.name == "numeric" and of.digits is None):
            raise Untranslatable(f"{name} of {of.name}")
        ordered(of, self.scope)
        kept = TEXT if of.name == "varchar" else of.plain() if of.name != "bpchar" else SqlType("bpchar", of.modifier)
        if of.name == "bpchar":
            # Postgres keeps the blanks but forgets the length; the lake has no blanks to keep.
            raise Untranslatable(f"{name} of char(n)")
        return Typed(self._call(name, value.sql), kept)

    def _sum(self, value: Typed, distinct: str) -> Typed:
        name = value.type.name
        total = self._call("sum", distinct + value.sql)
        if name in ("int2", "int4"):
            return Typed(guarded(f"CAST({total} AS BIGINT)"), INT8)
        if name == "int8":
            return Typed(f"CAST({total} AS DECIMAL({_INT8_SUM_DIGITS},0))", numeric(_INT8_SUM_DIGITS, 0))
        if name == "numeric" and value.type.digits:
            scale = self._call("max", f"CASE WHEN {value.sql} IS NOT NULL THEN {value.scale} END") if value.scale else None
            return Typed(total, numeric(_INT8_SUM_DIGITS, value.type.digits[1]), scale=scale)
        if name == "float8":
            # An overflow is an error to Postgres, an infinity among the values is not; telling them apart would cost a look at each.
            failed = self.scope.fail_over("a sum of floats that is not finite")
            return Typed(f"(CASE WHEN NOT isfinite({total}) THEN {failed} ELSE {total} END)", FLOAT8)
        raise Untranslatable(f"sum of {name}")

    def _average(self, value: Typed, distinct: str) -> Typed:
        name = value.type.name
        if name in ("float4", "float8"):
            exact = value if name == "float8" else Typed(f"CAST({value.sql} AS DOUBLE)", FLOAT8)
            total, count = self._sum(exact, distinct), self._call("count", distinct + exact.sql)
            return Typed(f"({total.sql} / nullif({count}, 0))", FLOAT8)
        if name not in INTEGERS and (name != "numeric" or value.type.digits is None):
            raise Untranslatable(f"avg of {name}")
        count = self._call("count", distinct + value.sql)
        total = self._sum(value, distinct) if name == "numeric" else Typed(self._call("sum", distinct + value.sql), numeric(38, 0))
        return Typed(f"modak_numeric_div({numeric_text(total)}, CAST(nullif({count}, 0) AS VARCHAR))", NUMERIC_TEXT)
