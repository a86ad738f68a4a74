"""A remote SELECT of postgres_fdw, understood: which table, which snapshot, which columns and conditions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from modak.errors import ModakError
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.remote import PLACEHOLDER, RemoteSelect, parse_remote, substitute
from modak.gateway.fdw.statements import NotUnderstood, RemoteName

PIN = "pin"
_FROM = re.compile(r'\bFROM\s+("(\d+)"\."([0-9:-]+)")')
_PIN_TEXT = re.compile(rf"\(?\b(?:r\d+\.)?{PIN} <> (?:\$(\d+)|'?(\d+)'?)(?:::bigint)?\)?")


class Unpinned(ModakError):
    """A scan that does not say which snapshot it wants. There is no such thing as the current one."""

    code = "unpinned_scan"
    sqlstate = "55000"


@dataclass(frozen=True)
class Request:
    """``select`` is None where the text is beyond the translator: then only Postgres itself can evaluate it.

    ``snapshot`` is S; None with ``is_pinned`` means "before anything was published", which holds no rows.
    """

    sql: str
    values: tuple[str | None, ...]
    name: RemoteName
    quoted_name: str
    select: RemoteSelect | None
    is_pinned: bool
    snapshot: int | None
    conditions: tuple[exp.Expr, ...] = ()
    unknown: tuple[exp.Expr, ...] = ()  # conditions on parameters without a value, of an estimate

    @property
    def columns(self) -> list[str]:
        """The remote columns it speaks of, in no order; all of them are unknown where the text was not understood."""
        if self.select is None:
            return []
        names = {
            column.name for node in (*self.select.outputs, *self.conditions, *self.select.order_by) for column in node.find_all(exp.Column)
        }
        return sorted(names - {PIN})


def understand(sql: str, values: Sequence[str | None] = ()) -> Request:
    found = _FROM.search(sql)
    if found is None:
        raise NotUnderstood("a query without a cold table", hint="foreign tables on this server are Modak's own")
    name = RemoteName.parse(found[2], found[3])
    try:
        select = substitute(parse_remote(sql), values)
        if select.whole is not None:
            raise Untranslatable("more than a scan")
    except Untranslatable:
        return _by_text(sql, tuple(values), name, found[1])
    pinned, snapshot = False, None
    conditions, unknown = [], []
    for node in select.conjuncts:
        if _is_pin(node):
            pinned, snapshot = True, _pin_value(node)
        elif any(null.meta.get(PLACEHOLDER) for null in node.find_all(exp.Null)):
            unknown.append(node)
        else:
            conditions.append(node)
    return Request(sql, tuple(values), name, found[1], select, pinned, snapshot, tuple(conditions), tuple(unknown))


def _by_text(sql: str, values: tuple[str | None, ...], name: RemoteName, quoted: str) -> Request:
    pin = _PIN_TEXT.search(sql)
    if pin is None:
        return Request(sql, values, name, quoted, None, False, None)
    text = values[int(pin[1]) - 1] if pin[1] else pin[2]
    return Request(sql, values, name, quoted, None, True, int(text) if text is not None else None)


def _is_pin(node: exp.Expr) -> bool:
    return isinstance(node, exp.NEQ) and isinstance(node.this, exp.Column) and node.this.name == PIN


def _pin_value(node: exp.Expr) -> int | None:
    """The number behind casts and parentheses; NULL where nothing is published, or in an estimate."""
    value = next((literal for literal in node.expression.find_all(exp.Literal) if _is_number(literal)), None)
    return int(value.this) if value is not None else None


def _is_number(literal: exp.Literal) -> bool:
    return re.fullmatch(r"-?\d+", str(literal.this)) is not None
