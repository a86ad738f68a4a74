"""Fencing: whoever lost his leadership or his session publishes nothing, and nobody waits for the check (SCENARIOS 96)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg
import pytest
from tests import mirroring, seam
from tests.adopting import Loads, row, run_fold, seam_of
from tests.events import EVENTS, create, put_under_modak
from tests.loading import World, world
from tests.support import rows, value

from modak.app import App
from modak.catalog import leadership, mirrors, tables
from modak.connection import Connection, connect
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.errors import LeadershipLost
from modak.jobs import adopt, fold, initial_copy, maintain, mirror, reclaim, retain, tier, untier
from modak.jobs.context import JOB_LOCK
from modak.worker.health import HealthCheck
from modak.worker.samples import Samples
from modak.worker.state import LoopState

pytestmark = pytest.mark.inline
AtPoint = Callable[[str, Callable[[], Any]], None]


def lead(connection: Connection) -> int:
    assert leadership.try_lead(connection)
    return leadership.take(connection, holder="test", host="here", pid=1)


@pytest.fixture
def leader(dsn: str) -> Iterator[Connection]:
    with connect(dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def registered(app: App, connection: Connection) -> App:
    create(connection)
    put_under_modak(app, connection)
    return app


def test_the_epoch_only_rises(leader: Connection, connection: Connection, dsn: str) -> None:
    first = lead(leader)
    assert not leadership.try_lead(connection)
    leader.close()
    with connect(dsn, autocommit=True) as second:
        while not leadership.try_lead(second):
            pass
        assert leadership.take(second, holder="next", host="here", pid=2) == first + 1
        assert not leadership.show_life(second, first)
        assert leadership.show_life(second, first + 1)


def test_a_publication_and_a_new_leader_wait_for_each_other(leader: Connection, connection: Connection, dsn: str) -> None:
    epoch = lead(leader)
    with connect(dsn) as publishing:
        leadership.check_epoch(publishing, epoch)
        # Neither a sign of life nor another publication has to wait.
        assert leadership.show_life(leader, epoch)
        with connection.transaction():
            leadership.check_epoch(connection, epoch)
        connection.execute("set lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            leadership.take(connection, holder="next", host="here", pid=2)
    assert leadership.take(connection, holder="next", host="here", pid=2) == epoch + 1
    with pytest.raises(LeadershipLost, match="does not lead"):
        leadership.check_epoch(connection, epoch)


def test_a_leader_that_was_replaced_publishes_nothing(
    registered: App, leader: Connection, connection: Connection, at_point: AtPoint
) -> None:
    epoch = lead(leader)
    at_point("tier.before_advance", lambda: leadership.take(connection, holder="next", host="here", pid=2))
    before = rows(connection, "select c.xmin::text, c.* from modak.cutline c")
    with pytest.raises(LeadershipLost), registered.job(EVENTS, epoch=epoch) as job:
        tier.tier(job)
    assert rows(connection, "select c.xmin::text, c.* from modak.cutline c") == before
    # Nobody's problem: whoever leads adopts the commit, and makes no second one.
    assert value(connection, "select count(*) from modak.problems") == 0
    with registered.job(EVENTS) as job:
        assert tier.tier(job).resumed
    assert len(seam.data_commits(registered, EVENTS)) == 1


def test_a_leader_without_its_session_publishes_nothing(registered: App, leader: Connection, at_point: AtPoint) -> None:
    """Although nobody has taken its place yet."""
    epoch = lead(leader)
    at_point("tier.before_advance", leader.close)
    with pytest.raises(LeadershipLost), registered.job(EVENTS, epoch=epoch) as job:
        tier.tier(job)


def test_a_session_without_the_tables_lock_publishes_nothing(registered: App, connection: Connection, at_point: AtPoint) -> None:
    """As behind a pooler that gives every transaction another session."""
    with registered.job(EVENTS) as job:
        key = JOB_LOCK + job.table_id
        at_point("tier.before_advance", lambda: job.connection.execute("select pg_advisory_unlock(%s)", [key]))
        with pytest.raises(LeadershipLost, match="does not hold the lock"):
            tier.tier(job)
    assert seam.states(connection, EVENTS) == {"p0": "tiering", "p1": "tiering", "p2": "hot"}


def test_a_silent_leader_is_evicted(leader: Connection, connection: Connection) -> None:
    lead(leader)
    assert leadership.evict_silent(connection, 60) == []
    connection.execute("select pg_sleep(0.2)")
    assert len(leadership.evict_silent(connection, 0.1)) == 1
    while not leadership.try_lead(connection):
        pass
    with pytest.raises(psycopg.OperationalError):
        leader.execute("select 1")


def test_sessions_that_a_leader_left_are_ended(dsn: str, connection: Connection) -> None:
    with (
        connect(dsn, application=leadership.session_name(7), autocommit=True) as left,
        connect(dsn, application="modak worker bee", autocommit=True) as other,
    ):
        assert len(leadership.evict_earlier(connection)) == 1
        assert value(other, "select 1") == 1
        with pytest.raises(psycopg.OperationalError):
            left.execute("select 1")


def test_health_knows_who_leads(connection: Connection) -> None:
    health = HealthCheck(lambda: nullcontext(connection), LoopState(), Samples())
    assert (health().is_fine, health().leader) == (True, None)
    leadership.take(connection, holder=leadership.holder_name(), host="here", pid=1)
    health._began = datetime(2026, 1, 1, tzinfo=UTC)
    found = health().as_dict()
    assert (found["status"], found["leader"]["is_this"], found["leader"]["holder"]) == ("ok", True, leadership.holder_name())
    connection.execute("update modak.leader set seen_at = now() - interval '10 minutes', holder = 'other/1'")
    assert health().reasons == ("no worker has led for 600 s",)
    assert health().as_dict()["leader"] == {"holder": "other/1", "is_this": False, "seen_seconds": 600.0}


@pytest.fixture(scope="module")
def made(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    from tests.inline import inlined

    with inlined(), world(cluster, template, tmp_path_factory, ["pairs", "events", "standing"]) as found:
        yield found


JOBS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "reclaim": ("standing", reclaim.reclaim),
    "fold": ("pairs", fold.fold),
    "adopt": ("events", adopt.adopt),
    "retain": ("pairs", retain.retain),
    "maintain": ("pairs", maintain.maintain),
    "untier": ("standing", untier.untier),
}


@pytest.mark.parametrize("job", JOBS)
def test_every_publication_is_fenced(made: World, job: str) -> None:
    table, run = JOBS[job]
    with connect(made.dsn, autocommit=True) as connection:
        before = seam_of(connection, table)
        if job == "fold":
            Loads(made, table).trickle(row(1, 10, "corrected"))
        elif job == "adopt":
            Loads(made, table).stage(row(10, 50))
        elif job == "retain":
            connection.execute("update modak.tables set lake_retention_lag = '100' where table_name = %s", [table])
        elif job == "maintain":
            Loads(made, table).trickle(row(2, 20, "corrected"))  # folded, it leaves a file of which half is deleted
            run_fold(made.app, table)
            before = seam_of(connection, table)
        with pytest.raises(LeadershipLost), made.app.job(Name("public", table), epoch=-1) as context:
            run(context)
        assert seam_of(connection, table) == before
        assert value(connection, "select count(*) from modak.problems") == 0


FOLLOWED = Name("public", "followed")


@pytest.fixture
def followed(app: App, connection: Connection, request: pytest.FixtureRequest) -> Iterator[App]:
    """A mirrored table; by the parameter one that sheds partitions, whose pump need not wait for readers."""
    options = {"surface": "view", "heap_retention": "1000", "width": "100"} if request.param == "sheds" else {}
    connection.execute("create table public.followed (id bigint, at bigint, primary key (id, at)) partition by range (at)")
    connection.execute("create table public.followed_0 partition of public.followed for values from (0) to (100)")
    connection.execute("insert into public.followed values (1, 1)")
    mirroring.start(app, connection, FOLLOWED, "at", **options)
    yield app
    connection.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()")


def place(connection: Connection) -> tuple[Any, ...]:
    return (seam_of(connection, "followed"), mirroring.frontier(connection, FOLLOWED), mirroring.state(connection, FOLLOWED))


@pytest.mark.parametrize("followed", ["whole", "sheds"], indirect=True)
def test_a_pump_without_leadership_moves_no_table(followed: App, connection: Connection) -> None:
    connection.execute("insert into public.followed values (2, 2)")
    before = place(connection)
    done = mirror.mirror(connection, followed.dsn, partial(followed.job, epoch=-1), epoch=-1)
    assert "does not lead" in done.failed[str(FOLLOWED)]
    assert place(connection) == before
    assert value(connection, "select count(*) from modak.problems") == 0
    assert mirroring.pump(followed, connection).failed == {}
    assert {one["id"] for one in mirroring.lake_rows(followed, connection, FOLLOWED)} == {1, 2}


@pytest.mark.parametrize("followed", ["whole"], indirect=True)
@pytest.mark.parametrize("point", ["copy.after_slot", "copy.after_publish"])
def test_a_copy_without_leadership_is_not_published(
    followed: App, connection: Connection, leader: Connection, at_point: AtPoint, point: str
) -> None:
    """Neither its chunks nor its end, from where the table would be followed."""
    epoch = lead(leader)
    at_point(point, lambda: leadership.take(connection, holder="next", host="here", pid=2))
    with pytest.raises(LeadershipLost), followed.job(FOLLOWED, epoch=epoch) as job:
        initial_copy.copy(job, again=True)
    table_id = tables.get(connection, FOLLOWED).table_id
    assert mirrors.get(connection, table_id).copied_lsn is None
    assert mirrors.get(connection, table_id).is_copying
    mirroring.copy(followed, FOLLOWED)
    assert [one["id"] for one in mirroring.lake_rows(followed, connection, FOLLOWED)] == [1]
