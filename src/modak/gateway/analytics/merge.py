"""The two-tier relation inside the engine: hot rows, cold rows that no correction hides, and corrections that replace or add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modak.core.columns import widens
from modak.core.tier_key import KEY_MIN, TierKeyType
from modak.gateway.analytics.relations import RegisteredRelation, RelationColumn
from modak.gateway.analytics.seam import Declined, Seam
from modak.gateway.dialect.literals import literal
from modak.gateway.dialect.types import column_type
from modak.lake.iceberg import iceberg_type
from modak.scan.predicate import ColumnType, Predicate
from modak.scan.prune import KeyRange, prune
from modak.scan.snapshot import DataFile, Snapshot
from modak.scan.sqltext import quoted
from modak.scan.table import ColdTables

_INTEGERS = (TierKeyType.SMALLINT, TierKeyType.INTEGER, TierKeyType.BIGINT)


@dataclass(frozen=True)
class Cold:
    """The cold rows of one use, before corrections: a SELECT of the columns by their names, and the files it reads."""

    sql: str | None
    files: Sequence[DataFile]


def cold_rows(
    tables: ColdTables, seam: Seam, snapshot: Snapshot, columns: Sequence[RelationColumn], predicates: Sequence[Predicate]
) -> Cold:
    """What the lake holds below T at S. Files that the conditions exclude are not read; the conditions themselves stay the caller's."""
    if seam.tier_key_hi == KEY_MIN:
        return Cold(None, ())
    relation = seam.relation
    names = lake_names(relation, snapshot)
    tier_key = names[relation.tier_key]
    narrowed = [Predicate(names[p.column], p.operator, p.values) for p in predicates if p.column in names]
    keys = KeyRange(tier_key, None, seam.tier_key_hi)
    files = prune(snapshot, narrowed, keys)
    if not files:
        return Cold(None, ())
    below = "" if _all_below(snapshot, tier_key, files, seam.tier_key_hi) else _below(relation, tier_key, seam.tier_key_hi)
    wanted = dict.fromkeys(names[column.name] for column in columns if column.name in names)
    rows, files = tables.relation(snapshot, [*wanted, *([tier_key] if below and tier_key not in wanted else [])], narrowed, keys)
    items = ", ".join(f"{_value(column, names)} AS {quoted(column.name)}" for column in columns)
    return Cold(f"SELECT {items} FROM {rows} AS files{below}", files)  # noqa: S608


def _all_below(snapshot: Snapshot, tier_key: str, files: Sequence[DataFile], line: int) -> bool:
    """Whether statistics prove it for every row; then the tier key need not be read."""
    highest = {file.path: values.high for file, values in zip(snapshot.files, snapshot.ranges(snapshot.field(tier_key)), strict=True)}
    return all(highest[file.path] is not None and highest[file.path] < line for file in files)


def lake_names(relation: RegisteredRelation, snapshot: Snapshot) -> dict[str, str]:
    """A column's name in this snapshot's metadata, by its field id; columns that the lake lacks are left out."""
    by_id = {field.id: field.name for field in snapshot.fields}
    # A mirror's column without a field id is one that was added since, be it under the name of one that was dropped.
    by_name = {} if relation.is_mirror else {field.name: field.name for field in snapshot.fields}
    found = {
        column.name: by_name.get(column.name) if column.field_id is None else by_id.get(column.field_id) for column in relation.columns
    }
    return {name: lake_name for name, lake_name in found.items() if lake_name is not None}


def check_followed(relation: RegisteredRelation, snapshot: Snapshot, columns: Sequence[RelationColumn]) -> None:
    """Declined where a mirror in the lake does not have one of these columns as the heap has it: a change of columns says nothing of the
    values that rows got by it, so the lake's moment may be later than the change and yet lack them."""
    fields = {field.id: field for field in snapshot.fields}
    for column in columns:
        field = fields.get(column.field_id) if column.field_id is not None else None
        if field is None:
            raise Declined(f"the lake does not have column {column.name} of {relation.name} yet")
        wanted = str(iceberg_type(column.lake.iceberg))
        if field.type != wanted and not widens(field.type, wanted):
            raise Declined(f"the lake has column {column.name} of {relation.name} as {field.type} still")


def _value(column: RelationColumn, names: dict[str, str]) -> str:
    """Cast to the type the column has now: older metadata may have a narrower one, or none."""
    return f"CAST({quoted(names[column.name]) if column.name in names else 'NULL'} AS {column.lake.duckdb})"


def _below(relation: RegisteredRelation, name: str, line: int) -> str:
    if line > relation.key_type.maximum:
        return ""
    column = relation.column(relation.tier_key)
    assert column is not None
    kind = column_type(ColumnType(column.pg, column.lake))
    # An integer stays a bare number, so that DuckDB compares it with row groups' statistics in the column's own type.
    value = str(line) if relation.key_type in _INTEGERS else literal(relation.key_type.encode(line), kind).sql
    return f" WHERE {quoted(name)} < {value}"


def shown(relation: RegisteredRelation, names: Sequence[str]) -> tuple[RelationColumn, ...]:
    """The columns that a use shows: those it names, and at least one."""
    wanted = set(names) or {relation.tier_key}
    return tuple(column for column in relation.columns if column.name in wanted)


def with_key(relation: RegisteredRelation, columns: Sequence[RelationColumn]) -> tuple[RelationColumn, ...]:
    """These columns and those that corrections are matched by."""
    wanted = {*(column.name for column in columns), *relation.primary_key}
    return tuple(column for column in relation.columns if column.name in wanted)


def merged_sql(relation: RegisteredRelation, columns: Sequence[RelationColumn], hot: str | None, cold: Cold, delta: str | None) -> str:
    """One SELECT for a use. ``hot`` and ``delta`` are temporary tables as ``hot.load`` fills them, with these columns."""
    names = [quoted(column.name) for column in columns]
    arms = []
    if hot is not None:
        arms.append(f"SELECT {_renamed(names, 0)} FROM {quoted(hot)}")  # noqa: S608
    if cold.sql is not None:
        arms.append(f"SELECT {', '.join(f'c.{name}' for name in names)} FROM ({cold.sql}) AS c{_not_corrected(relation, delta)}")  # noqa: S608
    if delta is not None:
        arms.append(f"SELECT {_renamed(names, len(relation.primary_key))} FROM {quoted(delta)} WHERE op = 0")  # noqa: S608
    if not arms:
        nothing = ", ".join(f"CAST(NULL AS {column.lake.duckdb}) AS {quoted(column.name)}" for column in columns)
        return f"SELECT {nothing} WHERE false"
    return " UNION ALL ".join(arms)


def _renamed(names: Sequence[str], first: int) -> str:
    return ", ".join(f"c{first + place} AS {name}" for place, name in enumerate(names))


def _not_corrected(relation: RegisteredRelation, delta: str | None) -> str:
    """Said as a join: DuckDB would plan NOT EXISTS by keeping all cold rows in memory first."""
    if delta is None:
        return ""
    same = " AND ".join(f"d.c{place} = c.{quoted(name)}" for place, name in enumerate(relation.primary_key))
    return f" ANTI JOIN {quoted(delta)} AS d ON {same}"
