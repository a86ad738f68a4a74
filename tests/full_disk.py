"""A warehouse on a disk that is full, and then is not. Run by test_full_disk in a mount namespace of its own, where everybody may mount."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection, connect
from modak.core.registration import Options
from modak.core.table import Name
from modak.errors import LakeFull
from modak.jobs.sweep import sweep
from modak.jobs.tier import TierOutcome, tier
from modak.load import LoadClient, LoadOptions, LoadRequest, LoadResult, lake_storage
from modak.registration.register import register
from modak.settings import load
from modak.web.bodies import BodyLimits
from tests.inline import inlined
from tests.serving import jsonl, serving
from tests.serving import load as load_rows
from tests.support import reclaim_all

EVENTS = Name("public", "events")
ROWS = 20_000


def main(dsn: str, data: str) -> None:
    warehouse = Path(data) / "warehouse"
    warehouse.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(warehouse)], check=True)
    cache = {name: os.environ[name] for name in ("HOME", "MODAK_CACHE", "XDG_CACHE_HOME") if name in os.environ}
    app = App(load(cache, dsn=dsn, data=data))
    with inlined(), connect(dsn, autocommit=True) as connection:
        create(app, connection)
        for _ in range(2):
            assert fails(lambda: run_tier(app)).sqlstate == "53100"
            code = connection.execute("select code from modak.problems where job = 'tier'").fetchall()
            assert code == [{"code": "lake_full"}], code
            assert count(connection) == ROWS
        give(warehouse, "4m")
        assert run_tier(app).rows == ROWS - 1
        assert connection.execute("select * from modak.problems").fetchall() == []
        with app.job(EVENTS) as job:
            reclaim_all(job)

        give(warehouse, f"{used(warehouse) + 200}k")
        rows = [{"id": ROWS + n, "event_time": n % 100, "val": os.urandom(40).hex()} for n in range(20_000)]
        error = fails(lambda: stage(app, rows))
        assert isinstance(error, LakeFull), error
        assert connection.execute("select * from modak.load_labels").fetchall() == []
        give(warehouse, "16m")
        assert stage(app, rows).spooled_rows == len(rows)
        with app.job(EVENTS) as job:
            assert sweep(job) == 0
        full_spool(app, connection, Path(data) / "scratch" / "load")
    print("done")


def full_spool(app: App, connection: Connection, spool: Path) -> None:
    """Bodies that do not fit, by much and by a few bytes: told, nothing recorded, and taken when there is room."""
    spool.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(spool)], check=True)
    labels = "select label from modak.load_labels where label <> 'history'"
    with serving(app, body_limits=BodyLimits(memory_bytes=1000)) as http:
        for size in (65_537, 68_000, 1_000_000):
            body = jsonl([{"id": 10**6, "event_time": 100, "val": "x" * size}])
            answer = load_rows(http.port, f"{size} bytes", body)
            assert (answer.status, answer.error["code"]) == (503, "no_space"), answer.text
            assert answer.error["hint"]
            assert answer.headers["retry-after"]
        assert connection.execute(labels).fetchall() == []
        give(spool, "4m")
        assert load_rows(http.port, "1000000 bytes", body).status == 200
        assert connection.execute(labels).fetchall() == [{"label": "1000000 bytes"}]


def create(app: App, connection: Connection) -> None:
    connection.execute(
        "create table public.events (id bigint not null, event_time bigint not null, val text, primary key (id, event_time))"
        " partition by range (event_time)"
    )
    for low in (0, 100):
        connection.execute(f"create table public.p{low} partition of public.events for values from ({low}) to ({low + 100})")
    connection.execute("insert into public.events select n, n %% 100, md5(n::text) from generate_series(1, %s) n", [ROWS - 1])
    connection.execute("insert into public.events values (0, 100, 'the newest')")
    profile = profiles.get(connection, None)
    options = Options(tier_key="event_time", primary_key=("id", "event_time"), lag="0", width="100")
    register(connection, app.lake(profile), EVENTS, options, profile=profile.name)


def run_tier(app: App) -> TierOutcome:
    with app.job(EVENTS) as job:
        return tier(job)


def stage(app: App, rows: list[dict[str, object]]) -> LoadResult:
    with LoadClient(LoadOptions(app.dsn, str(EVENTS), spool_threshold=0, storage=lake_storage(app.dsn, app.settings))) as client:
        return client.load(LoadRequest("history", rows))


def fails(work: object) -> LakeFull:
    try:
        work()  # type: ignore[operator]
    except LakeFull as full:
        return full
    raise AssertionError("it found room")


def give(warehouse: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(warehouse)], check=True)


def used(warehouse: Path) -> int:
    """In KiB."""
    found = os.statvfs(warehouse)
    return (found.f_blocks - found.f_bfree) * found.f_frsize // 1024


def count(connection: Connection) -> int:
    table = tables.get(connection, EVENTS)
    row = connection.execute(f'select count(*) as n from "{table.heap.schema}"."{table.heap.name}"').fetchone()
    assert row is not None
    return int(row["n"])


if __name__ == "__main__":
    main(*sys.argv[1:])
