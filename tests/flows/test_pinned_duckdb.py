"""``modak.duckdb.pinned_relation`` against a plain twin of the table: every type, both tiers, corrections, odd keys, and a moving world."""

from __future__ import annotations

import random
import struct
import threading
import time
from typing import Any
from uuid import UUID

import duckdb
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from tests import events
from tests.events import EVENTS, put_under_modak
from tests.flows.test_pinned_seam import Row, Writer, cold_events, no_spark, pin_count  # noqa: F401 - fixtures
from tests.flows.test_types_tiering import THINGS, _create
from tests.scan_lake import ScanLake
from tests.support import rows, value

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.duckdb import pinned_relation
from modak.errors import UsageError, ValueRefused
from modak.jobs.tier import tier
from modak.pinned import arrow_rows
from modak.registration.register import register
from modak.settings import Settings

E_ROWS = [(1, 10, "a"), (2, 20, "b"), (3, 110, "c"), (4, 210, "hot"), (5, 220, "hot")]

# iceberg type → Postgres's expression for a value that Python can compare exactly
_CANONICAL = {
    "date": "({column}::date - date '1970-01-01')",
    "timestamp": "(extract(epoch from {column}) * 1000000)::bigint",
    "timestamptz": "(extract(epoch from {column}) * 1000000)::bigint",
    "float": "encode(float4send({column}::real), 'hex')",
    "double": "encode(float8send({column}::double precision), 'hex')",
    "uuid": "{column}::text",
    "binary": "encode({column}::bytea, 'hex')",
    "int": "{column}::bigint",
    "long": "{column}::bigint",
    "boolean": "{column}::boolean",
}


def canonical_sql(app: App, name: Name, source: str) -> sql.SQL:
    """A select over a plain copy of a table, in the order of its columns."""
    with app.job(name) as job:
        columns = job.columns(job.relation())
    items = []
    for column in columns:
        form = (
            "{column}::numeric::text"
            if column.type.iceberg.startswith("decimal")
            else _CANONICAL.get(column.type.iceberg, "{column}::text")
        )
        items.append(form.format(column=sql.Identifier(column.name).as_string()))
    return sql.SQL(f"select {', '.join(items)} from {source}")  # type: ignore[arg-type]


def canonical(table: pa.Table) -> list[Row]:
    """The same values out of Arrow, by a way of our own."""
    columns = []
    for column in table.columns:
        kind = column.type
        if isinstance(kind, pa.BaseExtensionType):
            columns.append(
                [None if cell is None else str(cell if isinstance(cell, UUID) else UUID(bytes=cell)) for cell in column.to_pylist()]
            )
        elif pa.types.is_date32(kind):
            columns.append(column.cast(pa.int32()).to_pylist())
        elif pa.types.is_timestamp(kind):
            columns.append(column.cast(pa.int64()).to_pylist())
        elif pa.types.is_floating(kind):
            code = ">f" if pa.types.is_float32(kind) else ">d"
            columns.append([None if cell is None else struct.pack(code, cell).hex() for cell in column.to_pylist()])
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            columns.append([None if cell is None else cell.hex() for cell in column.to_pylist()])
        elif pa.types.is_decimal(kind):
            columns.append([None if cell is None else f"{cell:f}" for cell in column.to_pylist()])
        else:
            columns.append(column.to_pylist())
    return sorted(zip(*columns, strict=True), key=repr)


def read(settings: Settings, dsn: str, name: str = "public.events", **options: Any) -> list[Row]:
    with pinned_relation(dsn, name, settings=settings, **options) as relation:
        return canonical(relation.to_arrow_table())


def expected(connection: Connection, app: App, name: Name, twin: str) -> list[Row]:
    found = connection.cursor(row_factory=psycopg.rows.tuple_row).execute(canonical_sql(app, name, twin)).fetchall()
    return sorted(found, key=repr)


def test_hot_and_cold_are_one_table(cold_events: None, connection: Connection, settings: Settings, dsn: str) -> None:  # noqa: F811
    with pinned_relation(dsn, "public.events", settings=settings) as relation:
        assert relation.columns == ["id", "event_time", "val"]
        assert [str(kind) for kind in relation.types] == ["BIGINT", "BIGINT", "VARCHAR"]
        assert sorted(relation.fetchall()) == E_ROWS
        assert relation.aggregate("count(*)").fetchall() == [(5,)]
        assert sorted(relation.filter("val = 'hot'").project("id").fetchall()) == [(4,), (5,)]
        assert pin_count(connection) == 1
    assert pin_count(connection) == 0


