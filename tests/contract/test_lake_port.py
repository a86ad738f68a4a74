"""The lake port's contract, on Iceberg: what create, find and drop promise to registration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from tests.support import files

from modak.app import App
from modak.core.lake_table import LakeColumn, LakeTable, lake_columns, layout, properties
from modak.core.profile import Profile
from modak.core.table import Column
from modak.core.tier_key import TierKeyType
from modak.core.type_map import NATIVE, TEXT, PgType
from modak.errors import LakeError, LakeTableExists
from modak.lake.iceberg import IcebergLake
from modak.lake.storage import Storage, jdbc_url, sqlalchemy_url, warehouse_uri

BASES = {
    TierKeyType.SMALLINT: "int2",
    TierKeyType.INTEGER: "int4",
    TierKeyType.BIGINT: "int8",
    TierKeyType.TIMESTAMPTZ: "timestamptz",
    TierKeyType.TIMESTAMP: "timestamp",
    TierKeyType.DATE: "date",
}


def lake_table(ref: str = "public.events", base: str = "int8", chosen: str = "none", key: tuple[str, ...] = ("id",)) -> LakeTable:
    columns = (
        LakeColumn("id", NATIVE["int8"], True, "who"),
        LakeColumn("k", NATIVE[base], True),
        LakeColumn("Val ue", TEXT, False),
        LakeColumn("f", NATIVE["float8"], "f" in key),
    )
    return LakeTable(ref, columns, "k", key, chosen, properties(key, {"modak.table": ref}))


@pytest.fixture
def warehouse(app: App) -> Path:
    return app.settings.data / "warehouse"


def load(lake: IcebergLake, ref: str = "public.events") -> Any:
    return lake.catalog.load_table(tuple(ref.split(".", 1)))


def test_created_is_found_and_empty(lake: IcebergLake, warehouse: Path) -> None:
    created = lake.create(lake_table())
    assert lake.find("public.events") == created
    assert (created.snapshot_id, created.sequence_number, created.total_rows) == (None, None, None)
    assert created.columns == ("id", "k", "Val ue", "f")
    assert created.properties["modak.table"] == "public.events"
    assert Path(created.metadata_location.removeprefix("file://")).is_file()
    assert len(files(warehouse)) == 1


def test_another_process_finds_it(app: App, lake: IcebergLake) -> None:
    created = lake.create(lake_table())
    assert app.lake(Profile("default")).find("public.events") == created


def test_an_absent_table_is_none_and_its_drop_a_no_op(lake: IcebergLake) -> None:
    for ref in ("public.events", "nowhere.events"):
        assert lake.find(ref) is None
        lake.drop(ref, purge=True)
        lake.drop(ref, purge=False)


def test_a_taken_name_is_refused_and_leaves_no_file(lake: IcebergLake, warehouse: Path) -> None:
    created = lake.create(lake_table())
    before = files(warehouse)
    with pytest.raises(LakeTableExists, match=r"public\.events") as refused:
        lake.create(lake_table(base="date"))
    assert refused.value.__cause__ is not None
    assert files(warehouse) == before
    assert lake.find("public.events") == created


def test_a_purge_removes_the_files_and_a_plain_drop_keeps_them(lake: IcebergLake, warehouse: Path) -> None:
    lake.create(lake_table())
    lake.create(lake_table("public.other"))
    lake.drop("public.events", purge=True)
    assert lake.find("public.events") is None
    assert len(files(warehouse)) == 1
    lake.drop("public.other", purge=False)
    assert lake.find("public.other") is None
    assert len(files(warehouse)) == 1
    lake.create(lake_table("public.other"))
    assert len(files(warehouse)) == 2


def test_two_databases_in_one_warehouse_do_not_share_folders(app: App, lake: IcebergLake, new_database: Any, template: str) -> None:
    other = App(replace(app.settings, dsn=new_database(template))).lake(Profile("default"))
    first, second = lake.create(lake_table()), other.create(lake_table())
    assert first.location != second.location
    other.drop("public.events", purge=True)
    assert Path(first.metadata_location.removeprefix("file://")).is_file()


LAYOUTS = [
    (key_type, width)
    for key_type in TierKeyType
    for width in (("hour", "day", "month", "year", "none") if key_type.is_time else ("1", "3600", "2147483647", "none"))
]


@pytest.mark.parametrize(("key_type", "width"), LAYOUTS)
def test_each_layout_of_each_key_type(lake: IcebergLake, key_type: TierKeyType, width: str) -> None:
    chosen = layout(width, key_type)
    if not isinstance(chosen, str):
        assert (key_type, width) == (TierKeyType.DATE, "hour")
        return
    lake.create(lake_table(base=BASES[key_type], chosen=chosen))
    fields = [str(field.transform) for field in load(lake).spec().fields]
    assert fields == ([] if width == "none" else [width if key_type.is_time else f"truncate[{width}]"])


def test_a_partition_field_never_takes_a_columns_name(lake: IcebergLake) -> None:
    table = lake_table(chosen="10")
    lake.create(replace(table, columns=(*table.columns, LakeColumn("K_Band", TEXT, False), LakeColumn("k_band_", TEXT, False))))
    assert load(lake).spec().fields[0].name == "k_band__"


def test_order_identifiers_and_required_columns(lake: IcebergLake) -> None:
    lake.create(lake_table(key=("id", "k")))
    table = load(lake)
    schema: Schema = table.schema()
    assert [schema.find_column_name(field.source_id) for field in table.sort_order().fields] == ["k", "id"]
    assert all(str(field.direction) == "ASC" for field in table.sort_order().fields)
    assert schema.identifier_field_names() == {"id", "k"}
    assert [(field.name, field.required, field.doc) for field in schema.fields][:3] == [
        ("id", True, "who"),
        ("k", True, None),
        ("Val ue", False, None),
    ]
    assert table.metadata.format_version == 2


def test_a_float_in_the_key_is_not_announced_as_identifier(lake: IcebergLake) -> None:
    lake.create(lake_table(key=("id", "f")))
    assert load(lake).schema().identifier_field_names() == set()


def test_properties_for_look_ups(lake: IcebergLake) -> None:
    lake.create(lake_table(key=("id", "k")))
    found = load(lake).properties
    for column in ("id", "k"):
        assert found[f"write.parquet.bloom-filter-enabled.column.{column}"] == "true"
    assert int(found["write.parquet.row-group-size-bytes"]) <= 32 * 1024 * 1024
    assert found["write.delete.mode"] == found["write.update.mode"] == found["write.merge.mode"] == "merge-on-read"
    assert found["write.metadata.delete-after-commit.enabled"] == "false"


def test_every_native_type_is_an_iceberg_type(lake: IcebergLake) -> None:
    columns = [Column(base, PgType(base, base)) for base in NATIVE] + [
        Column("d", PgType("numeric(38,5)", "numeric", modifier=(38 << 16) + 5 + 4))
    ]
    kept, problems = lake_columns(columns, ())
    assert problems == ()
    lake.create(LakeTable("public.all", (LakeColumn("k", NATIVE["int8"], True), *kept), "k", ("k",), "none", properties(("k",), {})))
    assert str(load(lake, "public.all").schema().find_type("d")) == "decimal(38, 5)"


def test_a_folder_with_odd_characters(app: App, tmp_path: Path) -> None:
    for name in ("with a space", "per%20cent", "ünï", "a+b"):
        app_here = App(replace(app.settings, data=tmp_path / name))
        lake = app_here.lake(Profile("default"))
        ref = "public.t" + str(abs(hash(name)))
        created = lake.create(lake_table(ref))
        assert Path(created.metadata_location.removeprefix("file://")).is_file()
        assert (tmp_path / name / "warehouse" / "public").is_dir()
        lake.drop(ref, purge=True)
        assert files(tmp_path / name) == []


def test_failures_are_lake_errors_with_a_cause_and_no_secret(app: App) -> None:
    storage = Storage("x", "file:///nowhere", "jdbc", "postgresql://me:hunter2@127.0.0.1:1/x", {})
    with pytest.raises(LakeError) as failed:
        IcebergLake(storage).find("public.events")
    assert failed.value.__cause__ is not None
    assert failed.value.hint
    assert "hunter2" not in str(failed.value)
    rest = Storage("x", "s3://w", "http://127.0.0.1:1", "postgresql://x", {})
    with pytest.raises(LakeError, match=r"public\.events|the Iceberg catalog"):
        IcebergLake(rest).create(lake_table())


@pytest.mark.parametrize(
    ("dsn", "url", "user"),
    [
        ("postgresql://me:pw@h:5433/db", "jdbc:postgresql://h:5433/db?", "me"),
        ("host=/var/run port=5444 user=me dbname='my db'", "jdbc:postgresql://localhost:5444/my%20db?", "me"),
        ("postgresql://me@[::1]:5/x", "jdbc:postgresql://[::1]:5/x?", "me"),
        ("host=a,b port=1,2 user=u dbname=d sslmode=require", "jdbc:postgresql://a:1,b:2/d?", "u"),
    ],
)
def test_dsns_reach_spark_and_sqlalchemy(dsn: str, url: str, user: str) -> None:
    found, name, password = jdbc_url(dsn, schema="modak_lake")
    assert found.startswith(url)
    assert "currentSchema=modak_lake" in found
    assert ("sslmode=require" in found) is ("sslmode" in dsn)
    assert (name, password) == (user, "pw" if "pw" in dsn else None)
    assert "pw" not in found
    assert "search_path%3Dmodak_lake" in sqlalchemy_url(dsn)


@pytest.mark.parametrize(("text", "uri"), [("s3://b/x/", "s3://b/x"), ("/a b", "file:///a b"), ("file:/x/", "file:/x")])
def test_warehouses_are_taken_as_they_stand(text: str, uri: str) -> None:
    assert warehouse_uri(text) == uri
