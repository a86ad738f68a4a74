"""What Postgres calls an output column that was given no name."""

from __future__ import annotations

from sqlglot import exp

from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.parse import identifier
from modak.gateway.dialect.types import declared_type

_NAMELESS = "?column?"
_SYNTAX: dict[type[exp.Expr], str] = {
    exp.Extract: "extract",
    exp.StrPosition: "position",
    exp.Substring: "substring",
    exp.AtTimeZone: "timezone",
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp",
    exp.Exists: "exists",
}
_TRIMS = {"LEADING": "ltrim", "TRAILING": "rtrim"}


def output_name(node: exp.Expr) -> str:
    """The name of a select item."""
    if isinstance(node, exp.Alias):
        return identifier(node.args["alias"])
    return _figured(node)[0]


def _figured(node: exp.Expr) -> tuple[str, int]:
    """A name and how strong it is: 2 from a column or a call, 1 from a cast or a CASE, 0 for none."""
    if isinstance(node, exp.Paren | exp.Filter | exp.Window):
        return _figured(node.this)
    if isinstance(node, exp.Column):
        return identifier(node.this), 2
    if isinstance(node, exp.Anonymous):
        return (str(node.this.this) if isinstance(node.this, exp.Identifier) else str(node.this).lower()), 2
    if isinstance(node, exp.Dot):
        return _figured(node.expression)
    if type(node) in _SYNTAX:
        return _SYNTAX[type(node)], 2
    if isinstance(node, exp.Trim):
        return _TRIMS.get(str(node.args.get("position") or "").upper(), "btrim"), 2
    if isinstance(node, exp.Cast):
        return _weak(node.this, declared_type(node.args["to"]).name)
    if isinstance(node, exp.Interval):
        return "interval", 1
    if isinstance(node, exp.Case):
        default = node.args.get("default")
        return _weak(default, "case") if default is not None else ("case", 1)
    if isinstance(node, exp.Subquery):
        return _of_query(node.this)
    return _NAMELESS, 0


def _weak(inner: exp.Expr, name: str) -> tuple[str, int]:
    found, strength = _figured(inner)
    return (found, strength) if strength > 1 else (name, 1)


def _of_query(query: exp.Expr) -> tuple[str, int]:
    while isinstance(query, exp.Subquery | exp.SetOperation):
        query = query.this
    if isinstance(query, exp.Select) and len(query.expressions) == 1:
        item = query.expressions[0]
        return (output_name(item), 2) if isinstance(item, exp.Alias) else _figured(item)
    raise Untranslatable("a subquery of several columns as a value")
