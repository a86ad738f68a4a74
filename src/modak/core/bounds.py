"""Partition bounds as Postgres prints them, in canonical keys."""

from __future__ import annotations

import re

from modak.core.table import Leaf, Relation
from modak.core.tier_key import TierKeyType
from modak.errors import ValueRefused

_RANGE = re.compile(r"^FOR VALUES FROM \((?P<lower>.*)\) TO \((?P<upper>.*)\)$", re.DOTALL)

DEFAULT = "DEFAULT"


def parse_range(bound: str, key_type: TierKeyType) -> tuple[int, int]:
    """[lower, upper) of a one-column range bound."""
    match = _RANGE.match(bound)
    if match is None:
        raise ValueRefused(f"not a range bound: {bound}")
    return key_type.decode_bound(_literal(match["lower"])), key_type.decode_bound(_literal(match["upper"]))


def _literal(text: str) -> str:
    return text[1:-1].replace("''", "'") if text.startswith("'") else text


def range_parents(relation: Relation) -> tuple[int, ...]:
    """OIDs of the tables that are range-partitioned by the tier key: the root, or the children of a LIST root."""
    if relation.strategy == "r":
        return (relation.oid,)
    return tuple(leaf.oid for leaf in relation.partitions if leaf.level == 1 and leaf.strategy == "r")


def range_leaves(relation: Relation) -> tuple[Leaf, ...]:
    """The partitions with rows of their own, without the spill."""
    parents = range_parents(relation)
    return tuple(leaf for leaf in relation.partitions if leaf.parent_oid in parents and leaf.bound != DEFAULT)


def lowest(relation: Relation, key_type: TierKeyType) -> int:
    """Where the cut-line starts: below every partition nothing can be hot. 0 for a table without partitions."""
    bounds = [parse_range(leaf.bound, key_type)[0] for leaf in range_leaves(relation)]
    return min(bounds, default=0)


# [low, high); None: open. Unlike ``parse_range`` it tells an open end from the last key.
Ends = tuple[int | None, int | None]


def ends(bound: str, key_type: TierKeyType) -> Ends:
    match = _RANGE.match(bound)
    if match is None:
        raise ValueRefused(f"not a range bound: {bound}")
    low, high = (_literal(match[end]) for end in ("lower", "upper"))
    open_low, open_high = ("MINVALUE", "-infinity"), ("MAXVALUE", "infinity")
    return None if low in open_low else key_type.decode_bound(low), None if high in open_high else key_type.decode_bound(high)


def overlap(one: Ends, other: Ends) -> bool:
    return _is_below(one[0], other[1]) and _is_below(other[0], one[1])


def _is_below(low: int | None, high: int | None) -> bool:
    return low is None or high is None or low < high


def within(values: tuple[int, int], range_: Ends) -> bool:
    """Whether all values from the first to the last, which is one of them, lie in the range."""
    return (range_[0] is None or range_[0] <= values[0]) and (range_[1] is None or values[1] < range_[1])


def touches(values: tuple[int, int], range_: Ends) -> bool:
    """Whether one of the values may lie in the range."""
    return (range_[0] is None or range_[0] <= values[1]) and (range_[1] is None or values[0] < range_[1])
