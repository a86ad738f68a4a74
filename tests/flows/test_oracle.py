"""The oracle: a tiered table and a plain twin get the same random transactions, and must hold the same at every checkpoint.

Clients insert, copy, update, move, rename and delete rows of both tiers, rows of their own and rows that they contend for, with savepoints
and rollbacks, while a worker tiers, folds and reclaims, dies and is resumed, and the gateway restarts. ``ORACLE_SEED`` repeats a run's
choices (not its races).
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from dataclasses import replace

import psycopg
import pytest
from psycopg import conninfo
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.oracle import world as worlds
from tests.oracle.clients import Client
from tests.oracle.journal import Journal
from tests.oracle.worker import Worker
from tests.oracle.world import COLUMNS, SHAPES, TABLE, Shape, World, first_difference, rows_of
from tests.support import reclaim_all

from modak.app import App
from modak.connection import Connection
from modak.core.profile import Profile
from modak.jobs.fold import fold
from modak.jobs.reclaim import reclaim
from modak.jobs.retain import retain
from modak.jobs.tier import tier
from modak.jobs.verify import verify
from modak.spark import pinned_table

pytestmark = pytest.mark.spark

CLIENTS = 4
# What must not be there once everything is settled.
LEFT = """
    select (select count(*) from modak.delta) as delta, (select count(*) from modak.folded) as folded,
           (select count(*) from modak.captured) as captured, (select count(*) from public.t_spill) as spilled,
           (select count(*) from modak.op_log where phase in ('flushing', 'committed')) as open,
           (select count(*) from public.t) - (select count(*) from public.twin) as expired
