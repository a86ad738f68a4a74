"""SELECTs of postgres_fdw over decoupled tables: scans, joins, aggregates, in the engine where it answers as Postgres would."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from modak.core.decoupled import Definition
from modak.core.type_map import LakeType, PgType
from modak.gateway.decoupled.base import Base
from modak.gateway.decoupled.pending import Pending
from modak.gateway.decoupled.statements import ctid_sql, tables_in
from modak.gateway.decoupled.transaction import LakeTransaction
from modak.gateway.decoupled.values import engine_type
from modak.gateway.decoupled.world import World
from modak.gateway.dialect.parse import identifier
from modak.gateway.dialect.predicates import predicates
from modak.gateway.dialect.query import Catalog, CatalogRelation, as_text, translate_query
from modak.gateway.dialect.remote import PLACEHOLDER, conjuncts, parse_remote, substitute
from modak.gateway.dialect.scope import Scope
from modak.scan.estimate import Estimate, estimate
from modak.scan.narrow import narrow_type
from modak.scan.predicate import ColumnType, Predicate
from modak.scan.snapshot import Snapshot
from modak.scan.sqltext import quoted

UTC = "UTC"
CTID = "ctid"
_TEXT = LakeType("string", "string", "VARCHAR")
_GROUPS_DEFAULT = 200
# A text that lists a hundred files and more is run for longer than it is translated.
_KEPT_CHARS_MAX = 50_000


@dataclass(frozen=True)
class Scan:
    """A query for the engine; ``snapshots`` are held while it runs."""

    sql: str
    columns: int
    snapshots: tuple[Snapshot, ...]


class Columns:
    """The columns of a table as the translator knows them, by their remote names."""

    def __init__(self, pending: Pending) -> None:
        self.types: dict[str, ColumnType] = {
            name: ColumnType(column.pg, _TEXT if engine_type(column) != column.lake.duckdb else column.lake)
            for name, column in pending.columns.items()
        }
        self.with_place = {**self.types, CTID: ColumnType(PgType("text", "text"), _TEXT)}


def scan(transaction: LakeTransaction, sql: str, values: Sequence[str | None]) -> Scan:
    """Untranslatable where Postgres has to evaluate it itself."""
    kept, pending = transaction.world.scans, _unchanged(transaction, sql) if not values else None
    if pending is None or pending.base is None:
        return _translated(transaction, sql, values)[0]
    snapshot, definition = pending.base.snapshot, pending.definition
    known = kept.find(snapshot, definition, sql)
    if known is not None:
        text, columns, is_numbered = known
        pending.look(numbered=is_numbered)
        return Scan(text, columns, (snapshot,))
    made, is_numbered = _translated(transaction, sql, values)
    if len(sql) + len(made.sql) <= _KEPT_CHARS_MAX:
        kept.keep(snapshot, definition, sql, (made.sql, made.columns, is_numbered))
    return made


def _unchanged(transaction: LakeTransaction, sql: str) -> Pending | None:
    """The one table that a statement reads, if the transaction has not written to it: the lake alone says what is there."""
    table_ids = tables_in(sql)
    pending = transaction.pending(table_ids[0]) if len(table_ids) == 1 else None
    return None if pending is None or pending.has_changes else pending


def _translated(transaction: LakeTransaction, sql: str, values: Sequence[str | None]) -> tuple[Scan, bool]:
    """And whether it tells the numbers of rows."""
    tree = substitute(parse_remote(sql), values).select  # a copy of its own
    tree.set("locks", None)
    op = transaction.op
    used: dict[int, Pending] = {}
    places: list[bool] = []
    sources = dict(_sources(tree))

    def resolve(schema: str | None, name: str) -> CatalogRelation | None:
        if schema != "iceberg" or not name.isdigit():
            return None
        pending = used[int(name)] = transaction.pending(int(name))
        columns = Columns(pending)
        wanted, place = needed(tree, columns.types)
        places.append(place)
        found = _predicates(tree, sources, name, columns.types)
        source = pending.source(wanted, found, numbered=place, upto=op)
        narrow = _narrow(tree, pending, wanted)
        if place or narrow:
            items = [f"CAST({quoted(one)} AS {narrow[one]}) AS {quoted(one)}" if one in narrow else quoted(one) for one in wanted]
            items += [f"{ctid_sql('rid')} AS {CTID}"] if place else []
            source = f"(SELECT {', '.join(items)} FROM {source} AS shown)"  # noqa: S608
        shown = columns.with_place if place else columns.types
        return CatalogRelation(int(name), source, {one: shown[one] for one in (*wanted, *([CTID] if place else []))}, "iceberg")

    session = Scope(collation_is_c=transaction.world.collation_is_c, timezone=UTC, may_fail_over=False)
    translated = translate_query(tree, Catalog(resolve, session))
    snapshots = tuple(pending.base.snapshot for pending in used.values() if pending.base is not None)
    return Scan(as_text(translated, UTC), len(translated.columns), snapshots), any(places)


def _narrow(tree: exp.Select, pending: Pending, wanted: Sequence[str]) -> dict[str, str]:
    """Columns that are grouped by, shown and sorted by and nothing else, so that a smaller type of the engine's does as well."""
    if pending.base is None or pending.has_changes or not tree.args.get("group"):
        return {}
    grouped = (exp.Select, exp.Group, exp.Ordered)
    others = {column.name for column in tree.find_all(exp.Column) if not isinstance(column.parent, grouped)}
    lake_names = pending.lake_names(pending.base.snapshot)
    known = {one: narrow_type(pending.base.snapshot, lake_names[one]) for one in wanted if one in lake_names and one not in others}
    return {one: kind for one, kind in known.items() if kind is not None}


