"""Values of every type by load: as JSON has them, as Python has them, as Arrow has them; into the heap, the delta and staged files."""

from __future__ import annotations

import datetime
import json
import uuid
from decimal import Decimal
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg import sql
from tests.flows.test_types_tiering import VALUES
from tests.gateways import RunningGateway
from tests.support import has_xml, reclaim_all, rows

from modak.app import App
from modak.catalog import profiles
from modak.connection import PINNED_SETTINGS, Connection
from modak.core.lake_table import lake_columns
from modak.core.registration import Options
from modak.core.table import Name
from modak.jobs.tier import tier
from modak.lake.data_files import conform
from modak.load import LoadClient, LoadOptions, LoadRejected, LoadRequest, lake_storage
from modak.registration.register import register
from modak.source.heap import projection
from modak.source.relation import columns_of

pytestmark = pytest.mark.inline
THINGS = Name("public", "Every thing.of")
USERS = {
    "mood": "create type public.mood as enum ('sad', 'happy ever after')",
    "positive": "create domain public.positive as int check (value > 0)",
}
LATE = 1000  # T: rows below it are cold


def column_of(kind: str) -> str:
    return f"the {kind}%"


@pytest.fixture
def things(app: App, connection: Connection, gateway: RunningGateway) -> Connection:
    """A column of every type. T stands above an empty range, so nothing has to be copied. The twin holds what SQL makes of the values."""
    for made in USERS.values():
        connection.execute(made.encode())
    kinds = [kind for kind in VALUES if kind != "xml" or has_xml(connection)]
    definitions = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column_of(kind)), sql.SQL(f"public.{kind}" if kind in USERS else kind)) for kind in kinds
    )
    table = sql.Identifier(THINGS.schema, THINGS.name)
    connection.execute(sql.SQL("create table {} (id bigint primary key, {}) partition by range (id)").format(table, definitions))
    connection.execute(sql.SQL("create table public.low partition of {} for values from (0) to ({})").format(table, LATE))
    connection.execute(sql.SQL("create table public.high partition of {} for values from ({}) to (100000)").format(table, LATE))
    connection.execute(sql.SQL("create table public.twin (like {})").format(table))
    profile = profiles.get(connection, None)
    register(connection, app.lake(profile), THINGS, Options(tier_key="id", lag="0", width="100"), profile=profile.name)
    with app.job(THINGS) as job:
        assert tier(job, upto=LATE).tier_key_hi == LATE
        assert reclaim_all(job)
    return connection


def texts(connection: Connection, table: str) -> dict[int, str]:
    name = f"public.{table}" if table == "twin" else str(THINGS)
    return dict(rows(connection, f"select t.id, t::text from {name} t"))


def expect(connection: Connection, identity: int, kind: str, literal: str) -> None:
    cast = sql.SQL(f"public.{kind}" if kind in USERS else kind)
    connection.execute(
        sql.SQL("insert into public.twin (id, {}) values ({}, {}::{})").format(
            sql.Identifier(column_of(kind)), sql.Literal(identity), sql.Literal(literal), cast
        )
    )


def cases(connection: Connection) -> list[tuple[str, str]]:
    return [(kind, value) for kind, values in VALUES.items() for value in values if kind != "xml" or has_xml(connection)]


@pytest.mark.parametrize("first", [1, LATE + 1], ids=["cold", "hot"])
@pytest.mark.parametrize("way", ["list", "iterator", "arrow"])
def test_texts_of_every_type(things: Connection, dsn: str, first: int, way: str) -> None:
    """A string is what Postgres reads it as; for JSON it is a string, so JSON's own values are given there."""
    given = []
    for identity, (kind, value) in enumerate(cases(things), start=first):
        is_json = kind in ("json", "jsonb") and way != "arrow"
        if is_json and json.loads(value) is None:
            continue
        literal = json.dumps(json.loads(value), separators=(",", ":")) if is_json else value
        given.append({"id": identity, column_of(kind): json.loads(value) if is_json else value})
        expect(things, identity, kind, literal)
    given.append({"id": first + 900} | {column_of(kind): None for kind, _ in cases(things)})
    things.execute("insert into public.twin (id) values (%s)", [first + 900])
    with LoadClient(LoadOptions(dsn, str(THINGS))) as client:
        result = client.load(LoadRequest("texts", _shaped(given, way)))
    assert (result.hot_rows, result.delta_rows) == ((0, len(given)) if first == 1 else (len(given), 0))
    assert texts(things, "things") == texts(things, "twin")


def _shaped(given: list[dict[str, Any]], way: str) -> Any:
    if way != "arrow":
        return given if way == "list" else iter(given)
    names = sorted({name for row in given for name in row} - {"id"})
    columns = {name: pa.array([row.get(name) for row in given], pa.string()) for name in names}
    return pa.table({"id": pa.array([row["id"] for row in given]), **columns})


