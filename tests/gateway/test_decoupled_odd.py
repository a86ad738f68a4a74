"""Tables of other engines with a past: partition specs and columns of before, odd names and types. Right, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, HourTransform, IdentityTransform, Transform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DoubleType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from tests.decoupling import Client, House, house

from modak.core.profile import Profile
from modak.embedded.postgres import Cluster

PLAIN = Schema(NestedField(1, "id", LongType()), NestedField(2, "c", StringType()))
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder: Path = tmp_path_factory.mktemp("odd")
    with house(cluster, template, folder, "decoupled_odd") as made:
        yield made


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client() as connection:
        yield connection


@pytest.fixture
def catalog(world: House) -> Catalog:
    found = world.app.lake(Profile("default")).catalog
    found.create_namespace_if_not_exists("odd")
    return found


def attach(client: Client, name: str) -> None:
    client.execute("select modak.attach_iceberg_table('public', %s, %s)", [name, f"odd.{name}"])


def in_lake(catalog: Catalog, name: str) -> Rows:
    return sorted(tuple(row.values()) for row in catalog.load_table(f"odd.{name}").scan().to_arrow().to_pylist())


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "c": [f"c{number % 3}" for number in ids]})


def test_files_of_earlier_partition_specs(client: Client, catalog: Catalog) -> None:
    """With more fields, with fewer, and by a column that is gone."""
    by_name = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "c"))
    table = catalog.create_table("odd.evolved", PLAIN, partition_spec=by_name)
    table.append(rows(*range(10)))
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(3), "b")
    table.append(rows(*range(10, 20)))
    with table.update_spec() as spec:
        spec.remove_field("c")
    with table.update_schema() as change:
        change.delete_column("c")
    table.append(pa.table({"id": pa.array(range(20, 30))}))
    attach(client, "evolved")
    client.execute("create table twin as select * from evolved")
    for statement in (
        "insert into {} select generate_series(30, 39)",
        "delete from {} where id % 5 = 0",
        "update {} set id = -id where id % 7 = 0",
        "delete from {} where id % 5 = 1",
    ):
        for name in ("evolved", "twin"):
            client.execute(statement.format(name))  # type: ignore[arg-type]
        assert in_lake(catalog, "evolved") == client.execute("select * from twin order by 1").fetchall()
        assert client.execute("select * from evolved order by 1").fetchall() == client.execute("select * from twin order by 1").fetchall()
    client.execute("truncate evolved")
    assert in_lake(catalog, "evolved") == []
    client.execute("drop table twin")


def refused(client: Client, statement: str) -> tuple[str | None, str]:
    with pytest.raises(psycopg.Error) as error:
        client.execute(statement)  # type: ignore[arg-type]
    return error.value.sqlstate, str(error.value)


def test_a_column_that_another_engine_drops(client: Client, catalog: Catalog) -> None:
    """Its values are not NULL, and what is written to it goes nowhere."""
    table = catalog.create_table("odd.less", PLAIN)
    table.append(rows(1, 2))
    attach(client, "less")
    assert len(client.execute("select * from less").fetchall()) == 2
    with table.update_schema() as change:
        change.delete_column("c")
    for statement in ("select * from less", "insert into less values (3, 'lost')", "update less set c = 'lost'", "delete from less"):
        sqlstate, text = refused(client, statement)
        assert sqlstate == "42703", text
        assert "no column c any more" in text
    # Another one of the same name is another one.
    with table.update_schema() as change:
        change.add_column("c", StringType())
    assert refused(client, "select * from less")[0] == "42703"
    assert in_lake(catalog, "less") == [(1, None), (2, None)]
    client.execute("drop foreign table less")
    attach(client, "less")
    assert client.execute("select * from less order by 1").fetchall() == [(1, None), (2, None)]


def test_a_column_that_another_engine_adds(client: Client, catalog: Catalog) -> None:
    """Reading goes on, and rows come in beside it; one that was updated without it would have lost its value."""
    table = catalog.create_table("odd.more", PLAIN)
    attach(client, "more")
    client.execute("insert into more values (0, 'before')")
    table.refresh()
    with table.update_schema() as change:
        change.add_column("n", LongType())
    # As long as nobody has put anything into it, nothing can be lost.
    client.execute("insert into more values (3, 'c')")
    client.execute("update more set c = 'after' where id in (0, 3)")
    table.refresh()
    table.append(pa.table({"id": pa.array([1, 2]), "c": ["a", "b"], "n": pa.array([10, 20])}))
    assert client.execute("select * from more order by 1").fetchall() == [(0, "after"), (1, "a"), (2, "b"), (3, "after")]
    sqlstate, text = refused(client, "update more set c = 'x' where id = 1")
    assert sqlstate == "55000", text
    assert "does not have: n" in text
    assert "modak.add_iceberg_column" in text
    client.execute("delete from more where id = 2")
    client.execute("insert into more select g, 'c' from generate_series(4, 5) g")
    assert in_lake(catalog, "more") == [(0, "after", None), (1, "a", 10), (3, "after", None), (4, "c", None), (5, "c", None)]
    client.execute('select modak.add_iceberg_column(\'public\', \'more\', \'{"name": "n", "type": "bigint"}\')')
    client.execute("update more set c = 'x', n = n + 1 where id = 1")
    assert in_lake(catalog, "more")[1] == (1, "x", 11)
    with table.refresh().update_schema(allow_incompatible_changes=True) as change:
        change.add_column("must", LongType(), required=True)
    for statement in ("insert into more values (9, 'c')", "update more set c = 'x' where id = 3"):
        sqlstate, text = refused(client, statement)
        assert (sqlstate, "does not have: must" in text) == ("55000", True), text


def test_columns_that_another_engine_renames(client: Client, catalog: Catalog) -> None:
    """They are known by their numbers, also where each got the other's name."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "a", StringType()), NestedField(3, "b", StringType()))
    table = catalog.create_table("odd.swapped", schema)
    attach(client, "swapped")
    client.execute("insert into swapped values (1, 'a', 'b')")
    for old, new in (("a", "z"), ("b", "a"), ("z", "b")):
        with catalog.load_table("odd.swapped").update_schema() as change:
            change.rename_column(old, new)
    client.execute("insert into swapped values (2, 'a', 'b')")
    client.execute("insert into swapped select g, 'a', 'b' from generate_series(3, 9) g")
    client.execute("update swapped set a = a || 'a' where id = 1")
    found = client.execute("select * from swapped order by 1").fetchall()
    assert found == [(1, "aa", "b"), *((number, "a", "b") for number in range(2, 10))]
    assert table.refresh().schema().find_field(2).name == "b"
    assert in_lake(catalog, "swapped") == found


