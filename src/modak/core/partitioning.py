"""Which partitioning can be tiered: by range on the tier key, or by list over such ranges, and no place for rows of any key."""

from __future__ import annotations

from collections.abc import Iterator

from modak.core import bounds
from modak.core.table import Relation
from modak.core.tier_key import TierKeyType
from modak.errors import ModakError, Problem


def partitioning_problems(relation: Relation, tier_key: str, key_type: TierKeyType) -> Iterator[Problem]:
    if relation.kind not in "rp":
        return
    if relation.strategy is None:
        yield Problem(
            "not_partitioned",
            f"{relation.name} is not partitioned",
            f"tiering moves whole partitions: partition it by range ({tier_key}); docs/guides/partitioning.md shows how",
        )
        return
    tables: list[tuple[str, str | None, tuple[str, ...]]] = [(str(relation.name), relation.strategy, relation.key_columns)]
    if relation.strategy == "l":
        # Without a partition nothing says that ranges will follow below the list.
        below = [(str(leaf.name), leaf.strategy, leaf.key_columns) for leaf in relation.partitions if leaf.level == 1]
        tables = below or tables
    for name, strategy, columns in tables:
        yield from _range_problem(name, strategy, columns, tier_key)
    yield from _bounds_problems(relation, key_type)


def _range_problem(name: str, strategy: str | None, columns: tuple[str, ...], tier_key: str) -> Iterator[Problem]:
    hint = f"needed: range ({tier_key}), or list (…) over range ({tier_key})"
    if strategy is None:
        yield Problem("partitioning", f"{name} is a LIST partition without range partitions below it", hint)
    elif strategy == "h":
        yield Problem("partitioning", f"{name} is partitioned by hash", hint)
    elif strategy == "l":
        yield Problem("partitioning", f"{name} is partitioned by list only", hint)
    elif len(columns) > 1:
        yield Problem("partitioning", f"{name} is partitioned by range on several columns ({', '.join(columns)})", hint)
    elif columns == ("",):
        yield Problem("partitioning", f"{name} is partitioned by an expression", hint)
    elif columns != (tier_key,):
        yield Problem("partitioning", f"{name} is partitioned by {columns[0]}, not by the tier key {tier_key}", hint)


def _bounds_problems(relation: Relation, key_type: TierKeyType) -> Iterator[Problem]:
    parents = bounds.range_parents(relation)
    for leaf in relation.partitions:
        if leaf.parent_oid in parents and leaf.bound == bounds.DEFAULT:
            yield Problem(
                "default_partition",
                f"{leaf.name} is a DEFAULT partition",
                "move its rows into partitions of their own and drop it: Modak needs that place for late rows",
            )
        elif leaf.parent_oid in parents and not leaf.is_leaf:
            yield Problem("partitioning", f"partition {leaf.name} is partitioned once more below the range", "keep the range level last")
        elif leaf.parent_oid in parents and leaf.bound.startswith("FOR VALUES FROM"):
            try:
                bounds.parse_range(leaf.bound, key_type)
            except ModakError as refused:
                yield Problem("bound", f"partition {leaf.name}: {refused}", refused.hint)
