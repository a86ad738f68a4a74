"""What is refused: everything that is wrong in one message, and no trace left in Postgres or the lake (SCENARIOS 2, 3, 5, 7, 8, 9)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import EVENTS, codes, create_events, options, photograph, register_events, register_table, value

from modak.app import App
from modak.connection import Connection, connect
from modak.core.table import Name
from modak.errors import NotFound, Refused, UsageError
from modak.lake.iceberg import IcebergLake
from modak.source.relation import parse_name

RANGE = "partition by range (event_time)"


def refuse(
    connection: Connection, app: App, lake: IcebergLake, *, name: Name = EVENTS, tier_key: str = "event_time", **given: Any
) -> Refused:
    """Register, expect a refusal, and expect nothing to have changed."""
    before = photograph(connection, app.settings.data)
    with pytest.raises(Refused) as refused:
        register_table(connection, lake, name, options(tier_key, given.pop("primary_key", ("id",)), **given))
    assert photograph(connection, app.settings.data) == before
    return refused.value


@pytest.mark.parametrize("column_type", ["text", "uuid", "numeric(20,0)", "time", "interval", "double precision", "varchar(10)"])
def test_a_tier_key_of_another_type_names_the_supported_ones(connection: Connection, app: App, lake: IcebergLake, column_type: str) -> None:
    connection.execute(f"create table public.events (id bigint, event_time {column_type}) {RANGE}")
    refused = refuse(connection, app, lake)
    assert "tier_key_type" in codes(refused)
    for supported in ("smallint", "integer", "bigint", "timestamp with time zone", "timestamp without time zone", "date"):
        assert supported in str(refused)


def test_a_users_type_that_is_only_called_date_is_no_date(connection: Connection, app: App, lake: IcebergLake) -> None:
    connection.execute("create schema own; create type own.date as enum ('a', 'b')")
    connection.execute(f"create table public.events (id bigint, event_time own.date) {RANGE}")
    assert "tier_key_type" in codes(refuse(connection, app, lake))


@pytest.mark.parametrize("type_name", ["text collate public.loose", "public.loosely"])
def test_a_key_whose_collation_calls_different_texts_equal(connection: Connection, app: App, lake: IcebergLake, type_name: str) -> None:
    """A correction of 'a' would not be one of 'A'. The catalog is told, because not every server is built with ICU."""
    connection.execute('create collation public.loose from "C"; create domain public.loosely as text collate public.loose')
    connection.execute("set allow_system_table_mods = on")
    connection.execute("update pg_collation set collisdeterministic = false where collname = 'loose'")
    connection.execute(f"create table public.events (id {type_name}, event_time bigint, val {type_name}) {RANGE}")
    refused = refuse(connection, app, lake)
    assert codes(refused) == ["primary_key_collation"]
    assert "deterministic collation" in str(refused)


@pytest.mark.parametrize("text", ["events", "a.b.c", "public.", ".events", 'public."events', "", 'public.ev"ents', "public..events"])
def test_a_name_without_its_schema_is_a_mistake_of_usage(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_name(text)
    assert refused.value.hint


@pytest.mark.parametrize("name", [Name("public", "Events"), Name("public", 'a"b.c'), Name("select", "x y"), Name("1a", "é")])
def test_names_are_read_back_as_they_are_printed(name: Name) -> None:
    assert parse_name(str(name)) == name


def test_an_unknown_table_is_said_to_be_unknown(connection: Connection, app: App, lake: IcebergLake) -> None:
    create_events(connection)
    before = photograph(connection, app.settings.data)
    with pytest.raises(NotFound, match=r'no table public\."EVENTS"') as refused:
        register_table(connection, lake, Name("public", "EVENTS"))
    assert "did you mean public.events" in str(refused.value.hint)
    with pytest.raises(NotFound, match=r"no table nowhere\.events"):
        register_table(connection, lake, Name("nowhere", "events"))
    assert photograph(connection, app.settings.data) == before


def test_missing_columns_are_answered_with_the_columns(connection: Connection, app: App, lake: IcebergLake) -> None:
    create_events(connection)
    refused = refuse(connection, app, lake, tier_key="when", primary_key=("ID", "nr"), text_columns=("valu",))
    assert codes(refused).count("no_column") == 4
    assert str(refused).count("columns: id, event_time, val") == 4


SOURCES = {
    "not_partitioned": "create table public.events (id bigint, event_time bigint)",
    "partitioning: by list only": "create table public.events (id bigint, event_time bigint) partition by list (event_time)",
    "partitioning: by hash": "create table public.events (id bigint, event_time bigint) partition by hash (event_time)",
    "partitioning: several columns": "create table public.events (id bigint, event_time bigint) partition by range (id, event_time)",
    "partitioning: not by the tier key": "create table public.events (id bigint, event_time bigint) partition by range (id)",
    "partitioning: by an expression": "create table public.events (id bigint, event_time bigint) partition by range ((event_time + 1))",
    "partitioning: LIST partition without range": """
        create table public.events (id bigint, event_time bigint, r text) partition by list (r);
        create table public.events_a partition of public.events for values in ('a')""",
    "partitioning: once more": f"""create table public.events (id bigint, event_time bigint) {RANGE};
        create table public.events_0 partition of public.events for values from (0) to (9) partition by hash (id)""",
    "default_partition: events_rest": f"""create table public.events (id bigint, event_time bigint) {RANGE};
        create table public.events_rest partition of public.events default""",
    "persistence: events_0 is UNLOGGED": f"""create table public.events (id bigint, event_time bigint) {RANGE};
        create unlogged table public.events_0 partition of public.events for values from (0) to (9)""",
    "foreign_partition: events_0": f"""create table public.events (id bigint, event_time bigint) {RANGE};
        create extension if not exists postgres_fdw; create server s foreign data wrapper postgres_fdw;
        create foreign table public.events_0 partition of public.events for values from (0) to (9) server s""",
    "kind: is a view": "create view public.events as select 1::bigint as id, 2::bigint as event_time",
    "kind: is a materialized view": "create materialized view public.events as select 1::bigint as id, 2::bigint as event_time",
    "kind: is a sequence": "create sequence public.events",
    "inheritance: takes part": """create table public.base (id bigint, event_time bigint);
        create table public.events () inherits (public.base)""",
    "is_partition: is a partition": f"""create table public.parent (id bigint, event_time bigint) {RANGE};
        create table public.events partition of public.parent for values from (0) to (9) {RANGE}""",
    "row_security: row-level security": f"""create table public.events (id bigint, event_time bigint) {RANGE};
        alter table public.events enable row level security""",
    "column_case: differ only by case": f"""create table public.events (id bigint, event_time bigint, "Id" text) {RANGE}""",
    "column_name: reserve": f"""create table public.events (id bigint, event_time bigint, _file text) {RANGE}""",
    "column_name: cannot represent": f"""create table public.events (id bigint, event_time bigint, "a\tb" text) {RANGE}""",
    "name_taken: events_hot": f"""create table public.events (id bigint, event_time bigint) {RANGE};
        create type public.events_hot as enum ()""",
    "type: column pair: type public.pair": f"""create type public.pair as (a int, b int);
        create table public.events (id bigint, event_time bigint, pair public.pair) {RANGE}""",
}


@pytest.mark.parametrize("wrong", SOURCES)
def test_refused_sources(connection: Connection, app: App, lake: IcebergLake, wrong: str) -> None:
    connection.execute(SOURCES[wrong])
    code, _, words = wrong.partition(": ")
    refused = refuse(connection, app, lake)
    assert code in codes(refused)
    assert words.split(":")[-1].strip() in str(refused)


def test_a_temporary_table_is_refused(connection: Connection, app: App, lake: IcebergLake) -> None:
    connection.execute(f"create temporary table events (id bigint, event_time bigint) {RANGE}")
    schema = value(connection, "select nspname from pg_namespace where oid = pg_my_temp_schema()")
    assert "persistence" in codes(refuse(connection, app, lake, name=Name(schema, "events")))


CONFLICTS: list[tuple[dict[str, Any], str]] = [
    ({"mode": "mirrored", "lake_retention": "500", "width": "10"}, "--lake-retention is for tiered tables"),
    ({"mode": "mirrored", "keep_heap": True}, "--keep-heap is for tiered tables"),
    ({"mode": "mirrored", "check_cold_keys": True}, "--check-cold-keys is for tiered tables"),
    ({"mode": "mirrored", "lag": "10"}, "--lag is for tiered tables"),
    ({"mode": "mirrored", "surface": "view"}, "--surface view is for tiered tables"),
    ({"mode": "mirrored", "heap_retention": "10", "primary_key": ("id",)}, "lacks the tier key"),
    ({"mode": "mirrored", "premake": 3}, "--premake is for tables that shed partitions"),
    ({"mode": "mirrored", "heap_retention": "10", "hybrid": True}, "exclude each other"),
    ({"hybrid": True}, "--hybrid is for mirrored tables"),
    ({"mode": "mirrored", "reclaim_lag": "3"}, "--reclaim-lag is for tiered tables"),
    ({"keep_heap": True, "lake_retention": "500", "width": "10"}, "contradict each other"),
    ({"keep_heap": True, "reclaim_lag": "500"}, "never reclaims"),
    ({"heap_retention": "10"}, "--heap-retention is for mirrored tables"),
    ({"lake_retention": "500"}, "needs a partitioned lake table"),
    ({"width": "day"}, "needs a time as tier key"),
    ({"width": "-5"}, "is not between 1 and"),
    ({"width": "0"}, "is not between 1 and"),
    ({"width": str(2**31)}, "is not between 1 and"),
    ({"width": "٣"}, "is not between 1 and"),
    ({"lag": "30 days"}, "--lag"),
    ({"lag": "-1"}, "--lag"),
    ({"lag": "100", "lake_retention": "100", "width": "10"}, "must exceed the hot period"),
    ({"lag": "100", "lake_retention": "99", "width": "10"}, "must exceed the hot period"),
    ({"premake": -1}, "--premake"),
    ({"lake_table": "Public.Events"}, "lower case"),
    ({"lake_table": "events"}, "namespace.table"),
    ({"text_columns": ("event_time",)}, "must keep its order"),
    ({"surface": "both"}, "neither view nor heap"),
    ({"primary_key": ("id", "id")}, "twice"),
]


@pytest.mark.parametrize(("given", "words"), CONFLICTS)
def test_option_conflicts(connection: Connection, app: App, lake: IcebergLake, given: dict[str, Any], words: str) -> None:
    create_events(connection)
    assert words in str(refuse(connection, app, lake, **given))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"width": "hour"}, "hourly layout needs hours"),
        ({"width": "100"}, "does not fit a time"),
        ({"lag": "100"}, "needs a unit"),
        ({"lag": "soon"}, "not an interval"),
        ({"lag": "12 hours"}, "no part below a day"),
        ({"lag": "1 year", "lake_retention": "12 mons"}, "must exceed"),
    ],
)
def test_option_conflicts_on_a_date_key(connection: Connection, app: App, lake: IcebergLake, given: dict[str, Any], words: str) -> None:
    connection.execute(f"create table public.events (id bigint, event_time date) {RANGE}")
    assert words in str(refuse(connection, app, lake, **given))


def test_a_native_interval_is_taken_and_spelled_as_postgres_does(connection: Connection, lake: IcebergLake) -> None:
    connection.execute(f"create table public.events (id bigint, event_time timestamptz) {RANGE}")
    table = register_table(connection, lake, lag="14 months", lake_retention="P2Y")
    assert (table.tier_lag, table.lake_retention_lag, table.layout) == ("1 year 2 mons", "2 years", "day")


def test_everything_that_is_wrong_comes_in_one_message(connection: Connection, app: App, lake: IcebergLake) -> None:
    connection.execute(f"""
        create type public.pair as (a int, b int);
        create table public.events (id bigint, event_time bigint, "ID" money, p public.pair, ps public.pair[], r regclass) {RANGE};
        create unlogged table public.events_0 partition of public.events for values from (0) to (9);
        create table public.events_rest partition of public.events default;
        create table public.events_hot (x int);
        create view public.uses as select * from public.events;
        alter table public.events enable row level security;
    """)
    refused = refuse(connection, app, lake, primary_key=(), lag="x", width="day", keep_heap=True, lake_retention="5", heap_retention="1")
    expected = {"no_primary_key", "type", "column_case", "persistence", "default_partition", "name_taken", "dependent", "row_security"}
    assert expected | {"lag", "layout", "option"} <= set(codes(refused))
    assert codes(refused).count("type") == 4
    assert [name for name in ("ID", "p", "ps", "r") if f"column {name}: type" not in str(refused)] == []
    assert str(refused).count("\n") == len(refused.problems)


def test_no_primary_key_and_none_given(connection: Connection, app: App, lake: IcebergLake) -> None:
    create_events(connection)
    assert codes(refuse(connection, app, lake, primary_key=())) == ["no_primary_key"]


def test_a_key_that_does_not_identify_a_row_is_found_out(connection: Connection, app: App, lake: IcebergLake) -> None:
    create_events(connection)
    connection.execute("insert into public.events values (1, 120, 'again')")
    assert codes(refuse(connection, app, lake)) == ["duplicate_key"]
    connection.execute("update public.events set id = null where val = 'again'")
    assert codes(refuse(connection, app, lake)) == ["null_key"]
    connection.execute("delete from public.events where id is null")
    register_table(connection, lake)


def test_a_key_beside_the_tables_own_is_refused(connection: Connection, app: App, lake: IcebergLake) -> None:
    connection.execute(f"create table public.events (id bigint, event_time bigint, x text, primary key (event_time)) {RANGE}")
    assert codes(refuse(connection, app, lake, primary_key=("id", "x"))) == ["primary_key"]


@pytest.mark.parametrize("name", ["events", "events_hot"])
def test_a_registered_table_is_refused_under_each_of_its_names(connection: Connection, app: App, lake: IcebergLake, name: str) -> None:
    register_events(connection, lake)
    refused = refuse(connection, app, lake, name=Name("public", name), dependents="keep")
    assert codes(refused) == ["registered"]
    assert "public.events" in str(refused)


def test_a_key_that_no_index_proves_cannot_be_mirrored(connection: Connection, app: App, lake: IcebergLake) -> None:
    create_events(connection)
    assert "no index proves" in str(refuse(connection, app, lake, mode="mirrored", surface="heap"))


def test_a_role_that_does_not_own_the_table_is_told_who_does(connection: Connection, app: App, dsn: str, lake: IcebergLake) -> None:
    create_events(connection)
    role = f"stranger_{value(connection, 'select oid from pg_database where datname = current_database()')}"
    connection.execute(f"create role {role}; grant usage on schema modak, modak_lake to {role}")
    connection.execute(f"grant all on all tables in schema public, modak, modak_lake to {role}")
    try:
        before = photograph(connection, app.settings.data)
        with connect(dsn, autocommit=True) as other:
            other.execute(f"set role {role}")
            with pytest.raises(Refused, match=r"public\.events belongs to postgres") as refused:
                register_table(other, lake)
        assert "owner" in codes(refused.value)
        assert photograph(connection, app.settings.data) == before
    finally:
        connection.execute(f"drop owned by {role}; drop role {role}")
