"""FROM: which relations a query names, how they are joined, and what columns that makes visible."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from modak.gateway.dialect.coerce import unified
from modak.gateway.dialect.comparison import compared
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.expression import condition, translate
from modak.gateway.dialect.parse import identifier, only
from modak.gateway.dialect.scope import Relation, Scope, Typed
from modak.gateway.dialect.types import SqlType, column_type
from modak.scan.predicate import Columns
from modak.scan.sqltext import quoted


@dataclass(frozen=True)
class CatalogRelation:
    """A registered relation: what the caller knows it by, its DuckDB FROM item and its columns by their Postgres names."""

    id: Hashable
    sql: str
    columns: Columns
    schema: str = "public"


@dataclass(frozen=True)
class Catalog:
    """``resolve`` finds a registered relation by schema (None: along the search path) and name; ``session`` holds the settings."""

    resolve: Callable[[str | None, str], CatalogRelation | None]
    session: Scope = field(default_factory=Scope)


@dataclass(frozen=True)
class Output:
    """A translated query: its columns are c1, c2, … to DuckDB and have Postgres's names here."""

    sql: str
    columns: list[tuple[str, SqlType]]


@dataclass(frozen=True)
class Source:
    """A FROM item: its SQL, the relations it names, and the columns ``*`` stands for, in order."""

    sql: str
    relations: tuple[Relation, ...]
    visible: tuple[tuple[str, Typed], ...]
    merged: Mapping[str, Typed] = field(default_factory=dict)


_JOINS = {("", ""): "INNER", ("", "INNER"): "INNER", ("LEFT", ""): "LEFT", ("LEFT", "OUTER"): "LEFT"}
_JOINS |= {("RIGHT", ""): "RIGHT", ("RIGHT", "OUTER"): "RIGHT", ("FULL", ""): "FULL", ("FULL", "OUTER"): "FULL"}


class Sources:
    """Translates one FROM clause. ``query`` translates derived tables, ``ctes`` are the WITH names in sight, ``alias`` makes new names."""

    def __init__(
        self,
        catalog: Catalog,
        scope: Scope,
        ctes: Mapping[str, tuple[str, list[tuple[str, SqlType]]]],
        query: Callable[[exp.Expr], Output],
        alias: Callable[[], str],
        used: list[CatalogRelation],
    ) -> None:
        self._catalog, self._scope, self._ctes, self._query, self._alias, self._used = catalog, scope, ctes, query, alias, used

    def of(self, select: exp.Select) -> Source:
        clause = select.args.get("from_")
        if clause is None:
            raise Untranslatable("a SELECT without FROM")
        only(clause, "this")
        return self._joined(self._item(clause.this), select.args.get("joins") or [])

    def _joined(self, first: Source, joins: list[exp.Expr]) -> Source:
        done: Source | None = None
        current = first
        for join in joins:
            only(join, "this", "side", "kind", "on", "using")
            if not any(join.args.get(key) for key in ("side", "kind", "on", "using")):
                # A comma: what follows joins among itself first and sees nothing to its left.
                done, current = self._side_by_side(done, current), self._item(join.this)
            else:
                current = self._join(current, join)
        whole = self._side_by_side(done, current)
        names = [relation.alias for relation in whole.relations]
        if len(set(names)) < len(names):
            raise Untranslatable("one name for two relations")
        return whole

    def _side_by_side(self, left: Source | None, right: Source) -> Source:
        if left is None:
            return right
        return Source(
            f"{left.sql}, {right.sql}", left.relations + right.relations, left.visible + right.visible, {**left.merged, **right.merged}
        )

    def _join(self, left: Source, join: exp.Expr) -> Source:
        right = self._item(join.this)
        side, kind = str(join.args.get("side") or "").upper(), str(join.args.get("kind") or "").upper()
        both = Source("", left.relations + right.relations, left.visible + right.visible, {**left.merged, **right.merged})
        if kind == "CROSS":
            if side or join.args.get("on") or join.args.get("using"):
                raise Untranslatable("CROSS JOIN with a condition")
            return replace(both, sql=f"({left.sql} CROSS JOIN {right.sql})")
        word = _JOINS.get((side, kind))
        if word is None:
            raise Untranslatable(f"{side} {kind} JOIN")
        if join.args.get("using"):
            return self._using(left, right, word, [identifier(name) for name in join.args["using"]])
        if join.args.get("on") is None:
            raise Untranslatable("JOIN without a condition")
        test = condition(join.args["on"], self._scope_of(both))
        return replace(both, sql=f"({left.sql} {word} JOIN {right.sql} ON {test})")

    def _scope_of(self, source: Source) -> Scope:
        return replace(self._scope, relations=source.relations, merged=source.merged)

    def _using(self, left: Source, right: Source, word: str, names: list[str]) -> Source:
        tests, merged = [], {}
        for name in names:
            one, other = _named(left, name), _named(right, name)
            tests.append(compared(one, "=", other, self._scope).sql)
            merged[name] = self._merged(one, other, word)
        visible = tuple(merged.items()) + tuple(item for item in left.visible + right.visible if item[0] not in merged)
        sql = f"({left.sql} {word} JOIN {right.sql} ON {' AND '.join(tests)})"
        return Source(sql, left.relations + right.relations, visible, {**left.merged, **right.merged, **merged})

    def _merged(self, one: Typed, other: Typed, word: str) -> Typed:
        if replace(one.type, pg=None) != replace(other.type, pg=None):
            raise Untranslatable("USING of two types")
        if word == "FULL":
            return Typed(f"coalesce({one.sql}, {other.sql})", one.type)
        return other if word == "RIGHT" else one

    def _item(self, node: exp.Expr) -> Source:
        if isinstance(node, exp.Table):
            return self._table(node)
        if isinstance(node, exp.Values):
            return self._values(node)
        if isinstance(node, exp.Subquery):
            only(node, "this", "alias")
            if isinstance(node.this, exp.Table | exp.Subquery) and not node.args.get("alias") and node.this.args.get("joins"):
                return self._item(node.this)
            if isinstance(node.this, exp.Table) and not node.args.get("alias"):
                return self._item(node.this)
            output = self._query(node.this)
            return self._derived(f"({output.sql})", output.columns, node.args.get("alias"))
        raise Untranslatable(f"FROM {type(node).__name__}")

    def _table(self, node: exp.Table) -> Source:
        only(node, "this", "db", "alias", "joins")
        if not isinstance(node.this, exp.Identifier):
            raise Untranslatable("a function in FROM")
        name, schema = identifier(node.this), identifier(node.args["db"]) if node.args.get("db") else None
        found: Source
        if schema is None and name in self._ctes:
            sql, columns = self._ctes[name]
            found = self._derived(sql, columns, node.args.get("alias"), name)
        else:
            found = self._registered(node, schema, name)
        return self._joined(found, node.args.get("joins") or [])

    def _registered(self, node: exp.Table, schema: str | None, name: str) -> Source:
        relation = self._catalog.resolve(schema, name)
        if relation is None:
            raise Untranslatable(f"{name} is not a registered relation")
        if len({column.lower() for column in relation.columns}) < len(relation.columns):
            raise Untranslatable(f"{name} has columns that differ in case only")
        self._used.append(relation)
        inner = self._alias()
        columns = [(column, Typed(f"{inner}.{quoted(column)}", column_type(of))) for column, of in relation.columns.items()]
        outer, shown = _renamed(node.args.get("alias"), name, columns)
        aliased = node.args.get("alias") is not None
        return Source(f"{relation.sql} AS {inner}", (Relation(outer, dict(shown), None if aliased else relation.schema),), tuple(shown))

    def _derived(self, sql: str, columns: list[tuple[str, SqlType]], alias: exp.Expr | None, name: str = "") -> Source:
        inner = self._alias()
        typed = [(column, Typed(f'{inner}."c{number}"', of)) for number, (column, of) in enumerate(columns, 1)]
        outer, shown = _renamed(alias, name, typed)
        names = [column for column, _ in shown]
        unique = {column: value for column, value in shown if names.count(column) == 1}
        return Source(f"{sql} AS {inner}", (Relation(outer, unique),), tuple(shown))

    def _values(self, node: exp.Values) -> Source:
        only(node, "expressions", "alias")
        output = values(node, replace(self._scope, relations=(), merged={}))
        return self._derived(f"({output.sql})", output.columns, node.args.get("alias"))