def test_before_anything_is_cold(app: App, connection: Connection, settings: Settings, dsn: str) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    assert read(settings, dsn) == sorted(E_ROWS, key=repr)


def test_corrections_are_merged(cold_events: None, connection: Connection, settings: Settings, dsn: str) -> None:  # noqa: F811
    connection.execute("update public.events_hot set val = 'corrected' where id = 2")
    connection.execute("delete from public.events_hot where id = 3")
    connection.execute("insert into public.events_hot values (9, 30, 'late')")
    table_id = value(connection, "select table_id from modak.tables")
    connection.execute("insert into modak.delta (table_id, pk, op, tier_key, payload) values (%s, '77', 1, 50, null)", [table_id])
    wanted = [(1, 10, "a"), (2, 20, "corrected"), (4, 210, "hot"), (5, 220, "hot"), (9, 30, "late")]
    assert read(settings, dsn) == sorted(wanted, key=repr)
    assert read(settings, dsn, columns=["val"]) == sorted([(row[2],) for row in wanted], key=repr)
    assert read(settings, dsn, columns=["val", "id"]) == sorted([(row[2], row[0]) for row in wanted], key=repr)


def test_in_a_connection_of_ones_own(cold_events: None, settings: Settings, dsn: str) -> None:  # noqa: F811
    mine = duckdb.connect()
    mine.execute("create table names as select 1 as id, 'one' as name union all select 4, 'four'")
    with pinned_relation(dsn, "public.events", mine, settings=settings) as relation:
        joined = mine.sql("select name, val from names join relation using (id) order by name").fetchall()
        assert joined == [("four", "hot"), ("one", "a")]
        with pinned_relation(dsn, "public.events", mine, ["id"], settings=settings) as again:  # noqa: F841
            assert mine.sql("select count(*) from relation join again using (id)").fetchall() == [(5,)]
    assert mine.sql("select count(*) from duckdb_views() where not internal").fetchall() == [(0,)]
    with pytest.raises(duckdb.Error, match="this pinned read is over"):
        relation.fetchall()
    mine.execute("set python_enable_replacements = false")
    with pytest.raises(UsageError, match="does not see"), pinned_relation(dsn, "public.events", mine, settings=settings):
        pass


def test_the_connection_may_come_first(cold_events: None, settings: Settings, dsn: str) -> None:  # noqa: F811
    """As Spark's session does in pinned_table, by place and by name."""
    mine = duckdb.connect()
    mine.execute("create table labels as select 4 as id, 'four' as label")
    for found in (
        pinned_relation(mine, dsn, "public.events", settings=settings),
        pinned_relation(mine, dsn, "public.events", ["id", "val"], settings=settings),
        pinned_relation(mine, dsn, name="public.events", settings=settings),
        pinned_relation(mine, dsn=dsn, name="public.events", columns=["id", "val"], settings=settings),
        pinned_relation(dsn, "public.events", mine, ["id", "val"], settings=settings),
        pinned_relation(connection=mine, dsn=dsn, name="public.events", settings=settings),
    ):
        with found as relation:
            relation.create_view("pinned")
            assert mine.sql("select label, val from labels join pinned using (id)").fetchall() == [("four", "hot")]
            mine.execute("drop view pinned")
    for wrong in ((mine, dsn, "public.events", None, None), (dsn, "public.events", mine, None, None), (mine, dsn)):
        with pytest.raises(TypeError):
            pinned_relation(*wrong)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="multiple values"):
        pinned_relation(mine, dsn, "public.events", connection=mine)  # type: ignore[call-overload]


