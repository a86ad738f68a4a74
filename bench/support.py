"""What benchmarks share: a Postgres of their own, a clock, the memory of a process tree, and a table of ratios."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import duckdb
import duckdb_extension_postgres_scanner

from modak.app import App
from modak.catalog.migrate import migrate
from modak.connection import connect
from modak.embedded.postgres import Cluster
from modak.settings import load


@contextlib.contextmanager
def machine(options: Mapping[str, str] | None = None) -> Iterator[App]:
    """An App on an embedded cluster in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="modak-bench-") as folder:
        chosen = {"shared_buffers": "1GB", "max_wal_size": "8GB", **(options or {})}
        cluster = Cluster.start(Path(folder) / "postgres", options=chosen)
        try:
            with connect(cluster.dsn()) as connection:
                migrate(connection)
            yield App(load({"HOME": os.environ.get("HOME", "/")}, dsn=cluster.dsn(), data=str(Path(folder) / "data")))
        finally:
            cluster.stop("immediate")


def attach_postgres(connection: duckdb.DuckDBPyConnection, dsn: str) -> None:
    """The database as ``pg``, read by DuckDB itself."""
    extension = next(Path(duckdb_extension_postgres_scanner.__file__).parent.rglob("*.duckdb_extension"))
    connection.execute(f"load '{extension}'")
    connection.execute(f"attach '{dsn}' as pg (type postgres, read_only)")


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Memory(threading.Thread):
    """Peak resident memory of this process and its descendants, sampled; Postgres runs elsewhere and is not counted."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._ended = threading.Event()

    def __enter__(self) -> Memory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(0.2):
            self.peak = max(self.peak, tree_bytes(os.getpid()))


def tree_bytes(root: int) -> int:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree and pid not in tree}:
        tree |= more
    return sum(_resident(pid) for pid in tree)


def _resident(pid: int) -> int:
    """Proportional share where the kernel tells: forked workers share most of their pages."""
    with contextlib.suppress(OSError):
        for line in (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def show(title: str, rows: list[tuple[str, str, str]]) -> None:
    """measured, figure, bar."""
    width = max(len(name) for name, _, _ in rows)
    print(f"\n{title}")
    for name, figure, bar in rows:
        print(f"  {name:<{width}}  {figure:>22}  {bar}")
