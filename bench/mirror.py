"""The mirror's promise in figures: the first copy against tiering's flush, changes per second against decoding alone, reads afterwards.

The limit of the pump is a reader of the same slot that decodes every message and does nothing with it.
``python bench/mirror.py [rows]``; half a million by default.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
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
from modak.jobs import initial_copy, mirror, tier
from modak.registration.register import register
from modak.source import replication
from modak.source.pgoutput import Begin, decode
from modak.source.replication import Keepalive, Stream

COLUMNS = (
    "id bigint not null, at timestamptz not null, customer integer, status text, amount numeric(12,2), ratio double precision, note text"
)
FILL = """insert into public.{table} select n, timestamptz '2026-01-01 00:00+00' + n * interval '0.1 s', n % 50000,
    (array['placed','paid','shipped'])[1 + n % 3], (n % 100000)::numeric / 100, n * 1.5, 'note ' || n
    from generate_series({first}, {last}) n"""
T = Name("public", "mirrored")
TRANSACTION_ROWS = 1_000


def make(app: App, rows: int) -> None:
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute(f"create table public.mirrored ({COLUMNS}, primary key (id))")
        connection.execute(FILL.format(table="mirrored", first=1, last=rows))
        connection.execute(f"create table public.tiered ({COLUMNS}, primary key (id, at)) partition by range (at)")
        connection.execute("create table public.tiered_1 partition of public.tiered for values from ('2026-01-01') to ('2027-01-01')")
        connection.execute("create table public.tiered_2 partition of public.tiered for values from ('2027-01-01') to ('2028-01-01')")
        connection.execute(FILL.format(table="tiered", first=1, last=rows))
        connection.execute("vacuum analyze public.mirrored, public.tiered")


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


def pump(app: App) -> mirror.MirrorOutcome:
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
            session.execute(statement)  # type: ignore[call-overload]


def main(rows: int) -> None:
    with machine({"wal_level": "logical"}) as app:
        make(app, rows)
        with app.connection() as connection:
            profile = profiles.get(connection, None)
            lake = app.lake(profile)
            register(connection, lake, T, Options(tier_key="at", mode="mirrored", surface="heap", width="none"), profile=profile.name)
            register(connection, lake, Name("public", "tiered"), Options(tier_key="at", lag="1 day", width="none"), profile=profile.name)
            connection.execute("create table public.warm (id int primary key); insert into public.warm values (1)")
            warm = Options(tier_key="id", mode="mirrored", surface="heap")
            register(connection, lake, Name("public", "warm"), warm, profile=profile.name)
        with app.job(Name("public", "warm")) as job:
            initial_copy.copy(job)  # Spark's workers are up then
        with app.job(T) as job:
            copied = timed(lambda: initial_copy.copy(job))
        with app.job(Name("public", "tiered")) as job:
            upto = job.table.key_type.decode("2027-01-01 00:00:00+00")
            flushed = timed(lambda: tier.tier(job, upto=upto))
        clean = scan(app)
        fill = FILL.format(table="mirrored", first="{first}", last="{last}")
        changes(app, [fill.format(first=n + 1, last=n + TRANSACTION_ROWS) for n in range(rows, 2 * rows, TRANSACTION_ROWS)])
        limit_inserts = decoding(app)
        with Memory() as memory:
            inserts = timed(lambda: pump(app))
        each = "update public.mirrored set amount = amount + 1, note = 'again' where id % {step} = {rest}"
        step = max(1, 2 * rows // TRANSACTION_ROWS)
        changes(app, [each.format(step=step, rest=rest) for rest in range(step // 2)])
        limit_updates = decoding(app)
        updates = timed(lambda: pump(app))
        after = scan(app)
        small = timed(lambda: changes(app, ["update public.mirrored set amount = 0 where id = 7"]) or pump(app))
        show(
            f"A mirror of {rows:,} rows of 7 columns",
            [
                ("first copy", f"{rows / copied:,.0f} rows/s", f"{flushed / copied:.2f} of tiering's flush (bar 0.9)"),
                ("inserts, decoded only (the limit)", f"{rows / limit_inserts:,.0f} rows/s", ""),
                ("inserts followed", f"{rows / inserts:,.0f} rows/s", f"{limit_inserts / inserts:.2f} of the limit (bar 48k rows/s)"),
                ("updates, decoded only (the limit)", f"{rows / limit_updates:,.0f} rows/s", ""),
                ("updates followed", f"{rows / updates:,.0f} rows/s", f"{limit_updates / updates:.2f} of the limit (bar 15k rows/s)"),
                ("one small change, seen in the lake", f"{small:.2f} s", ""),
                ("scan by DuckDB, before the updates", f"{rows / clean:,.0f} rows/s", ""),
                (
                    "scan by DuckDB, after the updates",
                    f"{2 * rows / after:,.0f} rows/s",
                    f"{2 * clean / after:.2f} of a clean one (bar 0.6)",
                ),
                ("peak memory of the pump", f"{memory.peak / 2**30:.2f} GiB", "with Spark's"),
            ],
        )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("rows", nargs="?", type=int, default=500_000)
    main(arguments.parse_args().rows)