@pytest.mark.parametrize("own", [True, False])
def test_a_read_in_progress_ends_with_the_block(
    own: bool,
    cold_events: None,  # noqa: F811
    connection: Connection,
    settings: Settings,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow_rows, "BATCH_BYTES", 64 * 1024)
    connection.execute("insert into public.events_hot select n, 200 + n % 100, repeat('x', 90) from generate_series(1000, 60000) n")
    mine = duckdb.connect() if own else None
    with pinned_relation(dsn, "public.events", mine, settings=settings) as relation:
        reader = relation.to_arrow_reader(1000)
        assert reader.read_next_batch().num_rows > 0
    # An error, and not an early end that looks like all there is.
    with pytest.raises(Exception, match="this pinned read ended"):
        reader.read_all()
    with pytest.raises(duckdb.Error):
        relation.fetchall()
    deadline = time.monotonic() + 20
    while [thread for thread in threading.enumerate() if thread.name == "modak-pinned-read"]:
        assert time.monotonic() < deadline, "a reader's thread goes on after the block"
        time.sleep(0.05)
    assert pin_count(connection) == 0


def test_questions_that_cannot_be_answered(cold_events: None, connection: Connection, settings: Settings, dsn: str) -> None:  # noqa: F811
    for columns in ([], ["nothing"], ["id", "id"]):
        with pytest.raises(UsageError), pinned_relation(dsn, "public.events", settings=settings, columns=columns):
            pass
    assert pin_count(connection) == 0


