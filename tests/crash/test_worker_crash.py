"""Two workers as processes: the leader is killed, paused or asked to end, and the other one finishes (SCENARIOS 96)."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
from collections.abc import Iterator

import psycopg
import pytest
from tests import events, seam
from tests.crash.test_tier_crash import RECLAIM_POINTS, TIER_POINTS
from tests.events import EVENTS, ROWS, drop_tiered, put_under_modak, tier
from tests.serving import WorkerProcess, until
from tests.support import rows, value

from modak.app import App
from modak.connection import Connection

pytestmark = pytest.mark.inline
# A flush of five rows without Spark is over before anybody looks at its progress.
POINTS = [point for point in (*TIER_POINTS, *RECLAIM_POINTS) if point != "tier.during_flush"]
FAST = {"MODAK_CYCLE_SECONDS": "0.2", "MODAK_LEASE_SECONDS": "1.5", "MODAK_DRAIN_SECONDS": "20"}


def started(app: App, **variables: str) -> WorkerProcess:
    return WorkerProcess(app, 0, module="tests.inline_worker", **{**FAST, **variables})


def leads(connection: Connection, worker: WorkerProcess) -> None:
    until(lambda: value(connection, "select count(*) from modak.leader where pid = %s", worker.process.pid) == 1)


@contextlib.contextmanager
def pair(app: App, connection: Connection, failpoints: str) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    """A leader that will come to harm, and one that stands by. The table comes under Modak when both are there."""
    leader = started(app, MODAK_FAILPOINTS=failpoints)
    standby: WorkerProcess | None = None
    try:
        leads(connection, leader)
        standby = started(app)
        events.create(connection)
        put_under_modak(app, connection)
        yield leader, standby
    finally:
        for worker in (leader, standby):
            if worker is not None and worker.process.poll() is None:
                worker.process.send_signal(signal.SIGCONT)
                worker.kill()


def is_done(app: App, connection: Connection) -> bool:
    return seam.states(connection, EVENTS) == {"p0": "dropped", "p1": "dropped", "p2": "hot"}


def check_whole(app: App, connection: Connection) -> None:
    assert seam.read(app, EVENTS) == {str(row[0]): row for row in ROWS}
    assert len(seam.data_commits(app, EVENTS)) == 1
    assert value(connection, "select count(*) from modak.op_log where phase in ('flushing', 'committed')") == 0
    assert value(connection, "select count(*) from modak.captured") == 0
    assert value(connection, "select count(*) from modak.problems") == 0


@pytest.mark.soak  # test_worker_jobs_crash.py has one point of each job for every run
@pytest.mark.parametrize("point", POINTS)
def test_the_leader_is_killed(app: App, connection: Connection, point: str) -> None:
    with pair(app, connection, f"{point}=kill") as (leader, standby):
        assert leader.process.wait(60) == -signal.SIGKILL
        until(lambda: is_done(app, connection))
        leads(connection, standby)
        code, log = standby.terminate()
    assert code == 0, log
    assert "Traceback" not in log
    check_whole(app, connection)


@pytest.mark.parametrize("point", [pytest.param("tier.before_advance", marks=pytest.mark.soak), "tier.in_advance"])
def test_a_paused_leader_wakes_too_late(app: App, connection: Connection, point: str) -> None:
    """Before its publication, and inside of it with all its locks."""
    with pair(app, connection, f"{point}=stop") as (leader, standby):
        until(lambda: is_done(app, connection), 60)
        leads(connection, standby)
        before = rows(connection, "select xmin::text, * from modak.cutline"), rows(connection, "select xmin::text, * from modak.partitions")
        leader.process.send_signal(signal.SIGCONT)
        # It notices, publishes nothing, and stands by; asked to end, both do.
        until(lambda: "modak_worker_leader 0.0" in metrics(leader))
        assert "modak_worker_leader 1.0" in metrics(standby)
        code, log = leader.terminate()
        assert code == 0, log
        assert "the session that holds the lease is gone" in log
        after = rows(connection, "select xmin::text, * from modak.cutline"), rows(connection, "select xmin::text, * from modak.partitions")
        assert after == before
        assert standby.terminate()[0] == 0
    check_whole(app, connection)


def test_a_leader_that_ends_hands_over(app: App, connection: Connection) -> None:
    with pair(app, connection, "") as (leader, standby):
        until(lambda: is_done(app, connection))
        code, log = leader.terminate()
        assert code == 0, log
        leads(connection, standby)
        os.kill(standby.process.pid, 0)
        events.add_partition(connection, 3, "public.events_hot")
        connection.execute("insert into public.events values (6, 310, 'newest')")
        until(lambda: seam.states(connection, EVENTS).get("p2") == "dropped")
        assert standby.terminate()[0] == 0


def test_a_job_that_takes_too_long_is_left_to_the_next_worker(app: App, connection: Connection) -> None:
    """It waits for a writer, and the worker is asked to end meanwhile."""
    events.create(connection)
    put_under_modak(app, connection)
    with psycopg.connect(app.dsn) as writer:
        writer.execute("update public.p0 set val = val")
        worker = started(app, MODAK_DRAIN_SECONDS="0.5")
        until(lambda: value(connection, "select count(*) from modak.op_log where phase = 'flushing'") == 1)
        code, log = worker.terminate()
        assert code == 0, log
        assert "left to the next worker: {'public.events': 'tier'}" in log
    tier(app)
    drop_tiered(app)
    check_whole(app, connection)


def metrics(worker: WorkerProcess) -> str:
    client = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
    with contextlib.closing(client):
        client.request("GET", "/metrics")
        return client.getresponse().read().decode()
