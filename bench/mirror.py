"""The mirror's promise in figures: the first copy against tiering's flush, changes per second against decoding alone, reads afterwards.

The limit of the pump is a reader of the same slot that decodes every message and does nothing with it.
``python bench/mirror.py [rows]``; half a million by default. As many are inserted then, and each of the million updated once: so many
updates are behind the figures for reads.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.support import Memory, machine, show, timed
from modak.app import App
from modak.catalog import mirrors, profiles, tables
from modak.connection import connect
from modak.core.registration import Options
from modak.core.table import Name
from modak.jobs import initial_copy, maintain, mirror, tier
from modak.jobs.mirroring.outcome import MirrorOutcome
from modak.registration.register import register
from modak.registration.unregister import unregister
from modak.source import replication
from modak.source.pgoutput import Begin, decode
from modak.source.replication import Keepalive, Stream

COLUMNS = (
    "id bigint not null, at timestamptz not null, customer integer, status text, amount numeric(12,2), ratio double precision, note text"
)
FILL = """insert into public.{table} select n, timestamptz '2026-01-01 00:00+00' + n * interval '0.1 s', n % 50000,
    (array['placed','paid','shipped'])[1 + n % 3], (n % 100000)::numeric / 100, n * 1.5, 'note ' || n
    from generate_series({first}, {last}) n"""
UPDATE = "update public.mirrored set amount = amount + 1, note = 'again' where {condition}"
T = Name("public", "mirrored")
COPIED = Name("public", "copied")
COPIED_ROWS = 3_000_000  # making a slot takes part of a second, which is not what the first copy is about
LAG_SECONDS = 15.0
TRANSACTION_ROWS = 1_000


def make(app: App, rows: int) -> None:
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute(f"create table public.mirrored ({COLUMNS}, primary key (id))")
        connection.execute(FILL.format(table="mirrored", first=1, last=rows))
        connection.execute(f"create table public.tiered ({COLUMNS}, primary key (id, at)) partition by range (at)")
        connection.execute("create table public.tiered_1 partition of public.tiered for values from ('2026-01-01') to ('2027-01-01')")
        connection.execute("create table public.tiered_2 partition of public.tiered for values from ('2027-01-01') to ('2028-01-01')")
        connection.execute(f"create table public.copied ({COLUMNS}, primary key (id))")
        for table in ("tiered", "copied"):
            connection.execute(FILL.format(table=table, first=1, last=COPIED_ROWS))
        connection.execute("vacuum analyze public.mirrored, public.tiered, public.copied")


def decoding(app: App) -> float:
    """Seconds to read and decode what the pump is about to follow."""
    with app.connection() as connection:
        table = tables.get(connection, T)
        target, start = replication.flushed_lsn(connection), mirrors.get(connection, table.table_id).applied_lsn
    began = time.perf_counter()
    with contextlib.closing(Stream(app.dsn, str(table.slot_name), str(table.publication_name), start)) as stream:
        while True:
            found = stream.read(1.0)
            if isinstance(found, Keepalive) and found.end_lsn >= target:
                break
            if found is None:
                stream.confirm(0, ask=True)
            elif isinstance(found, bytes) and isinstance(message := decode(found), Begin) and message.final_lsn >= target:
                break
    return time.perf_counter() - began


def pump(app: App) -> MirrorOutcome:
    with app.connection() as connection:
        return mirror.mirror(connection, app.dsn, app.job)


def scan(app: App) -> float:
    """Seconds of an aggregate over the published lake by DuckDB's own Iceberg reader."""
    import duckdb_extension_avro
    import duckdb_extension_iceberg

    with app.connection() as connection:
        row = connection.execute("select lake_props from modak.cutline where table_id = 'public.mirrored'::regclass").fetchone()
    assert row is not None
    with duckdb.connect() as engine:
        for module in (duckdb_extension_avro, duckdb_extension_iceberg):
            name = module.__name__.removeprefix("duckdb_extension_")
            folder = Path(str(module.__file__)).parent / "extensions" / f"v{duckdb.__version__}"
            engine.execute(f"load '{folder / f'{name}.duckdb_extension'}'")
        query = f"select status, count(*), sum(amount), sum(ratio) from iceberg_scan('{row['lake_props']['metadata_location']}') group by 1"
        return min(timed(lambda: engine.execute(query).fetchall()) for _ in range(3))


def changes(app: App, statements: list[str]) -> None:
    with connect(app.dsn, autocommit=True) as session:
        for statement in statements:
            session.execute(statement)


def inserting(rows: int) -> Callable[[int, int], str]:
    """Rows that were not there, after the first so many; from one number to another."""
    return lambda low, high: FILL.format(table="mirrored", first=rows + low, last=rows + high)


def updating(rows: int) -> Callable[[int, int], str]:
    """The rows that are there, round and round."""
    return lambda low, high: UPDATE.format(condition=f"id between {low % rows} and {low % rows + high - low}")


def lag_at(app: App, rate: float, statement: Callable[[int, int], str], seconds: float = LAG_SECONDS) -> tuple[float, float]:
    """Median and worst time between a commit and its place in the published lake, while rows change at a steady rate."""
    over, made = threading.Event(), list[tuple[float, int]]()

    def write() -> None:
        batch, began, n = max(1, int(rate / 10)), time.perf_counter(), 0
        with connect(app.dsn, autocommit=True) as session:
            while not over.is_set():
                session.execute(statement(n + 1, n + batch))
                made.append((time.perf_counter(), replication.inserted_lsn(session)))
                n += batch
                time.sleep(max(0.0, began + n / rate - time.perf_counter()))

    writer = threading.Thread(target=write)
    writer.start()
    lags, seen, until = list[float](), 0, time.perf_counter() + seconds
    try:
        while time.perf_counter() < until:
            reached, now = pump(app).lsn or 0, time.perf_counter()
            while seen < len(made) and made[seen][1] <= reached:
                lags.append(now - made[seen][0])
                seen += 1
    finally:
        over.set()
        writer.join()
    pump(app)
    return (statistics.median(lags), max(lags)) if lags else (float("inf"), float("inf"))


