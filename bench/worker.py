"""The worker: what a cycle costs when nothing happens, and how old the lake is while something does.

    python bench/worker.py [--tables 10,100,1000] [--rate 2000] [--seconds 30]

Idle: tables of twelve partitions each are registered, their first passes are over (marked so, not run: a pass per table is the price of a
start, not of a cycle), and cycles are run one after the other. Freshness: a mirrored table is written to at a steady rate, and each
written row's age is taken when the lake shows it.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.support import machine, show
from modak.app import App
from modak.catalog import mirrors, profiles, tables
from modak.connection import Connection, connect
from modak.core.registration import Options
from modak.core.schedule import WATCHED, Limits
from modak.core.table import Name
from modak.jobs import initial_copy
from modak.lake.storage import Storage
from modak.registration.register import register
from modak.worker.lake_only import LakeOnly
from modak.worker.loop import Loop, _Known
from modak.worker.samples import LOOKS_MAX, Sampler
from modak.worker.survey import Survey

CYCLES = 20
# So many until psycopg has prepared the statement and Postgres kept its plan, as they are in a worker that runs.
WARM = 12
PARTITIONS = 12


def populate(connection: Connection, first: int, last: int) -> None:
    """Rows of the catalog and heaps as register leaves them; the lake's tables are nothing that an idle cycle looks at."""
    for number in range(first, last):
        heap = f"public.t{number}"
        connection.execute(f"create table {heap} (id bigint not null, at bigint not null) partition by range (at)")
        for part in range(PARTITIONS):
            connection.execute(f"create table {heap}_{part} partition of {heap} for values from ({part * 100}) to ({part * 100 + 100})")
        connection.execute(
            """insert into modak.tables (table_id, schema_name, table_name, primary_key_cols, tier_key_col, lake_table_ref, tier_lag,
                                         lake_retention_lag)
               values (%(heap)s::regclass::oid, 'public', %(name)s, '{id,at}', 'at', %(name)s, '100', '100000')""",
            {"heap": heap, "name": f"t{number}"},
        )
        connection.execute("insert into modak.cutline (table_id, tier_key_hi) values (%s::regclass::oid, 600)", [heap])
        connection.execute(
            """insert into modak.partitions (table_id, partition_id, schema_name, partition_name, tier_key_lo, tier_key_hi, state)
               select %(heap)s::regclass::oid, i.inhrelid, 'public', i.inhrelid::regclass::text, 0, 100, 'hot'
                 from pg_inherits i where i.inhparent = %(heap)s::regclass""",
            {"heap": heap},
        )
        connection.execute("select modak.open_delta(%s::regclass::oid::bigint)", [heap])


class NoLease:
    """Leads, and nothing asks it for more."""

    epoch = 1
    lost = threading.Event()


def settled(loop: Loop, survey: Survey, connection: Connection) -> None:
    """Every table as after its first passes."""
    now = time.monotonic()
    for sight in survey.look(connection):
        loop._known[sight.table_id] = _Known(now, dict.fromkeys(WATCHED, (sight.activity, now, True)))


def statements(connection: Connection) -> int:
    """Statements that this database has run, by pg_stat_statements."""
    row = connection.execute("select coalesce(sum(calls), 0)::bigint as n from public.pg_stat_statements").fetchone()
    return int(row["n"]) if row else 0


