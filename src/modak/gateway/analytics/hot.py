"""Hot rows and corrections as tables inside the engine: read by COPY under the client's snapshot, typed as the lake types them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modak.core.tier_key import KEY_MAX
from modak.core.type_map import LakeType
from modak.errors import ModakError
from modak.gateway.analytics.reader import Reader
from modak.gateway.analytics.relations import RegisteredRelation, RelationColumn
from modak.gateway.analytics.seam import Declined, Seam
from modak.gateway.dialect.types import column_type
from modak.scan.engine import Cursor
from modak.scan.predicate import ColumnType, Predicate
from modak.scan.sqltext import quoted, string
from modak.source.expressions import reference
from modak.source.view import key_value

# Types whose literal means the same to Postgres as to the predicate's maker; labels of an enum may not exist.
_NARROWED = frozenset({"bool", "int2", "int4", "int8", "oid", "numeric", "float4", "float8", "text", "varchar", "bpchar"})
_NARROWED |= {"date", "timestamp", "timestamptz", "uuid", "bytea"}
_INPUT = "modak_input"


def hot_sql(seam: Seam, columns: Sequence[RelationColumn], predicates: Sequence[Predicate]) -> str | None:
    """Postgres's query for the hot rows that may meet the conditions; None if there can be none."""
    relation, line = seam.relation, seam.tier_key_hi
    if line == KEY_MAX or line > relation.key_type.maximum or any(_below(relation, line, predicate) for predicate in predicates):
        return None
    conditions = [condition for predicate in predicates if (condition := _condition(relation, predicate)) is not None]
    if line >= relation.key_type.minimum:
        conditions.insert(0, f"{reference(relation.tier_key)} >= {string(relation.key_type.encode(line))}")
    where = f" where {' and '.join(conditions)}" if conditions else ""
    items = [(column.lake, reference(column.name)) for column in columns]
    return f"select {_items(items)} from {reference(relation.heap.name, reference(relation.heap.schema))}{where}"  # noqa: S608


def delta_sql(seam: Seam, columns: Sequence[RelationColumn]) -> str:
    """Postgres's query for all corrections: the op, the key in its own types, and the image's columns."""
    relation = seam.relation
    keys = [relation.column(name) for name in relation.primary_key]
    items = [(column.lake, _key(column, place, len(keys))) for place, column in enumerate(keys) if column is not None]
    items += [(column.lake, _image(relation, column)) for column in columns]
    return f"select d.op::pg_catalog.int2 as op, {_items(items)} from modak.delta d where d.table_id = {int(relation.table_id)}"  # noqa: S608


def _key(column: RelationColumn, place: int, count: int) -> str:
    text = "d.pk" if count == 1 else f"(modak.pk_parts(d.pk))[{place + 1}]"
    return f"({text})::{_type(column)}"


def _type(column: RelationColumn) -> str:
    """What lies under a domain: the value met the domain's conditions when it was written, and here they would run as the gateway."""
    return f"{reference(column.pg.base, reference(column.pg.namespace))}"


def _image(relation: RegisteredRelation, column: RelationColumn) -> str:
    """As the view reads it. A tombstone's image has the key only."""
    value = f"(d.payload ->> {string(column.name)})"
    if column.name == relation.tier_key:
        value = key_value(relation.key_type, "d.tier_key")
    return f"(case when d.op = 0 then {value}::{_type(column)} end)"


def _items(items: Iterable[tuple[LakeType, str]]) -> str:
    """Values as the lake's types hold them, c0, c1, …; ``bad`` where one does not fit: then DuckDB cannot have the row as it is."""
    shown, unfit = [], []
    for place, (kind, value) in enumerate(items):
        fits = kind.holds_sql.format(column=value) if kind.holds_sql is not None else None
        if fits is not None:
            unfit.append(f"({value} is not null and not {fits})")
            value = f"(case when {fits} then {value} end)"
        shown.append(f"{kind.copy_sql.format(column=value)} as c{place}")
    return ", ".join([*shown, f"({' or '.join(unfit)}) as bad"] if unfit else shown)


def _condition(relation: RegisteredRelation, predicate: Predicate) -> str | None:
    column = relation.column(predicate.column)
    if column is None:
        return None
    kind = column_type(ColumnType(column.pg, column.lake)).name
    name = reference(column.name)
    if predicate.operator in ("is null", "is not null"):
        return f"{name} {predicate.operator}"
    if kind not in _NARROWED:
        return None
    values = [f"{string(value)}::pg_catalog.{reference(kind)}" for value in predicate.values]
    return f"{name} in ({', '.join(values)})" if predicate.operator == "in" else f"{name} {predicate.operator} {values[0]}"


def _below(relation: RegisteredRelation, line: int, predicate: Predicate) -> bool:
    """Whether a condition on the tier key leaves nothing at or above T."""
    values = _keys(relation, predicate, ("=", "in", "<", "<="))
    return bool(values) and all(value <= line if predicate.operator == "<" else value < line for value in values)


def is_only_hot(relation: RegisteredRelation, line: int, predicates: Iterable[Predicate]) -> bool:
    """Whether the conditions leave nothing below T: then neither the lake nor a correction has a part in it."""
    return any(
        bool(values) and min(values) >= line for predicate in predicates for values in [_keys(relation, predicate, ("=", "in", ">", ">="))]
    )


def _keys(relation: RegisteredRelation, predicate: Predicate, operators: Sequence[str]) -> list[int]:
    if predicate.column != relation.tier_key or predicate.operator not in operators:
        return []
    try:
        return [relation.key_type.decode(value) for value in predicate.values]
    except ModakError:
        return []


def load(reader: Reader, cursor: Cursor, table: str, query: str, kinds: Sequence[LakeType], *, op: bool = False) -> None:
    """Fill a temporary table of the engine with a query's rows. Its columns are c0, c1, … and, asked for, op."""
    items = [_cast(f"c{place}", kind.duckdb) + f" AS c{place}" for place, kind in enumerate(kinds)]
    may_be_bad = any(kind.holds_sql is not None for kind in kinds)
    columns = ", ".join([*(["op"] if op else []), *items, *(["bad"] if may_be_bad else [])])
    with reader.batches(query) as batches:
        cursor.register(_INPUT, batches)
        try:
            cursor.execute(f"CREATE TEMP TABLE {quoted(table)} AS SELECT {columns} FROM {_INPUT}")  # noqa: S608
        finally:
            cursor.unregister(_INPUT)
    if may_be_bad and cursor.execute(f"SELECT 1 FROM {quoted(table)} WHERE bad LIMIT 1").fetchone():  # noqa: S608
        raise Declined("hot rows hold values that the lake's types do not: infinite times, or NaN as numeric")


def _cast(name: str, kind: str) -> str:
    return f"CAST(hex({name}) AS UUID)" if kind == "UUID" else f"CAST({name} AS {kind})"
