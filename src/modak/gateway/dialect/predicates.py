"""The simple conditions of a WHERE clause, for pruning files. What is not simple is skipped; what is given is never wrong."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import exp

from modak.core.tier_key import TierKeyType
from modak.errors import ModakError
from modak.gateway.dialect.arrays import array_elements
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.literals import is_utc, literal
from modak.gateway.dialect.parse import identifier, literal_text, only, unwrapped
from modak.gateway.dialect.remote import conjuncts as split
from modak.gateway.dialect.types import FLOATS, INTEGERS, SqlType, column_type, declared_type
from modak.scan.predicate import Columns, Operator, Predicate

_COMPARISONS: dict[type[exp.Expr], Operator] = {exp.EQ: "=", exp.NullSafeEQ: "=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_MIRRORED: dict[Operator, Operator] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# Text and bytes order by collation, or are cut in statistics; a bound on them refutes nothing safely.
_RANGES = frozenset({"int2", "int4", "int8", "oid", "numeric", "float4", "float8", "date", "timestamp", "timestamptz"})


@dataclass(frozen=True)
class _Constant:
    """A constant as it was written: its text and the type it was given, None for a bare string."""

    text: str
    type: SqlType | None


def predicates(conjuncts: Iterable[exp.Expr], columns: Columns, timezone: str | None = "UTC") -> list[Predicate]:
    """What file statistics can refute. ``timezone`` is the session's, postgres_fdw's is UTC; None skips what depends on it."""
    found: list[Predicate] = []
    for conjunct in conjuncts:
        for node in split(conjunct):
            try:
                found += _Reader(columns, timezone).read(node)
            except Untranslatable:
                continue
    return found


class _Reader:
    def __init__(self, columns: Columns, timezone: str | None) -> None:
        self._columns = columns
        self._timezone = timezone

    def read(self, node: exp.Expr) -> list[Predicate]:
        node = unwrapped(node)
        if type(node) in _COMPARISONS:
            return self._comparison(node)
        if isinstance(node, exp.In):
            only(node, "this", "expressions")
            return self._membership(self._column(node.this), [_constant(item) for item in node.expressions])
        if isinstance(node, exp.Between):
            only(node, "this", "low", "high")
            column = self._column(node.this)
            bounds: tuple[tuple[Operator, str], ...] = ((">=", "low"), ("<=", "high"))
            return [item for operator, key in bounds for item in self._bound(column, operator, _constant(node.args[key]))]
        if isinstance(node, exp.Is):
            return self._null_test(node)
        if isinstance(node, exp.Or):
            return self._alternatives(node)
        if isinstance(node, exp.Not):
            return self._negation(unwrapped(node.this))
        if isinstance(node, exp.Column):
            return self._bound(self._column(node), "=", _Constant("t", SqlType("bool")))
        return []

    def _column(self, node: exp.Expr) -> str:
        node = unwrapped(node)
        if not isinstance(node, exp.Column):
            raise Untranslatable("not a column")
        only(node, "this", "table")
        name = identifier(node.this)
        if name not in self._columns:
            raise Untranslatable(f"no column {name}")
        return name

    def _comparison(self, node: exp.Expr) -> list[Predicate]:
        only(node, "this", "expression")
        left, right = unwrapped(node.this), unwrapped(node.expression)
        operator = _COMPARISONS[type(node)]
        if isinstance(right, exp.Any):
            if not isinstance(node, exp.EQ):
                return []
            return self._membership(self._column(left), _array(right))
        if isinstance(right, exp.Column) and not isinstance(left, exp.Column):
            left, right, operator = right, left, _MIRRORED[operator]
        return self._bound(self._column(left), operator, _constant(right))

    def _bound(self, column: str, operator: Operator, constant: _Constant | None) -> list[Predicate]:
        if constant is None:
            return []
        kind = column_type(self._columns[column]).name
        if operator != "=" and kind not in _RANGES:
            return []
        if kind in FLOATS and operator in (">", ">="):
            return []  # NaN is the greatest float to Postgres, and statistics leave it out
        return [Predicate(column, operator, (self._value(column, constant),))]

    def _membership(self, column: str, constants: list[_Constant | None]) -> list[Predicate]:
        values = tuple(dict.fromkeys(self._value(column, constant) for constant in constants if constant is not None))
        return [Predicate(column, "in", values)] if values else []

    def _null_test(self, node: exp.Is) -> list[Predicate]:
        only(node, "this", "expression", "negate")
        column = self._column(node.this)
        if isinstance(node.expression, exp.Null):
            return [Predicate(column, "is not null" if node.args.get("negate") else "is null")]
        if isinstance(node.expression, exp.Boolean) and not node.args.get("negate"):
            return self._bound(column, "=", _Constant("t" if node.expression.this else "f", SqlType("bool")))
        return []

    def _negation(self, node: exp.Expr) -> list[Predicate]:
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            (found,) = self._null_test(node)
            return [Predicate(found.column, "is null" if found.operator == "is not null" else "is not null")]
        if isinstance(node, exp.Column):
            return self._bound(self._column(node), "=", _Constant("f", SqlType("bool")))
        return []

    def _alternatives(self, node: exp.Or) -> list[Predicate]:
        """``a = 1 OR a = 2 OR a IN (3)`` is one IN, if every branch is an equality on the same column."""
        values: list[str] = []
        columns: set[str] = set()
        for branch in _branches(node):
            found = self.read(branch)
            if len(found) != 1 or found[0].operator not in ("=", "in"):
                return []
            columns.add(found[0].column)
            values += found[0].values
        return [Predicate(columns.pop(), "in", tuple(dict.fromkeys(values)))] if len(columns) == 1 else []

    def _value(self, column: str, constant: _Constant) -> str:
        """A constant in the column's type, where comparing it there and comparing as Postgres does are the same."""
        wanted, given = column_type(self._columns[column]), constant.type
        if wanted.name == "enum":
            if given is not None:
                raise Untranslatable("a typed constant against an enum")
            return constant.text
        if wanted.name == "opaque":
            raise Untranslatable("a column kept as text")
        if given is None or given.name == wanted.name:
            _fits(constant, given)
            value = literal(constant.text, wanted, self._timezone).text
            if wanted.name in FLOATS and not math.isfinite(float(value)):
                raise Untranslatable("statistics leave out NaN")
            return value
        return self._converted(constant, wanted, given)

    def _converted(self, constant: _Constant, wanted: SqlType, given: SqlType) -> str:
        text = literal(constant.text, SqlType(given.name), self._timezone).text
        if wanted.name in (*INTEGERS, "oid") and given.name in (*INTEGERS, "numeric") and _integral(text):
            return literal(str(int(Decimal(text))), wanted).text
        if wanted.name == "numeric" and given.name in INTEGERS:
            return literal(text, wanted).text
        if wanted.name in FLOATS and given.name in (*INTEGERS, "numeric", "float8"):
            return _float_text(text, wanted.name)
        if wanted.name in ("text", "varchar") and given.name in ("text", "varchar"):
            _fits(constant, given)
            return text
        if wanted.name == "bpchar" and given.name in ("text", "varchar") and not text.endswith(" "):
            return text
        if given.name == "date" and (wanted.name == "timestamp" or (wanted.name == "timestamptz" and is_utc(self._timezone))):
            era = " BC" if text.endswith(" BC") else ""
            return literal(f"{text.removesuffix(' BC')} 00:00:00{era}", SqlType(wanted.name), self._timezone).text
        raise Untranslatable(f"{wanted.name} against {given.name}")