def idle(app: App, counts: list[int]) -> None:
    rows, base = [], 0.0
    with connect(app.dsn, autocommit=True) as connection, connect(app.dsn, autocommit=True) as watching:
        watching.execute("create extension if not exists pg_stat_statements schema public")
        made = 0
        for count in counts:
            populate(connection, made, count)
            made = count
            connection.execute("analyze")
            loop, survey = Loop(app, threading.Event(), 10.0, Limits(recheck_seconds=1e9)), Survey(Limits())
            # As often as by default; there are no decoupled tables, and to see that is part of a cycle now and then.
            lake_only = LakeOnly(app, loop.state, 600.0)
            with _pools(loop):
                survey.begin(connection)
                settled(loop, survey, connection)
                for _ in range(WARM):
                    loop._cycle(connection, NoLease(), survey, lake_only)  # type: ignore[arg-type]
                backend = connection.info.backend_pid
                before, own, server = statements(watching), _cpu(), _cpu_of(backend)
                start = time.perf_counter()
                for _ in range(CYCLES):
                    loop._cycle(connection, NoLease(), survey, lake_only)  # type: ignore[arg-type]
                wall = (time.perf_counter() - start) / CYCLES
                cpu, postgres = (_cpu() - own) / CYCLES, (_cpu_of(backend) - server) / CYCLES
                asked = (statements(watching) - before - 1) / CYCLES
                assert not loop._running, "a table at rest was given work"
            sampler = Sampler(lambda: nullcontext(connection), _no_lake)
            for _ in range(WARM + -(-count // LOOKS_MAX)):
                sampler.take()
            before, own, server, start = statements(watching), _cpu(), _cpu_of(backend), time.perf_counter()
            for _ in range(CYCLES):
                sampler.take()
            looked = (time.perf_counter() - start) / CYCLES
            looking = (_cpu() - own + _cpu_of(backend) - server) / CYCLES
            samples = (statements(watching) - before - 1) / CYCLES
            base = base or wall
            figure = f"{asked:.0f} statement, {wall * 1e3:.1f} ms wall"
            rows.append((f"{count} tables, an idle cycle", figure, f"worker {cpu * 1e3:.1f}, Postgres {postgres * 1e3:.1f} CPU-ms"))
            rows.append(
                ("", f"{wall / base:.1f} x of {counts[0]} tables", f"{(cpu + postgres) / 10 * 100:.2f}% of a core at a cycle of 10 s")
            )
            figure = f"{samples:.0f} statements, {looked * 1e3:.1f} ms wall"
            rows.append(("a sample of all of them", figure, f"{looking * 1e3:.1f} CPU-ms, every 10 s in every worker"))
    show("Idle", rows)


def _no_lake(_: str) -> Storage:
    raise AssertionError("nothing was ever committed")


@contextmanager
def _pools(loop: Loop) -> Iterator[None]:
    with ThreadPoolExecutor(1) as loop._tables, ThreadPoolExecutor(1) as loop._pump, ThreadPoolExecutor(1) as loop._upkeep:
        yield


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def freshness(app: App, rate: int, seconds: float, cycle: float) -> None:
    """A row is in the lake when F has passed the place of its commit."""
    name = Name("public", "stream")
    with connect(app.dsn, autocommit=True) as connection, connect(app.dsn, autocommit=True) as writer:
        connection.execute("create table public.stream (id bigint primary key, at timestamptz not null, note text)")
        profile = profiles.get(connection, None)
        register(
            connection, app.lake(profile), name, Options(tier_key="at", mode="mirrored", surface="heap", width="day"), profile=profile.name
        )
        with app.job(name) as job:
            initial_copy.copy(job)
        stop = threading.Event()
        loop = Loop(app, stop, cycle)
        thread = threading.Thread(target=loop.run, daemon=True)
        thread.start()
        written: list[tuple[int, float]] = []
        ages: list[float] = []
        table_id = tables.get(connection, name).table_id
        try:
            began, number = time.monotonic(), 0
            while (passed := time.monotonic() - began) < seconds or written:
                if passed < seconds and number < passed * rate:
                    more = max(1, int(passed * rate) - number)
                    writer.execute(
                        "insert into public.stream select i, now(), 'row ' || i from generate_series(%s::bigint, %s::bigint) i",
                        [number, number + more - 1],
                    )
                    number += more
                    row = writer.execute("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint as lsn").fetchone()
                    assert row is not None
                    written.append((int(row["lsn"]), time.monotonic()))
                applied = mirrors.get(connection, table_id).applied_lsn
                now = time.monotonic()
                while written and written[0][0] <= applied:
                    ages.append(now - written.pop(0)[1])
                time.sleep(0.02)
        finally:
            stop.set()
            thread.join()
    ages.sort()
    median = statistics.median(ages)
    rows = [
        (f"rows written, at {rate}/s", f"{number}", ""),
        ("age of a row in the lake, median", f"{median:.2f} s", f"{median / cycle:.1f} x the cycle of {cycle:g} s"),
        ("age of a row in the lake, worst", f"{ages[-1]:.2f} s", f"{ages[-1] / cycle:.1f} x the cycle"),
    ]
    show("Freshness", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", default="10,100,1000")
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--cycle", type=float, default=1.0)
    chosen = parser.parse_args()
    with machine({"wal_level": "logical", "shared_preload_libraries": "pg_stat_statements"}) as app:
        idle(app, [int(count) for count in chosen.tables.split(",")])
    with machine({"wal_level": "logical"}) as app:
        freshness(app, chosen.rate, chosen.seconds, chosen.cycle)


if __name__ == "__main__":
    main()