KATHMANDU = datetime.timezone(datetime.timedelta(hours=5, minutes=45))
UUID = uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
# type, the value as Python or JSON has it, the same in SQL
NATIVE: list[tuple[str, Any, str]] = [
    ("boolean", True, "true"),
    ("smallint", -5, "-5"),
    ("bigint", 2**63 - 1, "9223372036854775807"),
    ("bigint", Decimal(7), "7"),
    ("real", 1.5, "1.5"),
    ("double precision", 0.1, "0.1"),
    ("double precision", 3, "3"),
    ("double precision", float("-inf"), "-Infinity"),
    ("double precision", 1e300, "1e300"),
    ("numeric", Decimal("0.1234567890123456789012345678901234567890"), "0.1234567890123456789012345678901234567890"),
    ("numeric", 10**30, "1" + "0" * 30),
    ("numeric(20,5)", 123.45, "123.45"),
    ("numeric(20,5)", "123.45", "123.45"),
    ("text", 5, "5"),
    ("text", 1.50, "1.5"),
    ("text", True, "true"),
    ("text", {"a": 1}, '{"a":1}'),
    ("date", datetime.date(2026, 3, 1), "2026-03-01"),
    ("timestamp", datetime.datetime(2026, 3, 1, 1, 2, 3, 4), "2026-03-01 01:02:03.000004"),
    ("timestamptz", datetime.datetime(2026, 3, 1, 1, 2, 3, tzinfo=KATHMANDU), "2026-02-28 19:17:03+00"),
    ("timestamptz", "2026-03-01T01:02:03.5+05:45", "2026-02-28 19:17:03.5+00"),
    ("timestamptz", "2026-03-01T01:02:03Z", "2026-03-01 01:02:03+00"),
    ("time", datetime.time(23, 59, 59, 999999), "23:59:59.999999"),
    ("interval", datetime.timedelta(days=-1, hours=2), "-1 days +02:00"),
    ("interval", "P1DT2H", "1 day 2 hours"),
    ("bytea", b"\xde\xad\x00", r"\xdead00"),
    ("bytea", "\\xdead00", r"\xdead00"),
    ("uuid", UUID, str(UUID)),
    ("uuid", str(UUID).upper(), str(UUID)),
    ("jsonb", {"k": [1, None, {"a": "ü\n\t\\\""}]}, '{"k":[1,null,{"a":"ü\\n\\t\\\\\\""}]}'),
    ("jsonb", "a string", '"a string"'),
    ("jsonb", 5, "5"),
    ("jsonb", [], "[]"),
    ("jsonb", {"at": datetime.date(2026, 3, 1), "n": Decimal("1.5")}, '{"at": "2026-03-01", "n": 1.5}'),
    ("integer[]", [1, None, 3], "{1,NULL,3}"),
    ("integer[]", [[1, 2], [3, 4]], "{{1,2},{3,4}}"),
    ("integer[]", [], "{}"),
    ("text[]", ["a b", 'q"', "\\", "", "NULL", None, "{x,y}"], '{"a b","q\\"","\\\\","","NULL",NULL,"{x,y}"}'),
    ("mood", "happy ever after", "happy ever after"),
    ("positive", 5, "5"),
    ("int4range", "[1,5)", "[1,5)"),
    ("inet", "10.0.0.1", "10.0.0.1"),
]  # fmt: skip


@pytest.mark.parametrize("first", [1, LATE + 1], ids=["cold", "hot"])
def test_values_as_python_and_json_have_them(things: Connection, dsn: str, first: int) -> None:
    given = []
    for identity, (kind, value, literal) in enumerate(NATIVE, start=first):
        expect(things, identity, kind, literal)
        given.append({"id": identity, column_of(kind): value})
    with LoadClient(LoadOptions(dsn, str(THINGS))) as client:
        client.load(LoadRequest("values", given))
    assert texts(things, "things") == texts(things, "twin")


ARROW: list[tuple[str, pa.Array, str]] = [
    ("smallint", pa.array([7], pa.int8()), "7"),
    ("bigint", pa.array([2**63 - 1], pa.uint64()), "9223372036854775807"),
    ("real", pa.array([0.1], pa.float32()), "0.1"),
    ("double precision", pa.array([5e-324]), "5e-324"),
    ("numeric", pa.array([Decimal("-1.50")], pa.decimal128(38, 2)), "-1.50"),
    ("numeric(38,0)", pa.array([Decimal("9" * 38)], pa.decimal256(38, 0)), "9" * 38),
    ("boolean", pa.array([False]), "false"),
    ("text", pa.array(["a\tb\nc\\d"], pa.large_string()), "a\tb\nc\\d"),
    ("mood", pa.array(["sad"]).dictionary_encode(), "sad"),
    ("bytea", pa.array([b"\x00\xff"]), r"\x00ff"),
    ("bytea", pa.array([b""], pa.large_binary()), r"\x"),
    ("uuid", pa.array([UUID.bytes], pa.binary(16)), str(UUID)),
    ("uuid", pa.array([str(UUID)]), str(UUID)),
    ("date", pa.array([-719893], pa.date32()), "0002-01-01 BC"),
    ("date", pa.array([datetime.date(9999, 12, 31)]), "9999-12-31"),
    ("timestamp", pa.array([1], pa.timestamp("ms")), "1970-01-01 00:00:00.001"),
    ("timestamp", pa.array([-210_000_000_000_000_000], pa.timestamp("us")), "4686-05-14 10:40:00 BC"),
    ("timestamptz", pa.array([0], pa.timestamp("s", "America/New_York")), "1970-01-01 00:00:00+00"),
    ("time", pa.array([datetime.time(1, 2, 3)]), "01:02:03"),
    ("interval", pa.array([datetime.timedelta(seconds=90)]), "00:01:30"),
    ("interval", pa.array([pa.MonthDayNano([14, 3, -1000])]), "14 months 3 days -00:00:00.000001"),
    ("jsonb", pa.array(['{"k": 1}']), '{"k": 1}'),
    ("jsonb", pa.array(["null"]), "null"),
    ("jsonb", pa.array([{"k": [1, None]}]), '{"k": [1, null]}'),
    ("integer[]", pa.array([[1, None, 3]]), "{1,NULL,3}"),
    ("text[]", pa.array([["a,b", '"']]), '{"a,b","\\""}'),
]  # fmt: skip