def _fits(constant: _Constant, given: SqlType | None) -> None:
    """A constant whose cast would round or cut it is not what it says."""
    if given is not None and given.modifier >= 0:
        literal(constant.text, given)


def _integral(text: str) -> bool:
    return Decimal(text) == Decimal(text).to_integral_value()


def _float_text(text: str, name: str) -> str:
    """Postgres compares as float8; a float4 column's bounds are float4, so the constant must be one exactly."""
    value = float(text)
    if math.isinf(value) or math.isnan(value):
        raise Untranslatable("not a finite number")
    if name == "float4" and struct.unpack("f", struct.pack("f", value))[0] != value:
        raise Untranslatable("not a float4")
    return repr(value)


def _branches(node: exp.Expr) -> Iterator[exp.Expr]:
    node = unwrapped(node)
    if isinstance(node, exp.Or):
        yield from _branches(node.this)
        yield from _branches(node.expression)
    else:
        yield node


def _constant(node: exp.Expr) -> _Constant | None:
    """A constant's text and type; None for NULL, which no row matches and nothing is refuted by."""
    node = unwrapped(node)
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Boolean):
        return _Constant("t" if node.this else "f", SqlType("bool"))
    if isinstance(node, exp.Cast):
        only(node, "this", "to")
        inner, kind = _constant(node.this), declared_type(node.args["to"])
        # A number under a cast is what postgres_fdw prints for bigint and float constants; a string is read as the type.
        return None if inner is None else _cast(inner, kind)
    if isinstance(node, exp.Add | exp.Sub):
        return _days_on(node)
    text = literal_text(node)
    if text is not None:
        return _Constant(text, None)
    return _number(node)


