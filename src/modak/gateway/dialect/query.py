"""Whole SELECTs: Postgres's query in, one DuckDB query with unambiguous names out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from modak.gateway.dialect.aggregates import groupable
from modak.gateway.dialect.coerce import common_type
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.output import text_sql
from modak.gateway.dialect.parse import identifier, only, parse
from modak.gateway.dialect.relations import Catalog, CatalogRelation, Output, Source, Sources, values
from modak.gateway.dialect.scope import Scope, Typed
from modak.gateway.dialect.select import Select, limit, ordering
from modak.gateway.dialect.types import SqlType, duckdb_name

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
    relations = list({relation.id: relation for relation in translator.used}.values())
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
        select = Select(node, source, self._scope(outer, source, ctes))
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
        tail = (f" ORDER BY {order}" if order else "") + limit(node, self._catalog.session)
        return Output(f"SELECT {names} FROM ({sql}) AS {self._alias()}{tail}", columns)  # noqa: S608

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
        keys.append(ordering(item, Typed(f'"c{number}"', columns[number - 1][1]), scope))
    return ", ".join(keys)
