"""One table of edge values, in Postgres and as the lake would hold it in DuckDB, and the two answers to one question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import duckdb
import psycopg

from modak.core.type_map import PgType, lake_type
from modak.errors import Problem
from modak.gateway.dialect.errors import runtime_problem
from modak.gateway.dialect.functions import register_functions
from modak.scan.predicate import Columns, ColumnType

FAILED_OVER = "needs Postgres"
_NUMERIC_10_2 = ((10 << 16) | 2) + 4
_NUMERIC_38_10 = ((38 << 16) | 10) + 4


def column(base: str, modifier: int = -1, **facts: str) -> ColumnType:
    pg = PgType(facts.pop("display", base), base, modifier=modifier, **facts)  # type: ignore[arg-type]
    lake = lake_type(pg)
    assert not isinstance(lake, Problem)
    return ColumnType(pg, lake)


COLUMNS: Columns = {
    "id": column("int4"),
    "i2": column("int2"),
    "i4": column("int4"),
    "i8": column("int8"),
    "f4": column("float4"),
    "f8": column("float8"),
    "n": column("numeric", _NUMERIC_10_2),
    "n38": column("numeric", _NUMERIC_38_10),
    "t": column("text"),
    "v": column("varchar", 14),
    "c": column("bpchar", 9),
    "d": column("date"),
    "ts": column("timestamp"),
    "tz": column("timestamptz"),
    "b": column("bool"),
    "u": column("uuid"),
    "ba": column("bytea"),
    "e": column("mood", kind="e", namespace="public", display="mood"),
    "j": column("jsonb"),
    "nu": column("numeric"),
}
_DECLARED = {"n": "numeric(10,2)", "n38": "numeric(38,10)", "v": "varchar(10)", "c": "char(5)", "nu": "numeric"}

EDGES: dict[str, Sequence[str | None]] = {
    "i2": ["0", "1", "-1", "32767", "-32768", "7", "-7", None, "100"],
    "i4": ["0", "1", "-1", "2147483647", "-2147483648", "7", "-7", None, "1000000"],
    "i8": ["0", "1", "-1", "9223372036854775807", "-9223372036854775808", "7", "-7", None, "9007199254740993"],
    "f4": ["0", "-0", "1.5", "NaN", "Infinity", "-Infinity", "3.4028235e38", "1e-45", None, "0.1", "16777217", "-2.5", "123456.79"],
    "f8": [
        "0",
        "-0",
        "1.5",
        "NaN",
        "Infinity",
        "-Infinity",
        "1.7976931348623157e308",
        "5e-324",
        None,
        "0.1",
        "2.5",
        "-2.5",
        "1e15",
        "2147483647.5",
        "0.49999999999999994",
        "9223372036854775807",
        "1e23",
        "-0.5",
        "123456789.123",
        "1e-5",
    ],
    "n": ["0.00", "1.50", "-1.50", "99999999.99", "-99999999.99", "2.50", "0.05", None, "-0.05", "3.45"],
    "n38": ["0", "1.0000000001", "-1.5", "9999999999999999999999999999.9999999999", None, "123456789.5", "0.0000000001"],
    "t": ["", "a", "A", "abc", "ABC", " abc ", "äöü", "日本語", "a%b_c", "a\\b", None, "👍🏽x", "éa", "a'b", 'q"q', "\t\n", "z", "xxabcxx"],
    "v": ["", "a", "abc", "ABC", None, "ä", "abcdefghij", "a ", " a"],
    "c": ["", "a", "abc", "ABCDE", None, "ä", " a"],
    "d": [
        "1970-01-01",
        "2024-02-29",
        "0001-01-01",
        "0044-03-15 BC",
        "4714-11-24 BC",
        "5874897-12-31",
        "1969-12-31",
        None,
        "2026-12-31",
        "12345-06-07",
        "2000-01-01",
        "1582-10-10",
        "2027-01-03",
    ],
    "ts": [
        "1970-01-01 00:00:00",
        "1969-12-31 23:59:59.999999",
        "2024-02-29 12:34:56.789",
        "0044-03-15 01:02:03.000001 BC",
        "4714-11-24 00:00:00 BC",
        "294246-12-31 23:59:59.999999",
        None,
        "2026-12-31 23:59:59.5",
        "0001-01-01 00:00:00",
        "1582-10-10 10:10:10",
        "12345-06-07 08:09:10.1",
        "2024-01-31 00:00:00",
        "2027-01-03 00:00:00",
    ],
    "b": ["t", "f", None],
    "u": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", None, "12345678-9abc-def0-1234-56789abcdef0"],
    "ba": ["\\x", "\\x00", "\\xff00ab", None],
    "e": ["sad", "happy", None],
    "j": ['{"a": 1}', "null", None],
    "nu": ["1.0", "1.00", "NaN", None],
}
EDGES["tz"] = [value and (value[:-3] + "+00 BC" if value.endswith(" BC") else value + "+00") for value in EDGES["ts"]]
ROWS = 45


def declared(name: str) -> str:
    return _DECLARED.get(name, COLUMNS[name].pg.display)


def create_postgres_table(connection: psycopg.Connection[tuple[object, ...]], table: str = "edge") -> None:
    columns = ", ".join(f"{name} {declared(name)}" for name in COLUMNS)
    connection.execute("create type mood as enum ('sad', 'ok', 'happy')")
    connection.execute(f"create table {table} ({columns})")
    names = [name for name in COLUMNS if name != "id"]
    values = ", ".join(f"%s::{declared(name)}" for name in names)
    for number in range(ROWS):
        row = [EDGES[name][(number + shift + number // 9 * shift) % len(EDGES[name])] for shift, name in enumerate(names)]
        connection.execute(f"insert into {table} values ({number}, {values})", row)


_TO_DUCKDB = {
    "date": ("{0} - date '1970-01-01'", "DATE '1970-01-01' + CAST({0} AS INTEGER)"),
    "timestamp": ("(extract(epoch from {0}) * 1000000)::bigint", "make_timestamp(CAST({0} AS BIGINT))"),
    "timestamptz": ("(extract(epoch from {0}) * 1000000)::bigint", "make_timestamptz(CAST({0} AS BIGINT))"),
    "bytea": ("encode({0}, 'hex')", "from_hex({0})"),
}


def copy_to_duckdb(connection: psycopg.Connection[tuple[object, ...]], table: str, columns: Columns) -> duckdb.DuckDBPyConnection:
    """The table as the lake would give it: each column through its text, in the lake's type."""
    lake = duckdb.connect()
    lake.execute("SET TimeZone = 'UTC'; SET threads = 1")
    register_functions(lake)
    add_table(lake, connection, table, columns)
    return lake