def values(node: exp.Values, scope: Scope) -> Output:
    """``VALUES (…), (…)`` with one type for each column."""
    rows = [[translate(item, scope) for item in row.expressions] for row in node.expressions if isinstance(row, exp.Tuple)]
    if len(rows) != len(node.expressions) or not rows or len({len(row) for row in rows}) != 1:
        raise Untranslatable("VALUES of another shape")
    columns = [unified(column, scope) for column in zip(*rows, strict=True)]
    if any(value.scale for column, _ in columns for value in column):
        raise Untranslatable("VALUES of numerics with several scales")
    lines = ", ".join("(" + ", ".join(column[number].sql for column, _ in columns) + ")" for number in range(len(rows)))
    names = ", ".join(f'"c{number}"' for number in range(1, len(columns) + 1))
    sql = f'SELECT * FROM (VALUES {lines}) AS "v"({names})'  # noqa: S608
    return Output(sql, [(f"column{number}", of.plain()) for number, (_, of) in enumerate(columns, 1)])


def _named(source: Source, name: str) -> Typed:
    found = [value for column, value in source.visible if column == name]
    if len(found) != 1:
        raise Untranslatable(f"USING ({name}) is not clear")
    return found[0]


def _renamed(alias: exp.Expr | None, name: str, columns: list[tuple[str, Typed]]) -> tuple[str, list[tuple[str, Typed]]]:
    """A relation's name and columns after ``AS name(column, …)``; columns not named there keep theirs."""
    if alias is None:
        return name, columns
    only(alias, "this", "columns")
    given = [identifier(column) for column in alias.args.get("columns") or []]
    if len(given) > len(columns):
        raise Untranslatable("more names than columns")
    renamed = [(new, value) for new, (_, value) in zip(given, columns, strict=False)] + columns[len(given) :]
    return (identifier(alias.this) if alias.this else name), renamed
