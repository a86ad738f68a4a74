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


@pytest.mark.parametrize(
    ("text", "key_type", "expected"),
    [
        ("FOR VALUES FROM (0) TO (100)", INT, (0, 100)),
        ("FOR VALUES FROM (MINVALUE) TO (MAXVALUE)", BIG, (None, None)),
        # Its last key is not in it.
        ("FOR VALUES FROM ('-9223372036854775808') TO ('9223372036854775807')", BIG, (KEY_MIN, KEY_MAX)),
        ("FOR VALUES FROM ('-infinity') TO ('infinity')", DATE, (None, None)),
        ("FOR VALUES FROM ('1970-01-01 00:00:00.000001+00') TO (MAXVALUE)", STAMP, (1, None)),
    ],
)
def test_open_ends(text: str, key_type: TierKeyType, expected: bounds.Ends) -> None:
    assert bounds.ends(text, key_type) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((0, 10), (10, 20), False),
        ((0, 10), (9, 20), True),
        ((0, 10), (None, 1), True),
        ((0, 10), (None, 0), False),
        ((0, None), (None, 0), False),
        ((0, None), (5, 6), True),
        ((None, None), (5, 6), True),
    ],
)
def test_ranges_that_overlap(one: bounds.Ends, other: bounds.Ends, expected: bool) -> None:
    assert bounds.overlap(one, other) is expected
    assert bounds.overlap(other, one) is expected


@pytest.mark.parametrize(
    ("values", "ends", "is_within", "touches"),
    [
        ((0, 9), (0, 10), True, True),
        ((0, 10), (0, 10), False, True),
        ((10, 12), (0, 10), False, False),
        ((-5, -1), (0, 10), False, False),
        ((-5, 0), (0, 10), False, True),
        ((-5, KEY_MAX), (None, None), True, True),
        ((KEY_MAX, KEY_MAX), (0, None), True, True),
    ],
)
def test_values_of_a_file_and_a_range(values: tuple[int, int], ends: bounds.Ends, is_within: bool, touches: bool) -> None:
    assert bounds.within(values, ends) is is_within
    assert bounds.touches(values, ends) is touches