def needed(tree: exp.Expr, columns: Mapping[str, ColumnType]) -> tuple[list[str], bool]:
    """The columns that a statement names, of whichever of its tables, and whether it wants to know rows by their place."""
    names = {column.name for column in tree.find_all(exp.Column)}
    wanted = [name for name in columns if name in names]
    return wanted or list(columns)[:1], CTID in names


def _sources(tree: exp.Expr) -> Iterator[tuple[str, list[str]]]:
    """The aliases of each table, by its name."""
    found: dict[str, list[str]] = {}
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Identifier):
            alias = table.args.get("alias")
            found.setdefault(identifier(table.this), []).append(identifier(alias.this) if alias is not None and alias.this else "")
    yield from found.items()


def _predicates(tree: exp.Expr, sources: Mapping[str, list[str]], name: str, columns: Mapping[str, ColumnType]) -> list[Predicate]:
    """Conditions on this table alone, for choosing its files. A table that is there twice, or below an outer join, is read whole."""
    where = tree.args.get("where")
    aliases = sources.get(name, [])
    joins = [*tree.find_all(exp.Join)]
    if where is None or len(aliases) != 1 or any(join.args.get("side") for join in joins):
        return []
    simple = [
        node
        for node in conjuncts(where.this)
        if all((column.args.get("table") is None and not joins) or column.table == aliases[0] for column in node.find_all(exp.Column))
        and not any(null.meta.get(PLACEHOLDER) for null in node.find_all(exp.Null))
    ]
    return predicates(simple, columns)


def recent_definition(world: World, transaction: LakeTransaction | None, table_id: int) -> Definition:
    """For what is a guess anyway."""
    known = transaction.known_definition(table_id) if transaction is not None else None
    return known or world.recent_definition(table_id)


def guess(world: World, transaction: LakeTransaction | None, table_ids: Sequence[int], sql: str, values: Sequence[str | None]) -> Estimate:
    """What the planner is told. Files are not opened; a transaction is not bound to a snapshot by being planned, nor begun."""
    tables = [_recent(world, transaction, table_id) for table_id in table_ids]
    definition, base = tables[0]
    # Postgres asks several times for one plan, and for every plan anew.
    is_kept = len(tables) == 1 and base is not None and not values and len(sql) <= _KEPT_CHARS_MAX
    known = world.estimates.find(base.snapshot, definition, sql) if is_kept and base is not None else None
    if known is not None:
        return known
    tree = substitute(parse_remote(sql), values).select
    found = _in_order(tree, _together(tree, [_estimate(world, tree, *one) for one in tables]))
    if is_kept and base is not None:
        world.estimates.keep(base.snapshot, definition, sql, found)
    return found


def _recent(world: World, transaction: LakeTransaction | None, table_id: int) -> tuple[Definition, Base | None]:
    """None for one that this transaction makes."""
    definition = recent_definition(world, transaction, table_id)
    pending = transaction.pendings.get(table_id) if transaction is not None else None
    is_new = transaction is not None and transaction.is_new(table_id)
    return definition, pending.base if pending is not None else None if is_new else world.likely_base(definition)


def _estimate(world: World, tree: exp.Select, definition: Definition, base: Base | None) -> Estimate:
    if base is None:
        return Estimate(1_000, 100_000, 1, 100)
    pending = Pending(definition, world.tables, base)
    columns = Columns(pending)
    lake_names = pending.lake_names(base.snapshot)
    conditions = _predicates(tree, dict(_sources(tree)), str(definition.table_id), columns.types)
    narrowed = [Predicate(lake_names[p.column], p.operator, p.values) for p in conditions if p.column in lake_names]
    wanted = [lake_names[name] for name in needed(tree, columns.types)[0] if name in lake_names]
    return estimate(base.snapshot, narrowed, columns=wanted)


def _together(tree: exp.Select, found: Sequence[Estimate]) -> Estimate:
    rows = max(one.rows for one in found)
    if tree.args.get("group"):
        rows = min(rows, _GROUPS_DEFAULT)
    elif _is_aggregate(tree):
        rows = 1
    return Estimate(max(rows, 1), sum(one.bytes for one in found), sum(one.files for one in found), sum(one.width for one in found))


def _in_order(tree: exp.Select, whole: Estimate) -> Estimate:
    """With ORDER BY nothing comes before all is read; LIMIT then saves comparisons, and the way of the rest."""
    node = tree.args.get("limit")
    literal = next(iter(node.find_all(exp.Literal)), None) if node is not None else None
    kept = min(whole.rows, int(literal.this)) if literal is not None and literal.this.isdigit() else whole.rows
    compared = int(whole.rows * math.log2(kept + 2)) if tree.args.get("order") else 0
    return replace(whole, rows=max(kept, 1), comparisons=compared)


def _is_aggregate(tree: exp.Select) -> bool:
    names = {str(call.this).lower() for output in tree.expressions for call in output.find_all(exp.Anonymous)}
    return bool(names & {"count", "sum", "avg", "min", "max", "bool_and", "bool_or", "stddev", "variance"})
