"""Whole SELECTs: Postgres's query in, one DuckDB query with unambiguous names out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from modak.gateway.dialect.aggregates import Calls, groupable
from modak.gateway.dialect.arithmetic import numeric_text
from modak.gateway.dialect.coerce import coerced, common_type
from modak.gateway.dialect.comparison import ordered
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.expression import condition, translate
from modak.gateway.dialect.naming import output_name
from modak.gateway.dialect.output import text_sql
from modak.gateway.dialect.parse import identifier, only, parse, unwrapped
from modak.gateway.dialect.relations import Catalog, CatalogRelation, Output, Source, Sources, values
from modak.gateway.dialect.scope import Scope, Typed
from modak.gateway.dialect.types import NUMERIC_TEXT, TEXT, SqlType, duckdb_name

__all__ = ["Catalog", "CatalogRelation", "TranslatedQuery", "as_text", "translate_query"]

Ctes = Mapping[str, tuple[str, list[tuple[str, SqlType]]]]
_SELECT_ARGUMENTS = (
    "with_",
    "expressions",
    "distinct",
    "from_",
    "joins",
    "where",
    "group",
    "having",
    "windows",
    "order",
    "limit",
    "offset",
)
_SET_OPERATIONS: dict[type[exp.Expr], str] = {exp.Union: "UNION", exp.Intersect: "INTERSECT", exp.Except: "EXCEPT"}


@dataclass(frozen=True)
class TranslatedQuery:
    """DuckDB's query; its columns are named c1, c2, … and ``columns`` has Postgres's names and types for them, in order.

    A numeric without ``digits`` comes as text already. ``relations`` are those the query reads, each once.
    """

    sql: str
    columns: list[tuple[str, SqlType]]
    relations: list[CatalogRelation]


def translate_query(select: exp.Expr | str, catalog: Catalog) -> TranslatedQuery:
    """A SELECT (parsed by ``dialect.parse.parse``, or its text) over registered relations, or Untranslatable."""
    tree = parse(select) if isinstance(select, str) else select
    translator = _Translator(catalog)
    try:
        output = translator.query(tree, None, {})
    except RecursionError as error:
        raise Untranslatable("nested too deeply") from error
    relations = list({id(relation.id): relation for relation in translator.used}.values())
    return TranslatedQuery(output.sql, output.columns, relations)


def as_text(query: TranslatedQuery, timezone: str) -> str:
    """The query with every column as the text that Postgres sends, in the same order of rows."""
    items = ", ".join(f'{text_sql(f"c{number}", of, timezone)} AS "c{number}"' for number, (_, of) in enumerate(query.columns, 1))
    return f'SELECT {items} FROM ({query.sql}) AS "q"'  # noqa: S608


class _Translator:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._numbers = itertools.count(1)
        self.used: list[CatalogRelation] = []

    def _alias(self) -> str:
        return f'"t{next(self._numbers)}"'

    def query(self, node: exp.Expr, outer: Scope | None, ctes: Ctes) -> Output:
        """Any query expression."""
        if isinstance(node, exp.Subquery):
            only(node, "this", "with_", "order", "limit", "offset")
            if any(node.args.get(key) for key in ("with_", "order", "limit", "offset")):
                raise Untranslatable("clauses after a query in parentheses")
            return self.query(node.this, outer, ctes)
        if isinstance(node, exp.Values):
            only(node, "expressions")
            return values(node, self._scope(outer, Source("", (), ()), ctes))
        if type(node) not in (exp.Select, *_SET_OPERATIONS):
            raise Untranslatable(f"a {type(node).__name__} as a query")
        prefix, ctes = self._with(node.args.get("with_"), outer, ctes)
        output = self._select(node, outer, ctes) if isinstance(node, exp.Select) else self._set_operation(node, outer, ctes)
        return replace(output, sql=prefix + output.sql)

    def _with(self, clause: exp.Expr | None, outer: Scope | None, ctes: Ctes) -> tuple[str, Ctes]:
        if clause is None:
            return "", ctes
        only(clause, "expressions")
        known, parts = dict(ctes), []
        for cte in clause.expressions:
            only(cte, "this", "alias", "materialized")
            alias = cte.args["alias"]
            only(alias, "this", "columns")
            output = self.query(cte.this, outer, known)
            given = [identifier(column) for column in alias.args.get("columns") or []]
            if len(given) > len(output.columns):
                raise Untranslatable("more names than columns")
            names = given + [name for name, _ in output.columns[len(given) :]]
            sql = self._alias()
            parts.append(f"{sql} AS ({output.sql})")
            known[identifier(alias.this)] = sql, [(name, of) for name, (_, of) in zip(names, output.columns, strict=True)]
        return f"WITH {', '.join(parts)} ", known

    def _scope(self, outer: Scope | None, source: Source, ctes: Ctes) -> Scope:
        def subquery(node: exp.Expr, scope: Scope) -> tuple[str, list[SqlType]]:
            output = self.query(node, replace(scope, call=None), ctes)
            return output.sql, [of for _, of in output.columns]

        session = self._catalog.session
        return replace(session, relations=source.relations, merged=source.merged, outer=outer, subquery=subquery, call=None)

    def _select(self, node: exp.Select, outer: Scope | None, ctes: Ctes) -> Output:
        only(node, *_SELECT_ARGUMENTS)
        bare = self._scope(outer, Source("", (), ()), ctes)
        sources = Sources(self._catalog, bare, ctes, lambda query: self.query(query, outer, ctes), self._alias, self.used)
        source = sources.of(node)
        select = _Select(node, source, self._scope(outer, source, ctes))
        return select.output()

    def _set_operation(self, node: exp.Expr, outer: Scope | None, ctes: Ctes) -> Output:
        only(node, "with_", "this", "expression", "distinct", "order", "limit", "offset")
        if isinstance(node.expression, exp.SetOperation) or (isinstance(node, exp.Intersect) and isinstance(node.this, exp.SetOperation)):
            raise Untranslatable("set operations in need of parentheses")
        sides = [self.query(side, outer, ctes) for side in (node.this, node.expression)]
        if len(sides[0].columns) != len(sides[1].columns):
            raise Untranslatable("set operation on different numbers of columns")
        word = _SET_OPERATIONS[type(node)] + ("" if node.args.get("distinct") else " ALL")
        types = [self._common(one, other) for (_, one), (_, other) in zip(sides[0].columns, sides[1].columns, strict=True)]
        if word != "UNION ALL":
            for of in types:
                groupable(of, word)
        columns = [(name, of) for (name, _), of in zip(sides[0].columns, types, strict=True)]
        sql = f"{self._cast(sides[0], types)} {word} {self._cast(sides[1], types)}"
        order = _positions(node.args.get("order"), columns, self._catalog.session)
        names = ", ".join(f'"c{number}"' for number in range(1, len(columns) + 1))
        ordering = f" ORDER BY {order}" if order else ""
        limit = _limit(node, self._catalog.session)
        return Output(f"SELECT {names} FROM ({sql}) AS {self._alias()}{ordering}{limit}", columns)  # noqa: S608

    def _common(self, one: SqlType, other: SqlType) -> SqlType:
        if one == other:
            return one
        if replace(one, pg=None) == replace(other, pg=None):
            return replace(one, pg=None)
        if one.name == other.name == "numeric" and (one.digits is None or other.digits is None or one.digits[1] != other.digits[1]):
            raise Untranslatable("a set operation on numerics of several scales")
        common = common_type([Typed("", one), Typed("", other)])
        if common.name == "numeric" and {one.name, other.name} != {"numeric"}:
            raise Untranslatable("a set operation on numerics of several scales")
        return common.plain()

    def _cast(self, side: Output, types: list[SqlType]) -> str:
        items = []
        for number, ((_, given), wanted) in enumerate(zip(side.columns, types, strict=True), 1):
            name = f'"c{number}"'
            sql = name if duckdb_name(given) == duckdb_name(wanted) else f"CAST({name} AS {duckdb_name(wanted)})"
            items.append(f"{sql} AS {name}")
        return f"(SELECT {', '.join(items)} FROM ({side.sql}) AS {self._alias()})"  # noqa: S608


class _Select:
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
        shown = [self._shown(value) for _, value in self._items]
        items = ", ".join(f'{value.sql} AS "c{number}"' for number, value in enumerate(shown, 1))
        tail = f"{where}{group}{having}{order}{_limit(node, self._plain)}"
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
        keys = [_ordering(item, self._key(item.this), self._plain) for item in clause.expressions]
        return f" ORDER BY {', '.join(keys)}" if keys else ""


def order_item(item: exp.Expr, scope: Scope) -> str:
    """One key of a window's ORDER BY; ordinals mean nothing there."""
    return _ordering(item, translate(item.this, scope), scope)


def _ordering(item: exp.Expr, key: Typed, scope: Scope) -> str:
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


def _positions(clause: exp.Expr | None, columns: list[tuple[str, SqlType]], scope: Scope) -> str:
    """ORDER BY after a set operation: positions and names of its output."""
    if clause is None:
        return ""
    only(clause, "expressions")
    keys = []
    for item in clause.expressions:
        node = item.this
        if isinstance(node, exp.Literal) and str(node.this).isdigit() and not node.is_string and 1 <= int(node.this) <= len(columns):
            number = int(node.this)
        elif isinstance(node, exp.Column) and not node.args.get("table"):
            names = [name for name, _ in columns]
            if names.count(identifier(node.this)) != 1:
                raise Untranslatable(f"ORDER BY {node.sql('postgres')}")
            number = names.index(identifier(node.this)) + 1
        else:
            raise Untranslatable("ORDER BY an expression after a set operation")
        keys.append(_ordering(item, Typed(f'"c{number}"', columns[number - 1][1]), scope))
    return ", ".join(keys)


def _limit(node: exp.Expr, scope: Scope) -> str:
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