"""


class Run:
    """One run of the oracle over one table."""

    def __init__(
        self, app: App, connection: Connection, gateway: RunningGateway, shape: Shape, partitions: int, *, kills: bool = False
    ) -> None:
        self.seed = int(os.environ.get("ORACLE_SEED") or random.SystemRandom().randrange(10**6))
        self.app, self.connection, self.gateway, self.kills = app, connection, gateway, kills
        self.journal = Journal(self.seed)
        self.world: World = worlds.create(app, connection, shape, partitions)
        found = connection.execute("select to_regproc('public.modak_upsert') is not null as there").fetchone()
        self.functions = bool(found and found["there"])
        self.clients: list[Client] = []
        self.counts: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()

    def round(self, number: int, transactions: int, jobs: int | None = None) -> None:
        """Transactions of every client beside a worker's jobs; then everybody stands still, and the contents are compared."""
        before = {client.number: client.changes for client in self.clients}
        self.clients = [
            Client(self.world, self.journal, one, f"{self.seed} {number} {one}", before.get(one), self.functions)
            for one in range(1, CLIENTS + 1)
        ]
        worker = Worker(self.world, self.journal, self.gateway, f"{self.seed} {number} worker", jobs, kills=self.kills)
        worker.start()
        for client in self.clients:
            client.work(transactions, worker.ended)
        for one in (*self.clients, worker):
            one.join(240)
            assert not one.is_alive(), f"{one.name} hangs"
            if one.failure is not None:
                self.fail(f"{one.name}: {type(one.failure).__name__}: {one.failure}", getattr(one.failure, "ids", set()))
        for client in self.clients:
            self.counts += client.counts
        self.jobs += worker.done
        self.deaths += worker.deaths
        self.check(f"after round {number}")

    def check(self, when: str) -> None:
        """By the name, and on the gateway's port with a query that the lake answers and one that Postgres does."""
        expected = rows_of(self.connection, self.world, "twin")
        self.compare(f"{when}, through the name", rows_of(self.connection, self.world, "t"), expected)
        dsn = conninfo.make_conninfo(self.app.dsn, host="127.0.0.1", port=self.gateway.port)
        with psycopg.connect(dsn, autocommit=True, options="-c timezone=UTC") as people:
            self.compare(f"{when}, on the port", rows_of(people, self.world, "t"), expected)
            plain = [name for name in COLUMNS if name != "doc"]
            self.compare(
                f"{when}, on the port by the lake",
                rows_of(people, self.world, "t", plain),
                rows_of(self.connection, self.world, "twin", plain),
            )

    def compare(self, when: str, found: list[tuple[object, ...]], expected: list[tuple[object, ...]]) -> None:
        difference = first_difference(found, expected)
        if difference is not None:
            self.fail(f"{when}: {difference}", {int(found) for found in re.findall(r"^key \((\d+)", difference)})

    def fail(self, message: str, ids: set[int]) -> None:
        """With everything that is known about the rows in question."""
        keys = ", ".join(map(str, ids)) or "0"
        places = {
            "public.twin": f"id in ({keys})",
            "public.t_hot": f"id in ({keys})",
            "modak.delta": f"split_part(pk, chr(31), 1)::bigint in ({keys})",
            "modak.captured": f"split_part(pk, chr(31), 1)::bigint in ({keys})",
            "modak.cutline": "true",
        }
        rows = "\n".join(
            f"{place}: {row}"
            for place, where in places.items()
            for row in self.connection.execute(f"select * from {place} where {where} limit 9").fetchall()
        )
        pytest.fail(f"seed {self.seed}, {self.world.shape.name}: {message}\n{rows}\n{self.journal.about(ids)}", pytrace=False)

    def expire(self, places: int) -> None:
        """The floor rises to so many places below T; a retention pass will follow some time later."""
        floor = worlds.line(self.connection, self.world) - places
        if floor > self.world.floor:
            worlds.raise_floor(self.connection, self.world, floor)
            self.journal.note("worker", f"the floor is at {floor} now")

    def settle(self) -> None:
        """No more deaths: what is open is finished, everything is expired, folded and dropped, and the lake holds it all."""
        world = self.world
        with self.app.job(TABLE) as job:
            tier(job, upto=world.shape.canonical(world.top - 2 * worlds.PLACES))
            if world.floor:
                lag = world.shape.length(worlds.line(job.connection, world) - world.floor)
                expired = retain(replace(job, table=replace(job.table, lake_retention_lag=lag)))
                assert expired.retention_line == world.shape.canonical(world.floor)
            reclaim(job)
            outcome = fold(job)
            assert outcome.waiting is None
            reclaim_all(job)
            assert verify(job).differences == ()
        rows = self.connection.execute("select * from modak.delta order by version limit 5").fetchall()
        left = self.connection.execute(LEFT).fetchone()
        if left != {"delta": 0, "folded": 0, "captured": 0, "spilled": 0, "open": 0, "expired": 0}:
            self.fail(f"something is left after the last fold: {left} {rows} {outcome}", {int(row["pk"].split(chr(31))[0]) for row in rows})

    def check_spark(self, when: str) -> None:
        spark = self.app.spark(Profile("default")).newSession()
        plain = [name for name in COLUMNS if name != "doc"]
        with pinned_table(spark, self.app.dsn, "public.t", plain, settings=self.app.settings) as frame:
            kept = frame if self.world.shape.type == "bigint" else frame.selectExpr("id", "unix_micros(ts) as ts", *plain[2:])
            # What lies below the floor is as good as expired, and may be there until a retention pass comes.
            floor = self.world.shape.canonical(self.world.floor)
            found = sorted((tuple(row) for row in kept.collect() if row["ts"] >= floor), key=lambda row: row[:2])
        expected = rows_of(self.connection, self.world, "twin", plain)
        if self.world.shape.type != "bigint":
            expected = [(row[0], round(row[1].timestamp() * 1e6), *row[2:]) for row in expected]
        self.compare(f"{when}, in Spark", found, expected)

    def tell(self) -> None:
        rows = len(rows_of(self.connection, self.world, "twin"))
        self.journal.about(set())
        print(f"seed {self.seed}, {self.world.shape.name}: {dict(self.counts)}, {rows} rows; {dict(self.jobs)}, died {dict(self.deaths)}")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_table_is_its_twin(app: App, connection: Connection, gateway: RunningGateway, shape: str) -> None:
    """Each kind of job in each round. What is compared at the end is compared by Spark as well, and all of the long run works with it."""
    run = Run(app, connection, gateway, SHAPES[shape], partitions=8)
    with inlined():
        with app.job(TABLE) as job:
            tier(job, upto=run.world.shape.canonical(4 * worlds.PLACES))
        run.round(0, transactions=25)
        run.expire(2 * worlds.PLACES)
        run.round(1, transactions=25)
        run.settle()
    run.check("at the end")
    run.check_spark("at the end")
    run.tell()
    assert run.counts["committed"] > 100


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_table_is_its_twin_for_long(app: App, connection: Connection, gateway: RunningGateway, shape: str) -> None:
    """The same for ``SOAK_SECONDS``, half of them for each shape; the table moves on in time, and processes are killed outright."""
    seconds = float(os.environ.get("SOAK_SECONDS", "900")) / len(SHAPES)
    run = Run(app, connection, gateway, SHAPES[shape], partitions=8, kills=True)
    deadline, number = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        # Before the round, so that rows come into the new partitions: retention counts from the newest row's, wherever T was sent.
        if worlds.line(connection, run.world) > run.world.top - 3 * worlds.PLACES:
            worlds.grow(connection, run.world, 3)
        run.round(number, transactions=60, jobs=8)
        run.check_spark(f"after round {number}")
        if number % 3 == 2:
            run.expire(run.seed % 4 * worlds.PLACES + 2 * worlds.PLACES)
        number += 1
    run.settle()
    run.check("at the end")
    run.check_spark("at the end")
    run.tell()
    assert run.counts["committed"] > 100
    assert run.jobs["fold"] > 0
