"""Decoupled tables through a running gateway: made, used, attached, rolled back, dropped (SCENARIOS 101, 102, 103)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.types.json import Jsonb
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    UUIDType,
)
from tests.gateways import RunningGateway
from tests.restoring import app_of

from modak.app import App
from modak.catalog import decoupled, profiles, tables
from modak.connection import connect
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.errors import NotRegistered
from modak.lake.iceberg import IcebergLake

Session = psycopg.Connection[tuple[Any, ...]]
EVENTS = [
    {"name": "id", "type": "bigint", "not_null": True, "comment": "the key"},
    {"name": "ts", "type": "timestamptz", "default": "now()"},
    {"name": "status", "type": "varchar(8)", "default": "'new'"},
    {"name": "data", "type": "jsonb"},
]


@dataclass(frozen=True)
class World:
    app: App
    folder: Path

    @property
    def lake(self) -> IcebergLake:
        with self.app.connection() as connection:
            return self.app.lake(profiles.get(connection, None))


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    name, folder = f"decoupled_{os.getpid()}", tmp_path_factory.mktemp("decoupled")
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"create database {name} template {template}")  # type: ignore[arg-type]
    app = app_of(cluster.dsn(name), folder)
    running = RunningGateway(app)
    try:
        running.start()
        yield World(app, folder)
    finally:
        running.stop()
        with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
            admin.execute(f"drop database {name} with (force)")  # type: ignore[arg-type]


@pytest.fixture
def session(world: World) -> Iterator[Session]:
    with psycopg.connect(world.app.dsn, autocommit=True) as connection:
        yield connection


def make(session: Session, name: str, columns: Any = EVENTS, partition_by: list[str] | None = None) -> None:
    session.execute("select modak.create_iceberg_table('public', %s, %s, %s)", [name, Jsonb(columns), partition_by])


def fresh(world: World, query: str) -> list[tuple[Any, ...]]:
    """What a session that did nothing before sees."""
    with psycopg.connect(world.app.dsn, autocommit=True) as other:
        return other.execute(query).fetchall()  # type: ignore[arg-type]


def is_there(world: World, ref: str) -> bool:
    return world.lake.find(ref) is not None


def settled(world: World) -> bool:
    """A drop reaches the lake right after the transaction that commits it; True once all have."""
    until = time.monotonic() + 20
    while fresh(world, "select count(*) from modak.lake_commits") != [(0,)]:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_a_table_is_made_used_and_dropped(world: World, session: Session) -> None:
    make(session, "events", partition_by=["day(ts)", "bucket(4, id)"])
    table = world.lake.load("public.events")
    assert [(field.name, str(field.field_type), field.required, field.doc) for field in table.schema().fields] == [
        ("id", "long", True, "the key"), ("ts", "timestamptz", False, None), ("status", "string", False, None),
        ("data", "string", False, None),
    ]  # fmt: skip
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == [("ts_day", "day"), ("id_bucket", "bucket[4]")]
    assert table.properties["write.delete.mode"] == "merge-on-read"

    session.execute("insert into events (id, data) values (1, '{\"a\": 1}'), (2, null)")
    session.execute("insert into events select n, timestamptz '2024-01-01' + n * interval '1 day', 'old' from generate_series(3, 5) n")
    assert fresh(world, "select id, status, data->>'a' from events order by id") == [
        (1, "new", "1"), (2, "new", None), (3, "old", None), (4, "old", None), (5, "old", None),
    ]  # fmt: skip
    session.execute("update events set status = 'done' where id = 1")
    session.execute("delete from events where id = 5")
    assert fresh(world, "select count(*), count(*) filter (where status = 'done') from events") == [(4, 1)]
    assert len({value for file in world.lake.load("public.events").inspect.files().to_pylist() for value in [str(file["partition"])]}) > 1

    session.execute("select modak.drop_iceberg_table('public', 'events', true)")
    assert fresh(world, "select to_regclass('public.events') is null and not exists (select from modak.decoupled)") == [(True,)]
    assert settled(world)
    assert not is_there(world, "public.events")
    assert not [path for path in (world.folder / "warehouse" / "public").rglob("events-*/**/*") if path.is_file()]


def test_a_rollback_leaves_nothing(world: World, session: Session) -> None:
    with session.transaction(force_rollback=True):
        make(session, "never")
        session.execute("insert into never (id) values (1), (2)")
        assert session.execute("select count(*) from never").fetchall() == [(2,)]
    assert fresh(world, "select to_regclass('public.never') is null and not exists (select from modak.decoupled)") == [(True,)]
    assert not is_there(world, "public.never")

    make(session, "kept")
    session.execute("insert into kept (id) values (1)")
    with session.transaction(force_rollback=True):
        session.execute("select modak.drop_iceberg_table('public', 'kept', true)")
    assert fresh(world, "select id from kept") == [(1,)]
    session.execute("select modak.drop_iceberg_table('public', 'kept', true)")


def test_a_savepoint_takes_only_what_came_after(world: World, session: Session) -> None:
    with session.transaction():
        make(session, "first")
        session.execute("insert into first (id) values (1)")
        with session.transaction(force_rollback=True):
            make(session, "second")
            session.execute("insert into first (id) values (2)")
        session.execute("insert into first (id) values (3)")
    assert fresh(world, "select id from first order by id") == [(1,), (3,)]
    assert is_there(world, "public.first")
    assert not is_there(world, "public.second")
    session.execute("select modak.drop_iceberg_table('public', 'first', true)")


def test_not_null_and_lengths_hold(session: Session) -> None:
    make(session, "strict")
    with pytest.raises(psycopg.errors.NotNullViolation):
        session.execute("insert into strict (id) values (null)")
    with pytest.raises(psycopg.errors.StringDataRightTruncation):
        session.execute("insert into strict (id, status) values (1, 'much too long')")
    assert session.execute("select count(*) from strict").fetchall() == [(0,)]
    session.execute("select modak.drop_iceberg_table('public', 'strict', true)")


def test_drop_without_purge_leaves_the_files(world: World, session: Session) -> None:
    make(session, "left_behind")
    session.execute("insert into left_behind (id) values (1)")
    location = Path(world.lake.load("public.left_behind").location().removeprefix("file://"))
    session.execute("select modak.drop_iceberg_table('public', 'left_behind')")
    assert settled(world)
    assert not is_there(world, "public.left_behind")
    assert list(location.rglob("*.parquet"))


def test_dropped_and_made_again_in_one_transaction(world: World, session: Session) -> None:
    make(session, "again")
    session.execute("insert into again (id) values (1)")
    with session.transaction():
        session.execute("select modak.drop_iceberg_table('public', 'again', true)")
        make(session, "again", [{"name": "n", "type": "int"}])
        session.execute("insert into again values (7)")
    assert fresh(world, "select n from again") == [(7,)]
    session.execute("select modak.drop_iceberg_table('public', 'again', true)")


def test_dropped_and_made_again_at_once(world: World, session: Session) -> None:
    for number in range(5):
        make(session, "at_once")
        session.execute("insert into at_once (id) values (%s)", [number])
        assert fresh(world, "select id from at_once") == [(number,)]
        assert fresh(world, "select lake_table_ref from modak.decoupled") == [("public.at_once",)]
        session.execute("select modak.drop_iceberg_table('public', 'at_once', true)")


def test_a_foreign_table_dropped_by_itself_is_in_nobodys_way(world: World, session: Session) -> None:
    make(session, "orphan")
    session.execute("insert into orphan (id) values (1)")
    session.execute("drop foreign table orphan")
    make(session, "orphan")
    assert fresh(world, "select count(*) from orphan") == [(0,)]
    # The rows of the one before are where they were.
    session.execute("select modak.attach_iceberg_table('public', 'found_again', 'public.orphan')")
    assert fresh(world, "select id, status from found_again") == [(1, "new")]
    for name in ("orphan", "found_again"):
        session.execute("select modak.drop_iceberg_table('public', %s, true)", [name])
    assert settled(world)
    assert not is_there(world, "public.orphan")


def test_a_renamed_table_goes_on_and_leaves_its_name(world: World, session: Session) -> None:
    make(session, "before")
    session.execute("insert into before (id) values (1)")
    session.execute("alter foreign table before rename to after; alter foreign table after rename column status to state")
    session.execute("create schema elsewhere; alter foreign table after set schema elsewhere")
    session.execute("insert into elsewhere.after (id, state) values (2, 'x')")
    make(session, "before")
    session.execute("insert into before (id) values (3)")
    assert fresh(world, "select id, state from elsewhere.after order by id") == [(1, "new"), (2, "x")]
    assert fresh(world, "select id from before") == [(3,)]
    session.execute("select modak.drop_iceberg_table('elsewhere', 'after', true)")
    session.execute("select modak.drop_iceberg_table('public', 'before', true)")


def test_other_roles_use_what_they_were_granted(session: Session) -> None:
    make(session, "granted")
    session.execute("create role app_of_lake; grant select, insert, update, delete on granted to app_of_lake")
    try:
        session.execute("set role app_of_lake")
        session.execute("insert into granted (id) values (1)")
        session.execute("update granted set status = 'x' where id = 1")
        assert session.execute("select id, status from granted").fetchall() == [(1, "x")]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("select modak.drop_iceberg_table('public', 'granted')")
    finally:
        session.execute("reset role; drop owned by app_of_lake; drop role app_of_lake")
    session.execute("select modak.drop_iceberg_table('public', 'granted', true)")


def test_a_name_that_the_lake_has_is_refused(world: World, session: Session) -> None:
    world.lake.catalog.create_namespace_if_not_exists("public")
    world.lake.catalog.create_table("public.theirs", pa.schema([("id", pa.int64())]))
    with pytest.raises(psycopg.errors.DuplicateTable) as failed:
        make(session, "theirs")
    assert "attach_iceberg_table" in (failed.value.diag.message_hint or "")
    assert fresh(world, "select to_regclass('public.theirs') is null") == [(True,)]
    world.lake.drop("public.theirs", purge=True)


SHAPE = Schema(
    NestedField(1, "id", LongType(), required=True, doc="theirs"),
    NestedField(2, "small", IntegerType()),
    NestedField(3, "price", DecimalType(12, 3)),
    NestedField(4, "ratio", DoubleType()),
    NestedField(5, "at", TimestamptzType()),
    NestedField(6, "day", DateType()),
    NestedField(7, "tag", UUIDType()),
    NestedField(8, "raw", BinaryType()),
    NestedField(9, "Mixed Case", StringType()),
)


def test_a_table_of_another_engine_is_attached_and_written(world: World, session: Session) -> None:
    catalog = world.lake.catalog
    catalog.create_namespace_if_not_exists("sales")
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket"))
    catalog.create_table("sales.orders", SHAPE, partition_spec=spec, properties={"format-version": "2"})
    session.execute("select modak.attach_iceberg_table('public', 'orders', 'sales.orders')")
    found = session.execute(
        "select attname, format_type(atttypid, atttypmod), attnotnull, col_description(attrelid, attnum) from pg_attribute "
        "where attrelid = 'public.orders'::regclass and attnum > 0 order by attnum"
    ).fetchall()
    assert found == [
        ("id", "bigint", True, "theirs"), ("small", "integer", False, None), ("price", "numeric(12,3)", False, None),
        ("ratio", "double precision", False, None), ("at", "timestamp with time zone", False, None), ("day", "date", False, None),
        ("tag", "uuid", False, None), ("raw", "bytea", False, None), ("Mixed Case", "text", False, None),
    ]  # fmt: skip
    session.execute("insert into orders (id, price, \"Mixed Case\", raw, tag) values (1, 1.5, 'ours', '\\xcafe', gen_random_uuid())")
    session.execute("insert into orders (id, price) values (2, 2)")
    session.execute("update orders set price = 3 where id = 2")
    rows = catalog.load_table("sales.orders").scan().to_arrow().to_pylist()
    assert sorted((row["id"], str(row["price"]), row["Mixed Case"], row["raw"]) for row in rows) == [
        (1, "1.500", "ours", b"\xca\xfe"),
        (2, "3.000", None, None),
    ]
    with world.app.connection() as connection:
        known = decoupled.find(connection, Name("public", "orders"))
        assert known is not None
        assert ([str(field) for field in known.partition_by], known.is_attached) == (["bucket(4, id)"], True)
    # Without purge an attached table is only let go of.
    session.execute("select modak.drop_iceberg_table('public', 'orders')")
    assert len(catalog.load_table("sales.orders").scan().to_arrow()) == 2
    world.lake.drop("sales.orders", purge=True)


def test_what_cannot_be_attached_is_named(world: World, session: Session) -> None:
    catalog = world.lake.catalog
    catalog.create_namespace_if_not_exists("sales")
    nested = Schema(NestedField(1, "id", LongType()), NestedField(2, "tags", ListType(3, StringType())))
    catalog.create_table("sales.nested", nested)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="column tags"):
        session.execute("select modak.attach_iceberg_table('public', 'nested', 'sales.nested')")
    catalog.create_table("sales.old", Schema(NestedField(1, "id", LongType())), properties={"format-version": "1"})
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="format 1") as refused:
        session.execute("select modak.attach_iceberg_table('public', 'old', 'sales.old')")
    assert "format-version" in str(refused.value.diag.message_hint)
    world.lake.drop("sales.old", purge=True)
    with pytest.raises(psycopg.errors.UndefinedTable, match=r"no lake table sales\.nothing"):
        session.execute("select modak.attach_iceberg_table('public', 'nested', 'sales.nothing')")
    assert fresh(world, "select to_regclass('public.nested') is null and not exists (select from modak.decoupled)") == [(True,)]
    world.lake.drop("sales.nested", purge=True)


def test_a_namespace_is_attached_as_a_whole(world: World, session: Session) -> None:
    """What is known already, and what holds the cold rows of a registered table, is passed over; what cannot be attached is named."""
    catalog = world.lake.catalog
    catalog.create_namespace_if_not_exists("shared")
    plain = Schema(NestedField(1, "id", LongType()))
    for name in ("first", "Second", "taken"):
        catalog.create_table(f"shared.{name}", plain)
    catalog.create_table("shared.nested", Schema(NestedField(1, "id", LongType()), NestedField(2, "tags", ListType(3, StringType()))))
    catalog.create_table("shared.cold", plain, properties={"modak.table-id": "7"})
    session.execute("create schema shared; create table shared.taken ()")
    found = session.execute("select lake_table, attached::text, problem from modak.attach_iceberg_tables('shared')").fetchall()
    assert [row[:2] for row in found] == [
        ("shared.Second", 'shared."Second"'), ("shared.first", "shared.first"), ("shared.nested", None), ("shared.taken", None),
    ]  # fmt: skip
    assert "column tags" in found[2][2]
    assert found[3][2] == "relation shared.taken exists already"
    session.execute("insert into shared.first values (1)")
    assert session.execute("select * from shared.first").fetchall() == [(1,)]
    again = session.execute("select lake_table from modak.attach_iceberg_tables('shared')").fetchall()
    assert again == [("shared.nested",), ("shared.taken",)]
    assert session.execute("select * from modak.attach_iceberg_tables('public', 'nowhere')").fetchall() == []
    session.execute("select modak.drop_iceberg_table('shared', name) from unnest('{first,Second}'::text[]) name")
    session.execute("drop schema shared cascade")
    for name in ("first", "Second", "taken", "nested", "cold"):
        world.lake.drop(f"shared.{name}", purge=True)


def test_jobs_say_that_it_is_no_table_of_theirs(world: World, session: Session) -> None:
    make(session, "alone")
    with world.app.connection() as connection, pytest.raises(NotRegistered, match="decoupled table"):
        tables.get(connection, Name("public", "alone"))
    session.execute("select modak.drop_iceberg_table('public', 'alone', true)")


def test_status_shows_what_is_in_the_lake(world: World, session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    from modak.cli import status
    from modak.cli.output import Output

    make(session, "shown", partition_by=["bucket(2, id)"])
    session.execute("insert into shown (id) select generate_series(1, 10)")
    session.execute("delete from shown where id < 4")
    with world.app.connection() as connection:
        status.show(connection, Output(json=False, quiet=False), None, world.app.lake)
        told = capsys.readouterr().out
        assert "public.shown" in told
        assert " 7 " in told
        assert "bucket(2, id)" in told
        status.show(connection, Output(json=False, quiet=False), Name("public", "shown"), world.app.lake)
        assert "timestamp with time zone" in capsys.readouterr().out
        world.lake.catalog.drop_table("public.shown")
        status.show(connection, Output(json=False, quiet=False), None, world.app.lake)
        assert "! public.shown" in "".join(capsys.readouterr())
    session.execute("drop foreign table shown")
    with pytest.raises(NoSuchTableError):
        world.lake.catalog.load_table("public.shown")


def test_other_engines_may_write(world: World, session: Session) -> None:
    """Only tiered and mirrored tables are Modak's alone."""
    make(session, "shared")
    with connect(world.app.dsn) as connection:
        assert "public.shared" not in {table.lake_table_ref for table in tables.listing(connection)}
    table = world.lake.load("public.shared")
    table.append(pa.table({"id": [1]}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False)])))
    session.execute("insert into shared (id) values (2)")
    assert fresh(world, "select id from shared order by id") == [(1,), (2,)]
    session.execute("select modak.drop_iceberg_table('public', 'shared', true)")


