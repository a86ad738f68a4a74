"""Tiering's promise in figures: rows per second and memory, against the named limits, in one run.

The limit is DuckDB copying the same partition from Postgres to Parquet; the floor is plain Spark JDBC to Iceberg.
``python bench/tier.py [rows]``; 5 million by default.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import duckdb
import duckdb_extension_postgres_scanner
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.support import Memory, machine, show, timed
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
        connection.execute(f"create table public.{table} ({COLUMNS}, primary key (id, at)) partition by range (at)")
        edges = [f"timestamptz '2025-01-01 00:00+00' + {number * per} * interval '0.1 s'" for number in range(partitions + 2)]
        for number in range(partitions + 1):
            low, high = (connection.execute(f"select ({edges[number + step]})::text").fetchone() for step in (0, 1))
            connection.execute(
                f"create table public.{table}_{number} partition of public.{table} for values from ('{low[0]}') to ('{high[0]}')"  # type: ignore[index]
            )
        connection.execute(FILL.format(table=table, first=0, last=rows))
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
    extension = next(Path(duckdb_extension_postgres_scanner.__file__).parent.rglob("*.duckdb_extension"))
    connection = duckdb.connect()
    connection.execute(f"load '{extension}'")
    connection.execute(f"attach '{app.dsn}' as pg (type postgres, read_only)")
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


def writers_beside(app: App, work: threading.Thread | None, seconds: float) -> float:
    """Inserts per second into a partition that is not being tiered."""
    import time

    done, end = 0, time.perf_counter() + seconds
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        while work.is_alive() if work else time.perf_counter() < end:
            connection.execute("insert into public.other values (%s, 'x')", [done])
            done += 1
            if work is None and time.perf_counter() >= end:
                break
        spent = time.perf_counter() - (end - seconds)
    return done / spent


def main(rows: int) -> None:
    with machine() as app:
        app.spark(Profile("default")).sql("select 1").collect()
        make(app, "warm", 10_000, 1)
        by_tier(app, "warm")
        make(app, "one", rows, 1)
        limit = by_duckdb(app, "one_0", str(app.settings.data))
        floor = by_jdbc(app, "one_0")
        with Memory() as memory:
            ours = by_tier(app, "one")
        make(app, "five", rows, 5)
        five = by_tier(app, "five")
        with psycopg.connect(app.dsn, autocommit=True) as connection:
            connection.execute("create table public.other (id bigint, val text)")
        make(app, "beside", rows, 1)
        alone = writers_beside(app, None, 5)
        work = threading.Thread(target=lambda: by_tier(app, "beside"))
        work.start()
        together = writers_beside(app, work, 0)
        work.join()
        show(
            f"Tiering {rows:,} rows of 10 columns",
            [
                ("DuckDB to Parquet (the limit)", f"{rows / limit:,.0f} rows/s", ""),
                ("plain Spark JDBC to Iceberg", f"{rows / floor:,.0f} rows/s", f"{limit / floor:.2f} of the limit"),
                ("modak tier, one partition", f"{rows / ours:,.0f} rows/s", f"{limit / ours:.2f} of the limit (bar 0.4)"),
                ("modak tier, five partitions", f"{rows / five:,.0f} rows/s", f"{limit / five:.2f} of the limit (bar 0.4)"),
                ("against plain Spark JDBC", f"{floor / ours:.2f} times", "(bar 1.0)"),
                ("peak memory of the process tree", f"{memory.peak / 2**30:.2f} GiB", "(bar 2.5)"),
                ("writers elsewhere, alone", f"{alone:,.0f} inserts/s", ""),
                ("writers elsewhere, beside tiering", f"{together:,.0f} inserts/s", f"{together / alone:.2f} of alone (bar 0.8)"),
            ],
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
