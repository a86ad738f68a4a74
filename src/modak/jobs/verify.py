"""Verify: contents, not counts. What stands in the heap and in the lake must be the same, and the lake must hold no key twice.

Where a heap copy still stands (a tiered partition that is not dropped, keep-heap) it is the truth, and ``repair`` makes the lake say the
same through the delta.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from modak.catalog import tables
from modak.core import bounds, policy
from modak.core.lake_table import LakeColumn
from modak.core.partition import Partition, PartitionState
from modak.core.table import Name, Relation
from modak.core.tier_key import KEY_MIN
from modak.errors import LakeError
from modak.jobs.compare import Comparison, Difference, lake_duplicates
from modak.jobs.context import JobContext
from modak.jobs.publishing.seam import SEAM_LOCK
from modak.jobs.spark import spark_failures
from modak.registration import rebuild
from modak.source.expressions import canonical_key, encoded_key, reference, row_image
from modak.source.relation import SQL
from modak.source.spill import identifier
from modak.sqlfiles import trusted


@dataclass(frozen=True)
class Verified:
    """What was looked at and what was found. ``repaired`` counts differences that the delta now corrects.

    ``drift_bytes``: of a mirror, how much WAL the lake was behind by."""

    partitions: int = 0
    rows: int = 0
    differences: tuple[Difference, ...] = ()
    truncated: bool = False
    repaired: int = 0
    drift_bytes: int | None = None


def verify(context: JobContext, *, repair: bool = False) -> Verified:
    """Compare every heap copy with the lake, then look for keys that the lake holds twice."""
    relation = context.relation()
    columns = context.columns(relation)
    found, seen = Verified(), set[Name]()
    for lower, upper, names in _copies(context, relation):
        with context.progress.task(f"Comparing {', '.join(map(str, names))} with the lake"):
            compared = Comparison(context, names, columns).run(lower, upper)
        repaired = _repair(context, names, columns, compared.differences) if repair else 0
        seen.update(names)
        found = replace(
            found,
            partitions=len(seen),
            rows=found.rows + compared.rows,
            differences=(*found.differences, *compared.differences),
            truncated=found.truncated or compared.truncated,
            repaired=found.repaired + repaired,
        )
    with context.progress.task("Looking for keys that the lake holds twice"), spark_failures("the search for duplicates"):
        twice = lake_duplicates(context, columns)
    return replace(found, differences=(*found.differences, *twice))


def _copies(context: JobContext, relation: Relation) -> Iterator[tuple[int, int, list[Name]]]:
    """Ranges of keys below T whose rows still stand in the heap, with the partitions that hold them."""
    known, key_type = tables.states(context.connection, context.table_id), context.table.key_type
    standing = [
        Partition(leaf.name.schema, leaf.name.name, *bounds.parse_range(leaf.bound, key_type), PartitionState.TIERED)
        for leaf in bounds.range_leaves(relation)
        if known.get(leaf.oid) is PartitionState.TIERED
    ]
    # What somebody took away has no copy any more, and says nothing about the lake's.
    tiered = [part for part in tables.partitions(context.connection, context.table_id) if part.state is PartitionState.TIERED]
    line, reached = tables.cutline(context.connection, context.table_id).tier_key_hi, KEY_MIN
    # A heap that is kept has late rows as well, in the spill: there lies what no partition takes.
    spills = rebuild.spills(context.table, relation) if context.table.keep_heap else []
    for period in policy.periods({*standing, *tiered}):
        if spills and reached < period.lower:
            yield reached, period.lower, spills
        names = [Name(part.schema, part.name) for part in period.partitions if part in standing]
        if names:
            yield period.lower, period.upper, [*names, *spills]
        reached = period.upper
    if spills and reached < line:
        yield reached, line, spills


def _repair(context: JobContext, partitions: Sequence[Name], columns: tuple[LakeColumn, ...], differences: Iterable[Difference]) -> int:
    """The heap's row becomes the correction; a row that only the lake has becomes a tombstone. Under the seam lock, so T stands still."""
    repaired = 0
    with context.connection.transaction():
        context.connection.execute("select pg_advisory_xact_lock_shared(%s)", [SEAM_LOCK + context.table_id])
        for difference in differences:
            written = sum(_from_heap(context, partition, columns, difference) for partition in partitions)
            repaired += written or _tombstone(context, columns, difference)
    return repaired


def _from_heap(context: JobContext, partition: Name, columns: tuple[LakeColumn, ...], difference: Difference) -> int:
    table = context.table
    return context.connection.execute(
        SQL.template(
            "repair_from_heap",
            table_id=sql.Literal(table.table_id),
            partition=identifier(partition),
            pk=trusted(encoded_key(table.primary_key_cols, "r")),
            tier_key=trusted(canonical_key(table.key_type, reference(table.tier_key_col, "r"))),
            image=trusted(row_image(columns, "r")),
            wanted=sql.Literal(difference.key),
        )
    ).rowcount


def _tombstone(context: JobContext, columns: tuple[LakeColumn, ...], difference: Difference) -> int:
    """The lake's own row, as JSON, tells the key; Postgres reads it with the column's type."""
    table = context.table
    if difference.lake is None or not difference.lake.startswith("{"):
        return 0
    needed = [column for column in columns if column.name in (*table.primary_key_cols, table.tier_key_col)]
    if any(column.type.iceberg == "binary" for column in needed):
        raise LakeError("a row with a bytea key cannot be repaired from here", hint="delete it in the lake by hand", key=difference.key)
    relation = context.relation()
    casts = [
        sql.SQL("(j.row->>{})::{} as {}").format(
            sql.Literal(column.name), trusted(_display(relation.column(column.name))), sql.Identifier(column.name)
        )
        for column in needed
    ]
    keys = [column for column in columns if column.name in table.primary_key_cols]
    return context.connection.execute(
        SQL.template(
            "repair_tombstone",
            table_id=sql.Literal(table.table_id),
            row=sql.Literal(difference.lake),
            casts=sql.SQL(", ").join(casts),
            pk=trusted(encoded_key(table.primary_key_cols, "r")),
            tier_key=trusted(canonical_key(table.key_type, reference(table.tier_key_col, "r"))),
            image=trusted(row_image(keys, "r")),
        )
    ).rowcount


def _display(column: object) -> str:
    display = getattr(getattr(column, "type", None), "display", None)
    if display is None:
        raise LakeError("a key column is gone from the heap", hint="run `modak tier` first, so that the lake's columns follow")
    return str(display)
