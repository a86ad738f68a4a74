"""Every type's values cross to the lake and back exactly: heap → Arrow → Parquet → two readers, compared by Postgres itself."""

from __future__ import annotations

import pyarrow as pa
import pytest
from psycopg import sql
from tests.gateways import RunningGateway
from tests.support import has_xml, reclaim_all

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.jobs.fold import fold
from modak.jobs.maintain import maintain
from modak.jobs.tier import tier
from modak.jobs.verify import verify
from modak.registration import policy
from modak.registration.register import register

pytestmark = pytest.mark.spark

THINGS = Name("public", "Every thing.of")
BIG = "0." + "1234567890" * 6

VALUES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["1.5", "-0", "NaN", "Infinity", "-Infinity", "3.4028235e38", "1e-45"],
    "double precision": ["2.5", "-0", "NaN", "Infinity", "-Infinity", "1.7976931348623157e308", "5e-324", "0.1"],
    "numeric(20,5)": ["123.45", "-99999999999999.99999", "0"],
    "numeric(38,0)": ["9" * 38, "-" + "9" * 38],
    "numeric": [BIG, "NaN", "Infinity", "1e1000", "-0.10", "1.50"],
    "text": ["", "ünïcödé 🐘", "a\tb\nc\\d'\"", "x" * 1_000_000],
    "varchar(8)": ["", "12345678"],
    "char(10)": ["hello", ""],
    "bytea": [r"\xdeadbeef", r"\xcafe", r"\x"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "date": ["4713-01-01 BC", "0044-03-15 BC", "1582-10-10", "1970-01-01", "9999-12-31", "20000-02-29"],
    "timestamp": [
        "4713-01-01 00:00:00 BC",
        "0044-03-15 12:34:56.789012 BC",
        "1969-12-31 23:59:59.999999",
        "2024-03-31 02:30:00",
        "99999-01-01",
    ],
    "timestamptz": ["4713-01-01 00:00:00+00 BC", "1582-10-10 00:00:00+00", "2024-03-31 01:30:00.000001+01", "99999-01-01 00:00:00+00"],
    "time": ["00:00:00", "24:00:00", "12:34:56.789012"],
    "timetz": ["12:34:56+05:30"],
    "interval": ["1 day 2 hours", "-1 mons +3 days", "1 year 2 mons 00:00:00.000001"],
    "json": ['{"k": 1, "k" : 2}', "null", '"x"'],
    "jsonb": ['{"k": 1}', "null", "[1.10, true]"],
    "oid": ["0", "4294967295"],
    "inet": ["10.0.0.1", "::1/64"],
    "cidr": ["10.0.0.0/8"],
    "integer[]": ["{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={7,8}"],
    "text[]": ['{a,"b c","NULL",NULL,"\\"q\\""}'],
    "mood": ["sad", "happy ever after"],
    "positive": ["5"],
    "int4range": ["empty", "[1,5)", "(,3)"],
    "int4multirange": ["{[1,3),[5,8)}"],
    "tsvector": ["'a':1 'b':2"],
    "xml": ["<a>b</a>"],
    "bit(4)": ["1010"],
    "point": ["(0.1,-2)"],
    "macaddr": ["08:00:2b:01:02:03"],
    "pg_lsn": ["16/B374D848"],
}


def _create(connection: Connection) -> list[str]:
    connection.execute("create type public.mood as enum ('sad', 'happy ever after')")
    connection.execute("create domain public.positive as integer check (value > 0)")
    columns = [f"c {number}" for number in range(len(VALUES))]
    definitions = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind if kind not in ("mood", "positive") else f"public.{kind}"))
        for column, kind in zip(columns, VALUES, strict=True)
    )
    table = sql.Identifier(THINGS.schema, THINGS.name)
    connection.execute(sql.SQL("create table {} (id bigint primary key, {}) partition by range (id)").format(table, definitions))
    connection.execute(sql.SQL("create table public.low partition of {} for values from (0) to (1000)").format(table))
    connection.execute(sql.SQL("create table public.high partition of {} for values from (1000) to (2000)").format(table))
    identity = 0
    if not has_xml(connection):
        VALUES["xml"] = []
    for column, (kind, values) in zip(columns, VALUES.items(), strict=True):
        for value in values:
            identity += 1
            cast = sql.SQL(kind if kind not in ("mood", "positive") else f"public.{kind}")
            connection.execute(
                sql.SQL("insert into {} (id, {}) values ({}, {}::{})").format(
                    table, sql.Identifier(column), sql.Literal(identity), sql.Literal(value), cast
                )
            )
    connection.execute(sql.SQL("insert into {} (id) values (999), (1500)").format(table))
    return columns


