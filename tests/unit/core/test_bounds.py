"""Partition bounds as Postgres prints them."""

from __future__ import annotations

import pytest

from modak.core import bounds
from modak.core.table import Leaf, Name, Relation
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType
from modak.errors import ValueRefused

INT, BIG, STAMP, DATE = TierKeyType.INTEGER, TierKeyType.BIGINT, TierKeyType.TIMESTAMPTZ, TierKeyType.DATE


@pytest.mark.parametrize(
    ("text", "key_type", "expected"),
    [
        ("FOR VALUES FROM (0) TO (100)", INT, (0, 100)),
        ("FOR VALUES FROM ('-5') TO ('100')", BIG, (-5, 100)),
        ("FOR VALUES FROM (MINVALUE) TO (MAXVALUE)", BIG, (KEY_MIN, KEY_MAX)),
        ("FOR VALUES FROM ('1970-01-02') TO ('1970-01-03')", DATE, (1, 2)),
        ("FOR VALUES FROM ('1969-12-31 23:59:59.999999+00') TO ('infinity')", STAMP, (-1, KEY_MAX)),
        ("FOR VALUES FROM ('-infinity') TO ('0044-03-15 BC')", DATE, (KEY_MIN, -735160)),
        ("FOR VALUES FROM ('294270-01-01 00:00:00+00') TO ('294276-01-01 00:00:00+00')", STAMP, (KEY_MAX, KEY_MAX)),
    ],
)
def test_ranges(text: str, key_type: TierKeyType, expected: tuple[int, int]) -> None:
    assert bounds.parse_range(text, key_type) == expected


@pytest.mark.parametrize(
    "text", ["DEFAULT", "FOR VALUES IN ('eu')", "FOR VALUES WITH (modulus 2, remainder 0)", "", "FOR VALUES FROM (1, 2) TO (3, 4)"]
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueRefused):
        bounds.parse_range(text, BIG)


def leaf(oid: int, parent: int, bound: str, *, level: int = 1, strategy: str | None = None) -> Leaf:
    return Leaf(oid, Name("public", f"p{oid}"), parent, level, strategy is None, bound, strategy, ())


def relation(strategy: str | None, *partitions: Leaf) -> Relation:
    return Relation(1, Name("public", "t"), "p", "p", "me", strategy, ("k",), (), (), (), partitions)


def test_a_range_table_has_itself_as_parent_and_no_default_among_its_leaves() -> None:
    table = relation("r", leaf(2, 1, "FOR VALUES FROM (5) TO (9)"), leaf(3, 1, "DEFAULT"), leaf(4, 1, "FOR VALUES FROM (-5) TO (5)"))
    assert bounds.range_parents(table) == (1,)
    assert [part.oid for part in bounds.range_leaves(table)] == [2, 4]
    assert bounds.lowest(table, BIG) == -5


def test_list_over_range_has_one_parent_per_list_partition() -> None:
    table = relation(
        "l",
        leaf(2, 1, "FOR VALUES IN ('eu')", strategy="r"),
        leaf(3, 1, "FOR VALUES IN ('us')", strategy="r"),
        leaf(4, 1, "DEFAULT", strategy="r"),
        leaf(5, 2, "FOR VALUES FROM (10) TO (20)", level=2),
        leaf(6, 3, "FOR VALUES FROM (0) TO (20)", level=2),
        leaf(7, 3, "DEFAULT", level=2),
    )
    assert bounds.range_parents(table) == (2, 3, 4)
    assert [part.oid for part in bounds.range_leaves(table)] == [5, 6]
    assert bounds.lowest(table, BIG) == 0


def test_a_table_without_partitions_starts_at_zero() -> None:
    assert bounds.lowest(relation("r"), DATE) == 0
