"""Decoupled tables in figures. ``python bench/decoupled.py [rows] [--part insert|commit|aggregate|writers]``

insert: INSERT … SELECT of a million rows from a heap, on the gateway's port and straight on Postgres, against DuckDB that writes the same
Parquet, from the same heap and from a table of its own, where it need not ask Postgres for the rows. commit: one row by plain SQL against
one bare append by PyIceberg. aggregate: a GROUP BY that Postgres pushes down against DuckDB alone on the same files. writers: commits per
second by several writers, on one node and on three.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
from psycopg.conninfo import make_conninfo

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.lake_nodes import commits_per_second, nodes
from bench.support import Memory, attach_postgres, machine, show, timed
from modak.app import App
from modak.core.profile import Profile
from modak.gateway.background import running

COLUMNS = [("id", "bigint"), ("at", "timestamptz"), ("price", "numeric(12,2)"), ("quantity", "integer"), ("note", "text")]
FILL = """select n, timestamptz '2024-01-01 00:00+00' + n * interval '1 s', (n * 104729 % 10000000)::numeric(12,2) / 100, (n * 7 % 50)::int,
    'line ' || n from generate_series(1::bigint, {rows}) n"""
DUCKDB_FILL = """select n, timestamptz '2024-01-01 00:00:00+00' + n * interval 1 second, ((n * 104729 % 10000000) / 100)::decimal(12,2),
    (n * 7 % 50)::int, 'line ' || n from range(1, {rows} + 1) t(n)"""
ROUNDS = 3
TURNS = 7
COMMITS = 60
WRITING_SECONDS = 8


def insert(app: App, port: int, rows: int) -> list[tuple[str, str, str]]:
    given = json.dumps([{"name": name, "type": kind} for name, kind in COLUMNS])
    with psycopg.connect(app.dsn, autocommit=True) as straight:
        straight.execute(f"create table heap ({', '.join(f'{name} {kind}' for name, kind in COLUMNS)})")
        straight.execute("insert into heap " + FILL.format(rows=rows))
        straight.execute("vacuum analyze heap")
        straight.execute("select modak.create_iceberg_table('public', 'lines', %s)", [given])
        dsn = make_conninfo(app.dsn, host="127.0.0.1", port=port)
        with (
            tempfile.TemporaryDirectory() as folder,
            duckdb.connect() as alone,
            # A statement that psycopg has prepared comes by the extended protocol, and goes the plain way.
            psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as people,
            Memory() as memory,
        ):
            alone.execute("set timezone = 'UTC'; set threads = 2")
            alone.execute("create table heap as " + DUCKDB_FILL.format(rows=rows))
            attach_postgres(alone, app.dsn)
            place = Path(folder) / "lines.parquet"
            # In turns, for the machine may have other work.
            rounds = [
                (
                    timed(lambda: alone.execute(f"copy heap to '{place}' (compression zstd)")),
                    timed(lambda: alone.execute(f"copy pg.public.heap to '{place}' (compression zstd)")),
                    timed(lambda: people.execute("insert into lines select * from heap")),
                )
                for _ in range(TURNS)
            ]
        by_duckdb, from_heap, by_port = (min(column) for column in zip(*rounds, strict=True))
        of_own, of_heap = (statistics.median(one[place] / one[2] for one in rounds) for place in (0, 1))
        copied = min(timed(lambda: straight.execute("copy heap to '/dev/null' (format csv)")) for _ in range(TURNS))
        by_fdw = min(timed(lambda: straight.execute("insert into lines select * from heap")) for _ in range(ROUNDS))
        count = straight.execute("select count(*) from lines").fetchone()
    assert count == ((TURNS + ROUNDS) * rows,)
    return [
        ("DuckDB alone, from the same heap", f"{from_heap:.2f} s", "to Parquet"),
        ("DuckDB alone, from a table of its own", f"{by_duckdb:.2f} s", "to Parquet"),
        (
            "on the port",
            f"{by_port:.2f} s",
            f"{of_heap:.2f} of DuckDB from the heap (bar 0.4), {of_own:.2f} from its own table",
        ),
        (
            "straight on Postgres",
            f"{by_fdw:.2f} s",
            f"{from_heap / by_fdw:.2f} and {by_duckdb / by_fdw:.2f}",
        ),
        ("COPY of the heap as CSV, nothing else", f"{copied:.2f} s", "what Postgres itself takes of it"),
        ("peak memory of bench and gateway", f"{memory.peak / 2**20:.0f} MiB", ""),
    ]


def commit(app: App, _port: int, _rows: int) -> list[tuple[str, str, str]]:
    """Medians of commits that take turns, so that both tables grow alike."""
    given = json.dumps([{"name": name, "type": kind} for name, kind in COLUMNS])
    lake = app.lake(Profile("default"))
    with psycopg.connect(app.dsn, autocommit=True) as client:
        for table in ("lines", "bare"):
            client.execute("select modak.create_iceberg_table('public', %s, %s)", [table, given])
        row = {"id": 1, "at": datetime.datetime.now(datetime.UTC), "price": decimal.Decimal("1.50"), "quantity": 1, "note": "x"}

        def append() -> None:
            table = lake.load("public.bare")
            table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))

        def insert_one() -> None:
            client.execute("insert into lines values (1, now(), 1.5, 1, 'x')")

        def update_one() -> None:
            client.execute("update lines set quantity = quantity + 1 where id = -1")

        client.execute("insert into lines values (-1, now(), 1.5, 1, 'x')")
        times: dict[str, list[float]] = {"insert": [], "append": [], "update": []}
        for _ in range(COMMITS):
            times["append"].append(timed(append))
            times["insert"].append(timed(insert_one))
        for _ in range(COMMITS // 3):
            times["update"].append(timed(update_one))
    bare, one, changed = (statistics.median(times[name]) * 1000 for name in ("append", "insert", "update"))
    return [
        ("one bare append by PyIceberg", f"{bare:.1f} ms", ""),
        ("INSERT of one row", f"{one:.1f} ms", f"{one / bare:.2f} of that (bar 1.5)"),
        ("UPDATE of one row", f"{changed:.1f} ms", f"{changed / bare:.2f} of that"),
    ]


def aggregate(app: App, port: int, rows: int) -> list[tuple[str, str, str]]:
    query = 'select quantity, count(*), sum(price), max("at") from {t} group by quantity order by quantity'
    given = json.dumps([{"name": name, "type": kind} for name, kind in COLUMNS])
    with psycopg.connect(app.dsn, autocommit=True) as straight:
        straight.execute(f"create table heap ({', '.join(f'{name} {kind}' for name, kind in COLUMNS)})")
        straight.execute("insert into heap " + FILL.format(rows=rows * 3))
        straight.execute("select modak.create_iceberg_table('public', 'lines', %s)", [given])
        with psycopg.connect(make_conninfo(app.dsn, host="127.0.0.1", port=port), autocommit=True) as people:
            people.execute("insert into lines select * from heap")
        files = [
            task.file.file_path.removeprefix("file://") for task in app.lake(Profile("default")).load("public.lines").scan().plan_files()
        ]
        listed = ", ".join(f"'{file}'" for file in files)
        with duckdb.connect() as alone:
            alone.execute("set timezone = 'UTC'; set threads = 2")
            wanted = query.format(t=f"read_parquet([{listed}])")
            alone.execute(wanted).to_arrow_table()
            straight.execute(query.format(t="lines")).fetchall()
            pairs = [
                (timed(lambda: alone.execute(wanted).to_arrow_table()), timed(lambda: straight.execute(query.format(t="lines")).fetchall()))
                for _ in range(7)
            ]
        heap = min(timed(lambda: straight.execute(query.format(t="heap")).fetchall()) for _ in range(ROUNDS))
    by_duckdb, pushed = (statistics.median(column) for column in zip(*pairs, strict=True))
    return [
        (f"DuckDB alone, {rows * 3:,} rows", f"{by_duckdb * 1000:.0f} ms", ""),
        ("pushed down by Postgres", f"{pushed * 1000:.0f} ms", f"{pushed / by_duckdb:.2f} of that (bar 1.3)"),
        ("the same rows in a heap", f"{heap * 1000:.0f} ms", f"{heap / pushed:.1f} times as long"),
    ]


def writers() -> list[tuple[str, str, str]]:
    found = []
    for count in (1, 3):
        with nodes(count) as made:
            commits_per_second(made, count, 2)  # everything is warm afterwards
            for number in (1, 4, 16):
                rate, shares = commits_per_second(made, number, WRITING_SECONDS)
                fair = f"{min(shares.values())} to {max(shares.values())} commits a node" if count > 1 and number >= count else ""
                found.append((f"{number} writers on {count} node{'s' * (count > 1)}", f"{rate:.1f} commits/s", fair))
    return found


PARTS = {"insert": insert, "commit": commit, "aggregate": aggregate}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--part", choices=[*PARTS, "writers"], action="append")
    given = parser.parse_args()
    for part in given.part or [*PARTS, "writers"]:
        if part == "writers":
            show("Decoupled tables: single-row commits", writers())
            continue
        with machine() as app, running(App(replace(app.settings, gateway=("127.0.0.1", 0))).gateway()) as gateway:
            figures = PARTS[part](app, gateway.port, given.rows)
        show(f"Decoupled tables: {part}, {given.rows:,} rows", figures)


if __name__ == "__main__":
    main()