@pytest.mark.parametrize(("name", "told"), [("A" * 80, "63 bytes"), ("ctid", "system column"), ("ID", "by capitals only")])
def test_names_that_postgres_or_the_engine_cannot_have(client: Client, catalog: Catalog, name: str, told: str) -> None:
    table = f"named_{len(name)}{name[0]}"
    catalog.create_table(f"odd.{table}", Schema(NestedField(1, "id", LongType()), NestedField(2, name, LongType())))
    sqlstate, text = refused(client, f"select modak.attach_iceberg_table('public', '{table}', 'odd.{table}')")
    assert (sqlstate, told in text, name in text) == ("0A000", True, True), text


def test_every_row_is_in_one_partition(client: Client, catalog: Catalog) -> None:
    """By floating-point numbers, too: NaN is equal to nothing, and zero to minus zero."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "f", DoubleType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "f"))
    catalog.create_table("odd.floats", schema, partition_spec=spec)
    attach(client, "floats")
    client.execute("create temp table twin (id bigint, f float8)")
    values = "values (1, 'NaN'), (2, 1.5), (3, null), (4, 0), (5, '-0'), (6, 'Infinity'), (7, 'NaN'::float8)"
    for table in ("floats", "twin"):
        client.execute(f"insert into {table} {values}")  # type: ignore[arg-type]
        client.execute(f"insert into {table} select g, 'NaN' from generate_series(10, 20) g")  # type: ignore[arg-type]
        client.execute(f"delete from {table} where f = 'NaN' and id % 2 = 0")  # type: ignore[arg-type]
    text = "select t::text from {} t order by id"
    assert client.execute(text.format("floats")).fetchall() == client.execute(text.format("twin")).fetchall()  # type: ignore[arg-type]
    assert [row[0] for row in in_lake(catalog, "floats")] == [row[0] for row in client.execute("select id from twin order by 1").fetchall()]


VALUES: list[tuple[IcebergType, str, list[Transform[Any, Any]]]] = [
    (LongType(), "5", [BucketTransform(3), TruncateTransform(10)]),
    (UUIDType(), "'f79c3e09-677c-4bbd-a479-3f349cb785e7'", [IdentityTransform()]),
    (UUIDType(), "'f79c3e09-677c-4bbd-a479-3f349cb785e7'", [BucketTransform(3)]),
    (BinaryType(), "'\\xff00ff'", [TruncateTransform(2)]),
    (BinaryType(), "'\\xff00ff'", [IdentityTransform(), BucketTransform(5)]),
    (TimeType(), "'23:59:59.999999'", []),
    (TimeType(), "'12:13:14.5'", [IdentityTransform()]),
    (TimeType(), "'12:13:14'", [BucketTransform(3)]),
    (DateType(), "'0044-03-15 BC'", [DayTransform()]),
    (TimestamptzType(), "'1900-02-28 23:59:59.5+00'", [DayTransform()]),
    (TimestampType(), "'1969-12-31 23:59:59.999999'", [DayTransform(), HourTransform()]),
]


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_types_and_partitions_that_only_others_make(client: Client, catalog: Catalog, number: int) -> None:
    """Written one by one and many at once, found by value, changed and deleted."""
    kind, value, transforms = VALUES[number]
    name = f"typed_{number}"
    spec = PartitionSpec(*(PartitionField(2, 1000 + place, one, f"p{place}") for place, one in enumerate(transforms)))
    catalog.create_table(f"odd.{name}", Schema(NestedField(1, "id", LongType()), NestedField(2, "v", kind)), partition_spec=spec)
    attach(client, name)
    client.execute(f"insert into {name} values (1, {value}), (2, null)")  # type: ignore[arg-type]
    client.execute(f"insert into {name} select g, {value} from generate_series(3, 9) g")  # type: ignore[arg-type]
    client.execute(f"update {name} set id = -id where id in (2, 3)")  # type: ignore[arg-type]
    client.execute(f"delete from {name} where v = {value} and id = 4")  # type: ignore[arg-type]
    found = [row[0] for row in client.execute(f"select id from {name} where v = {value} order by 1").fetchall()]  # type: ignore[arg-type]
    assert found == [-3, 1, 5, 6, 7, 8, 9]
    assert client.execute(f"select id from {name} where v is null").fetchall() == [(-2,)]  # type: ignore[arg-type]


def test_the_last_second_of_a_day_before_1970(client: Client, catalog: Catalog) -> None:
    """Engines look for a day's rows in its own partition."""
    schema = Schema(NestedField(1, "at", TimestamptzType()))
    table = catalog.create_table("odd.days", schema, partition_spec=PartitionSpec(PartitionField(1, 1000, DayTransform(), "day")))
    attach(client, "days")
    client.execute("insert into days values ('1969-12-30 23:59:59.5+00'), ('1969-12-30 23:59:59+00'), ('1969-12-30 00:00+00')")
    assert [file.file.partition[0] for file in table.refresh().scan().plan_files()] == [-2]