def leavings(app: App) -> tuple[int, int]:
    """Snapshots and files of the lake table as it stands."""
    with app.connection() as connection:
        table = tables.get(connection, T)
        lake = app.lake(profiles.get(connection, None)).load(table.lake_table_ref)
    return len(lake.metadata.snapshots), len(lake.inspect.files())


def main(rows: int) -> None:
    with machine({"wal_level": "logical"}) as app:
        make(app, rows)
        with app.connection() as connection:
            profile = profiles.get(connection, None)
            lake = app.lake(profile)
            for name in (T, COPIED):
                register(
                    connection, lake, name, Options(tier_key="at", mode="mirrored", surface="heap", width="none"), profile=profile.name
                )
            register(connection, lake, Name("public", "tiered"), Options(tier_key="at", lag="1 day", width="none"), profile=profile.name)
            connection.execute("create table public.warm (id int primary key); insert into public.warm values (1)")
            warm = Options(tier_key="id", mode="mirrored", surface="heap")
            register(connection, lake, Name("public", "warm"), warm, profile=profile.name)
        with app.job(Name("public", "warm")) as job:
            initial_copy.copy(job)  # Spark's workers are up then
        with app.job(T) as job:
            initial_copy.copy(job)
        with app.job(COPIED) as job:
            copied = timed(lambda: initial_copy.copy(job))
        with app.job(Name("public", "tiered")) as job:
            upto = job.table.key_type.decode("2027-01-01 00:00:00+00")
            flushed = timed(lambda: tier.tier(job, upto=upto))
        with app.connection() as connection:
            unregister(connection, app.lake(profile), tables.get(connection, COPIED), drop_lake=True)
        clean = scan(app)
        before = leavings(app)
        fill = FILL.format(table="mirrored", first="{first}", last="{last}")
        changes(app, [fill.format(first=n + 1, last=n + TRANSACTION_ROWS) for n in range(rows, 2 * rows, TRANSACTION_ROWS)])
        limit_inserts = decoding(app)
        with Memory() as memory:
            inserts = timed(lambda: pump(app))
        step = max(1, 2 * rows // TRANSACTION_ROWS)
        changes(app, [UPDATE.format(condition=f"id % {step} = {rest}") for rest in range(step)])
        limit_updates = decoding(app)
        updates = timed(lambda: pump(app))
        left = [now - then for now, then in zip(leavings(app), before, strict=True)]
        after = scan(app)
        with app.job(T) as job:
            maintaining = timed(lambda: maintain.maintain(job))
        maintained = scan(app)

        def one_row() -> None:
            changes(app, ["update public.mirrored set amount = 0 where id = 7"])
            pump(app)

        small = timed(one_row)
        rates = 0.5 * rows / inserts, rows / updates
        lags = [lag_at(app, rate, change(2 * rows)) for rate, change in zip(rates, (inserting, updating), strict=True)]
        million = 1_000_000 / (3 * rows)
        show(
            f"A mirror of {rows:,} rows of 7 columns",
            [
                (
                    f"first copy of {COPIED_ROWS:,}",
                    f"{COPIED_ROWS / copied:,.0f} rows/s",
                    f"{flushed / copied:.2f} of tiering's flush (bar 0.9)",
                ),
                ("inserts, decoded only (the limit)", f"{rows / limit_inserts:,.0f} rows/s", ""),
                ("inserts followed", f"{rows / inserts:,.0f} rows/s", f"{limit_inserts / inserts:.2f} of the limit (bar 48k rows/s)"),
                ("updates, decoded only (the limit)", f"{2 * rows / limit_updates:,.0f} rows/s", ""),
                ("updates followed", f"{2 * rows / updates:,.0f} rows/s", f"{limit_updates / updates:.2f} of the limit (bar 15k rows/s)"),
                ("one small change, seen in the lake", f"{small:.2f} s", ""),
                *(
                    (f"lag at half that rate of {kind} ({rate:,.0f} rows/s)", f"{median:.2f} s", f"{worst:.2f} s at worst")
                    for kind, rate, (median, worst) in zip(("inserts", "updates"), rates, lags, strict=True)
                ),
                ("per million changes", f"{left[0] * million:.0f} snapshots", f"{left[1] * million:.0f} files, deletes included"),
                ("scan by DuckDB, before the updates", f"{rows / clean:,.0f} rows/s", ""),
                (
                    f"scan by DuckDB, after {2 * rows:,} updates",
                    f"{2 * rows / after:,.0f} rows/s",
                    f"{2 * clean / after:.2f} of a clean one (bar 0.6)",
                ),
                (
                    "scan by DuckDB, after maintenance",
                    f"{2 * rows / maintained:,.0f} rows/s",
                    f"{2 * clean / maintained:.2f} of a clean one (bar 0.95), {maintaining:.1f} s",
                ),
                ("peak memory of the pump", f"{memory.peak / 2**30:.2f} GiB", "with Spark's"),
            ],
        )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("rows", nargs="?", type=int, default=500_000)
    main(arguments.parse_args().rows)
