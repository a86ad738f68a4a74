"""Two workers at every kind of job: the leader is killed or paused at each of its points, and the other one finishes (SCENARIOS 96)."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests import events, mirroring, seam
from tests.crash.test_adopt_crash import POINTS as ADOPT
from tests.crash.test_adopt_crash import point_of
from tests.crash.test_fold_crash import POINTS as FOLD
from tests.crash.test_maintain_crash import POINTS as MAINTAIN
from tests.crash.test_mirror_crash import PUMP_POINTS as MIRROR
from tests.crash.test_retain_crash import POINTS as RETAIN
from tests.crash.test_worker_crash import leads, metrics, started
from tests.events import EVENTS, ROWS, drop_tiered, put_under_modak, tier
from tests.serving import WorkerProcess, until
from tests.support import rows, value

from modak.app import App
from modak.catalog import overview, tables
from modak.connection import Connection
from modak.core.table import Name
from modak.load import LoadClient, LoadOptions, LoadRequest, lake_storage

pytestmark = pytest.mark.inline
FOLLOWED = Name("public", "followed")
# F of the mirrored table moves with the WAL; the rest only where somebody publishes.
LINES = """
    select c.lake_snapshot_id, case when t.mode = 'tiered' then c.xmin::text end, c.tier_key_hi, c.retention_line
      from modak.cutline c join modak.tables t using (table_id) order by t.table_id