def _days_on(node: exp.Add | exp.Sub) -> _Constant | None:
    """``date '2026-01-01' + 30``: the sum that people write for a range of dates."""
    only(node, "this", "expression")
    day, count = _constant(node.this), _constant(node.expression)
    if day is None or count is None:
        return None
    if day.type != SqlType("date") or count.type is None or count.type.name not in INTEGERS:
        raise Untranslatable("not a constant")
    days = int(count.text) if isinstance(node, exp.Add) else -int(count.text)
    try:
        key = TierKeyType.DATE.decode(literal(day.text, day.type).text)
        return _Constant(TierKeyType.DATE.encode(key + days), day.type)
    except ModakError as beyond:
        raise Untranslatable(str(beyond)) from beyond


def _cast(inner: _Constant, kind: SqlType) -> _Constant:
    if inner.type is not None and inner.type.name != kind.name:
        if inner.type.name not in (*INTEGERS, "numeric") or kind.name not in (*INTEGERS, "numeric", *FLOATS):
            raise Untranslatable("a cast of a typed constant")
        if kind.name in INTEGERS and not _integral(inner.text):
            raise Untranslatable("a cast that rounds")
    return _Constant(inner.text, kind)


def _number(node: exp.Expr) -> _Constant:
    sign = ""
    if isinstance(node, exp.Neg):
        sign, node = "-", unwrapped(node.this)
    if not isinstance(node, exp.Literal) or node.is_string:
        raise Untranslatable("not a constant")
    text = sign + str(node.this)
    whole = node.this.isdigit() and -(2**63) <= int(text) < 2**63
    return _Constant(text, SqlType("int8" if whole else "numeric"))


def _array(node: exp.Any) -> list[_Constant | None]:
    """The constants of ``ANY ('{…}'::type[])`` or ``ANY (ARRAY[…])``."""
    only(node, "this")
    array = unwrapped(node.this)
    if isinstance(array, exp.Array):
        only(array, "expressions")
        return [_constant(item) for item in array.expressions]
    if not isinstance(array, exp.Cast):
        raise Untranslatable("not a constant array")
    only(array, "this", "to")
    text = literal_text(unwrapped(array.this))
    kind = array.args["to"]
    if text is None or not isinstance(kind, exp.DataType) or kind.this != exp.DType.ARRAY or len(kind.expressions) != 1:
        raise Untranslatable("not a constant array")
    element = declared_type(kind.expressions[0])
    return [None if item is None else _Constant(item, element) for item in array_elements(text)]
