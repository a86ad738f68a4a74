"""One SELECT: its list, grouping, order and limit, once its FROM is known."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from modak.gateway.dialect.aggregates import Calls, aggregate_call, groupable
from modak.gateway.dialect.arithmetic import numeric_text
from modak.gateway.dialect.coerce import coerced
from modak.gateway.dialect.comparison import ordered
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.expression import condition, translate
from modak.gateway.dialect.naming import output_name
from modak.gateway.dialect.parse import identifier, only, unwrapped
from modak.gateway.dialect.relations import Output, Source
from modak.gateway.dialect.scope import Scope, Typed
from modak.gateway.dialect.types import NUMERIC_TEXT, TEXT, SqlType


class Select:
    """One SELECT whose FROM is known."""

    def __init__(self, node: exp.Select, source: Source, scope: Scope) -> None:
        self._node, self._source, self._plain = node, source, scope
        named = {identifier(window.this): window for window in node.args.get("windows") or []}
        self._calls = Calls(order_item, named)
        self._items: list[tuple[str, Typed]] = []

    def output(self) -> Output:
        node = self._node
        self._items = self._select_items()
        distinct = self._distinct()
        where = f" WHERE {condition(node.args['where'].this, self._plain)}" if node.args.get("where") else ""
        group = self._group()
        grouped = replace(self._plain, call=self._calls.grouped)
        having = f" HAVING {condition(node.args['having'].this, grouped)}" if node.args.get("having") else ""
        order = self._order()
        if node.args.get("group") or self._calls.aggregated or node.args.get("having"):
            self._refuse_ungrouped()
        shown = [self._shown(value) for _, value in self._items]
        items = ", ".join(f'{value.sql} AS "c{number}"' for number, value in enumerate(shown, 1))
        tail = f"{where}{group}{having}{order}{limit(node, self._plain)}"
        sql = f"SELECT {distinct}{items} FROM {self._source.sql}{tail}"  # noqa: S608
        return Output(sql, [(name, value.type) for (name, _), value in zip(self._items, shown, strict=True)])

    def _shown(self, value: Typed) -> Typed:
        """As an output column: a bare literal is text, and a numeric of changing scale is its text."""
        if value.unknown:
            return coerced(value, TEXT, self._plain)
        if value.type.name == "interval":
            raise Untranslatable("an interval as output")
        return Typed(numeric_text(value), NUMERIC_TEXT) if value.scale is not None else value

    def _select_items(self) -> list[tuple[str, Typed]]:
        scope = replace(self._plain, call=self._calls.in_select)
        items: list[tuple[str, Typed]] = []
        for item in self._node.expressions:
            if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
                items += self._star(item)
                continue
            if isinstance(item, exp.Alias):
                only(item, "this", "alias")
            items.append((output_name(item), translate(item.this if isinstance(item, exp.Alias) else item, scope)))
        if not items:
            raise Untranslatable("a SELECT of nothing")
        return items

    def _star(self, item: exp.Expr) -> list[tuple[str, Typed]]:
        if isinstance(item, exp.Star):
            only(item)
            return list(self._source.visible)
        only(item, "this", "table")
        only(item.this)
        table = identifier(item.args["table"])
        found = [relation for relation in self._source.relations if relation.alias == table]
        if len(found) != 1 or (len(self._source.relations) == 1 and len(found[0].columns) < len(self._source.visible)):
            raise Untranslatable(f"{table}.* is not clear")
        return list(found[0].columns.items())

    def _distinct(self) -> str:
        clause = self._node.args.get("distinct")
        if clause is None:
            return ""
        only(clause, "on")
        for _, value in self._items:
            groupable(self._shown(value).type, "DISTINCT")
        if clause.args.get("on") is None:
            return "DISTINCT "
        on = clause.args["on"]
        keys = [self._key(item) for item in (on.expressions if isinstance(on, exp.Tuple) else [unwrapped(on)])]
        order = self._node.args.get("order")
        leading = [self._key(item.this).sql for item in order.expressions[: len(keys)]] if order else []
        if {key.sql for key in keys} != set(leading):
            raise Untranslatable("DISTINCT ON without its order")
        return f"DISTINCT ON ({', '.join(key.sql for key in keys)}) "

    def _group(self) -> str:
        clause = self._node.args.get("group")
        if clause is None:
            return ""
        only(clause, "expressions")
        keys = []
        for item in clause.expressions:
            if isinstance(item, exp.Tuple | exp.Rollup | exp.Cube | exp.GroupingSets):
                raise Untranslatable("grouping sets")
            key = self._group_key(item)
            groupable(key.type, "GROUP")
            if key.scale is not None or key.unknown:
                raise Untranslatable("GROUP BY a constant or a numeric of changing scale")
            keys.append(key.sql)
        return f" GROUP BY {', '.join(keys)}"

    def _refuse_ungrouped(self) -> None:
        """A column that is neither grouped nor aggregated is fine to Postgres if a primary key is grouped; keys are not known here."""
        clause = self._node.args.get("group")
        keys = {self._group_key(item).sql for item in clause.expressions} if clause else set()
        having, order = self._node.args.get("having"), self._node.args.get("order")
        roots = [*self._node.expressions, *([having.this] if having else []), *(item.this for item in (order.expressions if order else []))]
        for root in roots:
            if self._position_or_name(root) is None:
                self._check_grouped(root, keys)

    def _position_or_name(self, node: exp.Expr) -> Typed | None:
        if isinstance(node, exp.Literal):
            return Typed("", TEXT)
        if isinstance(node, exp.Column) and not node.args.get("table") and isinstance(node.this, exp.Identifier):
            aliases = {identifier(item.args["alias"]) for item in self._node.expressions if isinstance(item, exp.Alias)}
            return Typed("", TEXT) if identifier(node.this) in aliases and node.parent is not self._node else None
        return None

    def _check_grouped(self, node: exp.Expr, keys: set[str]) -> None:
        if aggregate_call(node) is not None or isinstance(node, exp.Select | exp.SetOperation | exp.Identifier | exp.DataType):
            return
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            if any(value.sql not in keys for _, value in self._star(node)):
                raise Untranslatable("a column that is not grouped")
            return
        if isinstance(node, exp.Column):
            value = translate(node, self._plain)
            local = any(value in relation.columns.values() for relation in self._plain.relations) or value in self._plain.merged.values()
            if local and value.sql not in keys:
                raise Untranslatable("a column that is not grouped")
            return
        if _same_as_key(node, keys, self._plain):
            return
        for child in node.iter_expressions():
            self._check_grouped(child, keys)

    def _group_key(self, item: exp.Expr) -> Typed:
        """An ordinal, an input column, else an output's name, else an expression."""
        position = self._position(item)
        if position is not None:
            return self._items[position][1]
        bare = unwrapped(item)
        if isinstance(bare, exp.Column) and not bare.args.get("table"):
            name = identifier(bare.this)
            if name not in self._plain.merged and not any(name in relation.columns for relation in self._plain.relations):
                return self._by_name(name) or translate(item, self._plain)
        return translate(item, self._plain)

    def _position(self, item: exp.Expr) -> int | None:
        if not isinstance(item, exp.Literal) or item.is_string:
            return None
        if not str(item.this).isdigit() or not 1 <= int(item.this) <= len(self._items):
            raise Untranslatable(f"position {item.this}")
        return int(item.this) - 1

    def _by_name(self, name: str) -> Typed | None:
        found = {value.sql: value for column, value in self._items if column == name}
        if len(found) > 1:
            raise Untranslatable(f"{name} is ambiguous")
        return next(iter(found.values()), None)

    def _key(self, item: exp.Expr) -> Typed:
        """ORDER BY and DISTINCT ON: an ordinal, an output's name, else an expression over the input."""
        position = self._position(item)
        if position is not None:
            return self._items[position][1]
        bare = unwrapped(item)
        if isinstance(bare, exp.Column) and not bare.args.get("table") and isinstance(bare.this, exp.Identifier):
            found = self._by_name(identifier(bare.this))
            if found is not None:
                return found
        return translate(item, replace(self._plain, call=self._calls.in_select))

    def _order(self) -> str:
        clause = self._node.args.get("order")
        if clause is None:
            return ""
        only(clause, "expressions")
        keys = [ordering(item, self._key(item.this), self._plain) for item in clause.expressions]
        return f" ORDER BY {', '.join(keys)}" if keys else ""