def test_a_large_heap_is_read_by_many_and_never_as_a_whole(
    cold_events: None,  # noqa: F811
    connection: Connection,
    settings: Settings,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("modak.duckdb.CHUNK_BYTES_MIN", 64 * 1024)
    monkeypatch.setattr(arrow_rows, "BATCH_BYTES", 64 * 1024)
    connection.execute("insert into public.events_hot select n, 200 + n % 100, repeat('x', 90) from generate_series(1000, 60000) n")
    asked: list[str] = []
    monkeypatch.setattr(arrow_rows._Readers, "__init__", _spied(asked, arrow_rows._Readers.__init__))
    with pinned_relation(dsn, "public.events", settings=settings) as relation:
        assert relation.aggregate("count(*), count(distinct id), sum(length(val))").fetchall() == [(59_006, 59_006, 59_001 * 90 + 9)]
        assert len(asked) > 5
        # A reader who has enough stops the others.
        assert len(relation.limit(3).fetchall()) == 3
    assert pin_count(connection) == 0


def _spied(asked: list[str], original: Any) -> Any:
    def spy(self: Any, dsn: str, snapshot: str, queries: Any) -> None:
        asked.extend(queries)
        original(self, dsn, snapshot, queries)

    return spy


def test_values_that_the_lake_cannot_hold(app: App, connection: Connection, settings: Settings, dsn: str, no_spark: None) -> None:  # noqa: F811
    """A hot row may hold what a cold one cannot; it is refused by name, not bent."""
    connection.execute("create table public.days (id bigint, day date, amount numeric(6,2), primary key (id)) partition by range (id)")
    connection.execute("create table public.days_low partition of public.days for values from (0) to (100)")
    connection.execute("create table public.days_high partition of public.days for values from (100) to (200)")
    connection.execute("insert into public.days values (1, '2020-01-01', 1.5), (100, 'infinity', 2), (101, '2021-01-01', 'NaN')")
    profile = profiles.get(connection, None)
    register(connection, app.lake(profile), Name("public", "days"), Options(tier_key="id", lag="0"), profile=profile.name)
    with app.job(Name("public", "days")) as job:
        assert tier(job, upto=100).rows == 1
    with (
        pytest.raises(ValueRefused, match="column day"),
        pinned_relation(dsn, "public.days", settings=settings, columns=["day"]) as relation,
    ):
        relation.fetchall()
    with (
        pytest.raises(ValueRefused, match="column amount"),
        pinned_relation(dsn, "public.days", settings=settings, columns=["amount"]) as found,
    ):
        found.fetchall()
    assert read(settings, dsn, "public.days", columns=["id"]) == [(1,), (100,), (101,)]


def test_nan_is_above_every_number(app: App, connection: Connection, settings: Settings, dsn: str, no_spark: None) -> None:  # noqa: F811
    """Arrow's own filters say otherwise, and DuckDB would leave the question to them."""
    connection.execute("create table public.floats (id bigint primary key, x double precision) partition by range (id)")
    connection.execute("create table public.floats_low partition of public.floats for values from (0) to (100)")
    connection.execute("create table public.floats_high partition of public.floats for values from (100) to (200)")
    connection.execute("insert into public.floats values (1, 'NaN'), (2, 1), (3, 9), (101, 'NaN'), (102, 1), (103, 9)")
    profile = profiles.get(connection, None)
    register(connection, app.lake(profile), Name("public", "floats"), Options(tier_key="id", lag="0"), profile=profile.name)
    with app.job(Name("public", "floats")) as job:
        tier(job, upto=100)
    with pinned_relation(dsn, "public.floats", settings=settings) as relation:
        assert sorted(relation.filter("x > 5").project("id").fetchall()) == [(1,), (3,), (101,), (103,)]


def every_type(app: App, connection: Connection, *, with_cold: bool = True) -> Name:
    """The table of all types with its twin ``public.twin``: values in hot, cold and corrected rows, some of them taken back."""
    columns = [sql.Identifier(name) for name in _create(connection)]
    table, listed = sql.Identifier(THINGS.schema, THINGS.name), sql.SQL(", ").join(columns)
    connection.execute(sql.SQL("insert into {0} (id, {1}) select id + 1000, {1} from {0} where id < 500").format(table, listed))
    connection.execute(sql.SQL("create table public.twin as select * from {}").format(table))
    profile = profiles.get(connection, None)
    register(connection, app.lake(profile), THINGS, Options(tier_key="id", lag="0", width="100"), profile=profile.name)
    if with_cold:
        with app.job(THINGS) as job:
            assert tier(job, upto=1000).tier_key_hi == 1000
    nothing = sql.SQL(", ").join(sql.SQL("{} = null").format(column) for column in columns)
    for place in (sql.Identifier(THINGS.schema, tables.get(connection, THINGS).heap_name), sql.Identifier("public", "twin")):
        # Added, then emptied, then removed, below T and above.
        connection.execute(sql.SQL("insert into {0} (id, {1}) select id + 500, {1} from {0} where id < 450").format(place, listed))
        connection.execute(sql.SQL("update {} set {} where id % 11 = 0").format(place, nothing))
        connection.execute(sql.SQL("delete from {} where id % 7 = 0").format(place))
    return THINGS


def test_every_type(app: App, connection: Connection, settings: Settings, dsn: str, no_spark: None) -> None:  # noqa: F811
    name = every_type(app, connection)
    assert value(connection, "select count(*) from modak.delta where op = 0") > 50
    assert value(connection, "select count(*) from modak.delta where op = 1") > 5
    found = read(settings, dsn, str(name))
    assert len(found) > 150
    assert found == expected(connection, app, name, "public.twin")


KEYS = """
    create type public.colour as enum ('red', 'it''s blue');
    create table public.keyed (
        tenant text collate "C", device varchar(20), code char(4), colour public.colour, day date, amount numeric(6,2), unit uuid,
        raw bytea, at {kind}, note text, primary key (tenant, device, code, colour, day, amount, unit, raw, at)
    ) partition by range (at);
    create table public.keyed_2024 partition of public.keyed for values from ('2024-01-01') to ('2025-01-01');
    create table public.keyed_2025 partition of public.keyed for values from ('2025-01-01') to ('2026-01-01');
"""
ODD = ["", "a", "\\", "\x1f", "a\x1fb", "\\\x1f", "a\\", "b|c", "ü🐘", "'"]


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "date"])
def test_composite_keys(kind: str, app: App, connection: Connection, settings: Settings, dsn: str, no_spark: None) -> None:  # noqa: F811
    connection.execute(KEYS.format(kind=kind))
    dice = random.Random(5)
    for year in ("2024", "2025"):
        for number, tenant in enumerate(ODD):
            connection.execute(
                "insert into public.keyed values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (tenant, dice.choice(ODD), "ab"[: number % 3], dice.choice(["red", "it's blue"]), f"{1500 + number}-02-03", number / 4,
                 str(UUID(int=number)), bytes([number, 255, 92, 31]), f"{year}-03-0{number % 9 + 1} 00:00:00", f"row {number}"),
            )  # fmt: skip
    connection.execute("create table public.twin as select * from public.keyed")
    name, profile = Name("public", "keyed"), profiles.get(connection, None)
    register(connection, app.lake(profile), name, Options(tier_key="at", lag="1 day"), profile=profile.name)
    with app.job(name) as job:
        assert (
            tier(job, upto=job.table.key_type.decode_bound("2025-01-01 00:00:00+00" if kind == "timestamptz" else _plain(kind))).rows == 10
        )
    for place in ("public.keyed_hot", "public.twin"):
        connection.execute(f"update {place} set note = note || ' corrected' where amount in (0.25, 0.75, 2)")
        connection.execute(f"delete from {place} where amount in (0.5, 1)")
    assert value(connection, "select count(*) from modak.delta") == 5
    assert read(settings, dsn, "public.keyed") == expected(connection, app, name, "public.twin")