@pytest.mark.parametrize("first", [1, LATE + 1], ids=["cold", "hot"])
def test_values_as_arrow_has_them(things: Connection, dsn: str, first: int) -> None:
    with LoadClient(LoadOptions(dsn, str(THINGS))) as client:
        for identity, (kind, values, literal) in enumerate(ARROW, start=first):
            expect(things, identity, kind, literal)
            table = pa.table({"id": pa.array([identity]), column_of(kind): values})
            shape = table if identity % 2 else pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
            client.load(LoadRequest(f"arrow {identity}", shape))
    assert texts(things, "things") == texts(things, "twin")


def test_a_value_that_no_type_takes_is_named(things: Connection, dsn: str) -> None:
    wrong = {"mood": "angry", "positive": -1, "varchar(8)": "123456789", "bit(4)": "101", "date": "2026-02-30", "jsonb": float("nan")}
    wrong |= {
        "integer[]": [1, "x"],
        "bytea": "\\xzz",
        "uuid": "no",
        "timestamptz": "yesterday noon",
        "inet": {"a": 1},
        "text[]": [[1], [2, 3]],
    }
    with LoadClient(LoadOptions(dsn, str(THINGS))) as client:
        for kind, value in wrong.items():
            good = [{"id": LATE + number, column_of(kind): None} for number in range(1, 5)]
            with pytest.raises(LoadRejected) as refused:
                client.load(LoadRequest(kind, [*good, {"id": LATE + 9, column_of(kind): value}]))
            assert (refused.value.line, refused.value.column) == (5, column_of(kind)), kind


def test_staged_files_hold_what_a_flush_would_write(things: Connection, app: App, dsn: str) -> None:
    """The same values by binary COPY from the heap, as tiering reads them, and out of the staged files."""
    table = app.lake(profiles.get(things, None)).load("public.every_thing_of_" + _suffix(things))
    columns = columns_of(things, things.execute("select 'public.twin'::regclass::oid::bigint as oid").fetchall()[0]["oid"])
    kept, problems = lake_columns(columns, ("id",))
    assert problems == ()
    # A row has every column, or it would have to be completed: then it is no volume.
    empty = {column.name: None for column in columns}
    given = []
    for identity, (kind, value) in enumerate(cases(things), start=1):
        given.append({**empty, "id": identity, column_of(kind): value})
        expect(things, identity, kind, value)
    options = LoadOptions(dsn, str(THINGS), storage=lake_storage(dsn, app.settings), spool_threshold=0)
    with LoadClient(options) as client:
        result = client.load(LoadRequest("volume", _shaped(given, "arrow")))
    assert (result.state, result.delta_rows, result.spooled_rows) == ("staged", 0, len(given))
    staged = pa.concat_tables([pq.read_table(file.removeprefix("file://"), partitioning=None) for file in result.staged_files])
    with adbc.connect(dsn, autocommit=True) as session, session.cursor() as cursor:
        for name, text in PINNED_SETTINGS.items():
            cursor.execute(f"select set_config('{name}', '{text}', false)")
        cursor.execute(f"select {projection(kept)} from public.twin")
        copied = cursor.fetch_arrow_table()
    assert copied.column("modak_bad").null_count == len(given)
    names = [field.name for field in table.schema().fields]
    wanted = conform(copied.select(names), staged.schema)
    assert _comparable(staged) == _comparable(wanted)


def _suffix(connection: Connection) -> str:
    found = rows(connection, "select lake_table_ref from modak.tables")[0][0]
    return str(found).removeprefix("public.every_thing_of_")


def _comparable(table: pa.Table) -> list[str]:
    """Rows as text: NaN equals nothing, not even itself. Times are numbers, since Python's end at the year 9999."""
    return sorted(repr([str(value) for value in row]) for row in zip(*map(_stored, table.columns), strict=True))


def _stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks])
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