def add_table(lake: duckdb.DuckDBPyConnection, connection: psycopg.Connection[tuple[object, ...]], table: str, columns: Columns) -> None:
    reads, writes = [], []
    for number, (name, column) in enumerate(columns.items()):
        read, write = _TO_DUCKDB.get(column.pg.base, ("{0}", "{0}"))
        reads.append(f"({read.format(chr(34) + name + chr(34))})::text")
        writes.append(f'CAST({write.format(f"c{number}")} AS {column.lake.duckdb}) AS "{name}"')
    rows = connection.execute(f"select {', '.join(reads)} from {table}").fetchall()
    names = ", ".join(f"c{number} VARCHAR" for number in range(len(reads)))
    lake.execute(f"CREATE TEMP TABLE raw ({names})")
    lake.executemany(f"INSERT INTO raw VALUES ({', '.join('?' for _ in reads)})", rows)
    lake.execute(f'CREATE TABLE "{table}" AS SELECT {", ".join(writes)} FROM raw')
    lake.execute("DROP TABLE raw")


@dataclass(frozen=True)
class Answer:
    """Rows of text, or the SQLSTATE of the failure."""

    rows: list[tuple[str | None, ...]] | None
    error: str | None = None
    types: tuple[int, ...] = field(default=(), compare=False)


def ask_postgres(connection: psycopg.Connection[tuple[object, ...]], sql: str) -> Answer:
    result = connection.pgconn.exec_(sql.encode())
    if result.error_message:
        return Answer(None, (result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b"").decode())
    rows = [
        tuple(None if (value := result.get_value(row, column)) is None else value.decode() for column in range(result.nfields))
        for row in range(result.ntuples)
    ]
    return Answer(rows, types=tuple(result.ftype(number) for number in range(result.nfields)))


def ask_duckdb(lake: duckdb.DuckDBPyConnection, sql: str) -> Answer:
    try:
        return Answer(lake.execute(sql).fetchall())
    except duckdb.Error as error:
        if isinstance(error, duckdb.BinderException | duckdb.ParserException | duckdb.CatalogException):
            raise
        problem = runtime_problem(str(error))
        return Answer(None, problem.sqlstate or FAILED_OVER)