def _plain(kind: str) -> str:
    return "2025-01-01" if kind == "date" else "2025-01-01 00:00:00"


def test_rows_deleted_in_the_lake(cold_events: None, app: App, connection: Connection, settings: Settings, dsn: str) -> None:  # noqa: F811
    """Position deletes, as a fold leaves them, also beside somebody's own database."""
    with app.job(EVENTS) as job:
        lake = ScanLake.__new__(ScanLake)
        lake.table = job.lake.load(job.table.lake_table_ref)
        path = next(file.file_path for file in lake.data_files() if file.record_count == 2)
        sequence_number = lake.delete({path: [0]})
    pointer = {"snapshot_id": str(lake.table.refresh().metadata.current_snapshot_id), "metadata_location": lake.at()}
    connection.execute(
        "update modak.cutline set lake_snapshot_id = %s, lake_props = %s", [sequence_number, psycopg.types.json.Jsonb(pointer)]
    )
    assert read(settings, dsn) == sorted(E_ROWS[1:], key=repr)
    mine = duckdb.connect()
    with pinned_relation(dsn, "public.events", mine, settings=settings) as relation:
        assert sorted(relation.fetchall()) == E_ROWS[1:]
    assert mine.sql("select count(*) from duckdb_tables()").fetchall() == [(0,)]
    assert [row[0] for row in mine.sql("select database_name from duckdb_databases() where not internal").fetchall()] == ["memory"]


def test_a_column_that_readers_do_not_know_yet(cold_events: None, app: App, connection: Connection, settings: Settings, dsn: str) -> None:  # noqa: F811
    connection.execute("alter table public.events_hot add column extra integer")
    assert read(settings, dsn) == sorted(E_ROWS, key=repr)
    events.tier(app)
    connection.execute("update public.events_hot set extra = 7 where id in (2, 4)")
    wanted = [(*row, 7 if row[0] in (2, 4) else None) for row in E_ROWS]
    assert read(settings, dsn) == sorted(wanted, key=repr)


def test_one_instant_while_the_table_is_written_and_tiered(
    app: App,
    connection: Connection,
    settings: Settings,
    dsn: str,
    no_spark: None,  # noqa: F811
) -> None:
    # Few enough passes that the view is not built anew meanwhile: that asks for every lock below it, and waits for readers.
    partitions = 6
    events.create(connection, partitions=partitions)
    connection.execute("delete from public.events")
    connection.execute("insert into public.events values (0, %s, '0')", [partitions * 100 - 1])
    put_under_modak(app, connection)
    writer = Writer(dsn, partitions)
    writer.start()
    assert writer.ready.wait(60)
    seen: list[list[Row]] = []
    for line in range(100, (partitions - 1) * 100, 100):
        with pinned_relation(dsn, "public.events", settings=settings) as relation:
            before = sorted(relation.fetchall())
            assert events.tier(app, lock_attempts=200, upto=line).tier_key_hi == line
            assert sorted(relation.fetchall()) == before
            seen.append(before)
    writer.stop.set()
    writer.join(60)
    assert writer.failure is None, writer.failure
    for found in seen:
        assert found == writer.ledger[int(found[0][2])]
    assert len({found[0][2] for found in seen}) == len(seen)
    assert value(connection, "select count(*) from modak.delta") > 0
    assert sorted(read(settings, dsn), key=lambda row: row[0]) == writer.ledger[max(writer.ledger)]
    assert rows(connection, "select count(*) from modak.read_pins") == [(0,)]
