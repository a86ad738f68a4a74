"""Registering a table: what stands in the catalog, the lake and under the user's name afterwards (SCENARIOS 1, 2, 4, 9)."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.support import (
    EVENTS,
    at_failpoint,
    create_events,
    default_lake,
    options,
    photograph,
    register_events,
    register_table,
    rows,
    schema_dump,
    unregister_table,
    value,
)

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection, connect
from modak.core.partition import PartitionState
from modak.core.table import Name
from modak.errors import LockNotAvailable, ModakError, Refused
from modak.lake.iceberg import IcebergLake
from modak.registration import register as flow


def test_fixture_e_is_registered_with_all_its_parts(connection: Connection, lake: IcebergLake) -> None:
    table = register_events(connection, lake)
    assert tables.listing(connection) == [table]
    assert (table.tier_key_type, table.primary_key_cols, table.heap, table.view) == (
        "bigint",
        ("id",),
        Name("public", "events_hot"),
        EVENTS,
    )
    assert table.table_id == value(connection, "select 'public.events_hot'::regclass::oid::bigint")
    parts = tables.partitions(connection, table.table_id)
    assert [(part.name, part.lower, part.upper, part.state) for part in parts] == [
        ("events_p0", 0, 100, PartitionState.HOT),
        ("events_p1", 100, 200, PartitionState.HOT),
        ("events_p2", 200, 300, PartitionState.HOT),
    ]
    line = tables.cutline(connection, table.table_id)
    assert (line.tier_key_hi, line.snapshot, line.retention_line) == (0, None, None)
    found = lake.find("public.events")
    assert found is not None
    assert found.snapshot_id is None
    schema = lake.catalog.load_table(("public", "events")).schema()
    assert [(field.name, field.required) for field in schema.fields] == [("id", True), ("event_time", True), ("val", False)]
    assert value(connection, "select lake_props ->> 'metadata_location' from modak.cutline") == found.metadata_location


@pytest.mark.parametrize("surface", ["view", "heap"])
def test_both_names_serve_reads_and_writes(connection: Connection, lake: IcebergLake, surface: str) -> None:
    table = register_events(connection, lake, surface=surface)
    names = (table.heap, table.view)
    assert {str(name) for name in names} == (
        {"public.events", "public.events_hot"} if surface == "view" else {"public.events", "public.events_all"}
    )
    for number, name in enumerate(names):
        assert value(connection, f"select count(*) from {name}") == 5 + number
        connection.execute(f"insert into {name} values ({100 + number}, 250, 'new')")
        connection.execute(f"update {name} set val = 'changed' where id = {100 + number}")
        assert value(connection, f"select val from {name} where id = {100 + number}") == "changed"
    connection.execute(f"delete from {table.view} where id >= 100")
    assert value(connection, f"select count(*) from {table.heap}") == 5
    kind = {"view": "v", "heap": "p"}[surface]
    assert value(connection, "select relkind from pg_class where oid = 'public.events'::regclass") == kind


TIER_KEYS = [
    ("smallint", "-5", "100", -5),
    ("integer", "0", "100", 0),
    ("bigint", "-9000000000", "0", -9000000000),
    ("timestamptz", "'2026-06-29 00:00+02'", "'2026-07-01 00:00+02'", 1782684000000000),
    ("timestamp", "'2026-06-29'", "'2026-07-01'", 1782691200000000),
    ("timestamp(3)", "'1969-12-31 23:59:59.5'", "'2026-07-01'", -500000),
    ("date", "'1969-12-31'", "'2026-07-01'", -1),
    ("date", "minvalue", "'0044-03-15 BC'", -(2**63)),
    ("timestamptz", "'0100-01-01 00:00+00 BC'", "maxvalue", -65291356800000000),
]


@pytest.mark.parametrize(("column_type", "lower", "upper", "cutline"), TIER_KEYS)
def test_each_tier_key_type_is_detected(
    connection: Connection, lake: IcebergLake, column_type: str, lower: str, upper: str, cutline: int
) -> None:
    connection.execute(f"create table public.t (id bigint not null, k {column_type}) partition by range (k)")
    connection.execute(f"create table public.t_1 partition of public.t for values from ({lower}) to ({upper})")
    table = register_table(connection, lake, Name("public", "t"), options("k"))
    assert tables.cutline(connection, table.table_id).tier_key_hi == cutline
    assert table.key_type.value.split()[0] == column_type.removesuffix("tz").split("(")[0]


def test_a_domain_over_a_key_type_is_a_tier_key(connection: Connection, lake: IcebergLake) -> None:
    connection.execute("create domain public.moment as timestamptz")
    connection.execute("create table public.t (id bigint, k public.moment, primary key (id, k)) partition by range (k)")
    connection.execute("create table public.t_1 partition of public.t for values from ('2026-01-01 00:00+00') to ('2026-02-01 00:00+00')")
    table = register_table(connection, lake, Name("public", "t"), options("k", ()))
    assert (table.tier_key_type, table.primary_key_cols) == ("timestamp with time zone", ("id", "k"))


def test_a_table_without_partitions_starts_at_zero(connection: Connection, lake: IcebergLake) -> None:
    connection.execute("create table public.events (id bigint, event_time bigint) partition by range (event_time)")
    table = register_table(connection, lake)
    assert tables.cutline(connection, table.table_id).tier_key_hi == 0
    assert tables.partitions(connection, table.table_id) == []


def test_list_over_range_gets_a_spill_per_region(connection: Connection, lake: IcebergLake) -> None:
    connection.execute("""
        create schema "Far Away";
        create table public.sales (region text, ts date, id bigint, primary key (region, ts, id)) partition by list (region);
        create table public.sales_eu partition of public.sales for values in ('eu') partition by range (ts);
        create table "Far Away".sales_us partition of public.sales for values in ('us', 'ca') partition by range (ts);
        create table public.sales_eu_1 partition of public.sales_eu for values from ('2026-01-01') to ('2026-02-01');
        create table public.sales_us_1 partition of "Far Away".sales_us for values from ('2025-12-01') to ('2026-02-01');
        create table "Far Away".sales_us_spill (taken int);
        insert into public.sales values ('eu', '2026-01-05', 1), ('us', '2025-12-05', 2);
    """)
    table = register_table(connection, lake, Name("public", "sales"), options("ts", ()))
    assert tables.cutline(connection, table.table_id).tier_key_hi == 20423
    assert {part.name for part in tables.partitions(connection, table.table_id)} == {"sales_eu_1", "sales_us_1"}
    assert {tuple(name) for name in table.original["spills"]} == {("public", "sales_eu_spill"), ("Far Away", "sales_us_spill2")}
    connection.execute("insert into public.sales values ('ca', '1999-01-01', 3)")
    assert rows(connection, 'select id from "Far Away".sales_us_spill2') == [(3,)]
    with pytest.raises(psycopg.errors.CheckViolation, match=r'no partition of table "public.sales"'):
        connection.execute("insert into public.sales values ('eu', '2027-01-01', 4)")


ODD_NAMES = [
    Name("public", "Events"),
    Name("public", "my.events"),
    Name("public", "my events"),
    Name("public", 'say "hi"'),
    Name("public", "per%cent {brace} 'q'"),
    Name("public", "naïve—日本"),
    Name("Other.Schema", "events"),
    Name("public", "2024 events"),
    Name("public", "e" * 63),
    Name("public", "é" * 31),
    Name("public", "select"),
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=str)
@pytest.mark.parametrize("surface", ["view", "heap"])
def test_odd_names_make_the_round_trip(connection: Connection, dsn: str, lake: IcebergLake, name: Name, surface: str) -> None:
    whole = sql.Identifier(name.schema, name.name)
    connection.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(name.schema)))
    odd = sql.Identifier('K {ey} %s "x"')
    connection.execute(
        sql.SQL("create table {} (id bigint not null, {} bigint, {} text) partition by range ({})").format(
            whole, odd, sql.Identifier("Wert % {0}"), odd
        )
    )
    connection.execute(
        sql.SQL("create table {} partition of {} for values from (0) to (10)").format(sql.Identifier("public", "p'1"), whole)
    )
    before = schema_dump(dsn, "--schema-only", "--exclude-schema=modak*")
    table = register_table(connection, lake, name, options('K {ey} %s "x"', surface=surface))
    assert len(table.heap_name.encode()) <= 63
    connection.execute(sql.SQL("insert into {} values (1, 5, 'x'), (2, -5, 'y')").format(whole))
    assert rows(connection, "select pk, payload ->> 'Wert % {0}' from modak.delta") == [("2", "y")]
    assert connection.execute(sql.SQL("select count(*) as n from {}").format(whole)).fetchone() == {"n": 2}
    connection.execute(sql.SQL("delete from {}").format(whole))
    unregister_table(connection, lake, name, drop_lake=True)
    assert schema_dump(dsn, "--schema-only", "--exclude-schema=modak*") == before


def test_names_that_look_alike_do_not_meet_in_the_lake(connection: Connection, lake: IcebergLake) -> None:
    connection.execute('create schema "a.b"; create schema a')
    names = [
        Name("public", "t"),
        Name("a", "t"),
        Name("a", "T"),
        Name("a.b", "c"),
        Name("a", "b.c"),
        Name("a", "t t"),
        Name("a", "t-t"),
        Name("a", "2 t"),
    ]
    for name in names:
        connection.execute(f"create table {name} (id bigint, k bigint) partition by range (k)")
    refs = [register_table(connection, lake, name, options("k")).lake_table_ref for name in names]
    assert len(set(refs)) == len(names)
    assert len({lake.find(ref).location for ref in refs}) == len(names)  # type: ignore[union-attr]
    assert all(ref.replace(".", "_").isidentifier() for ref in refs)


def test_sixty_three_byte_names_that_meet_when_cut_are_refused(connection: Connection, lake: IcebergLake) -> None:
    for last in "ab":
        connection.execute(f"create table public.{'x' * 62}{last} (id bigint, k bigint) partition by range (k)")
    register_table(connection, lake, Name("public", "x" * 62 + "a"), options("k"))
    with pytest.raises(Refused, match="is taken in schema public"):
        register_table(connection, lake, Name("public", "x" * 62 + "b"), options("k"))


def test_a_leftover_of_a_crash_is_replaced_and_a_strangers_table_is_not(connection: Connection, app: App, lake: IcebergLake) -> None:
    create_events(connection)
    plan = flow.look(connection, EVENTS, options())
    lake.create(flow.lake_table_of(plan, flow.read_catalog_id(connection)))
    register_table(connection, lake)
    unregister_table(connection, lake)
    lake.drop("public.events", purge=True)
    lake.create(flow.lake_table_of(plan, "another catalog"))
    before = photograph(connection, app.settings.data)
    with pytest.raises(Refused, match=r"lake table public\.events exists already") as refused:
        register_table(connection, lake)
    assert "--lake-table" in str(refused.value.hint)
    assert photograph(connection, app.settings.data) == before


def test_one_of_two_registrations_at_once_wins(connection: Connection, app: App, dsn: str) -> None:
    create_events(connection)
    barrier = threading.Barrier(4)
    outcomes: list[Any] = []

    def attempt() -> None:
        with connect(dsn, autocommit=True) as own:
            barrier.wait(60)
            try:
                outcomes.append(register_table(own, default_lake(app, own)))
            except ModakError as refused:
                outcomes.append(refused)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 4
    assert sum(not isinstance(outcome, Exception) for outcome in outcomes) == 1
    assert all(isinstance(outcome, LockNotAvailable | Refused) for outcome in outcomes if isinstance(outcome, Exception))
    assert value(connection, "select count(*) from modak.tables") == 1
    assert value(connection, "select count(*) from public.events") == 5


def test_a_long_transaction_makes_registration_give_up_and_leave_no_trace(
    connection: Connection, app: App, dsn: str, lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "LOCK_TIMEOUT_MS", 200)
    create_events(connection)
    before = photograph(connection, app.settings.data)
    with connect(dsn) as other:
        other.execute("select count(*) from public.events_p1")
        with pytest.raises(LockNotAvailable, match=r"public\.events is in use") as refused:
            register_table(connection, lake)
    assert refused.value.hint
    assert photograph(connection, app.settings.data) == before
    register_table(connection, lake)


def test_what_changes_between_look_and_lock_counts(
    connection: Connection, dsn: str, lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition made meanwhile must be known, and T must stand below it: its rows would be nobody's otherwise."""
    create_events(connection)

    def meanwhile() -> None:
        with connect(dsn) as other:
            other.execute("create table public.events_m1 partition of public.events for values from (-100) to (0)")
            other.execute("comment on table public.events is 'late'")

    at_failpoint(monkeypatch, flow, "register.after_lake", meanwhile)
    table = register_table(connection, lake)
    assert tables.cutline(connection, table.table_id).tier_key_hi == -100
    assert next(part.name for part in tables.partitions(connection, table.table_id)) == "events_m1"
    assert value(connection, "select obj_description('public.events'::regclass)") == "late"


