"""Writing's promise in figures: inserts, updates and COPY through the name against the heap itself, and corrections of cold rows.

``python bench/write.py [rows] [--cold 500000] [--seconds 10]``; 100,000 rows at a time by default. Name and heap take turns, and medians
are compared: machines have moods.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.support import machine, show, timed
from modak.app import App
from modak.catalog import profiles
from modak.core.registration import Options
from modak.core.table import Name
from modak.gateway.background import running
from modak.jobs.reclaim import reclaim
from modak.jobs.tier import tier
from modak.registration.register import register

COLUMNS = "id bigint not null, at timestamptz not null, customer integer, status text, amount numeric(12,2), note text"
COLD, HOT = "timestamptz '2025-01-01 00:00+00'", "timestamptz '2025-02-01 00:00+00'"
VALUES = "select n, {start} + n % 2000000 * interval '1 s', n % 50000, 'placed', (n % 100000)::numeric / 100, 'note ' || n % 100"
UPDATED = 10_000
SINGLES = 500
TURNS = 7
NAMES = ("orders", "orders_hot")
Figures = list[tuple[str, str, str]]


def make(app: App, cold: int) -> None:
    """A month of cold rows, and a hot one that rows are written to."""
    name = Name("public", "orders")
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute(f"create table public.orders ({COLUMNS}, primary key (id, at)) partition by range (at)")
        for month in (1, 2):
            low, high = f"2025-0{month}-01 00:00+00", f"2025-0{month + 1}-01 00:00+00"
            connection.execute(f"create table public.orders_{month} partition of public.orders for values from ('{low}') to ('{high}')")
        connection.execute(f"insert into public.orders {VALUES.format(start=COLD)} from generate_series(0::bigint, {cold - 1}) n")
        connection.execute(f"insert into public.orders {VALUES.format(start=HOT)} from generate_series(10000000::bigint, 10100000) n")
        connection.execute("vacuum analyze public.orders")
    with app.connection() as connection:
        profile = profiles.get(connection, None)
        register(connection, app.lake(profile), name, Options(tier_key="at", lag="0 days", width="day"), profile=profile.name)
    with app.job(name) as job:
        tier(job)
        reclaim(job)


def alternate(measure: Callable[[str], float]) -> dict[str, float]:
    """Median seconds for either name; each goes first as often as the other."""
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for turn in range(TURNS):
        for name in NAMES if turn % 2 else reversed(NAMES):
            found[name].append(measure(name))
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def told(what: str, rows: int, seconds: dict[str, float], bar: str = "") -> Figures:
    ratio = seconds["orders_hot"] / seconds["orders"]
    return [
        (f"{what}, heap", f"{rows / seconds['orders_hot']:,.0f} rows/s", ""),
        (f"{what}, name", f"{rows / seconds['orders']:,.0f} rows/s", f"{ratio:.2f} of the heap{bar}"),
    ]


class Hot:
    """Writes to the hot month. Every one takes ids of its own, so that nothing grows faster for one name than for the other."""

    def __init__(self, connection: psycopg.Connection, rows: int) -> None:
        self._connection, self._rows, self._next = connection, rows, 20_000_000

    def _first(self, rows: int) -> int:
        self._next += rows
        return self._next - rows

    def insert(self, name: str) -> float:
        first = self._first(self._rows)
        source = f"from generate_series({first}::bigint, {first + self._rows - 1}) n"
        return timed(lambda: self._connection.execute(f"insert into public.{name} {VALUES.format(start=HOT)} {source}"))

    def copy(self, name: str) -> float:
        first, text = self._first(self._rows), io.StringIO()
        query = f"copy ({VALUES.format(start=HOT)} from generate_series({first}::bigint, {first + self._rows - 1}) n) to stdout"
        with self._connection.cursor() as cursor, cursor.copy(query) as rows:
            text.write("".join(bytes(block).decode() for block in rows))

        def send() -> None:
            with self._connection.cursor() as cursor, cursor.copy(f"copy public.{name} from stdin") as copy:
                copy.write(text.getvalue())

        return timed(send)

    def update(self, name: str) -> float:
        first = 10_000_000 + self._first(0) % 7 * UPDATED
        where = f"id between {first} and {first + UPDATED - 1} and at >= {HOT}"
        return timed(lambda: self._connection.execute(f"update public.{name} set amount = amount + 1 where {where}"))

    def insert_singly(self, name: str) -> float:
        statement = f"insert into public.{name} {VALUES.format(start=HOT)} from (values (%s::bigint)) s(n)".replace("% 2", "%% 2").replace(
            "n % ", "n %% "
        )
        first = self._first(SINGLES)
        return timed(lambda: [self._connection.execute(statement, [first + number], prepare=True) for number in range(SINGLES)])

    def update_singly(self, name: str) -> float:
        statement = f"update public.{name} set amount = amount + 1 where id = %s and at = {HOT} + %s * interval '1 s'"
        first = 10_000_000 + self._first(1) % 90_000
        keys = [(first + number, (first + number) % 2_000_000) for number in range(SINGLES)]
        return timed(lambda: [self._connection.execute(statement, key, prepare=True) for key in keys])


def hot(app: App, rows: int) -> Figures:
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        writes = Hot(connection, rows)
        for measure in (writes.insert, writes.update):
            measure("orders")  # the first plan of each
        return [
            *told(f"INSERT of {rows:,} rows", rows, alternate(writes.insert), " (bar 0.85)"),
            *told(f"COPY of {rows:,} rows", rows, alternate(writes.copy)),
            *told(f"UPDATE of {UPDATED:,} hot rows", UPDATED, alternate(writes.update), " (bar 0.2)"),
            *told("INSERT of one row", SINGLES, alternate(writes.insert_singly)),
            *told("UPDATE of one hot row", SINGLES, alternate(writes.update_singly)),
        ]


def correct(dsn: str, first: int, step: int, cold: int, seconds: float) -> int:
    """One client in a process of its own: corrections of cold rows by their key, each a transaction."""
    done, statement = 0, f"update public.orders set amount = amount + 1 where id = %s and at = {COLD} + %s * interval '1 s'"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement, [first, first])
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            key = (first + (done + 1) * step) * 7919 % cold
            done += connection.execute(statement, [key, key]).rowcount
    return done


def corrections(app: App, cold: int, seconds: float) -> Figures:
    found: Figures = []
    rates = {}
    for clients in (1, 8):
        with multiprocessing.get_context("spawn").Pool(clients) as pool:
            work = [(app.dsn, number, clients, cold, seconds) for number in range(clients)]
            rates[clients] = sum(pool.starmap(correct, work)) / seconds
        note = f"{rates[8] / rates[1]:.1f} times one client" if clients == 8 else ""
        found.append((f"corrections of one cold row, {clients} clients", f"{rates[clients]:,.0f} rows/s", note))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", type=int, default=100_000)
    parser.add_argument("--cold", type=int, default=500_000, help="cold rows, to be corrected one by one")
    parser.add_argument("--seconds", type=float, default=10, help="for each number of clients")
    given = parser.parse_args()
    with machine() as app, running(App(replace(app.settings, gateway=("127.0.0.1", 0))).gateway()):
        make(app, given.cold)
        figures = hot(app, given.rows) + corrections(app, given.cold, given.seconds)
    show(f"Writing through the name, {given.cold:,} cold rows beside", figures)


if __name__ == "__main__":
    main()
