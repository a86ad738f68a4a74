"""Columns are the same by their number, and the lake follows only what keeps every value."""

from __future__ import annotations

import pytest

from modak.core.columns import ColumnChanges, compare, lake_follows, renamed, widens
from modak.core.table import Column
from modak.core.type_map import PgType

VARCHAR = "character varying"


def column(number: int, name: str, pg: PgType | None = None) -> Column:
    return Column(name, pg or PgType("text", "text"), number=number)


def numeric(digits: int, scale: int) -> PgType:
    return PgType(f"numeric({digits},{scale})", "numeric", modifier=(digits << 16 | scale) + 4)


def varchar(length: int) -> PgType:
    return PgType(f"{VARCHAR}({length})", "varchar", modifier=length + 4)


INT2, INT4, INT8 = (PgType(display, base) for display, base in (("smallint", "int2"), ("integer", "int4"), ("bigint", "int8")))
TEXT, JSON, UUID = PgType("text", "text"), PgType("jsonb", "jsonb"), PgType("uuid", "uuid")
MOOD = PgType("public.mood", "mood", "public", "e")
SHORT = PgType("public.short", "text")  # a domain
REAL, DOUBLE = PgType("real", "float4"), PgType("double precision", "float8")
BARE = PgType("numeric", "numeric")


def test_a_rename_is_no_drop() -> None:
    before = [column(1, "a"), column(2, "b"), column(4, "c", INT4), column(5, "gone")]
    after = [column(1, "b"), column(2, "a"), column(4, "c", INT8), column(6, "gone")]
    found = compare(before, after)
    assert found == ColumnChanges((("a", "b"), ("b", "a")), (before[3],), ((before[2], after[2]),), (after[3],))
    assert renamed(("a", "c"), found.new_names) == ("b", "c")
    assert not compare(before, before)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (INT2, INT4), (INT4, INT8), (INT2, INT8), (numeric(10, 2), numeric(12, 2)), (varchar(5), varchar(9)),
        (varchar(5), TEXT), (TEXT, PgType(VARCHAR, "varchar")), (JSON, TEXT), (MOOD, TEXT), (SHORT, TEXT), (BARE, TEXT), (REAL, DOUBLE),
        (PgType("timestamp(3) with time zone", "timestamptz", modifier=3), PgType("timestamp with time zone", "timestamptz")),
    ],
)  # fmt: skip
def test_wider_types_are_followed(old: PgType, new: PgType) -> None:
    assert lake_follows(column(1, "a", old), column(1, "a", new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (INT4, INT2), (INT8, INT4), (INT4, TEXT), (DOUBLE, REAL), (REAL, BARE), (INT4, DOUBLE),
        (numeric(10, 2), numeric(9, 2)), (TEXT, varchar(9)),
        (numeric(10, 2), numeric(12, 4)), (numeric(10, 2), BARE), (BARE, numeric(10, 2)), (varchar(9), varchar(5)), (TEXT, JSON),
        (TEXT, MOOD), (TEXT, SHORT), (TEXT, UUID), (UUID, TEXT), (INT4, PgType("oid", "oid")), (TEXT, PgType("money", "money")),
    ],
)  # fmt: skip
def test_anything_else_is_not(old: PgType, new: PgType) -> None:
    assert not lake_follows(column(1, "a", old), column(1, "a", new))


def test_iceberg_widens_within_a_kind() -> None:
    assert widens("int", "long")
    assert widens("decimal(5, 2)", "decimal(7, 2)")
    assert not widens("decimal(5, 2)", "decimal(7, 3)")
    assert not widens("long", "int")