@pytest.mark.parametrize(
    "change",
    [
        "alter table public.events add column late text",
        "alter table public.events add primary key (val, event_time)",
        "drop table public.events; create table public.events (COLUMNS) partition by range (event_time)",
    ],
)
def test_a_table_that_changed_shape_meanwhile_is_left_alone(
    connection: Connection, app: App, dsn: str, lake: IcebergLake, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    columns = "id bigint, event_time bigint, val text, primary key (id, event_time)"
    connection.execute(f"create table public.events ({columns}) partition by range (event_time)")
    change = change.replace("COLUMNS", columns)
    if "add primary key" in change:
        change = "alter table public.events drop constraint events_pkey; " + change

    def meanwhile() -> None:
        with connect(dsn) as other:
            other.execute(change)

    at_failpoint(monkeypatch, flow, "register.after_lake", meanwhile)
    with pytest.raises(LockNotAvailable, match="changed while it was being registered"):
        register_table(connection, lake, EVENTS, options(primary_key=()))
    assert tables.listing(connection) == []
    assert lake.find("public.events") is None
    assert not list(app.settings.data.rglob("*.json"))


def test_a_named_profile_takes_the_lake_table_to_its_warehouse(connection: Connection, app: App, tmp_path: Any) -> None:
    create_events(connection)
    profiles.save(connection, profiles.Profile("cold-store", warehouse=str(tmp_path / "far away")))
    profile = profiles.get(connection, "cold-store")
    table = flow.register(connection, app.lake(profile), EVENTS, options(), profile=profile.name)
    found = app.lake(profile).find(table.lake_table_ref)
    assert found is not None
    assert found.location.startswith(f"file://{tmp_path}/far away/")
    assert (tmp_path / "far away").is_dir()
    assert app.lake(profiles.get(connection, None)).find(table.lake_table_ref) is None
    assert tables.get(connection, EVENTS).storage_profile == "cold-store"
