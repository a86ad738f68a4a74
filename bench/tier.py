"""Tiering's promise in figures: rows per second and memory, against the named limits, in one run.

The limit is DuckDB copying the same partition from Postgres to Parquet; the floor is plain Spark JDBC to Iceberg.
``python bench/tier.py [rows] [--rows-large 20000000]``; 5 million by default, and without the large table unless it is asked for.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import duckdb
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.support import Memory, attach_postgres, machine, show, timed
from modak.app import App
from modak.catalog import profiles
from modak.core.profile import Profile
from modak.core.registration import Options
from modak.core.table import Name
from modak.jobs.tier import tier
from modak.lake.storage import jdbc_url
from modak.registration.register import register

COLUMNS = """id bigint not null, at timestamptz not null, customer integer, status text, amount numeric(12,2), quantity smallint,
    ratio double precision, flag boolean, document jsonb, note text"""
FILL = """insert into public.{table} select n, timestamptz '2025-01-01 00:00+00' + n * interval '0.1 s', n % 50000,
    (array['placed','paid','shipped'])[1 + n % 3], (n % 100000)::numeric / 100, n % 100, n * 1.5, n % 2 = 0,
    jsonb_build_object('sku', 'A' || n % 500, 'quantity', n % 3), case when n % 10 = 0 then 'note ' || n end
    from generate_series({first}, {last}) n"""


def make(app: App, table: str, rows: int, partitions: int) -> None:
    """Rows in equal partitions, and one more partition above them with a single row."""
    per = rows // partitions
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute(f"create table public.{table} ({COLUMNS}) partition by range (at)")
        edges = [f"timestamptz '2025-01-01 00:00+00' + {number * per} * interval '0.1 s'" for number in range(partitions + 2)]
        for number in range(partitions + 1):
            low, high = (connection.execute(f"select ({edges[number + step]})::text").fetchone() for step in (0, 1))
            connection.execute(
                f"create table public.{table}_{number} partition of public.{table} for values from ('{low[0]}') to ('{high[0]}')"  # type: ignore[index]
            )
        connection.execute(FILL.format(table=table, first=0, last=rows))
        # An index made afterwards takes a third of the time.
        connection.execute("set maintenance_work_mem = '512MB'")
        connection.execute(f"alter table public.{table} add primary key (id, at)")
        connection.execute(f"vacuum analyze public.{table}")


def by_tier(app: App, table: str) -> float:
    """Seconds of one whole pass: seal, copy, commit, advance. Spark is up already."""
    with app.connection() as connection:
        profile = profiles.get(connection, None)
        name = Name("public", table)
        register(connection, app.lake(profile), name, Options(tier_key="at", lag="0 days", width="month"), profile=profile.name)
    with app.job(name) as job:
        return timed(lambda: tier(job))


def by_duckdb(app: App, table: str, folder: str) -> float:
    connection = duckdb.connect()
    attach_postgres(connection, app.dsn)
    return timed(lambda: connection.execute(f"copy (select * from pg.public.{table}) to '{folder}/limit.parquet' (compression zstd)"))


def by_jdbc(app: App, table: str) -> float:
    spark = app.spark(Profile("default"))
    url, user, password = jdbc_url(app.dsn)
    spark.sql("create namespace if not exists modak.bench")
    query = f"select id, at, customer, status, amount, quantity, ratio, flag, document::text as document, note from public.{table}"
    with psycopg.connect(app.dsn) as connection:
        pages = connection.execute(f"select relpages from pg_class where oid = 'public.{table}'::regclass").fetchone()
    middle = (pages[0] if pages else 2) // 2

    def copy() -> None:
        predicates = [f"ctid < '({middle},0)'::tid", f"ctid >= '({middle},0)'::tid"]
        properties = {"user": user, "password": password or "", "driver": "org.postgresql.Driver", "fetchsize": "10000"}
        source = f"({query.replace(' from ', ', ctid from ')}) q"
        frame = spark.read.jdbc(url, source, predicates=predicates, properties=properties).drop("ctid")
        frame.writeTo("modak.bench.jdbc").using("iceberg").create()

    return timed(copy)


def writer_rate(app: App, goes_on: Callable[[], bool]) -> float:
    """Inserts per second, each a transaction of its own, into a table that is not being tiered."""
    done, start = 0, time.perf_counter()
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        while goes_on():
            connection.execute("insert into public.other values (%s, 'x')", [done])
            done += 1
    return done / (time.perf_counter() - start)


def for_seconds(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end


def writers_beside(app: App, table: str) -> tuple[float, float, float]:
    """(inserts per second alone, beside tiering, seconds of that tiering). Alone is measured before and after: machines have moods."""
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute("create table public.other (id bigint, val text)")
    seconds: list[float] = []
    before = writer_rate(app, for_seconds(5))
    work = threading.Thread(target=lambda: seconds.append(by_tier(app, table)))
    work.start()
    together = writer_rate(app, work.is_alive)
    work.join()
    return mean([before, writer_rate(app, for_seconds(5))]), together, seconds[0]


def large(app: App, rows_large: int, rows: int, seconds: float) -> list[tuple[str, str, str]]:
    make(app, "large", rows_large, 1)
    with Memory() as memory:
        spent = by_tier(app, "large")
    return [
        (
            "modak tier, one partition",
            f"{rows_large / spent:,.0f} rows/s",
            f"{rows_large / spent / (rows / seconds):.2f} of that with {rows:,} (bar 0.9)",
        ),
        ("peak memory of the process tree", f"{memory.peak / 2**30:.2f} GiB", "(bar 2.5)"),
    ]


def main(rows: int, rows_large: int) -> None:
    with machine() as app:
        app.spark(Profile("default")).sql("select 1").collect()
        make(app, "warm", 10_000, 1)
        by_tier(app, "warm")
        make(app, "one", rows, 1)
        limits = [by_duckdb(app, "one_0", str(app.settings.data))]
        floor = by_jdbc(app, "one_0")
        with Memory() as memory:
            ours = by_tier(app, "one")
        make(app, "five", rows, 5)
        make(app, "beside", rows, 1)
        limits.append(by_duckdb(app, "beside_0", str(app.settings.data)))
        five = by_tier(app, "five")
        limit = mean(limits)
        alone, together, beside = writers_beside(app, "beside")
        measured = [
            ("DuckDB to Parquet (the limit)", f"{rows / limit:,.0f} rows/s", ""),
            ("plain Spark JDBC to Iceberg", f"{rows / floor:,.0f} rows/s", f"{limit / floor:.2f} of the limit"),
            ("modak tier, one partition", f"{rows / ours:,.0f} rows/s", f"{limit / ours:.2f} of the limit (bar 0.4)"),
            ("modak tier, five partitions", f"{rows / five:,.0f} rows/s", f"{limit / five:.2f} of the limit (bar 0.4)"),
            ("against plain Spark JDBC", f"{floor / ours:.2f} times", "(bar 1.0)"),
            ("peak memory of the process tree", f"{memory.peak / 2**30:.2f} GiB", "(bar 2.5)"),
            ("writers elsewhere, alone", f"{alone:,.0f} inserts/s", ""),
            ("writers elsewhere, beside tiering", f"{together:,.0f} inserts/s", f"{together / alone:.2f} of alone (bar 0.8)"),
            ("modak tier, beside those writers", f"{rows / beside:,.0f} rows/s", f"{ours / beside:.2f} of undisturbed"),
        ]
        show(f"Tiering {rows:,} rows of 10 columns", measured)
        if rows_large:
            show(f"Tiering {rows_large:,} rows", large(app, rows_large, rows, ours))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("rows", nargs="?", type=int, default=5_000_000)
    arguments.add_argument("--rows-large", type=int, default=0, help="also tier a partition of so many rows, whose speed must not fall")
    given = arguments.parse_args()
    main(given.rows, given.rows_large)