VALUES: dict[str, list[str]] = {
    "smallint": ["-32768", "0", "32767"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["'NaN'", "'-Infinity'", "1.5", "'-0'", "3.4028235e38"],
    "double precision": ["'NaN'", "'Infinity'", "2.5", "'-0'", "1e-300"],
    "boolean": ["true", "false"],
    "numeric(20,5)": ["123.45", "-99999.99999", "0"],
    "numeric(38,0)": ["99999999999999999999999999999999999999"],
    "text": ["''", "'ünïcödé 😀'", "repeat('x', 100000)", "E'a\\nb''\\\\'"],
    "varchar(8)": ["'12345678'", "''"],
    "char(10)": ["'hello'", "'  x'"],
    "bytea": ["'\\xdeadbeef'", "'\\x'", "'\\x00ff'"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "date": ["'0044-03-15 BC'", "'1582-10-10'", "'9999-12-31'"],
    "time": ["'00:00'", "'23:59:59.999999'", "'24:00'"],
    "timestamp": ["'0044-03-15 01:02:03 BC'", "'2026-03-29 02:30:00.123456'", "'9999-12-31 23:59:59'"],
    "timestamptz": ["'0044-03-15 01:02:03+00 BC'", "'2026-03-29 02:30:00.123456+01'", "'9999-12-31 23:59:59+00'"],
    "interval": ["'1 day 2 hours'", "'-1 mon'", "'24:00:00'"],
    "json": ["'{\"k\":  1}'", "'null'"],
    "jsonb": ['\'{"k": 1, "a": [1, null]}\'', "'null'", "'\"x\"'"],
}


def test_every_type_comes_back_as_it_went(session: Session) -> None:
    names = {f"c{number}": kind for number, kind in enumerate(VALUES)}
    make(session, "typed", [{"name": "n", "type": "int"}, *({"name": name, "type": kind} for name, kind in names.items())])
    session.execute(f"create table twin (n int, {', '.join(f'{name} {kind}' for name, kind in names.items())})".encode())
    session.execute("insert into twin (n) values (0)")
    number = 0
    for name, kind in names.items():
        for text in VALUES[kind]:
            number += 1
            session.execute(f"insert into twin (n, {name}) values ({number}, {text})".encode())
    session.execute("set timezone = 'Europe/Berlin'")
    session.execute("insert into typed select * from twin")
    for name, kind in names.items():
        seen = [session.execute(f"select n, {name}::text from {table} order by n".encode()).fetchall() for table in ("typed", "twin")]
        assert seen[0] == seen[1], kind
        if kind == "json":
            continue
        for text in VALUES[kind][:2]:
            query = f"select array_agg(n order by n) from the_table where {name} = cast({text} as {kind})"
            asked = [query.replace("the_table", table).encode() for table in ("typed", "twin")]
            assert session.execute(asked[0]).fetchall() == session.execute(asked[1]).fetchall(), text
    session.execute("drop table twin")
    session.execute("select modak.drop_iceberg_table('public', 'typed', true)")


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns"])
def test_a_moment_is_the_same_in_every_zone(session: Session, zone: str) -> None:
    make(session, "moments", [{"name": "id", "type": "int"}, {"name": "at", "type": "timestamptz"}])
    session.execute("select set_config('timezone', %s, false)", [zone])
    for number, text in enumerate(("2026-01-15 12:00+00", "2026-07-15 12:00:00.5+00", "1880-01-01 00:00+00", "0044-03-15 00:00+00 BC")):
        session.execute("insert into moments values (%s, %s)", [number, text])
        assert session.execute("select id from moments where at = %s::timestamptz", [text]).fetchall() == [(number,)], text
    session.execute("update moments set at = at + interval '1 hour' where id = 0")
    assert session.execute("select extract(epoch from at)::bigint from moments where id = 0").fetchall() == [(1768482000,)]
    session.execute("select modak.drop_iceberg_table('public', 'moments', true)")


@pytest.mark.parametrize(
    ("kind", "text"), [("timestamptz", "infinity"), ("date", "-infinity"), ("timestamp", "294276-01-01"), ("numeric(5,2)", "NaN")]
)
def test_what_the_lake_cannot_hold_is_refused(session: Session, kind: str, text: str) -> None:
    with session.transaction(force_rollback=True):
        make(session, "limits", [{"name": "c", "type": kind}])
        with pytest.raises(psycopg.Error):
            session.execute("insert into limits values (%s)", [text])


@pytest.mark.spark
@pytest.mark.soak
def test_spark_packs_and_expires_while_it_is_used(world: World, session: Session, spark_connect: str) -> None:
    """What the guide sends people to, as `modak maintain` does not take these tables."""
    make(session, "worn", partition_by=["bucket(2, id)"])
    for number in range(6):
        session.execute("insert into worn (id) select generate_series(%s::int, %s::int)", [number * 10, number * 10 + 9])
    session.execute("delete from worn where id < 15")
    session.execute("update worn set status = 'seen' where id >= 50")
    app = App(replace(world.app.settings, spark=spark_connect))
    with app.connection() as connection:
        spark = app.spark(profiles.get(connection, None))
    found = "select count(*), min(id), count(*) filter (where status = 'seen') from worn"
    with psycopg.connect(world.app.dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert reader.execute(found).fetchall() == [(45, 15, 10)]  # type: ignore[arg-type]
        spark.sql("CALL modak.system.rewrite_data_files(table => 'public.worn', options => map('rewrite-all', 'true'))").collect()
        session.execute("insert into worn (id) values (100)")
        assert reader.execute(found).fetchall() == [(45, 15, 10)]  # type: ignore[arg-type]
    spark.sql("CALL modak.system.expire_snapshots(table => 'public.worn', older_than => timestamp '2100-01-01')").collect()
    assert fresh(world, found) == [(46, 15, 10)]
    assert len(world.lake.load("public.worn").metadata.snapshots) == 1
    session.execute("delete from worn where id = 100")
    session.execute("update worn set status = 'again' where id = 20")
    assert fresh(world, "select count(*), count(*) filter (where status = 'again') from worn") == [(45, 1)]
    session.execute("select modak.drop_iceberg_table('public', 'worn', true)")
