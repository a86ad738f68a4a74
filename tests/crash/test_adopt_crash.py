"""Adoption and ingest, killed at every named point; clients go on loading while the worker is dead.

One more pass ends as if nothing had happened: every label in the lake exactly once, in the order of their ages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import events, seam
from tests.deaths import app_on, kill_backends, killed_worker, mostly_in_soak, spark_elsewhere
from tests.events import EVENTS, ROWS, drop_tiered, put_under_modak, tier

from modak.app import App
from modak.connection import Connection
from modak.embedded.postgres import Cluster
from modak.jobs.adopt import adopt
from modak.jobs.ingest import ingest
from modak.load import LoadClient, LoadOptions, LoadRequest, lake_storage
from modak.settings import Settings

# The worker that is killed has its Spark elsewhere; what comes before and after it is not about Spark.
pytestmark = [pytest.mark.spark, pytest.mark.inline]

POINTS = ["after_journal", "after_files", "after_commit", "in_publish", "after_publish"]
COMMITTED = POINTS[2:]
EXPECTED = {str(row[0]): row for row in ROWS} | {
    "1": (1, 10, "corrected while it was dead"),
    "2": (2, 20, "loaded"),
    "80": (80, 80, "loaded while it was dead"),
    "81": (81, 81, "loaded"),
}


def point_of(flow: str, point: str) -> str:
    return f"incoming.{point}" if point == "in_publish" else f"{flow}.{point}"


def stage(app: App, label: str, *rows: tuple[int, int, str]) -> None:
    options = LoadOptions(app.dsn, "public.events", spool_threshold=0, storage=lake_storage(app.dsn, app.settings))
    with LoadClient(options) as client:
        given = [dict(zip(("id", "event_time", "val"), row, strict=True)) for row in rows]
        assert client.load(LoadRequest(label, given)).spooled_rows == len(rows)


def trickle(app: App, label: str, *rows: tuple[int, int, str]) -> None:
    with LoadClient(LoadOptions(app.dsn, "public.events")) as client:
        client.load(LoadRequest(label, [dict(zip(("id", "event_time", "val"), row, strict=True)) for row in rows]))


def make_cold(app: App) -> None:
    with app.connection() as connection:
        events.create(connection)
        # A key that says where its row is, so that no gateway is asked.
        put_under_modak(app, connection, primary_key=("id", "event_time"))
    tier(app)
    drop_tiered(app)


def stage_before(app: App) -> None:
    make_cold(app)
    trickle(app, "older", (2, 20, "older"))
    stage(app, "first", (1, 10, "loaded"), (2, 20, "overtaken"), (81, 81, "overtaken"))
    stage(app, "second", (2, 20, "loaded"), (81, 81, "loaded"))


def meanwhile(app: App) -> None:
    trickle(app, "newer", (1, 10, "corrected while it was dead"))
    stage(app, "third", (80, 80, "loaded while it was dead"))


def shown(app: App) -> dict[str, seam.Row]:
    return {key.split("\x1f", maxsplit=1)[0]: row for key, row in seam.read(app, EVENTS).items()}


def check_whole(app: App, commits: int) -> None:
    """``commits``: how many there were when the worker died; whatever was committed then is not committed again."""
    with app.job(EVENTS) as job:
        adopt(job)
        adopt(job)
    assert shown(app) == EXPECTED
    with app.connection() as connection:
        for query in (
            "select count(*) as n from modak.load_labels where state = 'staged'",
            "select count(*) as n from modak.folded",
            "select count(*) as n from pg_class where relname like 'incoming%'",
            "select count(*) as n from modak.op_log where phase in ('flushing', 'committed')",
        ):
            assert connection.execute(query).fetchone() == {"n": 0}, query
    assert len(seam.data_commits(app, EVENTS)) == commits + 1


@pytest.fixture
def staged(app: App, connection: Connection) -> App:
    stage_before(app)
    return app


@pytest.mark.parametrize("point", [pytest.param(point, marks=[] if point == "after_commit" else pytest.mark.soak) for point in POINTS])
def test_the_worker_is_killed(staged: App, settings: Settings, dsn: str, request: pytest.FixtureRequest, point: str) -> None:
    spark = spark_elsewhere(request, point, "after_commit")
    killed_worker(settings, dsn, spark, point_of("adopt", point), "adopt", "public.events")
    commits = len(seam.data_commits(staged, EVENTS))
    assert commits == (2 if point in COMMITTED else 1)
    meanwhile(staged)
    check_whole(staged, commits)


@pytest.mark.parametrize("point", mostly_in_soak(POINTS[:-1], "after_commit", "in_publish"))
def test_its_backend_is_killed(staged: App, dsn: str, point: str, at_point: Callable[[str, Callable[[], None]], None]) -> None:
    at_point(point_of("adopt", point), lambda: kill_backends(dsn))
    with pytest.raises(psycopg.OperationalError), staged.job(EVENTS) as job:
        adopt(job)
    commits = len(seam.data_commits(staged, EVENTS))
    meanwhile(staged)
    check_whole(staged, commits)


def test_the_server_stops_at_once(
    own_cluster: Cluster, tmp_path: Path, settings: Settings, at_point: Callable[[str, Callable[[], None]], None]
) -> None:
    app = app_on(own_cluster, settings, tmp_path)
    stage_before(app)
    at_point("adopt.after_commit", lambda: own_cluster.stop("immediate"))
    with pytest.raises(psycopg.OperationalError), app.job(EVENTS) as job:
        adopt(job)
    restarted = app_on(Cluster.start(tmp_path / "own"), settings, tmp_path)
    commits = len(seam.data_commits(restarted, EVENTS))
    meanwhile(restarted)
    check_whole(restarted, commits)


@pytest.mark.parametrize("point", mostly_in_soak(POINTS[:-1], "after_commit", "in_publish"))
def test_an_ingest_is_cut_off(app: App, dsn: str, tmp_path: Path, point: str, at_point: Callable[[str, Callable[[], None]], None]) -> None:
    """The same command again: what had come in is replaced by itself."""
    make_cold(app)
    path = tmp_path / "history.parquet"
    pq.write_table(pa.table({"id": [1, 90], "event_time": [10, 90], "val": ["file", "file"]}), path)
    expected = {str(row[0]): row for row in ROWS} | {"1": (1, 10, "file"), "90": (90, 90, "file")}
    at_point(point_of("ingest", point), lambda: kill_backends(dsn))
    with pytest.raises(psycopg.OperationalError), app.job(EVENTS) as job:
        ingest(job, [str(path)], "parquet")
    with app.job(EVENTS) as job:
        assert ingest(job, [str(path)], "parquet").rows == 2
    assert shown(app) == expected
    with app.connection() as connection:
        left = connection.execute("select count(*) as n from modak.op_log where phase in ('flushing', 'committed')").fetchone()
    assert left == {"n": 0}
