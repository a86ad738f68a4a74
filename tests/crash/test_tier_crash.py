"""Killed at every named point of a pass, by three deaths: the worker's, its backend's, the server's.

Clients go on writing while the worker is dead. Afterwards one more pass ends in the same state as if nothing had happened: no row lost,
none twice, exactly one commit of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from tests import events, seam
from tests.deaths import app_on, kill_backends, killed_worker, mostly_in_soak, spark_elsewhere
from tests.events import EVENTS, ROWS, drop_tiered, put_under_modak, tier

from modak.app import App
from modak.connection import Connection
from modak.embedded.postgres import Cluster
from modak.gateway.background import running
from modak.settings import Settings

# The worker that is killed has its Spark elsewhere; what comes before and after it is not about Spark.
pytestmark = [pytest.mark.spark, pytest.mark.inline]

TIER_POINTS = [
    "tier.after_journal",
    "tier.after_seal",
    "tier.during_flush",
    "tier.after_files",
    "tier.after_commit",
    "tier.before_advance",
    "tier.after_attach",
    "tier.in_advance",
    "tier.after_advance",
]
RECLAIM_POINTS = ["reclaim.in_drop", "reclaim.after_drop"]
EXPECTED = {str(row[0]): row for row in ROWS} | {"2": (2, 20, "while it was dead"), "70": (70, 80, "new")}
del EXPECTED["3"]


def write_as_client(app: App) -> None:
    """What clients do while no worker runs: change, delete and add rows of partitions that may be half tiered."""
    with running(App(replace(app.settings, gateway=("127.0.0.1", 0))).gateway()), psycopg.connect(app.dsn, autocommit=True) as client:
        client.execute("update public.events set val = 'while it was dead' where id = 2")
        client.execute("delete from public.events where id = 3")
        client.execute("insert into public.events values (70, 80, 'new')")


def check_whole(app: App) -> None:
    """One more pass, then everything is as it should be."""
    tier(app)
    drop_tiered(app)
    with app.connection() as connection:
        assert seam.states(connection, EVENTS) == {"p0": "dropped", "p1": "dropped", "p2": "hot"}
        assert connection.execute("select count(*) as n from modak.captured").fetchone() == {"n": 0}
        open_operations = connection.execute("select count(*) as n from modak.op_log where phase in ('flushing', 'committed')").fetchone()
        assert open_operations == {"n": 0}
        triggers = connection.execute("select count(*) as n from pg_trigger where tgname like 'modak_capture%'").fetchone()
        assert triggers == {"n": 0}
    assert seam.read(app, EVENTS) == EXPECTED
    assert len(seam.data_commits(app, EVENTS)) == 1


@pytest.fixture
def registered(app: App, connection: Connection) -> App:
    events.create(connection)
    put_under_modak(app, connection)
    return app


@pytest.mark.parametrize(
    "point", mostly_in_soak([*TIER_POINTS, *RECLAIM_POINTS], "tier.during_flush", "tier.after_commit", "reclaim.in_drop")
)
def test_the_worker_is_killed(registered: App, settings: Settings, dsn: str, request: pytest.FixtureRequest, point: str) -> None:
    spark = spark_elsewhere(request, point, "tier.after_commit", "reclaim.in_drop")
    killed_worker(settings, dsn, spark, point, "tier", "public.events")
    before = len(seam.data_commits(registered, EVENTS))
    assert before == (1 if point in TIER_POINTS[4:] + RECLAIM_POINTS else 0)
    if point in RECLAIM_POINTS:
        # p0 may be gone by now; rows of it can only be corrected through the seam, which is not this test's business.
        tier(registered)
        drop_tiered(registered)
        assert seam.read(registered, EVENTS) == {str(row[0]): row for row in ROWS}
        return
    write_as_client(registered)
    check_whole(registered)


# A warm flush of five rows is over before anybody looks at its progress, so that point belongs to the killed worker only.
@pytest.mark.parametrize("point", [point for point in TIER_POINTS if point != "tier.during_flush"])
def test_its_backend_is_killed(registered: App, dsn: str, point: str, at_point: Callable[[str, Callable[[], None]], None]) -> None:
    at_point(point, lambda: kill_backends(dsn))
    with pytest.raises(psycopg.OperationalError):
        tier(registered)
    write_as_client(registered)
    check_whole(registered)


SERVER_POINTS = ["tier.after_seal", "tier.after_files", "tier.after_commit", "tier.in_advance", "tier.after_advance"]


@pytest.mark.parametrize("point", mostly_in_soak(SERVER_POINTS, "tier.after_commit", "tier.in_advance"))
def test_the_server_stops_at_once(
    own_cluster: Cluster, tmp_path: Path, settings: Settings, point: str, at_point: Callable[[str, Callable[[], None]], None]
) -> None:
    app = app_on(own_cluster, settings, tmp_path)
    with app.connection() as connection:
        events.create(connection)
        put_under_modak(app, connection)
    at_point(point, lambda: own_cluster.stop("immediate"))
    with pytest.raises(psycopg.OperationalError):
        tier(app)
    restarted = Cluster.start(tmp_path / "own")
    write_as_client(app_on(restarted, settings, tmp_path))
    check_whole(app_on(restarted, settings, tmp_path))