def test_a_time_of_day_that_the_lake_has_not(client: Client, catalog: Catalog) -> None:
    catalog.create_table("odd.clock", Schema(NestedField(1, "at", TimeType())))
    attach(client, "clock")
    assert refused(client, "insert into clock values ('24:00:00')")[0] == "22003"


def test_a_table_that_was_upgraded_in_place(client: Client, catalog: Catalog) -> None:
    """All its snapshots have the number 0 until somebody commits."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "c"))
    table = catalog.create_table("odd.upgraded", PLAIN, partition_spec=spec, properties={"format-version": "1"})
    table.append(rows(1, 2, 3))
    with table.update_spec() as change:
        change.remove_field("c")
    table.append(rows(4, 5))
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    attach(client, "upgraded")
    assert client.execute("select id from upgraded order by 1").fetchall() == [(number,) for number in range(1, 6)]
    client.execute("delete from upgraded where id in (1, 4)")
    client.execute("insert into upgraded values (6, 'new')")
    client.execute("update upgraded set c = 'changed' where id in (2, 5)")
    found = client.execute("select * from upgraded order by 1").fetchall()
    assert found == [(2, "changed"), (3, "c0"), (5, "changed"), (6, "new")]
    assert in_lake(catalog, "upgraded") == found


@pytest.mark.parametrize("statement", ["insert into {} select g, 'a', 'b' from generate_series(3, 200000) g", "update {} set id = id + 10"])
def test_a_partition_spec_that_changes_before_the_commit(world: House, client: Client, catalog: Catalog, statement: str) -> None:
    """What was made into files for the one before is in no partition of the new one that it does not belong to."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "a", StringType()), NestedField(3, "b", StringType()))
    name = f"respec_{statement[:6]}"
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "a"))
    catalog.create_table(f"odd.{name}", schema, partition_spec=spec)
    attach(client, name)
    client.execute(f"insert into {name} values (1, 'a', 'b'), (2, 'a', 'b')")  # type: ignore[arg-type]
    with world.client(autocommit=False) as writer:
        writer.execute(statement.format(name))  # type: ignore[arg-type]
        with catalog.load_table(f"odd.{name}").update_spec() as change:
            change.remove_field("a")
            change.add_field("b", IdentityTransform(), "b")
        catalog.load_table(f"odd.{name}").append(pa.table({"id": pa.array([-1]), "a": ["a"], "b": ["b"]}))
    table = catalog.load_table(f"odd.{name}")
    count = client.execute(f"select count(*) from {name}").fetchall()[0][0]  # type: ignore[arg-type]
    assert table.scan(row_filter="a = 'a' and b = 'b'").to_arrow().num_rows == count
    for file in table.inspect.data_files().to_pylist():
        assert file["partition"] in ({"a": "a", "b": None}, {"a": None, "b": "b"}), file