def _same_as_key(node: exp.Expr, keys: set[str], scope: Scope) -> bool:
    try:
        return translate(node, scope).sql in keys
    except Untranslatable:
        return False


def order_item(item: exp.Expr, scope: Scope) -> str:
    """One key of a window's ORDER BY; ordinals mean nothing there."""
    return ordering(item, translate(item.this, scope), scope)


def ordering(item: exp.Expr, key: Typed, scope: Scope) -> str:
    """Direction and place of NULLs said out loud: by default Postgres puts them last ascending and first descending."""
    only(item, "this", "desc", "nulls_first")
    if key.unknown:
        raise Untranslatable("ORDER BY a constant")
    ordered(key.type, scope)
    sql = key.sql
    if key.type.name == "numeric" and key.type.digits is None:
        sql = f"modak_numeric_key({sql})"
    descending = bool(item.args.get("desc"))
    first = item.args.get("nulls_first")
    nulls = "FIRST" if (descending if first is None else first) else "LAST"
    return f"{sql} {'DESC' if descending else 'ASC'} NULLS {nulls}"


def limit(node: exp.Expr, scope: Scope) -> str:
    """LIMIT and OFFSET with the blanks before them."""
    parts = []
    for key, word in (("limit", "LIMIT"), ("offset", "OFFSET")):
        clause = node.args.get(key)
        if clause is None:
            continue
        count = _count(clause, scope)
        if count is not None:
            parts.append(f" {word} {count}")
    return "".join(parts)


def _count(clause: exp.Expr, scope: Scope) -> int | None:
    if isinstance(clause, exp.Fetch):
        only(clause, "count", "direction", "limit_options")
        options = clause.args.get("limit_options")
        if options is not None and (options.args.get("with_ties") or options.args.get("percent")):
            raise Untranslatable("FETCH WITH TIES")
        inner = clause.args.get("count")
    else:
        only(clause, "expression")
        inner = clause.args.get("expression")
    if inner is None:
        return 1
    if isinstance(inner, exp.Var) and inner.name.upper() == "ALL":
        return None
    value = translate(inner, replace(scope, relations=(), merged={}, outer=None, call=None, subquery=None))
    if value.null or value.sql.startswith("CAST(NULL"):
        return None
    if value.unknown:
        value = coerced(value, SqlType("int8"), scope)
    if value.type.name not in ("int2", "int4", "int8") or value.text is None or int(value.text) < 0:
        raise Untranslatable("LIMIT or OFFSET by an expression")
    return int(value.text)
