"""A SELECT taken apart: which relations it names where, which of their columns it touches, which conditions narrow each of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from modak.gateway.analytics.relations import RegisteredRelation
from modak.gateway.analytics.seam import Declined
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.parse import identifier, parse
from modak.gateway.dialect.predicates import predicates
from modak.gateway.dialect.remote import conjuncts
from modak.scan.predicate import Predicate

_QUERIES = (exp.Select, exp.SetOperation, exp.Subquery)
# Nodes that change something, or take locks.
_ACTS = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Into, exp.Lock)


@dataclass(frozen=True)
class Candidate:
    """One SELECT. ``names`` are the relations it names, each once; ``uses`` says which table node has which name.

    ``reason`` says why it is not the lake's whatever these are; it may still be forwarded under other names.
    """

    sql: str
    tree: exp.Expr
    names: tuple[tuple[str, ...], ...]
    uses: tuple[int, ...]
    functions: tuple[str, ...]
    reason: str = ""


def read_statement(sql: str) -> Candidate | None:
    """The statement, or None where it is none of ours whatever its tables are."""
    try:
        tree = parse(sql)
        if not isinstance(tree, _QUERIES) or tree.find(*_ACTS):
            return None
        found = [_name(node) for node in base_tables(tree)]
    except Untranslatable:
        return None
    names = tuple(dict.fromkeys(found))
    if not names:
        return None
    functions = sorted({str(node.this).lower() for node in tree.find_all(exp.Anonymous)})
    odd = any(not isinstance(node.this, exp.Identifier) for node in tree.find_all(exp.Table))
    return Candidate(sql, tree, names, tuple(map(names.index, found)), tuple(functions), "a function in FROM" if odd else "")


def base_tables(tree: exp.Expr) -> list[exp.Table]:
    """Table nodes that name a relation, and not a WITH query; always in the same order."""
    return [node for node in tree.find_all(exp.Table, bfs=False) if isinstance(node.this, exp.Identifier) and not _is_cte(node)]


def _is_cte(table: exp.Table) -> bool:
    if table.args.get("db"):
        return False
    name, parent = identifier(table.this), table.parent
    inside: exp.Expr | None = None  # the WITH query that this reference stands in, of the next WITH above
    while parent is not None:
        scope = parent.args.get("with_")
        if isinstance(parent, exp.CTE):
            inside = parent
        elif isinstance(scope, exp.With):
            if any(identifier(cte.args["alias"].this) == name for cte in _visible(scope, inside)):
                return True
            inside = None
        parent = parent.parent
    return False


def _visible(scope: exp.With, inside: exp.Expr | None) -> list[exp.Expr]:
    """A WITH query sees those before it; with RECURSIVE each sees all."""
    queries = list(scope.expressions)
    places = [place for place, cte in enumerate(queries) if cte is inside]
    return queries[: places[0]] if places and not scope.args.get("recursive") else queries


def _name(table: exp.Table) -> tuple[str, ...]:
    parts = [table.args.get("catalog"), table.args.get("db"), table.this]
    return tuple(identifier(part) for part in parts if part is not None)


@dataclass(frozen=True)
class Use:
    """One place where a relation is named. ``name`` is what the rewritten tree calls it."""

    name: str
    relation: RegisteredRelation
    columns: tuple[str, ...]
    predicates: tuple[Predicate, ...]


def taken_apart(tree: exp.Expr, relations: Sequence[RegisteredRelation], timezone: str | None) -> tuple[exp.Expr, tuple[Use, ...]]:
    """A copy of the tree in which each use of a relation has a name of its own, and these uses.

    ``relations`` stand in the order of ``base_tables``. Conditions are those that hold for every row of the use that counts.
    """
    copy = tree.copy()
    if any(column.args.get("db") for column in copy.find_all(exp.Column)):
        raise Declined("a column by its schema's name")
    uses = []
    for place, (table, relation) in enumerate(zip(base_tables(copy), relations, strict=True)):
        if {key for key, value in table.args.items() if value} - {"this", "db", "catalog", "alias", "joins"}:
            raise Declined(f"a table with {', '.join(key for key, value in table.args.items() if value)}")
        name = f"modak:{place}"
        uses.append(_use(name, table, relation, timezone))
        rename(table, name)
    return copy, tuple(uses)


def rename(table: exp.Table, name: str) -> None:
    """Let a table node name something else, under the alias that the statement knows it by."""
    if not table.args.get("alias"):
        table.set("alias", exp.TableAlias(this=exp.to_identifier(identifier(table.this), quoted=True)))
    table.set("this", exp.to_identifier(name, quoted=True))
    table.set("db", None)
    table.set("catalog", None)


def _use(name: str, table: exp.Table, relation: RegisteredRelation, timezone: str | None) -> Use:
    every = tuple(column.name for column in relation.columns)
    select = table.find_ancestor(exp.Select)
    alias = table.args.get("alias")
    if select is None or (alias is not None and alias.args.get("columns")):
        return Use(name, relation, every, ())
    called = identifier(alias.this) if alias is not None else identifier(table.this)
    wanted = _columns(select, called, every)
    narrowed = predicates(_conditions(select, called, set(every)), relation.types, timezone)
    if _outer_joins(select):
        # A row that an outer join made up is NULL throughout: only what NULL does not meet may be tested before the join.
        narrowed = [predicate for predicate in narrowed if predicate.operator != "is null"]
    return Use(name, relation, tuple(column for column in every if column in wanted), tuple(narrowed))


def _columns(select: exp.Select, called: str, every: Sequence[str]) -> set[str]:
    """Names that may mean a column of the relation, here or in whatever stands inside."""
    found: set[str] = set()
    for node in select.find_all(exp.Column, exp.Star, exp.Join):
        if isinstance(node, exp.Join):
            if str(node.args.get("method") or "").upper() == "NATURAL":
                return set(every)
            found |= {identifier(using) for using in node.args.get("using") or ()}
        elif isinstance(node, exp.Star):
            if isinstance(node.parent, exp.Select):
                return set(every)
        elif _may_be_of(node, called):
            if isinstance(node.this, exp.Star):
                return set(every)
            found.add(identifier(node.this))
    return found


def _may_be_of(column: exp.Expr, called: str) -> bool:
    table = column.args.get("table")
    return table is None or identifier(table) == called


def _is_of(column: exp.Expr, called: str, every: set[str]) -> bool:
    return _may_be_of(column, called) and isinstance(column.this, exp.Identifier) and identifier(column.this) in every


def _conditions(select: exp.Select, called: str, every: set[str]) -> Iterator[exp.Expr]:
    """Conjuncts that speak of this relation alone. Conditions of joins count where every join is an inner one."""
    where = select.args.get("where")
    found = list(conjuncts(where.this if where else None))
    if not _outer_joins(select):
        for join in select.args.get("joins") or ():
            found += conjuncts(join.args.get("on"))
    for node in found:
        columns = list(node.find_all(exp.Column))
        # An unqualified name that this relation has is this relation's: were it another's too, Postgres would have refused it.
        if columns and not node.find(exp.Query) and all(_is_of(column, called, every) for column in columns):
            yield node


def _outer_joins(select: exp.Select) -> bool:
    return any(str(join.args.get("side") or "") for join in select.find_all(exp.Join))


def with_views(candidate: Candidate, replaced: dict[int, RegisteredRelation]) -> str:
    """The text with some of its relations (by their place in ``names``) replaced by their two-tier views."""
    pieces, end = [], 0
    tables = sorted(zip(base_tables(candidate.tree), candidate.uses, strict=True), key=lambda pair: int(pair[0].this.meta["start"]))
    for table, number in tables:
        if number not in replaced:
            continue
        first = table.args.get("catalog") or table.args.get("db") or table.this
        view = replaced[number].view
        name = ".".join(exp.to_identifier(part, quoted=True).sql("postgres") for part in (view.schema, view.name))
        if not table.args.get("alias"):
            name += " AS " + exp.to_identifier(identifier(table.this), quoted=True).sql("postgres")
        pieces += [candidate.sql[end : first.meta["start"]], name]
        end = table.this.meta["end"] + 1
    return "".join([*pieces, candidate.sql[end:]])
