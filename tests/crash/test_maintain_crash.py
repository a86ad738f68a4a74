"""Maintenance, killed at every named point; clients go on correcting rows while the worker is dead.

One more pass ends as if nothing had happened: the same rows, few files, and nothing left on disk that only a dead pass knew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from tests import events, seam
from tests.deaths import app_on, kill_backends, killed_worker, mostly_in_soak, spark_elsewhere
from tests.events import EVENTS, drop_tiered, fold, maintain, put_under_modak, tier

from modak.app import App
from modak.catalog import profiles, tables
from modak.embedded.postgres import Cluster
from modak.gateway.background import running
from modak.registration import policy
from modak.settings import Settings

pytestmark = [pytest.mark.spark, pytest.mark.inline]

POINTS = [
    "maintain.after_journal",
    "maintain.after_files",
    "maintain.after_commit",
    "maintain.in_publish",
    "maintain.after_publish",
    "maintain.after_merge",
    "maintain.before_expiry",
    "maintain.after_expiry",
    "maintain.after_removal",
]
BACKEND_POINTS = ["maintain.in_publish", "maintain.after_commit", "maintain.after_expiry"]


def make_worn(app: App) -> None:
    with app.connection() as connection:
        events.create(connection)
        put_under_modak(app, connection)
        choose(app, small_files="2", manifests="2", snapshots="1", snapshot_age="0 seconds")
    tier(app)
    drop_tiered(app)
    write(app, "update public.events set val = 'corrected' where id = 1; insert into public.events values (71, 130, 'late')")
    fold(app)
    release(app)


def choose(app: App, **wanted: str) -> None:
    with app.connection() as connection:
        policy.change(connection, tables.get(connection, EVENTS), {f"maintenance.{key}": text for key, text in wanted.items()})


def release(app: App) -> None:
    """The gateway holds what it read for a while longer."""
    with app.connection() as connection:
        connection.execute("delete from modak.read_pins")


def write(app: App, statement: str) -> None:
    with running(App(replace(app.settings, gateway=("127.0.0.1", 0))).gateway()), psycopg.connect(app.dsn, autocommit=True) as client:
        client.execute(statement)


def check_whole(app: App) -> None:
    write(app, "update public.events set val = 'while it was dead' where id = 3")
    release(app)
    choose(app, small_files="2", deleted_percent="")
    maintain(app)
    with app.connection() as connection:
        left = connection.execute("select count(*) as n from modak.op_log where phase in ('flushing', 'committed')").fetchone()
        assert left == {"n": 0}
        table = app.lake(profiles.get(connection, None)).load(tables.get(connection, EVENTS).lake_table_ref)
    assert len(table.metadata.snapshots) == 1
    found = table.inspect.files().to_pylist()
    assert len(found) == 2
    folder = Path("/" + table.location().removeprefix("file:").lstrip("/")) / "data"
    named = {str(Path(file["file_path"].removeprefix("file://"))) for file in found}
    # What a pass wrote that was given up stays for an hour: its tasks could still be at work.
    given_up = {row for row in map(str, folder.rglob("*.parquet")) if row not in named and not _given_up(app, row)}
    assert not given_up
    assert seam.read(app, EVENTS) == {
        "1": (1, 10, "corrected"),
        "2": (2, 20, "b"),
        "3": (3, 110, "while it was dead"),
        "4": (4, 210, "hot"),
        "5": (5, 220, "hot"),
        "71": (71, 130, "late"),
    }
    again = maintain(app)
    assert (again.commits, again.snapshots_expired) == (0, 0)


def _given_up(app: App, path: str) -> bool:
    with app.connection() as connection:
        rows = connection.execute("select op_id from modak.op_log where phase = 'abandoned'").fetchall()
    return Path(path).name.startswith(tuple(row["op_id"] for row in rows) or ("?",))


@pytest.fixture
def worn(app: App) -> App:
    make_worn(app)
    return app


EVERY_RUN = ["maintain.after_files", "maintain.after_commit", "maintain.after_merge", "maintain.after_removal"]


@pytest.mark.parametrize("point", mostly_in_soak(POINTS, *EVERY_RUN))
def test_the_worker_is_killed(worn: App, settings: Settings, dsn: str, request: pytest.FixtureRequest, point: str) -> None:
    if point == "maintain.after_merge":
        # Files written anew would be in one manifest already.
        choose(worn, small_files="100", deleted_percent="100")
    spark = spark_elsewhere(request, point, *EVERY_RUN)
    killed_worker(settings, dsn, spark, point, "maintain", "public.events")
    check_whole(worn)


@pytest.mark.parametrize("point", mostly_in_soak(BACKEND_POINTS, "maintain.in_publish"))
def test_its_backend_is_killed(worn: App, dsn: str, point: str, at_point: Callable[[str, Callable[[], None]], None]) -> None:
    at_point(point, lambda: kill_backends(dsn))
    with pytest.raises(psycopg.OperationalError):
        maintain(worn)
    check_whole(worn)


@pytest.mark.parametrize("point", mostly_in_soak(["maintain.in_publish", "maintain.after_expiry"], "maintain.after_expiry"))
def test_the_server_stops_at_once(
    own_cluster: Cluster, tmp_path: Path, settings: Settings, point: str, at_point: Callable[[str, Callable[[], None]], None]
) -> None:
    app = app_on(own_cluster, settings, tmp_path)
    make_worn(app)
    at_point(point, lambda: own_cluster.stop("immediate"))
    with pytest.raises(psycopg.OperationalError):
        maintain(app)
    check_whole(app_on(Cluster.start(tmp_path / "own"), settings, tmp_path))
