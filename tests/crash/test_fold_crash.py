"""The fold, killed at every named point by three deaths; clients go on correcting while the worker is dead.

One more pass ends as if nothing had happened: every correction in the lake exactly once, none lost, none risen again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from tests import events, seam
from tests.deaths import app_on, kill_backends, killed_worker, mostly_in_soak, spark_elsewhere
from tests.events import EVENTS, ROWS, drop_tiered, fold, put_under_modak, tier

from modak.app import App
from modak.connection import Connection
from modak.embedded.postgres import Cluster
from modak.gateway.background import running
from modak.settings import Settings

# The worker that is killed has its Spark elsewhere; what comes before and after it is not about Spark.
pytestmark = [pytest.mark.spark, pytest.mark.inline]

POINTS = ["fold.after_journal", "fold.after_files", "fold.after_commit", "fold.in_publish", "fold.after_publish"]
# The lake has the commit from here on.
COMMITTED = POINTS[2:]
EXPECTED = {str(row[0]): row for row in ROWS} | {
    "1": (1, 10, "while it was dead"),
    "2": (2, 150, "moved"),
    "70": (70, 80, "late"),
    "71": (71, 90, "late, corrected"),
}
del EXPECTED["3"]


def correct(app: App, statements: list[str]) -> None:
    with running(App(replace(app.settings, gateway=("127.0.0.1", 0))).gateway()), psycopg.connect(app.dsn, autocommit=True) as client:
        for statement in statements:
            client.execute(statement)


def correct_before(app: App) -> None:
    correct(
        app,
        [
            "update public.events set val = 'first' where id = 1",
            "update public.events set event_time = 150, val = 'moved' where id = 2",
            "delete from public.events where id = 3",
            "insert into public.events values (71, 90, 'late'), (72, 95, 'late and gone')",
        ],
    )


def correct_meanwhile(app: App) -> None:
    correct(
        app,
        [
            "update public.events set val = 'while it was dead' where id = 1",
            "insert into public.events values (70, 80, 'late')",
            "update public.events set val = 'late, corrected' where id = 71",
            "delete from public.events where id = 72",
        ],
    )


def check_whole(app: App, commits: int) -> None:
    """``commits``: how many there were when the worker died; whatever was committed then is not committed again."""
    assert seam.read(app, EVENTS) == EXPECTED
    fold(app)
    with app.connection() as connection:
        assert connection.execute("select count(*) as n from modak.delta").fetchone() == {"n": 0}
        assert connection.execute("select count(*) as n from modak.folded").fetchone() == {"n": 0}
        assert connection.execute("select count(*) as n from public.events_spill").fetchone() == {"n": 0}
        left = connection.execute("select count(*) as n from modak.op_log where phase in ('flushing', 'committed')").fetchone()
        assert left == {"n": 0}
    assert seam.read(app, EVENTS) == EXPECTED
    assert len(seam.data_commits(app, EVENTS)) == commits + 1


def make_cold(app: App) -> None:
    with app.connection() as connection:
        events.create(connection)
        put_under_modak(app, connection)
    tier(app)
    drop_tiered(app)
    correct_before(app)


@pytest.fixture
def cold(app: App, connection: Connection) -> App:
    make_cold(app)
    return app


@pytest.mark.parametrize("point", mostly_in_soak(POINTS, "fold.after_files", "fold.after_commit"))
def test_the_worker_is_killed(cold: App, settings: Settings, dsn: str, request: pytest.FixtureRequest, point: str) -> None:
    spark = spark_elsewhere(request, point, "fold.after_commit")
    killed_worker(settings, dsn, spark, point, "fold", "public.events")
    commits = len(seam.data_commits(cold, EVENTS))
    assert commits == (2 if point in COMMITTED else 1)
    correct_meanwhile(cold)
    check_whole(cold, commits)


# After the journal's first entry the next thing the backend is asked for is the publication: the tasks have sessions of their own.
@pytest.mark.parametrize("point", ["fold.after_files", "fold.after_commit", "fold.in_publish"])
def test_its_backend_is_killed(cold: App, dsn: str, point: str, at_point: Callable[[str, Callable[[], None]], None]) -> None:
    at_point(point, lambda: kill_backends(dsn))
    with pytest.raises(psycopg.OperationalError):
        fold(cold)
    commits = len(seam.data_commits(cold, EVENTS))
    correct_meanwhile(cold)
    check_whole(cold, commits)


@pytest.mark.parametrize("point", mostly_in_soak(["fold.after_commit", "fold.in_publish"], "fold.in_publish"))
def test_the_server_stops_at_once(
    own_cluster: Cluster, tmp_path: Path, settings: Settings, point: str, at_point: Callable[[str, Callable[[], None]], None]
) -> None:
    app = app_on(own_cluster, settings, tmp_path)
    make_cold(app)
    at_point(point, lambda: own_cluster.stop("immediate"))
    with pytest.raises(psycopg.OperationalError):
        fold(app)
    restarted = app_on(Cluster.start(tmp_path / "own"), settings, tmp_path)
    commits = len(seam.data_commits(restarted, EVENTS))
    correct_meanwhile(restarted)
    check_whole(restarted, commits)
