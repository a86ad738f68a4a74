"""Reading's promise in figures: hot look-ups against the bare heap, cold look-ups, cold ranges, and analytics on the port.

``python bench/read.py [rows] [--seconds 60]``; 5 million cold rows in 50 files by default. The heap twin holds the same rows in Postgres;
DuckDB alone reads the same files.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import duckdb
import psycopg
from psycopg.conninfo import make_conninfo

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.support import Memory, machine, show, timed
from modak.app import App
from modak.catalog import profiles, tables
from modak.core.registration import Options
from modak.core.table import Name
from modak.gateway.background import running
from modak.jobs.reclaim import reclaim
from modak.jobs.tier import tier
from modak.registration.register import register

FILES = 50
COLUMNS = """id bigint not null, shipped date not null, quantity integer, price numeric(12,2), discount numeric(4,2), tax numeric(4,2),
    flag text, status text, comment text"""
FILL = """insert into public.{table} select n, date '2020-01-01' + (n * {days} / {rows})::int, (n * 7 % 50)::int,
    (n * 104729 % 10000000)::numeric / 100, (n % 11)::numeric / 100, (n % 9)::numeric / 100,
    (array['A','N','R'])[1 + n % 3], (array['F','O'])[1 + n % 2], 'line ' || n
    from generate_series(0::bigint, {rows}) n"""
AGGREGATES = {
    "pricing summary": """select flag, status, sum(quantity) as q, sum(price) as p, sum(price * (1 - discount)) as d, count(*) as n
        from {t} where shipped <= date '2024-01-01' group by flag, status order by flag, status""",
    "revenue change": """select sum(price * discount) as revenue from {t}
        where shipped >= date '2021-01-01' and shipped < date '2022-01-01' and discount between 0.05 and 0.07 and quantity < 24""",
    "largest days": """select shipped, count(*) as n, sum(price) as p from {t} where shipped < date '2020-01-01' + 1500
        group by shipped order by p desc, shipped limit 10""",
}


def make(app: App, rows: int) -> None:
    """Fifty cold partitions of thirty days, a hot one above them, and a plain twin."""
    days = FILES * 30
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute(f"create table public.lines ({COLUMNS}) partition by range (shipped)")
        for number in range(FILES + 1):
            edge = [f"2020-01-01'::date + {(number + step) * 30}" for step in (0, 1)]
            (low,), (high,) = (connection.execute(f"select ('{text})::text").fetchall()[0] for text in edge)
            connection.execute(f"create table public.lines_{number} partition of public.lines for values from ('{low}') to ('{high}')")
        connection.execute("set maintenance_work_mem = '512MB'")
        connection.execute(FILL.format(table="lines", rows=rows, days=days))
        connection.execute("alter table public.lines add primary key (id, shipped)")
        connection.execute(
            "insert into public.lines select n, date '2020-01-01' + 1505, 1, 1, 0, 0, 'A', 'F', 'hot' "
            "from generate_series(100000000, 100050000) n"
        )
        connection.execute("create table public.twin as select * from public.lines where id < 100000000")
        connection.execute("alter table public.twin add primary key (id, shipped)")
        connection.execute("vacuum analyze public.lines")
        connection.execute("vacuum analyze public.twin")


def cool(app: App) -> None:
    name = Name("public", "lines")
    with app.connection() as connection:
        profile = profiles.get(connection, None)
        register(connection, app.lake(profile), name, Options(tier_key="shipped", lag="0 days", width="month"), profile=profile.name)
    with app.job(name) as job:
        tier(job)
        reclaim(job)


def on_port(app: App, port: int) -> str:
    return make_conninfo(app.dsn, host="127.0.0.1", port=port)


def latencies(connection: psycopg.Connection, statements: Sequence[str], value: Callable[[int], object], count: int) -> list[float]:
    """Median milliseconds of prepared look-ups by each statement. They take turns, so that a noisy moment of the machine hits all."""
    taken: list[list[float]] = [[] for _ in statements]
    for number in range(count + 20):
        for sql, times in zip(statements, taken, strict=True):
            start = time.perf_counter()
            connection.execute(sql, [value(number)], prepare=True).fetchall()
            times.append(time.perf_counter() - start)
    return [statistics.median(times[20:]) * 1000 for times in taken]


def look_ups(app: App, rows: int) -> list[tuple[str, str, str]]:
    found = []
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        hot = "select * from public.{} where id = %s and shipped = date '2020-01-01' + 1505"
        for mode, note in (("force_generic_plan", "prepared"), ("force_custom_plan", "planned each time")):
            connection.execute(f"set plan_cache_mode = {mode}")
            heap, view = latencies(connection, [hot.format("lines_hot"), hot.format("lines")], lambda n: 100000000 + n, 4000)
            bar = f"{view / heap:.2f} of the heap" + (" (bar 1.3)" if note == "prepared" else "")
            found += [(f"hot look-up, heap, {note}", f"{heap:.3f} ms", ""), (f"hot look-up, name, {note}", f"{view:.3f} ms", bar)]
        connection.execute("set plan_cache_mode = auto")
        by_key = [f"select * from public.{name} where id = %s" for name in ("twin", "lines")]
        heap, cold = latencies(connection, by_key, lambda n: n * 7919 % rows, 300)
        found += [
            ("look-up by key, heap twin", f"{heap:.3f} ms", ""),
            ("cold look-up by key", f"{cold:.2f} ms", f"(bar {heap * 10 + 15:.1f} ms)"),
        ]
        limit = "select * from public.lines where shipped < date '2020-01-01' + 300"
        start = time.perf_counter()
        with connection.cursor(name="range") as cursor, connection.transaction():
            cursor.itersize = 50_000
            count = sum(1 for _ in cursor.execute(limit))
        found.append(("cold range through the name", f"{count / (time.perf_counter() - start):,.0f} rows/s", f"{count:,} rows"))
    return found


def analytics(app: App, port: int) -> list[tuple[str, str, str]]:
    """The same query on the port, in DuckDB alone on the same files, and on the heap twin."""
    with app.connection() as connection:
        table = tables.get(connection, Name("public", "lines"))
        lake = app.lake(profiles.get(connection, None)).load(table.lake_table_ref)
    files = [task.file.file_path.removeprefix("file://") for task in lake.scan().plan_files()]
    alone = duckdb.connect()
    alone.execute(f"create view lake as select * from read_parquet({files!r})")
    found = []
    with psycopg.connect(on_port(app, port), autocommit=True) as people, psycopg.connect(app.dsn) as heap:
        for name, sql in AGGREGATES.items():
            by_port = min(timed(lambda: people.execute(sql.format(t="public.lines")).fetchall()) for _ in range(3))  # noqa: B023
            by_duckdb = min(timed(lambda: alone.execute(sql.format(t="lake")).fetchall()) for _ in range(3))  # noqa: B023
            by_heap = min(timed(lambda: heap.execute(sql.format(t="public.twin")).fetchall()) for _ in range(2))  # noqa: B023
            figures = f"{by_port / by_duckdb:.2f} of DuckDB alone (bar 1.3), {by_heap / by_port:.1f} times Postgres (bar 5)"
            found.append((f"port: {name}", f"{by_port * 1000:.0f} ms", figures))
        both = AGGREGATES["largest days"].replace("where shipped < date '2020-01-01' + 1500", "")
        seconds = min(timed(lambda: people.execute(both.format(t="public.lines")).fetchall()) for _ in range(3))
        found.append(("port: largest days, hot rows too", f"{seconds * 1000:.0f} ms", "50,000 rows come from the heap"))
    return found


def crowd(app: App, port: int, rows: int, seconds: float) -> list[tuple[str, str, str]]:
    """64 clients at once, half of them through the name and half on the port."""
    stop, done, failed = threading.Event(), [0] * 64, list[str]()

    def client(number: int) -> None:
        dsn = app.dsn if number % 2 else on_port(app, port)
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                while not stop.is_set():
                    if number % 2:
                        connection.execute(
                            "select * from public.lines where id = %s", [(number * 7919 + done[number] * 13) % rows]
                        ).fetchall()
                    else:
                        connection.execute("select count(*), sum(price) from public.lines where shipped < date '2020-03-01'").fetchall()
                    done[number] += 1
        except psycopg.Error as error:
            failed.append(str(error))

    clients = [threading.Thread(target=client, args=[number]) for number in range(64)]
    with Memory() as memory:
        for thread in clients:
            thread.start()
        time.sleep(seconds)
        stop.set()
        for thread in clients:
            thread.join()
    first = failed[0].splitlines()[0] if failed else ""
    return [
        (f"64 clients for {seconds:.0f} s", f"{sum(done) / seconds:,.0f} queries/s", f"{len(failed)} errors {first}"),
        ("peak memory of bench and gateway", f"{memory.peak / 2**30:.2f} GiB", ""),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="?", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    with machine() as app:
        make(app, given.rows)
        with running(App(replace(app.settings, gateway=("127.0.0.1", 0))).gateway()) as gateway:
            cool(app)
            figures = look_ups(app, given.rows)
            figures += analytics(app, gateway.port)
            figures += crowd(app, gateway.port, given.rows, given.seconds)
    show(f"Reading {given.rows:,} cold rows in {FILES} files", figures)


if __name__ == "__main__":
    main()
