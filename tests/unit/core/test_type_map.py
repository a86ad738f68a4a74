"""The one table of types, without a database; tests/flows/test_types_registration.py asks a real one."""

from __future__ import annotations

import pytest

from modak.core.type_map import NATIVE, NO_TEXT_ROUND_TRIP, SUPPORTED, TEXT, USER_TEXT, LakeType, PgType, lake_type, numeric_display
from modak.errors import Problem


def numeric(digits: int, scale: int) -> PgType:
    return PgType(f"numeric({digits},{scale})", "numeric", modifier=((digits << 16) | (scale & 0x7FF)) + 4)


@pytest.mark.parametrize("base", NATIVE)
def test_native_types_stay_native_unless_forced(base: str) -> None:
    assert lake_type(PgType(base, base)) == NATIVE[base]
    assert lake_type(PgType(base, base), force_text=True) == TEXT


@pytest.mark.parametrize("base", NO_TEXT_ROUND_TRIP)
def test_types_without_a_text_round_trip_are_refused_alone_and_in_arrays(base: str) -> None:
    for pg in (PgType(base, base), PgType(f"{base}[]", f"_{base}", element=PgType(base, base))):
        for force in (False, True):
            refused = lake_type(pg, force_text=force)
            assert isinstance(refused, Problem)
            assert NO_TEXT_ROUND_TRIP[base] in refused.message
            assert SUPPORTED in str(refused.hint)


@pytest.mark.parametrize("kind", ["c", "p"])
def test_composites_and_pseudo_types_are_refused(kind: str) -> None:
    assert isinstance(lake_type(PgType("x", "x", "public", kind)), Problem)
    assert isinstance(lake_type(PgType("x[]", "_x", "public", element=PgType("x", "x", "public", kind))), Problem)


def test_a_users_type_with_a_famous_name_is_text() -> None:
    assert lake_type(PgType("own.date", "date", "own")) == USER_TEXT
    assert lake_type(PgType("own.money", "money", "own", "e")) == USER_TEXT
    assert lake_type(PgType("own.date[]", "_date", "own", element=PgType("own.date", "date", "own"))) == USER_TEXT
    assert lake_type(PgType("date[]", "_date", element=PgType("date", "date"))) == TEXT


@pytest.mark.parametrize(
    ("digits", "scale", "expected"),
    [
        (20, 5, "decimal(20,5)"), (38, 0, "decimal(38,0)"), (38, 38, "decimal(38,38)"), (1, 0, "decimal(1,0)"),
        (39, 0, "string"), (1000, 0, "string"), (5, -2, "string"), (3, 5, "string"),
    ],
)  # fmt: skip
def test_numeric_is_a_decimal_where_iceberg_has_one(digits: int, scale: int, expected: str) -> None:
    kept = lake_type(numeric(digits, scale))
    assert isinstance(kept, LakeType)
    assert kept.iceberg == expected
    assert kept.as_text is (expected == "string")


@pytest.mark.parametrize(("digits", "scale"), [(1, 0), (38, 38), (5, -2), (1000, -1000), (1000, 1000)])
def test_the_modifier_is_unpacked(digits: int, scale: int) -> None:
    assert numeric_display(numeric(digits, scale).modifier) == f"numeric({digits},{scale})"


def test_numeric_without_a_modifier_is_text() -> None:
    assert numeric_display(-1) is None
    assert lake_type(PgType("numeric", "numeric")) == TEXT


@pytest.mark.parametrize("base", ["date", "timestamp", "timestamptz"])
def test_types_with_values_the_lake_cannot_hold_say_which(base: str) -> None:
    assert NATIVE[base].holds_sql
    assert NATIVE[base].limits


def test_every_expression_takes_a_column() -> None:
    for kept in (*NATIVE.values(), TEXT, USER_TEXT):
        for expression in (kept.read_sql, kept.spark_sql, kept.image_sql, kept.holds_sql or "{column}"):
            assert '"x {y}"' in expression.format(column='"x {y}"')