def test_every_type_crosses_exactly(app: App, connection: Connection) -> None:
    columns = _create(connection)
    profile = profiles.get(connection, None)
    register(connection, app.lake(profile), THINGS, Options(tier_key="id", lag="0", width="100"), profile=profile.name)
    with app.job(THINGS) as job:
        assert tier(job).partitions == ("public.low",)
        found = verify(job)
        assert found.differences == ()
        assert found.rows == sum(len(values) for values in VALUES.values()) + 1
        lake = job.lake.load(job.table.lake_table_ref).scan().to_arrow()
    _compare(connection, columns, lake)


def test_every_type_folds_and_is_maintained_exactly(app: App, connection: Connection, gateway: RunningGateway) -> None:
    """Each row once more as a correction: image → jsonb → the type itself → Parquet. A twin in the heap says what must come out.

    Maintenance then writes the files anew, through DuckDB.
    """
    columns = _create(connection)
    table = sql.Identifier(THINGS.schema, THINGS.name)
    connection.execute(sql.SQL("create table public.twin as select * from {}").format(table))
    profile = profiles.get(connection, None)
    register(connection, app.lake(profile), THINGS, Options(tier_key="id", lag="0", width="100"), profile=profile.name)
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    with app.job(THINGS) as job:
        tier(job)
        reclaim_all(job)
        # Every row gets the values of its neighbour, so none is what tiering wrote.
        given = sql.SQL(
            "update {t} e set ({names}) = (select {names} from public.twin t where t.id = case e.id when 999 then 1 else {next} end)"
        )
        following = sql.SQL("case e.id when 999 then 1 else (select min(t.id) from public.twin t where t.id > e.id) end")
        changed = connection.execute(sql.SQL("{} where id < 1000").format(given.format(t=table, names=names, next=following))).rowcount
        assert changed == sum(len(values) for values in VALUES.values()) + 1
        before = connection.execute(sql.SQL("select e::text as row from {} e order by id").format(table)).fetchall()
        outcome = fold(job)
        assert (outcome.corrections, outcome.kept) == (changed, 0)
    assert connection.execute("select count(*) as n from modak.delta").fetchone() == {"n": 0}
    assert connection.execute(sql.SQL("select e::text as row from {} e order by id").format(table)).fetchall() == before
    policy.change(connection, tables.get(connection, THINGS), {"maintenance.small_files": "2"})
    with app.job(THINGS) as job:
        # A band of a hundred keys holds the old file, all of whose rows are deleted, and the new one.
        written = maintain(job)
        assert (written.files_rewritten, written.files_written) == (4, 2)
    assert connection.execute(sql.SQL("select e::text as row from {} e order by id").format(table)).fetchall() == before


def _compare(connection: Connection, columns: list[str], lake: pa.Table) -> None:
    """PyIceberg is a reader of its own: what it finds as text must be Postgres's text. Verify has compared the other types."""
    texts = [
        column
        for column in columns
        if pa.types.is_string(lake.schema.field(column).type) or pa.types.is_large_string(lake.schema.field(column).type)
    ]
    found = {row["id"]: row for row in lake.select(["id", *texts]).to_pylist()}
    assert len(texts) > 20
    identity = 0
    for column, (kind, values) in zip(columns, VALUES.items(), strict=True):
        for value in values:
            identity += 1
            if column not in texts:
                continue
            wanted = connection.execute(
                sql.SQL("select {}::text as t from public.low where id = {}").format(sql.Identifier(column), sql.Literal(identity))
            ).fetchone()
            assert wanted is not None
            assert found[identity][column] == wanted["t"], (kind, value)
    assert all(found[999][column] is None for column in texts)
