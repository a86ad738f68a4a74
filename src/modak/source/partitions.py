"""The heap's partitions: which exist, and how far the data reaches."""

from __future__ import annotations

from psycopg import sql

from modak.connection import Connection
from modak.core import bounds
from modak.core.partition import Partition, PartitionState
from modak.core.table import Relation
from modak.core.tier_key import TierKeyType
from modak.source.expressions import canonical_key, is_finite, reference


def partitions_of(relation: Relation, key_type: TierKeyType) -> list[Partition]:
    """Every range partition in bound order, as hot as Postgres knows it."""
    found = []
    for leaf in bounds.range_leaves(relation):
        lower, upper = bounds.parse_range(leaf.bound, key_type)
        found.append(Partition(leaf.name.schema, leaf.name.name, lower, upper, PartitionState.HOT, leaf.estimated_rows, leaf.bytes))
    return sorted(found, key=lambda partition: (partition.lower, partition.upper, partition.name))


def newest_key(connection: Connection, relation: Relation, tier_key: str, key_type: TierKeyType) -> int | None:
    """The data's own highest key: of the highest period that holds rows, so at most that period is scanned."""
    column = reference(tier_key)
    highest: int | None = None
    floor: int | None = None
    for partition in reversed(partitions_of(relation, key_type)):
        if floor is not None and partition.upper <= floor:
            break
        row = connection.execute(
            sql.SQL("select max({}) as newest from {} where {}").format(
                sql.SQL(canonical_key(key_type, column)),
                sql.Identifier(partition.schema, partition.name),
                sql.SQL(is_finite(key_type, column)),
            )
        ).fetchone()
        if row and row["newest"] is not None:
            highest = row["newest"] if highest is None else max(highest, row["newest"])
            floor = partition.lower if floor is None else floor
    return highest
