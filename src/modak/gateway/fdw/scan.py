"""Cold scans for postgres_fdw: a request becomes rows at exactly the snapshot it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from modak.core.tier_key import KEY_MIN
from modak.gateway.analytics.relations import RegisteredRelation, Relations
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.expression import Scope, translate
from modak.gateway.dialect.literals import literal
from modak.gateway.dialect.output import text_sql
from modak.gateway.dialect.predicates import predicates
from modak.gateway.dialect.types import column_type
from modak.gateway.fdw.request import PIN, Request, Unpinned
from modak.lake.storage import io_properties
from modak.scan.estimate import Estimate, estimate, share_of_one
from modak.scan.predicate import ColumnType, Predicate
from modak.scan.prune import KeyRange
from modak.scan.snapshot import Snapshot
from modak.scan.sqltext import quoted
from modak.scan.table import ColdTables

UTC = "UTC"
# What ANALYZE gets to see: a good deal more than it keeps.
SAMPLE_ROWS = 60_000
# Postgres's guess for conditions whose value is not known yet.
_RANGE_SHARE = 1 / 3


@dataclass(frozen=True)
class Scan:
    """A query for the engine, and the snapshot that must be held while it runs. ``residue``: Postgres has to finish it."""

    sql: str
    snapshot: Snapshot
    table_id: int
    columns: int
    residue: bool = False


class ColdScans:
    def __init__(self, relations: Relations, tables: ColdTables, *, collation_is_c: bool) -> None:
        self._relations = relations
        self._tables = tables
        self._collation_is_c = collation_is_c

    def relation(self, request: Request) -> RegisteredRelation:
        return self._relations.by_id(request.name.table_id, request.name.build)

    def snapshot(self, relation: RegisteredRelation, sequence_number: int | None) -> Snapshot:
        location = self._relations.metadata_location(relation.table_id, sequence_number)
        return self._tables.snapshot(location, sequence_number, io_properties(relation.storage))

    def plan(self, request: Request, *, sample: bool = False) -> Scan:
        """The engine's SQL for a request. ``sample``: ANALYZE asks, and any published snapshot will do."""
        relation = self.relation(request)
        if not request.is_pinned and not sample:
            raise Unpinned(
                "a cold scan must say which snapshot it reads",
                hint=f"query {relation.name}, not the foreign tables behind it",
            )
        sequence_number = self._relations.current_snapshot(relation.table_id) if sample else request.snapshot
        snapshot = self.snapshot(relation, sequence_number)
        if request.select is None:
            return self._for_residue(request, relation, snapshot, ())
        try:
            return self._translated(request, relation, snapshot, sample)
        except Untranslatable:
            return self._for_residue(request, relation, snapshot, request.conditions)

    def _translated(self, request: Request, relation: RegisteredRelation, snapshot: Snapshot, sample: bool) -> Scan:
        assert request.select is not None
        columns, scope = self._columns(relation), self._scope(relation)
        wanted = sorted({*request.columns, f"a{_number(relation)}"})
        source = self._source(request, relation, snapshot, wanted, predicates(request.conditions, columns))
        outputs = [_output(node, columns) for node in request.select.outputs]
        conditions = [*self._key_range(request, relation), *(translate(node, scope).sql for node in request.conditions)]
        parts = [f"SELECT {', '.join(outputs) or 'NULL'} FROM {source}"]  # noqa: S608
        if conditions:
            parts.append(f"WHERE {' AND '.join(f'({condition})' for condition in conditions)}")
        if sample:
            parts.append(f"USING SAMPLE reservoir({SAMPLE_ROWS} ROWS)")
        if request.select.order_by:
            parts.append(f"ORDER BY {', '.join(self._ordered(node, scope) for node in request.select.order_by)}")
        if request.select.limit is not None:
            parts.append(f"LIMIT {request.select.limit}")
        return Scan(" ".join(parts), snapshot, relation.table_id, len(outputs) or 1)

    def _for_residue(self, request: Request, relation: RegisteredRelation, snapshot: Snapshot, nodes: Sequence[exp.Expr]) -> Scan:
        """Every column of the rows that survive what can be translated; Postgres applies the whole condition to them."""
        columns, scope = self._columns(relation), self._scope(relation)
        conditions = self._key_range(request, relation)
        for node in nodes:
            try:
                conditions.append(translate(node, scope).sql)
            except Untranslatable:
                continue
        names = [f"a{column.number}" for column in relation.columns]
        source = self._source(request, relation, snapshot, names, predicates(nodes, columns))
        outputs = ", ".join(_output(exp.column(name), columns) for name in names)
        where = f" WHERE {' AND '.join(f'({condition})' for condition in conditions)}" if conditions else ""
        text = f"SELECT {outputs} FROM {source}{where}"  # noqa: S608
        return Scan(text, snapshot, relation.table_id, len(names), residue=True)

    def _source(
        self, request: Request, relation: RegisteredRelation, snapshot: Snapshot, wanted: Sequence[str], found: Sequence[Predicate]
    ) -> str:
        """The live rows with the remote names of their columns; a column the lake does not have yet is NULL."""
        lake_names = _lake_names(relation, snapshot)
        known = [name for name in wanted if name in lake_names]
        narrowed = [Predicate(lake_names[p.column], p.operator, p.values) for p in found if p.column in lake_names]
        rows, _ = self._tables.relation(snapshot, [lake_names[name] for name in known], narrowed, _keys(request, relation, lake_names))
        columns = self._columns(relation)
        # Cast to the type the column has now: the lake follows a wider one with its next pass, and the text of a real is another double.
        items = [f"CAST({quoted(lake_names[name])} AS {columns[name].lake.duckdb}) AS {quoted(name)}" for name in known]
        items += [f"CAST(NULL AS {columns[name].lake.duckdb}) AS {quoted(name)}" for name in wanted if name not in lake_names]
        return f"(SELECT {', '.join(items) or '1'} FROM {rows} AS files) AS cold"  # noqa: S608

    def _key_range(self, request: Request, relation: RegisteredRelation) -> list[str]:
        """A foreign table's own bounds: Postgres does not send them."""
        name = f"a{_number(relation)}"
        kind = column_type(self._columns(relation)[name])
        low, high = request.name.lower, request.name.upper
        found = []
        if low != KEY_MIN and low >= relation.key_type.minimum:
            found.append(f"{quoted(name)} >= {literal(relation.key_type.encode(low), kind).sql}")
        if high <= relation.key_type.maximum:
            found.append(f"{quoted(name)} < {literal(relation.key_type.encode(high), kind).sql}")
        return found

    def _columns(self, relation: RegisteredRelation) -> dict[str, ColumnType]:
        return {f"a{column.number}": ColumnType(column.pg, column.lake) for column in relation.columns}

    def _scope(self, relation: RegisteredRelation) -> Scope:
        # Rows that went out cannot be taken back, so nothing may turn to Postgres half-way.
        return Scope.of_table(self._columns(relation), collation_is_c=self._collation_is_c, timezone=UTC, may_fail_over=False)

    def _ordered(self, node: exp.Ordered, scope: Scope) -> str:
        found = translate(node.this, scope)
        if found.type.name in ("text", "varchar", "bpchar", "enum", "opaque") and not (
            self._collation_is_c and found.type.name in ("text", "varchar")
        ):
            raise Untranslatable(f"order of {found.type.name}")
        return f"{found.sql} {'DESC' if node.args.get('desc') else 'ASC'} NULLS {'FIRST' if node.args.get('nulls_first') else 'LAST'}"

    def estimate(self, request: Request) -> Estimate:
        """What Postgres's planner is told. Nothing is read but statistics."""
        relation = self.relation(request)
        snapshot = self.snapshot(relation, self._relations.recent_snapshot(relation.table_id))
        lake_names = _lake_names(relation, snapshot)
        found = [
            Predicate(lake_names[p.column], p.operator, p.values)
            for p in predicates(request.conditions, self._columns(relation))
            if p.column in lake_names
        ]
        outputs = [lake_names[name] for name in request.columns if name in lake_names] or None
        known = estimate(snapshot, found, keys=_keys(request, relation, lake_names), primary_key=relation.primary_key, columns=outputs)
        return _with_unknown(known, request, relation, snapshot, {p.column for p in found if p.operator == "="}, lake_names)


