"""Tables of other engines with a past: partition specs and columns of before, odd names and types. Right, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
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
