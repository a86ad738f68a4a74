"""Verify: contents, not counts. What stands in the heap and in the lake must be the same, and the lake must hold no key twice.

Where a heap copy still stands (a tiered partition that is not dropped, keep-heap) it is the truth, and ``repair`` makes the lake say the
same through the delta.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from modak.catalog import tables
from modak.core import bounds, policy
from modak.core.lake_table import LakeColumn
from modak.core.partition import Partition, PartitionState
from modak.core.table import Name, Relation
from modak.core.tier_key import KEY_MIN
from modak.errors import LakeError
from modak.jobs.compare import Comparison, lake_duplicates
from modak.jobs.context import JobContext
from modak.jobs.differences import DIFFERENCES_MAX, Difference
from modak.jobs.publishing.seam import SEAM_LOCK
from modak.jobs.spark import spark_failures
from modak.lake.soundness import unsound_files
from modak.registration import rebuild
from modak.source.expressions import canonical_key, encoded_key, reference, row_image
from modak.source.locks import bounded, retried
from modak.source.relation import SQL
from modak.source.sessions import lock_holders
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
    """Look whether the lake's files are sound, compare every heap copy with them, then look for keys that the lake holds twice."""
    with context.progress.task("Looking at the files of the lake"):
        unsound = _unsound(context)
    if unsound:
        # Whatever reads the lake would fail, with fewer words.
        return Verified(differences=unsound[:DIFFERENCES_MAX], truncated=len(unsound) > DIFFERENCES_MAX)
    relation = context.relation()
    columns = context.columns(relation)
    found, seen = Verified(), set[Name]()
    for lower, upper, names in _copies(context, relation):
        with context.progress.task(f"Comparing {', '.join(map(str, names))} with the lake"):
            mending = _Mending(context, names, columns)
            compared = Comparison(context, names, columns).run(lower, upper, mend=mending.mend if repair else None)
        seen.update(names)
        found = replace(
            found,
            partitions=len(seen),
            rows=found.rows + compared.rows,
            differences=(*found.differences, *compared.differences),
            truncated=found.truncated or compared.truncated,
            repaired=found.repaired + mending.repaired,
        )
    with context.progress.task("Looking for keys that the lake holds twice"), spark_failures("the search for duplicates"):
        twice = lake_duplicates(context, columns)
    return replace(found, differences=(*found.differences, *twice))


def _unsound(context: JobContext) -> tuple[Difference, ...]:
    published = tables.published_snapshot(context.connection, context.table_id)
    if published is None:
        return ()
    return tuple(Difference(one.path, None, one.found, "lake") for one in unsound_files(context.lake_table(), published))


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


class _Mending:
    """The heap's row becomes the correction; a row that only the lake has becomes a tombstone. Under the seam lock, so T stands still."""

    def __init__(self, context: JobContext, partitions: Sequence[Name], columns: tuple[LakeColumn, ...]) -> None:
        self.context = context
        self.partitions = partitions
        self.columns = columns
        self.repaired = 0

    def mend(self, differences: Sequence[Difference]) -> None:
        """Writers who are at these rows are given way to, boundedly: nobody is to wait for a repair that waits for somebody else."""
        connection = self.context.connection
        self.repaired += retried(
            lambda: self._step(differences),
            f"repair of {self.context.table.name}",
            attempts=self.context.lock_attempts,
            holders=lambda: lock_holders(connection, list(self.partitions)),
        )

    def _step(self, differences: Sequence[Difference]) -> int:
        with bounded(self.context.connection):
            self.context.connection.execute("select pg_advisory_xact_lock_shared(%s)", [SEAM_LOCK + self.context.table_id])
            standing = [one.key for one in differences if one.heap is not None or one.version is not None]
            taken = {key for partition in self.partitions for key in self._from_heap(partition, standing)}
            corrected = self._corrected([one for one in differences if one.version is not None and one.key not in taken])
            return len(taken) + corrected + self._only_in_lake([one for one in differences if one.heap is None and one.version is None])

    def _parts(self, row: str = "r") -> dict[str, sql.Composable]:
        table = self.context.table
        return {
            "table_id": sql.Literal(table.table_id),
            "pk": trusted(encoded_key(table.primary_key_cols, row)),
            "tier_key": trusted(canonical_key(table.key_type, reference(table.tier_key_col, row))),
        }

    def _from_heap(self, partition: Name, keys: list[str]) -> list[str]:
        image = trusted(row_image(self.columns, "r"))
        text = SQL.template("repair_from_heap", **self._parts(), partition=identifier(partition), image=image, wanted=sql.Literal(keys))
        return [row["pk"] for row in self.context.connection.execute(text).fetchall()] if keys else []

    def _corrected(self, differences: Sequence[Difference]) -> int:
        text = SQL.template(
            "repair_corrected",
            table_id=sql.Literal(self.context.table_id),
            key_names=sql.Literal(list(self.context.table.primary_key_cols)),
            keys=sql.Literal([one.key for one in differences]),
            versions=sql.Literal([one.version for one in differences]),
        )
        return self.context.connection.execute(text).rowcount if differences else 0

    def _only_in_lake(self, differences: Sequence[Difference]) -> int:
        """The lake's own row, as JSON, tells the key; Postgres reads it with the column's type."""
        rows = [one.lake for one in differences if one.lake is not None and one.lake.startswith("{")]
        if not rows:
            return 0
        table, relation = self.context.table, self.context.relation()
        needed = [column for column in self.columns if column.name in (*table.primary_key_cols, table.tier_key_col)]
        if any(column.type.iceberg == "binary" for column in needed):
            raise LakeError(
                "a row with a bytea key cannot be repaired from here", hint="delete it in the lake by hand", key=differences[0].key
            )
        casts = [
            sql.SQL("(j.row->>{})::{} as {}").format(
                sql.Literal(column.name), trusted(_display(relation.column(column.name))), sql.Identifier(column.name)
            )
            for column in needed
        ]
        key_names = sql.SQL(", ").join(map(sql.Identifier, table.primary_key_cols))
        same_key = " and ".join(f"{reference(name, 'h')} = {reference(name, 'r')}" for name in table.primary_key_cols)
        text = SQL.template(
            "repair_tombstone",
            **self._parts(),
            image=trusted(row_image([column for column in self.columns if column.name in table.primary_key_cols], "r")),
            casts=sql.SQL(", ").join(casts),
            rows=sql.Literal(rows),
            copies=sql.SQL(" union all ").join(
                sql.SQL("select {} from only {}").format(key_names, identifier(partition)) for partition in self.partitions
            ),
            same_key=trusted(same_key),
        )
        return self.context.connection.execute(text).rowcount


def _display(column: object) -> str:
    display = getattr(getattr(column, "type", None), "display", None)
    if display is None:
        raise LakeError("a key column is gone from the heap", hint="run `modak tier` first, so that the lake's columns follow")
    return str(display)