def _output(node: exp.Expr, columns: dict[str, ColumnType]) -> str:
    if not isinstance(node, exp.Column):
        return "CAST(NULL AS VARCHAR)" if isinstance(node, exp.Null) else f"'{int(node.name)}'"
    if node.name == PIN:
        return "'0'"
    return text_sql(quoted(node.name), column_type(columns[node.name]), UTC)


def _number(relation: RegisteredRelation) -> int:
    column = relation.column(relation.tier_key)
    assert column is not None
    return column.number


def _lake_names(relation: RegisteredRelation, snapshot: Snapshot) -> dict[str, str]:
    """Remote column to the lake's name for it, by field id."""
    names = {field.id: field.name for field in snapshot.fields}
    return {f"a{column.number}": names[column.field_id] for column in relation.columns if column.field_id in names}


def _keys(request: Request, relation: RegisteredRelation, lake_names: dict[str, str]) -> KeyRange:
    low = None if request.name.lower == KEY_MIN else request.name.lower
    return KeyRange(lake_names[f"a{_number(relation)}"], low, request.name.upper)


def _with_unknown(
    known: Estimate, request: Request, relation: RegisteredRelation, snapshot: Snapshot, equal: set[str], lake_names: dict[str, str]
) -> Estimate:
    """Conditions on values that come later. To look dearer than with the value would make Postgres plan every look-up anew."""
    rows, files = float(known.rows), float(known.files)
    for node in request.unknown:
        names = {lake_names.get(column.name, "") for column in node.find_all(exp.Column)}
        if isinstance(node, exp.EQ) and len(names) == 1:
            equal |= names
            of_rows, of_files = share_of_one(snapshot, *names)
            rows, files = rows * of_rows, files * of_files
        else:
            rows *= _RANGE_SHARE
    if relation.primary_key and equal.issuperset(relation.primary_key):
        rows, files = 1.0, 1.0
    if not known.rows:
        return known
    count = max(1, round(files))
    return Estimate(max(1, round(rows)), known.bytes * count // known.files, count, known.width)
