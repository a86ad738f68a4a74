"""Pins in transactions that stay open: they hold the table they are of, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from tests import events, seam
from tests.events import EVENTS
from tests.gateways import RunningGateway
from tests.lake_upkeep import wait_for

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.jobs import fold as folding
from modak.registration.register import register

pytestmark = [pytest.mark.spark, pytest.mark.inline]
PIN = """
    insert into modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)
    select c.table_id, c.lake_snapshot_id, c.tier_key_hi, now() + interval '15 minutes'
      from modak.cutline c join modak.tables t using (table_id) where t.table_name = %s
    returning pinned_lake_snapshot_id, pinned_tier_key_hi
"""


@pytest.fixture
def cold(app: App, connection: Connection, gateway: RunningGateway) -> App:
    """E with cold rows and a correction of one, and another registered table."""
    events.create(connection)
    events.put_under_modak(app, connection)
    events.tier(app)
    events.drop_tiered(app)
    connection.execute("update public.events set val = 'corrected' where id = 1")
    connection.execute("create table public.other (id bigint, at bigint, primary key (id, at)) partition by range (at)")
    connection.execute("create table public.other_0 partition of public.other for values from (0) to (100)")
    profile = profiles.get(connection, None)
    options = Options(tier_key="at", lag="0", width="100")
    register(connection, app.lake(profile), Name("public", "other"), options, profile=profile.name)
    return app


@pytest.fixture
def reader(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn) as session:
        yield session


def test_a_reader_of_another_table_holds_nothing_up(cold: App, reader: psycopg.Connection) -> None:
    reader.execute(PIN, ["other"])
    folded = events.fold(cold)
    assert (folded.corrections, folded.waiting) == (1, None)


def test_a_reader_of_this_one_is_waited_for_and_named(cold: App, connection: Connection, reader: psycopg.Connection) -> None:
    reader.execute(PIN, ["events"])
    waiting = events.fold(cold).waiting
    assert waiting is not None
    assert f"process {reader.info.backend_pid}" in waiting
    assert seam.states(connection, EVENTS) == {"p0": "dropped", "p1": "dropped", "p2": "hot"}
    # Other jobs of the table go on: nothing is left over that they would have to end first.
    events.add_partition(connection, 3, "public.events_hot")
    connection.execute("insert into public.events values (6, 310, 'newest')")
    assert len(events.tier(cold).partitions) == 1
    reader.rollback()
    assert events.fold(cold).corrections == 1


def test_one_that_comes_between_commit_and_publication(
    cold: App, connection: Connection, reader: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lake has the fold already: the next job takes it back, and goes on. The reader's corrections stay."""
    publish = folding.publish_fold

    def pinned_first(*given: object) -> object:
        reader.execute(PIN, ["events"])
        return publish(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(folding, "publish_fold", pinned_first)
    assert "still open" in str(events.fold(cold).waiting)
    monkeypatch.undo()
    assert events.tier(cold).resumed[0].startswith(_operation(connection))
    assert connection.execute("select count(*) as n from modak.delta").fetchone() == {"n": 1}
    reader.rollback()
    assert events.fold(cold).corrections == 1
    assert connection.execute("select val from public.events where id = 1").fetchall() == [{"val": "corrected"}]


def test_a_pin_that_waited_for_a_publication_has_the_new_seam(cold: App, connection: Connection, dsn: str) -> None:
    """Its statement looked at the cut-line before the publication, and the corrections it would need are gone."""
    table = connection.execute("select table_id from modak.tables where table_name = 'events'").fetchone()
    assert table is not None
    with psycopg.connect(dsn) as publishing, psycopg.connect(dsn) as session, ThreadPoolExecutor(1) as pool:
        publishing.execute("select pg_advisory_xact_lock(x'6d7000000000'::bigint + %s)", [table["table_id"]])
        pinned = pool.submit(lambda: session.execute(PIN, ["events"]).fetchone())
        wait_for(lambda: _waits(connection, session.info.backend_pid))
        publishing.execute("update modak.cutline set lake_snapshot_id = lake_snapshot_id + 1, revision = revision + 1 "
                           "where table_id = %s", [table["table_id"]])  # fmt: skip
        publishing.commit()
        now = connection.execute("select lake_snapshot_id as s, tier_key_hi as t from modak.cutline where table_id = %(table_id)s", table)
        assert pinned.result(30) == tuple((now.fetchone() or {}).values())


def test_a_pin_of_an_older_snapshot_stays_what_it_is(cold: App, connection: Connection) -> None:
    """Whoever keeps a snapshot that he reads already, and says which."""
    connection.execute(
        "insert into modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at) "
        "select table_id, 0, 7, now() + interval '1 minute' from modak.tables where table_name = 'events'"
    )
    found = connection.execute(
        "select pinned_lake_snapshot_id as s, pinned_tier_key_hi as t from modak.read_pins where pinned_tier_key_hi = 7"
    )
    assert found.fetchall() == [{"s": 0, "t": 7}]


def _waits(connection: Connection, pid: int) -> bool:
    return connection.execute("select from pg_locks where pid = %s and not granted", [pid]).fetchone() is not None


def _operation(connection: Connection) -> str:
    row = connection.execute("select op_id from modak.op_log where op_kind = 'compaction' and phase = 'abandoned'").fetchone()
    assert row is not None
    return str(row["op_id"])
