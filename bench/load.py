"""Stream Load's promise in figures: rows per second by the library and by HTTP, against plain COPY of the same rows into the same heap.

The limit sends bytes that were made beforehand, one COPY and one commit per batch. Clients are processes, since a client is as much work as
Postgres is; rows are made before the clock starts. By HTTP they are JSON lines, sent to one worker on the same machine.
``python bench/load.py [rows]``, so many for each figure; 400,000 by default.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.support import machine, show
from bench.tier import COLUMNS
from modak.app import App
from modak.catalog import profiles
from modak.core.registration import Options
from modak.core.table import Name
from modak.jobs.reclaim import reclaim
from modak.jobs.tier import tier
from modak.load import LoadClient, LoadOptions, LoadRequest, lake_storage
from modak.load.columns import content
from modak.load.rows import Source
from modak.load.table import read
from modak.registration.register import register

TABLE = Name("public", "loaded")
BARS = {1_000: 0.25, 10_000: 0.5, 100_000: 0.7}
HTTP_BAR = 0.5
TOKEN = "bench"
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
COLD = datetime.datetime(2025, 6, 1, tzinfo=datetime.UTC)
_STATUS = ("placed", "paid", "shipped")


def row(number: int, start: datetime.datetime = START) -> dict[str, Any]:
    """The row of bench/tier.py, as a client has it that read JSON."""
    return {
        "id": number,
        "at": (start + datetime.timedelta(milliseconds=number % 10_000_000)).isoformat(),
        "customer": number % 50_000,
        "status": _STATUS[number % 3],
        "amount": f"{number % 100_000 / 100:.2f}",
        "quantity": number % 100,
        "ratio": number * 1.5,
        "flag": number % 2 == 0,
        "document": {"sku": f"A{number % 500}", "quantity": number % 3},
        "note": f"note {number}" if number % 10 == 0 else None,
    }


def arrow(rows: Sequence[dict[str, Any]]) -> pa.Table:
    times = pa.array([datetime.datetime.fromisoformat(one["at"]) for one in rows], pa.timestamp("us", "UTC"))
    documents = pa.array([f'{{"sku":"{one["document"]["sku"]}","quantity":{one["document"]["quantity"]}}}' for one in rows])
    plain = pa.Table.from_pylist([{name: value for name, value in one.items() if name not in ("at", "document")} for one in rows])
    return plain.append_column("at", times).append_column("document", documents)


def encoded(dsn: str, rows: Sequence[dict[str, Any]]) -> tuple[str, bytes]:
    """The same rows as the bytes of a COPY, and its columns."""
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        sets = read(connection, TABLE).column_sets()
    chunks = list(Source(rows, len(rows)).chunks(sets))
    return ", ".join(chunks[0].columns), b"".join(content(chunk.lines).to_pybytes() for chunk in chunks)


@dataclass(frozen=True)
class Work:
    """What one client does: batches by one of the ways, with ids of its own."""

    dsn: str
    way: str
    batch_rows: int
    batches: int
    first_id: int
    port: int = 0

    def prepare(self) -> list[Callable[[], object]]:
        """A call for each batch, with everything made that is not the load itself, after one batch that nobody times."""
        batches = [
            [row(self.first_id + number * self.batch_rows + one) for one in range(self.batch_rows)] for number in range(self.batches + 1)
        ]
        ways = {"copy": self._copies, "http": self._posts}
        calls = ways.get(self.way, self._loads)(batches)
        calls.pop()()
        return calls

    def _copies(self, batches: Sequence[list[dict[str, Any]]]) -> list[Callable[[], object]]:
        connection = psycopg.connect(self.dsn, autocommit=True)
        texts = [encoded(self.dsn, batch) for batch in batches]
        return [lambda text=text: copy(connection, *text) for text in texts]  # type: ignore[misc]

    def _loads(self, batches: Sequence[list[dict[str, Any]]]) -> list[Callable[[], object]]:
        client = LoadClient(LoadOptions(self.dsn, str(TABLE)))
        rows = [arrow(batch) if self.way == "arrow" else batch for batch in batches]
        requests = [LoadRequest(f"{self.way}-{self.first_id}-{number}", one) for number, one in enumerate(rows)]
        return [lambda request=request: client.load(request) for request in requests]  # type: ignore[misc]

    def _posts(self, batches: Sequence[list[dict[str, Any]]]) -> list[Callable[[], object]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        bodies = [b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in batch) for batch in batches]
        return [partial(post, connection, f"http-{self.first_id}-{number}", body) for number, body in enumerate(bodies)]


def post(connection: http.client.HTTPConnection, label: str, body: bytes) -> None:
    connection.request("POST", f"/api/load/{TABLE}", body, {"X-Modak-Token": TOKEN, "X-Modak-Label": label})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text


@contextlib.contextmanager
def worker(app: App) -> Iterator[int]:
    """A worker as a user runs it; its port."""
    environment = {**os.environ, "MODAK_DSN": app.dsn, "MODAK_DATA": str(app.settings.data), "MODAK_LOAD_TOKEN": TOKEN}
    command = [sys.executable, "-m", "modak.cli.main", "worker", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(60)


def copy(connection: psycopg.Connection[Any], columns: str, text: bytes) -> None:
    with connection.cursor() as cursor, cursor.copy(f"copy public.loaded_hot ({columns}) from stdin".encode()) as stream:
        for start in range(0, len(text), 1 << 18):
            stream.write(memoryview(text)[start : start + (1 << 18)])


def run(work: Work, barrier: Barrier, results: Any) -> None:
    calls = work.prepare()
    barrier.wait()
    begin = time.monotonic()
    for call in calls:
        call()
    results.put((begin, time.monotonic()))


_ids = iter(range(0, 10**15, 10**9))


def measure(app: App, way: str, batch_rows: int, clients: int, rows: int, port: int = 0) -> float:
    """Rows per second of all clients together; the heap is empty when they begin."""
    empty(app)
    batches = max(1, rows // batch_rows // clients)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(clients), context.Queue()
    works = [Work(app.dsn, way, batch_rows, batches, next(_ids), port) for _ in range(clients)]
    processes = [context.Process(target=run, args=(work, barrier, results), daemon=True) for work in works]
    for process in processes:
        process.start()
    times = [results.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    seconds: float = max(end for _, end in times) - min(begin for begin, _ in times)
    return clients * batches * batch_rows / seconds


def empty(app: App) -> None:
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        for month in range(1, 4):
            connection.execute(f"truncate public.loaded_{month}".encode())
        connection.execute("checkpoint")


def make(app: App) -> None:
    """Three hot months, and a year below the cut-line with nothing in it."""
    with app.connection() as connection:
        connection.execute(f"create table public.loaded ({COLUMNS}, primary key (id, at)) partition by range (at)".encode())
        connection.execute(
            "create table public.loaded_0 partition of public.loaded for values from ('2025-01-01 00:00+00') to ('2026-01-01 00:00+00')"
        )
        for month in range(1, 4):
            low, high = f"2026-{month:02}-01 00:00+00", f"2026-{month + 1:02}-01 00:00+00"
            connection.execute(
                f"create table public.loaded_{month} partition of public.loaded for values from ('{low}') to ('{high}')".encode()
            )
        profile = profiles.get(connection, None)
        options = Options(tier_key="at", lag="0 days", width="month")
        register(connection, app.lake(profile), TABLE, options, profile=profile.name)
    with app.job(TABLE) as job:
        tier(job, upto=job.table.key_type.decode(START.isoformat(sep=" ")))
        assert reclaim(job).dropped


def cold(app: App) -> list[tuple[str, str, str]]:
    """Late rows: to the delta up to the threshold, as files above it."""
    figures = []
    storage = lake_storage(app.dsn, app.settings)
    with LoadClient(LoadOptions(app.dsn, str(TABLE), storage=storage)) as client:
        for name, count, batches in (
            ("cold trickle, batches of 1,000 rows", 1_000, 10),
            ("cold volume, staged in batches of 100,000", 100_000, 2),
        ):
            rows = [[row(next(_ids) + one, COLD) for one in range(count)] for _ in range(batches)]
            begin = time.monotonic()
            for number, batch in enumerate(rows):
                client.load(LoadRequest(f"cold-{count}-{number}", batch))
            figures.append((name, f"{count * batches / (time.monotonic() - begin):,.0f} rows/s", ""))
    return figures


def main(rows: int) -> None:
    with machine() as app:
        make(app)
        with worker(app) as port:
            hot(app, port, rows)
        show("Cold batches, by the library", cold(app))


def hot(app: App, port: int, rows: int) -> None:
    figures = []
    for batch_rows, bar in BARS.items():
        for clients in (1, 8):
            wanted = max(batch_rows * clients, rows if batch_rows > 1_000 else rows // 2)
            limits = [measure(app, "copy", batch_rows, clients, wanted)]
            found = {way: measure(app, way, batch_rows, clients, wanted) for way in ("dicts", "arrow")}
            by_http = measure(app, "http", batch_rows, clients, wanted, port)
            limits.append(measure(app, "copy", batch_rows, clients, wanted))
            limit = sum(limits) / len(limits)
            what = f"{batch_rows:,} rows, {clients} client{'s' if clients > 1 else ''}"
            figures.append((f"{what}: COPY (the limit)", f"{limit:,.0f} rows/s", ""))
            for way, speed in found.items():
                figures.append((f"{what}: library, {way}", f"{speed:,.0f} rows/s", f"{speed / limit:.2f} of the limit (bar {bar})"))
            ratio = f"{by_http / found['dicts']:.2f} of the library with dicts (bar {HTTP_BAR}), {by_http / limit:.2f} of the limit"
            figures.append((f"{what}: HTTP, JSON lines", f"{by_http:,.0f} rows/s", ratio))
    show("Hot batches", figures)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("rows", nargs="?", type=int, default=400_000, help="of each figure, about")
    main(arguments.parse_args().rows)