"""


@dataclass(frozen=True)
class Story:
    """``act`` gives a job something to do, ``done`` says that it was done."""

    act: Callable[[App, Connection], None]
    done: Callable[[App, Connection], bool]
    points: tuple[str, ...]


def _add_partition(_: App, connection: Connection) -> None:
    events.add_partition(connection, 3, "public.events_hot")
    connection.execute("insert into public.events_hot values (6, 310, 'newest')")


def _correct(_: App, connection: Connection) -> None:
    connection.execute("insert into public.events_hot values (70, 55, 'late')")


def _stage(app: App, _: Connection) -> None:
    options = LoadOptions(app.dsn, "public.events", spool_threshold=0, storage=lake_storage(app.dsn, app.settings))
    with LoadClient(options) as client:
        assert client.load(LoadRequest("staged", [{"id": 80, "event_time": 80, "val": "loaded"}])).state == "staged"


def _request(_: App, connection: Connection) -> None:
    connection.execute("update modak.tables set maintenance_policy = '{\"small_files\": \"2\"}' where table_name = 'events'")
    overview.request_maintenance(connection, tables.get(connection, EVENTS).table_id)


def _expire(_: App, connection: Connection) -> None:
    connection.execute("update modak.tables set lake_retention_lag = '100' where table_name = 'events'")


def _write(_: App, connection: Connection) -> None:
    connection.execute("insert into public.followed values (2, 'told')")


def _is(query: str, wanted: object) -> Callable[[App, Connection], bool]:
    return lambda _, connection: bool(value(connection, query) == wanted)


def _is_told(app: App, connection: Connection) -> bool:
    return {one["id"] for one in mirroring.lake_rows(app, connection, FOLLOWED)} == {1, 2}


STORIES = {
    "tier": Story(_add_partition, _is("select state from modak.partitions where partition_name = 'p2'", "dropped"), ("tier.after_commit",)),
    "fold": Story(_correct, _is("select count(*) from modak.delta", 0), tuple(FOLD)),
    "adopt": Story(
        _stage, _is("select state from modak.load_labels", "committed"), tuple(point_of("adopt", point) for point in ADOPT)
    ),
    "maintain": Story(_request, _is("select count(*) from modak.maintenance_requests", 0), tuple(MAINTAIN[:5])),
    "retain": Story(_expire, _is("select count(retention_line) from modak.cutline", 1), tuple(RETAIN)),
    "mirror": Story(_write, _is_told, tuple(MIRROR)),
}  # fmt: skip


@pytest.fixture
def world(app: App, connection: Connection) -> Iterator[App]:
    """E with two partitions in the lake only, and a mirrored table; nothing is left to do."""
    events.create(connection)
    # Of a key that says where its row is, no gateway has to be asked.
    put_under_modak(app, connection, primary_key=("id", "event_time"))
    tier(app)
    drop_tiered(app)
    connection.execute("create table public.followed (id bigint primary key, note text)")
    connection.execute("insert into public.followed values (1, 'copied')")
    mirroring.start(app, connection, FOLLOWED)
    yield app
    slots = "from pg_replication_slots where database = current_database()"
    connection.execute(f"select pg_terminate_backend(active_pid, 10000) {slots} and active_pid is not null")
    connection.execute(f"select pg_drop_replication_slot(slot_name) {slots}")


@pytest.fixture
def workers(world: App) -> Iterator[Callable[[str], WorkerProcess]]:
    """Starts one that will come to harm at these points, or at none."""
    made: list[WorkerProcess] = []

    def start(failpoints: str = "") -> WorkerProcess:
        made.append(started(world, MODAK_FOLD_ROWS="1", MODAK_FAILPOINTS=failpoints))
        return made[-1]

    yield start
    for worker in made:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGCONT)
            worker.kill()


def prepare(world: App, connection: Connection, job: str) -> None:
    """Two small files in one lake partition are something to maintain."""
    if job == "maintain":
        _correct(world, connection)
        events.fold(world)


def check_whole(world: App, connection: Connection, *jobs: str) -> None:
    expected = list(ROWS)
    expected += [(70, 55, "late")] if {"fold", "maintain"} & set(jobs) else []
    expected += [(6, 310, "newest")] if "tier" in jobs else []
    expected += [(80, 80, "loaded")] if "adopt" in jobs else []
    if "retain" in jobs:
        line = value(connection, "select max(retention_line) from modak.cutline")
        expected = [row for row in expected if row[1] >= line]
    assert sorted(seam.read(world, EVENTS).values()) == sorted(expected)
    assert value(connection, "select count(*) from modak.op_log where phase in ('flushing', 'committed')") == 0
    assert value(connection, "select count(*) from modak.problems") == 0


def ends_well(worker: WorkerProcess) -> None:
    code, log = worker.terminate()
    assert code == 0, log
    assert "Traceback" not in log


def test_leaders_die_one_after_the_other_at_every_job(world: App, connection: Connection, workers: Callable[[str], WorkerProcess]) -> None:
    """Each finishes what the one before it began, and dies at the next job."""
    chain = ["fold", "adopt", "maintain", "tier", "retain", "mirror"]
    leader = workers(f"{chain[0]}.after_commit=kill")
    leads(connection, leader)
    for job, following in itertools.pairwise([*chain, ""]):
        standby = workers(f"{following}.after_commit=kill" if following else "")
        STORIES[job].act(world, connection)
        assert leader.process.wait(60) == -signal.SIGKILL, job
        until(lambda job=job: STORIES[job].done(world, connection))
        leader = standby
    leads(connection, leader)
    ends_well(leader)
    check_whole(world, connection, *chain)


EVERY = [(job, point) for job, story in STORIES.items() if job != "tier" for point in story.points]


@pytest.mark.soak
@pytest.mark.parametrize(("job", "point"), EVERY)
def test_the_leader_is_killed(world: App, connection: Connection, workers: Callable[[str], WorkerProcess], job: str, point: str) -> None:
    prepare(world, connection, job)
    leader = workers(f"{point}=kill")
    leads(connection, leader)
    standby = workers("")
    STORIES[job].act(world, connection)
    assert leader.process.wait(60) == -signal.SIGKILL
    until(lambda: STORIES[job].done(world, connection))
    leads(connection, standby)
    until(lambda: value(connection, "select count(*) from modak.op_log where phase in ('flushing', 'committed')") == 0)
    ends_well(standby)
    check_whole(world, connection, job)


PAUSES = [
    pytest.param(job, point, marks=() if point == "fold.in_publish" else pytest.mark.soak)
    for job, point in EVERY
    if point.endswith((".in_publish", ".after_commit"))
]


@pytest.mark.parametrize(("job", "point"), PAUSES)
def test_a_paused_leader_wakes_too_late(
    world: App, connection: Connection, workers: Callable[[str], WorkerProcess], job: str, point: str
) -> None:
    """Before its publication, and inside of it with all its locks."""
    prepare(world, connection, job)
    leader = workers(f"{point}=stop")
    leads(connection, leader)
    standby = workers("")
    STORIES[job].act(world, connection)
    until(lambda: STORIES[job].done(world, connection))
    leads(connection, standby)
    before = rows(connection, LINES)
    leader.process.send_signal(signal.SIGCONT)
    until(lambda: "modak_worker_leader 0.0" in metrics(leader))
    code, log = leader.terminate()
    assert code == 0, log
    assert "the session that holds the lease is gone" in log
    assert rows(connection, LINES) == before
    ends_well(standby)
    check_whole(world, connection, job)
