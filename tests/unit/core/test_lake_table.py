"""The lake's side of a table as plain data: names, layouts, properties."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.core.lake_table import WIDTH_MAX, default_ref, lake_columns, lake_identifier, layout, properties
from modak.core.table import Column, Name
from modak.core.tier_key import TierKeyType
from modak.core.type_map import PgType
from modak.errors import Problem

SAFE = re.compile(r"[a-z_][a-z0-9_]{0,62}")
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=63)


@given(NAMES)
def test_every_name_becomes_one_that_catalogs_and_disks_take(name: str) -> None:
    assert SAFE.fullmatch(lake_identifier(name))


@given(NAMES, NAMES)
def test_two_names_never_meet(first: str, second: str) -> None:
    assert (lake_identifier(first) == lake_identifier(second)) is (first == second)


@pytest.mark.parametrize("name", ["events", "_x", "a1", "e" * 63])
def test_plain_names_stay(name: str) -> None:
    assert lake_identifier(name) == name


@pytest.mark.parametrize(
    ("name", "readable"), [("My Events", "my_events_"), ("2024", "t_2024_"), ("日本", "t_"), ("a.b", "a_b_"), ("events\n", "events_")]
)
def test_odd_names_keep_what_can_be_read(name: str, readable: str) -> None:
    assert re.fullmatch(readable + "[0-9a-f]{10}", lake_identifier(name))


def test_schema_and_table_are_told_apart() -> None:
    assert default_ref(Name("a.b", "c")) != default_ref(Name("a", "b.c"))
    assert default_ref(Name("public", "events")) == "public.events"


@pytest.mark.parametrize(
    ("width", "key_type", "expected"),
    [
        (None, TierKeyType.BIGINT, "none"),
        ("none", TierKeyType.SMALLINT, "none"),
        ("0100", TierKeyType.INTEGER, "100"),
        (str(WIDTH_MAX), TierKeyType.BIGINT, str(WIDTH_MAX)),
        (None, TierKeyType.DATE, "day"),
        ("hour", TierKeyType.TIMESTAMP, "hour"),
        ("none", TierKeyType.TIMESTAMPTZ, "none"),
    ],
)
def test_layouts(width: str | None, key_type: TierKeyType, expected: str) -> None:
    assert layout(width, key_type) == expected


@pytest.mark.parametrize(
    ("width", "key_type"),
    [
        ("day", TierKeyType.BIGINT), ("0", TierKeyType.BIGINT), ("-1", TierKeyType.BIGINT), ("1.5", TierKeyType.BIGINT),
        (str(WIDTH_MAX + 1), TierKeyType.BIGINT), ("", TierKeyType.BIGINT), ("٣", TierKeyType.BIGINT), ("9" * 30, TierKeyType.BIGINT),
        ("hour", TierKeyType.DATE), ("100", TierKeyType.TIMESTAMPTZ), ("DAY", TierKeyType.DATE), ("", TierKeyType.DATE),
    ],
)  # fmt: skip
def test_layouts_that_do_not_fit(width: str, key_type: TierKeyType) -> None:
    assert isinstance(layout(width, key_type), Problem)


def test_columns_and_problems_in_order() -> None:
    columns = [
        Column("id", PgType("bigint", "int8"), comment="who"),
        Column("m", PgType("money", "money")),
        Column("t", PgType("date", "date")),
    ]
    kept, problems = lake_columns(columns, ("id",), ("t",))
    assert [(column.name, column.type.iceberg, column.required, column.comment) for column in kept] == [
        ("id", "long", True, "who"),
        ("t", "string", False, None),
    ]
    assert [problem.message.split(":")[0] for problem in problems] == ["column m"]


def test_properties_name_each_key_column_once_and_carry_stamps() -> None:
    found = dict(properties(("id", "k"), {"modak.table": "x"}))
    assert [key for key in found if "bloom-filter-enabled" in key] == [
        "write.parquet.bloom-filter-enabled.column.id",
        "write.parquet.bloom-filter-enabled.column.k",
    ]
    assert (found["format-version"], found["modak.table"]) == ("2", "x")
