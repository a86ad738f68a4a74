"""Definitions of decoupled tables: types in and out, partition fields, and what does not fit together (SCENARIOS 100, 103)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import TimeType

from modak.core.decoupled import Definition, PartitionField, accepted, differences, from_iceberg
from modak.core.type_map import PgType
from modak.errors import Problem, Refused
from modak.lake.decoupled import properties_of, schema_of, spec_of


def column(name: str, base: str, kind: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind or base,
        "base": base,
        "modifier": -1,
        "field_id": 1,
        "required": False,
        "comment": None,
        "default": None,
    } | more


def given(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    numbered = [{**one, "field_id": place} for place, one in enumerate(columns, start=1)]
    return {"table_id": 7, "schema": "public", "name": "events", "ref": "public.events", "profile": "default", "columns": numbered} | more


@pytest.mark.parametrize(
    ("text", "field", "again"),
    [
        ("id", PartitionField("identity", "id"), "id"),
        (" id ", PartitionField("identity", "id"), "id"),
        ("identity(id)", PartitionField("identity", "id"), "id"),
        ("Day(at)", PartitionField("day", "at"), "day(at)"),
        ("bucket(16, id)", PartitionField("bucket", "id", 16), "bucket(16, id)"),
        ("bucket(id,16)", PartitionField("bucket", "id", 16), "bucket(16, id)"),
        ("truncate( 3 , name)", PartitionField("truncate", "name", 3), "truncate(3, name)"),
        ('day("At (UTC)")', PartitionField("day", "At (UTC)"), 'day("At (UTC)")'),
        ('"day(at)"', PartitionField("identity", "day(at)"), '"day(at)"'),
        ('bucket(4, "a, 5")', PartitionField("bucket", "a, 5", 4), 'bucket(4, "a, 5")'),
    ],
)
def test_partition_fields_read_what_they_write(text: str, field: PartitionField, again: str) -> None:
    assert PartitionField.parse(text) == field
    assert str(field) == again
    assert PartitionField.parse(again) == field


@pytest.mark.parametrize("text", ["week(at)", "bucket(id)", "bucket(0, id)", "bucket(99999999999, id)", "truncate(, id)", "void(id)"])
def test_partition_fields_that_are_none(text: str) -> None:
    with pytest.raises(Refused):
        PartitionField.parse(text)


@pytest.mark.parametrize(
    "kind",
    [
        PgType("inet", "inet"),
        PgType("oid", "oid"),
        PgType("numeric", "numeric"),
        PgType("numeric(39,0)", "numeric", modifier=(39 << 16) + 4),
        PgType("mood", "mood", "public", "e"),
        PgType("small", "int4"),  # a domain
        PgType("integer[]", "_int4", element=PgType("integer", "int4")),
        PgType("int4range", "int4range", kind="r"),
        PgType("xml", "xml"),
        PgType("time with time zone", "timetz"),
    ],
    ids=lambda kind: kind.display,
)
def test_what_the_lake_cannot_keep_itself_is_refused(kind: PgType) -> None:
    assert isinstance(accepted(kind), Problem)


@pytest.mark.parametrize(
    ("iceberg", "type", "base", "modifier"),
    [
        ("int", "integer", "int4", -1),
        ("long", "bigint", "int8", -1),
        ("float", "real", "float4", -1),
        ("double", "double precision", "float8", -1),
        ("decimal(10,2)", "numeric(10,2)", "numeric", (10 << 16) + 2 + 4),
        ("decimal(38, 0)", "numeric(38,0)", "numeric", (38 << 16) + 4),
        ("string", "text", "text", -1),
        ("timestamptz", "timestamp with time zone", "timestamptz", -1),
        ("fixed[16]", "bytea", "bytea", -1),
        ("time", "time without time zone", "time", -1),
        ("uuid", "uuid", "uuid", -1),
    ],
)
def test_columns_of_other_engines_come_back_as_they_are(iceberg: str, type: str, base: str, modifier: int) -> None:
    found = from_iceberg(iceberg)
    assert not isinstance(found, Problem)
    assert (found["type"], found["base"], found["modifier"]) == (type, base, modifier)
    one = Definition.parse(given({"name": "c", **found}, is_attached=True)).columns[0]
    assert one.lake.iceberg == iceberg.replace(" ", "")
    assert Definition.parse(given(one.as_json())).columns[0] == one


@pytest.mark.parametrize("iceberg", ["struct<1: a: optional int>", "list<int>", "map<string,int>", "timestamp_ns", "variant", "unknown"])
def test_nested_and_newer_types_are_refused(iceberg: str) -> None:
    assert isinstance(from_iceberg(iceberg), Problem)


def test_a_definition_is_read_as_it_was_written() -> None:
    written = given(column("id", "int8", "bigint", required=True, comment="key"), column("at", "timestamptz", "timestamp with time zone"))
    written |= {"partition_by": ["day(at)", "bucket(4, id)"]}
    definition = Definition.parse(written)
    assert definition.as_json() == written | {"is_attached": False}
    assert Definition.parse(definition.as_json()) == definition


@pytest.mark.parametrize(
    ("columns", "partition_by", "told"),
    [
        ([], [], "no columns"),
        ([column("a", "int4", "integer"), column("A", "int4", "integer")], [], "ignore case"),
        ([column("a", "int4", "integer"), column("a", "int4", "integer")], [], "ignore case"),
        ([column("x" * 64, "text")], [], "63 bytes"),
        ([column("a", "int4", "integer")], ["b"], "none of the table"),
        ([column("a", "int4", "integer")], ["day(a)"], "does not fit"),
        ([column("a", "float8", "double precision")], ["a"], "does not fit"),
        ([column("a", "date")], ["hour(a)"], "does not fit"),
        ([column("a", "date")], ["year(a)", "day(a)"], "twice"),
        ([column("a", "inet")], [], "no exact form"),
    ],
)
def test_what_does_not_fit_together_is_refused(columns: list[dict[str, Any]], partition_by: list[str], told: str) -> None:
    with pytest.raises(Refused, match=told):
        Definition.parse(given(*columns, partition_by=partition_by))


def test_the_iceberg_side() -> None:
    columns = [
        column("id", "int8", "bigint", required=True, comment="key"),
        column("at", "timestamptz", "timestamp with time zone"),
        column("at_day", "date"),
        column("name", "text"),
    ]
    definition = Definition.parse(given(*columns, partition_by=["day(at)", "bucket(16, id)", "truncate(2, name)", "name"]))
    schema = schema_of(definition)
    first = schema.fields[0]
    assert (first.field_id, first.name, str(first.field_type), first.required, first.doc) == (1, "id", "long", True, "key")
    spec = spec_of(definition, schema)
    assert [(field.name, field.source_id, field.field_id) for field in spec.fields] == [
        ("at_day_", 2, 1000), ("id_bucket", 1, 1001), ("name_trunc", 4, 1002), ("name", 4, 1003),
    ]  # fmt: skip
    assert [field.transform for field in spec.fields] == [DayTransform(), BucketTransform(16), TruncateTransform(2), IdentityTransform()]
    found = properties_of(definition, {"modak.catalog-id": "x"})
    assert (found["write.delete.mode"], found["format-version"], found["modak.catalog-id"]) == ("merge-on-read", "2", "x")


def test_an_attached_time_stays_a_time() -> None:
    definition = Definition.parse(given(column("t", "time", "time without time zone", lake="time"), is_attached=True))
    assert isinstance(schema_of(definition).fields[0].field_type, TimeType)
    assert definition.columns[0].lake.duckdb == "TIME"


def test_in_what_two_tables_differ() -> None:
    columns = [column("id", "int8", "bigint", required=True), column("at", "timestamptz", "timestamp with time zone")]
    table = Definition.parse(given(*columns, partition_by=["bucket(4, id)"]))
    assert differences(table, table) == []
    told = Definition.parse(
        given(column("id", "int8", "bigint", required=True, comment="key", default="7"), columns[1], partition_by=["bucket(id,4)"])
    )
    assert differences(told, table) == []
    others = [
        given(columns[0], partition_by=["bucket(4, id)"]),
        given(*columns),
        given(columns[1], columns[0], partition_by=["bucket(4, id)"]),
        given(columns[0], {**columns[1], "required": True}, partition_by=["bucket(4, id)"]),
    ]
    for other in others:
        for one, two in ((Definition.parse(other), table), (table, Definition.parse(other))):
            assert len(differences(one, two)) == 1
    moved = replace(table, columns=(table.columns[0], replace(table.columns[1], field_id=7)))
    assert differences(table, moved) == [
        "column at is timestamp with time zone (field 7) there, and timestamp with time zone (field 2) here",
    ]
