"""The story of a table that outgrew its disk, told with the product's own commands on a Postgres of its own."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from modak.app import App
from modak.catalog import profiles, tables
from modak.catalog.migrate import migrate
from modak.cli import plan_text, status
from modak.cli.output import Output
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.jobs import adopt, fold, reclaim, tier, verify
from modak.jobs.context import JobContext
from modak.load import LoadClient, LoadOptions, LoadRequest, lake_storage
from modak.registration import register, report
from modak.settings import Settings
from modak.sqlfiles import SqlFiles, trusted

SQL = SqlFiles("modak.demo")
ORDERS = Name("public", "orders")
OPTIONS = Options(tier_key="placed_at", lag="90 days", width="month")


def tell(settings: Settings, output: Output, *, folder: Path | None, rows: int, keep: bool) -> None:
    """Tell the story. Without a folder everything is gone afterwards; with one a second run goes on from there."""
    with _place(folder) as place:
        app = App(replace(settings, data=place, dsn=settings.dsn), output.progress)
        try:
            with _gateway(app, output) as served:
                _tell(served, output, rows)
                if keep:
                    _stay(output)
            if folder is None and not keep:
                output.note("All of it goes away now; `modak demo --dir FOLDER` keeps it, and --keep stays up.")
        finally:
            cluster = None if settings.dsn else Cluster.find(app.cluster_folder)
            if cluster is not None:
                cluster.stop()


@contextlib.contextmanager
def _gateway(app: App, output: Output) -> Iterator[App]:
    """The database with its catalog, and a gateway for it on a free port."""
    from modak.gateway.background import running

    if not app.settings.dsn:
        app.start_cluster()
    with app.connection(migrated=False) as connection:
        outcome = migrate(connection)
    output.note(f"1. The catalog is there (version {outcome.version}).")
    with running(App(replace(app.settings, gateway=("127.0.0.1", 0)), app.progress).gateway()) as gateway:
        yield App(replace(app.settings, gateway=("127.0.0.1", gateway.port)), app.progress)


@contextlib.contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder.absolute()
        return
    made = Path(tempfile.mkdtemp(prefix="modak-demo-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _tell(app: App, output: Output, rows: int) -> None:
    with app.connection() as connection:
        _create(connection, app, output, rows)
        found = report.as_dict(report.report(connection, ORDERS, OPTIONS, surface_given=True)) if not _known(connection) else None
        if found is not None:
            output.note("3. `modak plan` says what registering it would do:")
            plan_text.show(output, found)
            profile = profiles.get(connection, None)
            register.register(connection, app.lake(profile), ORDERS, OPTIONS, profile=profile.name, progress=app.progress)
        output.note("4. public.orders is registered. The name is a view now, the heap stands beside it as public.orders_hot:")
        _show_status(app, connection, output, ORDERS)
        _use(connection, output)
    _tier(app, output)


def _tier(app: App, output: Output) -> None:
    """The old months go to Iceberg, a late change becomes a correction, and both tiers are compared by content."""
    output.note("6. `modak tier` copies what is older than 90 days to Iceberg, on Spark, and moves the cut-line:")
    with app.job(ORDERS) as job:
        outcome = tier.tier(job)
        text = job.table.key_type.encode_bound(outcome.tier_key_hi) if outcome.tier_key_hi is not None else "where it was"
        output.note(f"   {outcome.rows} rows in {len(outcome.partitions)} partitions; T is {text}, S is {outcome.snapshot}")
        total = _sum(job.connection)
        output.note(f"   SELECT through the name still sees {total['orders']} orders, {total['amount']} in all: hot and cold as one table")
        changed = job.connection.execute(SQL.query("return_order")).rowcount
        output.note(f"7. An UPDATE of {changed} cold orders is taken as corrections; heap and corrected lake are compared by content:")
        found = verify.verify(job)
        output.note(f"   {found.rows} rows compared, {len(found.differences)} differences")
        dropped = reclaim.reclaim(job).dropped
        returned = _returned(job.connection)
        output.note(f"   {len(dropped)} partitions are dropped from the heap; {returned} orders of that morning still read as returned")
        output.note("8. `modak fold` carries the corrections into the lake, as position deletes and new images, in one commit:")
        folded = fold.fold(job)
        output.note(f"   {folded.corrections} corrections, S is {folded.snapshot}; {_returned(job.connection)} still read as returned")
        loaded = _load(app, job, output)
        _show_status(app, job.connection, output, None)
        pointer = job.lake.find(job.table.lake_table_ref)
    total = {
        "rows_in_lake": pointer.total_rows if pointer else 0,
        "tiered_rows": outcome.rows,
        "differences": len(found.differences),
        "corrections_folded": folded.corrections,
        "rows_loaded": loaded,
    }
    where = f"10. The lake table is at {pointer.location if pointer else 'nowhere'}; Spark, DuckDB and Trino can read it."
    addresses = _addresses(app, whole=output.json)
    output.result(
        total | addresses, "\n".join([where, *(f"    {name.replace('_', ' ') + ':':15}{text}" for name, text in addresses.items())])
    )
    # Whoever waits for it at the other end of a pipe has it now, and not when the demo ends.
    sys.stdout.flush()


def _load(app: App, job: JobContext, output: Output) -> int:
    """Labelled batches, one of them sent twice; thousands of old rows go to the lake as files."""
    options = LoadOptions(app.dsn, str(ORDERS), storage=lake_storage(app.dsn, app.settings))
    recent = [_order(number, "2025-12-27 10:00+00") for number in range(3)]
    old = [_order(number, f"2025-03-{1 + number % 28:02} 09:00+00") for number in range(3, 3003)]
    with LoadClient(options) as client:
        first = client.load(LoadRequest("shop-0-offset-100", recent))
        again = client.load(LoadRequest("shop-0-offset-100", recent))
        client.load(LoadRequest("archive-2025-03", old))
    output.note(f"9. Stream Load applies a batch of {first.hot_rows} orders once, sent twice under its label (replay: {again.replay});")
    adopted = adopt.adopt(job)
    output.note(
        f"   {len(old)} old orders are staged as files; `modak adopt` takes {adopted.rows} rows into the lake, S is {adopted.snapshot}"
    )
    return first.hot_rows + len(old)


def _order(number: int, placed_at: str) -> dict[str, Any]:
    whole = {"id": 10_000_000 + number, "placed_at": placed_at, "customer_id": 7, "amount": "12.50"}
    return {**whole, "status": "paid", "items": [{"sku": "A-1", "quantity": 1}], "tags": None, "note": "loaded"}


def _show_status(app: App, connection: Connection, output: Output, name: Name | None) -> None:
    """For people only: with --json the story is its last line."""
    if not output.json:
        status.show(connection, output, name, app.lake)


def _known(connection: Connection) -> bool:
    return tables.find(connection, ORDERS) is not None


def _create(connection: Connection, app: App, output: Output, rows: int) -> None:
    row = connection.execute("select to_regclass('public.orders') is not null as there").fetchone()
    if row and row["there"]:
        output.note("2. public.orders is there from an earlier run.")
        return
    with app.progress.task(f"Creating public.orders with {rows} rows"), connection.transaction():
        connection.execute(SQL.query("create_orders"))
        for month in connection.execute(SQL.query("create_months"), {}).fetchall():
            connection.execute(trusted(month["statement"]))
        connection.execute(SQL.query("fill_orders"), {"rows": rows})
    connection.execute("analyze public.orders")
    output.note(f"2. public.orders has {rows} rows in 12 monthly partitions.")


def _sum(connection: Connection) -> dict[str, Any]:
    return connection.execute(SQL.query("sum_orders")).fetchone() or {}


def _returned(connection: Connection) -> int:
    row = connection.execute(SQL.query("count_returned")).fetchone()
    return int(row["n"]) if row else 0


def _use(connection: Connection, output: Output) -> None:
    placed = connection.execute(SQL.query("place_order")).fetchone()
    output.note(f"5. SQL goes on as before: an INSERT through the name gave {dict(placed) if placed else None}")
    total = _sum(connection)
    output.note(f"   and a SELECT through it sees {total['orders']} orders, {total['amount']} in all")


def _addresses(app: App, *, whole: bool) -> dict[str, str]:
    host, port = app.settings.gateway
    return {**app.shown_addresses(app.dsn, whole=whole), "gateway": f"{host}:{port}", "warehouse": app.settings.warehouse_root}


def _stay(output: Output) -> None:
    """Until Ctrl-C, or whatever else asks it to end: the server that was started is to be stopped."""
    output.note("Everything stays up; Ctrl-C ends it.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)
