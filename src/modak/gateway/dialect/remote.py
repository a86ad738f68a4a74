"""What postgres_fdw sends for a foreign scan, taken apart.

It prints fully parenthesised conditions, types on every constant that is not plain, ``$1::type`` for a parameter and
``((SELECT null::type)::type)`` for one whose value is not known yet (EXPLAIN for an estimate).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.parse import identifier, only, parse, unwrapped

# Marks a NULL that stands for a parameter without a value: an estimate must not take it for a real NULL.
PLACEHOLDER = "modak_placeholder"
_SCAN_ARGUMENTS = {"expressions", "from_", "where", "order", "limit", "offset", "locks"}


@dataclass(frozen=True)
class RemoteSelect:
    """One foreign scan.

    ``whole`` is None for a scan of one table with nothing but conditions, order and limit; then the other fields describe it completely.
    Otherwise (joins, aggregates, DISTINCT, …) only ``select`` and ``locking`` hold, and ``whole`` is for ``translate_query``.
    ``sample`` is the share of rows that ANALYZE asks for, between 0 and 1.
    """

    select: exp.Select
    whole: exp.Select | None
    schema: str | None = None
    table: str = ""
    alias: str | None = None
    outputs: tuple[exp.Expr, ...] = ()
    conjuncts: tuple[exp.Expr, ...] = ()
    order_by: tuple[exp.Ordered, ...] = ()
    limit: int | None = None
    offset: int | None = None
    locking: bool = False
    sample: float | None = None


def parse_remote(sql: str) -> RemoteSelect:
    """A remote SELECT by its text. The values of ``$n`` come later, through ``substitute``; nobody changes the tree itself."""
    return _parsed(sql) if len(sql) <= _CACHED_CHARS_MAX else _read(sql)


def _read(sql: str) -> RemoteSelect:
    tree = parse(sql)
    if not isinstance(tree, exp.Select):
        raise Untranslatable("not a SELECT")
    return _taken_apart(tree)


# A look-up by key and every rescan of a join sends the text of the one before it.
_CACHED_CHARS_MAX = 20_000
_parsed = functools.lru_cache(maxsize=500)(_read)


def substitute(select: RemoteSelect, values: Sequence[str | None], types: Mapping[int, exp.DataType] | None = None) -> RemoteSelect:
    """The same scan with each ``$n`` replaced by a typed literal of its text value; ``types`` are for those printed without a cast."""
    return _taken_apart(with_values(select.select, values, types))


def with_values(tree: exp.Select, values: Sequence[str | None], types: Mapping[int, exp.DataType] | None = None) -> exp.Select:
    """A copy of a tree with its parameters replaced."""
    copy = tree.copy()
    for node in list(copy.find_all(exp.Parameter, exp.Subquery)):
        if isinstance(node, exp.Parameter):
            _replace_parameter(node, values, types or {})
        elif isinstance(node, exp.Subquery) and _is_placeholder(node):
            null = exp.Null()
            null.meta[PLACEHOLDER] = True
            _outermost_paren(node).replace(null)
    return copy


def _replace_parameter(node: exp.Parameter, values: Sequence[str | None], types: Mapping[int, exp.DataType]) -> None:
    only(node, "this")
    number = parameter_number(node)
    if number > len(values):
        raise Untranslatable(f"parameter ${number} has no value")
    value = values[number - 1]
    literal: exp.Expr = exp.Null() if value is None else exp.Literal.string(value)
    if not isinstance(node.parent, exp.Cast):
        if number not in types:
            raise Untranslatable(f"parameter ${number} has no type")
        literal = exp.Cast(this=literal, to=types[number].copy())
    node.replace(literal)


def parameter_number(node: exp.Parameter) -> int:
    """n of ``$n``."""
    text = node.this.this if isinstance(node.this, exp.Literal) else ""
    if not str(text).isdigit() or not 1 <= int(text) <= 65_535:
        raise Untranslatable("a parameter that is not $n")
    return int(text)


def _is_placeholder(node: exp.Subquery) -> bool:
    """``(SELECT null::type)``, with one more pair of parentheses or none."""
    select = node.this
    if not isinstance(select, exp.Select) or {key for key, value in select.args.items() if value} != {"expressions"}:
        return False
    only_value = select.expressions[0]
    return len(select.expressions) == 1 and isinstance(only_value, exp.Cast) and isinstance(only_value.this, exp.Null)


def _outermost_paren(node: exp.Expr) -> exp.Expr:
    """A subquery's own extra parentheses are subqueries to sqlglot."""
    while isinstance(node.parent, exp.Subquery | exp.Paren):
        node = node.parent
    return node


def conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    """The conditions that AND joins, without their parentheses."""
    if condition is None:
        return
    condition = unwrapped(condition)
    if isinstance(condition, exp.And):
        only(condition, "this", "expression")
        yield from conjuncts(condition.this)
        yield from conjuncts(condition.expression)
    else:
        yield condition


def _taken_apart(select: exp.Select) -> RemoteSelect:
    locking = bool(select.args.get("locks"))
    table = select.args["from_"].this if select.args.get("from_") else None
    used = {key for key, value in select.args.items() if value}
    if not isinstance(table, exp.Table) or used - _SCAN_ARGUMENTS or not all(map(_is_plain, select.expressions)):
        return RemoteSelect(select, select, locking=locking)
    only(table, "this", "db", "alias", "sample", "only")
    where = select.args.get("where")
    conditions = list(conjuncts(where.this if where else None))
    sample = _sample(table.args.get("sample"), conditions)
    order = select.args.get("order")
    return RemoteSelect(
        select,
        None,
        schema=identifier(table.args["db"]) if table.args.get("db") else None,
        table=identifier(table.this),
        alias=_alias(table),
        outputs=tuple(select.expressions),
        conjuncts=tuple(node for node in conditions if _random_share(node) is None),
        order_by=tuple(order.expressions) if order else (),
        limit=_count(select.args.get("limit")),
        offset=_count(select.args.get("offset")),
        locking=locking,
        sample=sample,
    )


def _is_plain(output: exp.Expr) -> bool:
    """A base scan gives columns, NULL where it needs none, and a constant for tableoid."""
    return isinstance(output, exp.Null | exp.Literal) or (isinstance(output, exp.Column) and isinstance(output.this, exp.Identifier))


def _alias(table: exp.Table) -> str | None:
    alias = table.args.get("alias")
    if alias is None:
        return None
    only(alias, "this")
    return identifier(alias.this)


def _count(clause: exp.Expr | None) -> int | None:
    """LIMIT and OFFSET: a whole number, with or without its type; NULL and ALL are no limit."""
    if clause is None:
        return None
    only(clause, "expression")
    value = unwrapped(clause.args["expression"])
    if isinstance(value, exp.Cast):
        value = unwrapped(value.this)
    if isinstance(value, exp.Null) or (isinstance(value, exp.Var) and value.name.upper() == "ALL"):
        return None
    if isinstance(value, exp.Parameter) or (isinstance(value, exp.Subquery) and _is_placeholder(value)):
        return None  # substitute() takes the select apart again once the value is known; for an estimate it never is
    if isinstance(value, exp.Literal) and str(value.this).isdigit():
        return int(value.this)
    raise Untranslatable("LIMIT or OFFSET with an expression")


def _sample(clause: exp.Expr | None, conditions: list[exp.Expr]) -> float | None:
    """ANALYZE samples with TABLESAMPLE (percent) or with ``random() <`` (share)."""
    if clause is not None:
        only(clause, "method", "percent")
        percent = unwrapped(clause.args["percent"])
        if not isinstance(percent, exp.Literal):
            raise Untranslatable("TABLESAMPLE with an expression")
        return float(percent.this) / 100
    return next((share for share in map(_random_share, conditions) if share is not None), None)


def _random_share(node: exp.Expr) -> float | None:
    if not isinstance(node, exp.LT) or not isinstance(node.this, exp.Dot) or not isinstance(node.expression, exp.Literal):
        return None
    call = node.this.expression
    if isinstance(call, exp.Anonymous) and str(call.this).lower() == "random" and not call.expressions:
        return float(node.expression.this)
    return None
