"""Untier, killed at every named point by three deaths; clients go on writing while the worker is dead.

One more pass ends as if nothing had happened: every row in the heap exactly once, one commit that took them out of the lake, and nothing
of what was half filled.
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
from modak.jobs import untier as untier_module
from modak.settings import Settings

# The worker that is killed has its Spark elsewhere; what comes before and after it is not about Spark.
pytestmark = [pytest.mark.spark, pytest.mark.inline]

POINTS = ["untier.after_journal", "untier.after_copy", "untier.after_commit", "untier.in_publish", "untier.after_publish"]
EXPECTED = {str(row[0]): row for row in ROWS} | {
    "1": (1, 10, "while it was dead"),
    "2": (2, 150, "moved"),
    "70": (70, 80, "late"),
    "71": (71, 90, "late, corrected"),
}
del EXPECTED["3"]


def write(app: App, statements: list[str]) -> None:
    with running(App(replace(app.settings, gateway=("127.0.0.1", 0))).gateway()), psycopg.connect(app.dsn, autocommit=True) as client:
        for statement in statements:
            client.execute(statement)


def write_meanwhile(app: App) -> None:
    write(
        app,
        [
            "update public.events set val = 'while it was dead' where id = 1",
            "update public.events set event_time = 150, val = 'moved' where id = 2",
            "delete from public.events where id = 3",
            "insert into public.events values (70, 80, 'late')",
            "update public.events set val = 'late, corrected' where id = 71",
            "delete from public.events where id = 72",
        ],
    )


def untier(app: App) -> None:
    with app.job(EVENTS) as job:
        untier_module.untier(replace(job, lock_attempts=8))


def check_whole(app: App) -> None:
    assert seam.read(app, EVENTS) == EXPECTED
    untier(app)
    with app.connection() as connection:
        line = connection.execute("select tier_key_hi from modak.cutline").fetchone()
        assert line == {"tier_key_hi": 0}
        assert seam.states(connection, EVENTS) == {"p0": "hot", "p1": "hot", "p2": "hot"}
        for table in ("modak.delta", "modak.folded", "public.events_spill"):
            assert connection.execute(f"select count(*) as n from {table}").fetchone() == {"n": 0}
        left = connection.execute("select count(*) as n from modak.op_log where phase in ('flushing', 'committed')").fetchone()
        assert left == {"n": 0}
        parts = connection.execute("select relname from pg_class where relname like 'untier_%' or relname ~ '^p[0-9]_[0-9]'").fetchall()
        assert parts == []
        heap = connection.execute("select id, event_time, val from public.events_hot").fetchall()
        assert {str(row["id"]): tuple(row.values()) for row in heap} == EXPECTED
        assert len(heap) == len(EXPECTED)
    assert seam.read(app, EVENTS) == EXPECTED
    assert [stamps["modak.op-kind"] for stamps in seam.data_commits(app, EVENTS)].count("untier") == 1


def make_cold(app: App) -> None:
    with app.connection() as connection:
        events.create(connection)
        put_under_modak(app, connection)
    tier(app)
    drop_tiered(app)
    write(app, ["insert into public.events values (71, 90, 'late'), (72, 95, 'late and gone')"])


@pytest.fixture
def cold(app: App, connection: Connection) -> App:
    make_cold(app)
    return app


@pytest.mark.parametrize("point", mostly_in_soak(POINTS, "untier.after_copy", "untier.after_commit"))
def test_the_worker_is_killed(cold: App, settings: Settings, dsn: str, request: pytest.FixtureRequest, point: str) -> None:
    spark = spark_elsewhere(request, point, "untier.after_commit")
    killed_worker(settings, dsn, spark, point, "untier", "public.events")
    write_meanwhile(cold)
    check_whole(cold)


@pytest.mark.parametrize("point", ["untier.after_copy", "untier.in_publish"])
def test_its_backend_is_killed(cold: App, dsn: str, point: str, at_point: Callable[[str, Callable[[], None]], None]) -> None:
    at_point(point, lambda: kill_backends(dsn))
    with pytest.raises(psycopg.OperationalError):
        untier(cold)
    write_meanwhile(cold)
    check_whole(cold)


@pytest.mark.parametrize("point", mostly_in_soak(["untier.after_commit", "untier.in_publish"], "untier.in_publish"))
def test_the_server_stops_at_once(
    own_cluster: Cluster, tmp_path: Path, settings: Settings, point: str, at_point: Callable[[str, Callable[[], None]], None]
) -> None:
    app = app_on(own_cluster, settings, tmp_path)
    make_cold(app)
    at_point(point, lambda: own_cluster.stop("immediate"))
    with pytest.raises(psycopg.OperationalError):
        untier(app)
    restarted = app_on(Cluster.start(tmp_path / "own"), settings, tmp_path)
    write_meanwhile(restarted)
    check_whole(restarted)
