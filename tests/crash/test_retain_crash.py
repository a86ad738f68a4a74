"""Retention, killed at every named point by three deaths; clients go on writing while the worker is dead, below R as well.

One more pass ends as if nothing had happened: what lies below R is gone from everywhere, once, and nothing above it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from tests import events, seam
from tests.deaths import app_on, kill_backends, killed_worker, mostly_in_soak
from tests.events import EVENTS, drop_tiered, put_under_modak, retain, tier

from modak.app import App
from modak.embedded.postgres import Cluster
from modak.gateway.background import running
from modak.settings import Settings

# The worker that is killed has its Spark elsewhere; what comes before and after it is not about Spark.
pytestmark = [pytest.mark.spark, pytest.mark.inline]

POINTS = ["retain.after_journal", "retain.after_commit", "retain.in_publish", "retain.after_publish"]
EXPECTED = {
    "1": (1, 150, "came up"),
    "3": (3, 110, "while it was dead"),
    "4": (4, 210, "hot"),
    "5": (5, 220, "hot"),
    "71": (71, 160, "late"),
    "73": (73, 170, "later"),
}


def make_cold(app: App) -> None:
    """Corrections of every kind wait in the delta: below R, above it, and from one side to the other."""
    with app.connection() as connection:
        events.create(connection)
        put_under_modak(app, connection, lake_retention="100")
        connection.execute("insert into public.events values (6, 120, 'goes down')")
    tier(app)
    drop_tiered(app)
    write(
        app,
        [
            "update public.events set event_time = 150, val = 'came up' where id = 1",
            "update public.events set val = 'corrected' where id in (2, 3)",
            "update public.events set event_time = 90 where id = 6",
            "insert into public.events values (70, 80, 'late'), (71, 160, 'late')",
        ],
    )


def write(app: App, statements: list[str]) -> None:
    with running(App(replace(app.settings, gateway=("127.0.0.1", 0))).gateway()), psycopg.connect(app.dsn, autocommit=True) as client:
        for statement in statements:
            # Below R, and R has moved: then it is refused, and else it expires with the next pass.
            with contextlib.suppress(psycopg.errors.DatetimeFieldOverflow):
                client.execute(statement)


def write_meanwhile(app: App) -> None:
    write(
        app,
        [
            "update public.events set val = 'while it was dead' where id = 3",
            "insert into public.events values (72, 85, 'below')",
            "insert into public.events values (73, 170, 'later')",
        ],
    )


def check_whole(app: App) -> None:
    retain(app)
    with app.connection() as connection:
        line = connection.execute("select tier_key_hi, retention_line from modak.cutline").fetchone()
        assert line == {"tier_key_hi": 200, "retention_line": 100}
        below = connection.execute("select count(*) as n from modak.delta where tier_key < 100 or old_tier_key < 100").fetchone()
        assert below == {"n": 0}
        assert connection.execute("select count(*) as n from public.events_spill where event_time < 100").fetchone() == {"n": 0}
        assert connection.execute("select count(*) as n from modak.folded").fetchone() == {"n": 0}
        left = connection.execute("select count(*) as n from modak.op_log where phase in ('flushing', 'committed')").fetchone()
        assert left == {"n": 0}
        assert seam.states(connection, EVENTS) == {"p1": "dropped", "p2": "hot"}
    assert seam.read(app, EVENTS) == EXPECTED
    assert [stamps["modak.op-kind"] for stamps in seam.data_commits(app, EVENTS)] == ["tiering", "retention"]
    assert retain(app).op_id is None


@pytest.fixture
def cold(app: App) -> App:
    make_cold(app)
    return app


@pytest.mark.parametrize("point", mostly_in_soak(POINTS, "retain.after_commit"))
def test_the_worker_is_killed(cold: App, settings: Settings, dsn: str, point: str) -> None:
    killed_worker(settings, dsn, None, point, "retain", "public.events")
    assert len(seam.data_commits(cold, EVENTS)) == (1 if point == "retain.after_journal" else 2)
    write_meanwhile(cold)
    check_whole(cold)


@pytest.mark.parametrize("point", ["retain.after_commit", "retain.in_publish"])
def test_its_backend_is_killed(cold: App, dsn: str, point: str, at_point: Callable[[str, Callable[[], None]], None]) -> None:
    at_point(point, lambda: kill_backends(dsn))
    with pytest.raises(psycopg.OperationalError):
        retain(cold)
    write_meanwhile(cold)
    check_whole(cold)


@pytest.mark.parametrize("point", mostly_in_soak(["retain.after_commit", "retain.in_publish"], "retain.in_publish"))
def test_the_server_stops_at_once(
    own_cluster: Cluster, tmp_path: Path, settings: Settings, point: str, at_point: Callable[[str, Callable[[], None]], None]
) -> None:
    app = app_on(own_cluster, settings, tmp_path)
    make_cold(app)
    at_point(point, lambda: own_cluster.stop("immediate"))
    with pytest.raises(psycopg.OperationalError):
        retain(app)
    restarted = Cluster.start(tmp_path / "own")
    write_meanwhile(app_on(restarted, settings, tmp_path))
    check_whole(app_on(restarted, settings, tmp_path))
