"""The fold's promise in figures: corrections into a large lake against one plain Spark MERGE of the same, and reading afterwards.

``python bench/fold.py [rows] [--sizes 1000,100000,1000000]``; 20 million cold rows by default. MERGE works on a second Iceberg table of
the same data files: merge-on-read as ours, with the range of tier keys in its condition, and it reads the same corrections by JDBC.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.support import Memory, machine, show, timed
from bench.tier import FILL
from bench.tier import make as make_partitions
from modak.app import App
from modak.catalog import profiles, tables
from modak.core.profile import Profile
from modak.core.registration import Options
from modak.core.table import Name
from modak.gateway.background import running
from modak.jobs.fold import fold
from modak.jobs.maintain import maintain
from modak.jobs.tier import tier
from modak.lake import commits
from modak.lake.storage import jdbc_url
from modak.registration.register import register
from modak.source.expressions import canonical_key, encoded_key, reference, row_image

NAMES = ("id", "at", "customer", "status", "amount", "quantity", "ratio", "flag", "document", "note")
TYPES = ("bigint", "timestamptz", "int", "text", "numeric(12,2)", "smallint", "float8", "boolean", "text", "text")
COPY = "modak.bench.copy"
READ = "select status, count(*) as n, sum(amount) as a, max(customer) as c, max(ratio) as r from public.{t} group by 1 order by 1"
Figures = list[tuple[str, str, str]]


def cool(app: App, table: str, rows: int, partitions: int) -> None:
    """Rows in days of the lake. The heap keeps its copies: nobody reads them, and to drop them they would be compared first."""
    make_partitions(app, table, rows, partitions)
    name = Name("public", table)
    with app.connection() as connection:
        profile = profiles.get(connection, None)
        register(connection, app.lake(profile), name, Options(tier_key="at", lag="0 days", width="day"), profile=profile.name)
    with app.job(name) as job:
        tier(job)


def copy_lake(app: App, table: str) -> None:
    """Another table of the same files: position deletes leave data files as they are, so both may have them."""
    with app.connection() as connection:
        source = app.lake(profiles.get(connection, None)).load(tables.get(connection, Name("public", table)).lake_table_ref)
    app.spark(Profile("default")).sql("create namespace if not exists modak.bench")
    catalog = app.lake(Profile("default")).catalog
    made = catalog.create_table(
        ("bench", "copy"),
        source.schema(),
        partition_spec=source.spec(),
        sort_order=source.sort_order(),
        properties={**source.properties, "format-version": "2"},
    )
    assert made.schema().as_struct() == source.schema().as_struct()
    commits.append(made, [task.file for task in source.scan().plan_files()], {})


class Corrections:
    """Corrections of rows that lie evenly over the table, each batch of other rows than the ones before; one in ten removes its row."""

    def __init__(self, app: App, table: str, rows: int) -> None:
        self._app, self._table, self._rows, self._batches = app, table, rows, 0

    def make(self, count: int) -> None:
        """Written as the triggers of the view would: only faster, since a bench of the fold need not wait for them."""
        self._batches += 1
        with self._app.job(Name("public", self._table)) as job:
            shape = job.shape(job.relation())
            keys = [column for column in shape.columns if column.name in shape.primary_key]
            numbers = f"select {self._batches} + k * {self._rows // count} as n from generate_series(0::bigint, {count - 1}) k"
            source = FILL.split("select", 1)[1].rpartition(" from generate_series")[0]
            gone = "r.id / 7 % 10 = 0"
            job.connection.execute(
                f"""insert into modak.delta (table_id, pk, op, tier_key, payload, placed)
                select {shape.table_id}, {encoded_key(shape.primary_key, "r")}, case when {gone} then 1 else 0 end,
                       {canonical_key(shape.key_type, reference("at", "r"))},
                       case when {gone} then {row_image(keys, "r")} else {row_image(shape.columns, "r")} end, true
                  from (select {source} from ({numbers}) s) f({", ".join(NAMES)}),
                       lateral (select f.id, f.at, f.customer, 'corrected' as status, f.amount + 1 as amount,
                                       f.quantity::smallint as quantity, f.ratio::float8 as ratio, f.flag, f.document, f.note) r"""
            )
            job.connection.execute(f"analyze modak.delta_{shape.table_id}")

    def merge(self) -> float:
        """Seconds of one plain MERGE of what the delta holds now."""
        spark, (url, user, password) = self._app.spark(Profile("default")), jdbc_url(self._app.dsn)
        with self._app.connection() as connection:
            table_id = tables.get(connection, Name("public", self._table)).table_id
            ends = connection.execute(f"select min(tier_key) as low, max(tier_key) as high from modak.delta_{table_id}").fetchone()
        assert ends is not None
        typed = ", ".join(f"(d.payload->>'{name}')::{kind} as {name}" for name, kind in zip(NAMES, TYPES, strict=True))
        properties = {"user": user, "password": password or "", "driver": "org.postgresql.Driver", "fetchsize": "10000"}
        assigned = ", ".join(f"t.{name} = s.{name}" for name in NAMES)
        statement = f"""merge into {COPY} t using corrections s
            on t.id = s.id and t.at = s.at and t.at >= timestamp_micros({ends["low"]}) and t.at <= timestamp_micros({ends["high"]})
            when matched and s.op = 1 then delete
            when matched then update set {assigned}
            when not matched and s.op = 0 then insert ({", ".join(NAMES)}) values ({", ".join(f"s.{name}" for name in NAMES)})"""

        def work() -> None:
            source = f"(select d.op, d.version, {typed} from modak.delta_{table_id} d) corrections"
            predicates = [f"version % 4 = {number}" for number in range(4)]
            frame = spark.read.jdbc(url, source, predicates=predicates, properties=properties).drop("version")
            frame.createOrReplaceTempView("corrections")
            spark.sql(statement).collect()

        return timed(work)

    def fold(self) -> float:
        with self._app.job(Name("public", self._table)) as job:
            return timed(lambda: fold(job))


def compare(corrections: Corrections, size: int, turns: int) -> tuple[str, str, str]:
    """Both on the same corrections, one after the other; medians of a few turns where they are cheap."""
    folds, merges = [], []
    for _ in range(turns):
        corrections.make(size)
        merges.append(corrections.merge())
        folds.append(corrections.fold())
    ours, theirs = statistics.median(folds), statistics.median(merges)
    return f"fold of {size:,} corrections", f"{ours:.1f} s", f"{ours / theirs:.2f} of MERGE's {theirs:.1f} s (bar 1.3)"


def read(app: App, port: int, table: str) -> float:
    with psycopg.connect(make_conninfo(app.dsn, host="127.0.0.1", port=port), autocommit=True) as people:
        query = READ.format(t=table)
        people.execute(query).fetchall()
        return statistics.median(timed(lambda: people.execute(query).fetchall()) for _ in range(9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", type=int, default=20_000_000)
    parser.add_argument("--sizes", default="1000,100000,1000000", help="corrections of each comparison")
    given = parser.parse_args()
    rows, sizes = given.rows, [int(size) for size in given.sizes.split(",")]
    figures: Figures = []
    with machine() as app, running(App(replace(app.settings, gateway=("127.0.0.1", 0))).gateway()) as gateway:
        app.spark(Profile("default")).sql("select 1").collect()
        cool(app, "orders", rows, 10)
        copy_lake(app, "orders")
        corrections = Corrections(app, "orders", rows)
        corrections.make(100)  # everything is warm afterwards
        corrections.merge()
        corrections.fold()
        clean = read(app, gateway.port, "orders")
        with Memory() as memory:
            for size in sizes:
                figures.append(compare(corrections, size, turns=3 if size <= 100_000 else 1))
        figures.append(("peak memory of the process tree", f"{memory.peak / 2**30:.2f} GiB", ""))
        corrections.make(rows // 10)
        corrections.fold()
        folded = read(app, gateway.port, "orders")
        with app.job(Name("public", "orders")) as job:
            seconds = timed(lambda: maintain(job))
        maintained = read(app, gateway.port, "orders")
        figures += [
            ("reading all cold rows on the port", f"{rows / clean:,.0f} rows/s", "hardly anything folded"),
            ("right after a fold of a tenth", f"{rows / folded:,.0f} rows/s", f"{clean / folded:.2f} of that (bar 0.6)"),
            ("after maintenance", f"{rows / maintained:,.0f} rows/s", f"{clean / maintained:.2f} of that (bar 0.95)"),
            ("maintenance itself", f"{seconds:.1f} s", f"{rows / seconds:,.0f} rows/s written anew"),
        ]
    show(f"Folding into {rows:,} cold rows", figures)


if __name__ == "__main__":
    main()
