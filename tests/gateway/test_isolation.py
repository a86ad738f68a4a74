"""Sessions that keep their snapshot see one unchanging world while rows move, are corrected and leave the heap."""

from __future__ import annotations

import psycopg
import pytest
from tests import events
from tests.gateways import RunningGateway
from tests.support import reclaim_all

from modak.app import App
from modak.connection import Connection

pytestmark = [pytest.mark.spark, pytest.mark.inline]

READ = "select id, event_time, val from public.events order by id"


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_an_old_snapshot_is_one_world(
    app: App, connection: Connection, dsn: str, gateway: RunningGateway, level: psycopg.IsolationLevel
) -> None:
    events.create(connection)
    events.put_under_modak(app, connection)
    port = psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", port=gateway.port)
    with psycopg.connect(dsn) as before, psycopg.connect(dsn) as between, psycopg.connect(port) as people:
        before.isolation_level = between.isolation_level = people.isolation_level = level
        people.read_only = True
        assert before.execute(READ).fetchall() == events.ROWS
        events.tier(app, upto=100)
        between_rows = between.execute(READ).fetchall()
        assert between_rows == people.execute(READ).fetchall() == events.ROWS
        connection.execute("update public.events set val = 'corrected' where id = 2")
        connection.execute("delete from public.events where id = 1")
        events.tier(app, upto=200)
        connection.execute("insert into public.events values (9, 50, 'late'), (10, 250, 'new')")
        events.drop_tiered(app, patience=0)
        assert events.fold(app).corrections > 0
        assert before.execute(READ).fetchall() == events.ROWS
        assert between.execute(READ).fetchall() == people.execute(READ).fetchall() == between_rows
        plan = "\n".join(row[0] for row in between.execute(f"explain {READ}").fetchall())
        assert "Foreign Scan" in plan
        for session in (before, between, people):
            session.rollback()
        after = [(2, 20, "corrected"), (3, 110, "c"), (4, 210, "hot"), (5, 220, "hot"), (9, 50, "late"), (10, 250, "new")]
        assert before.execute(READ).fetchall() == people.execute(READ).fetchall() == after
    with app.job(events.EVENTS) as job:
        reclaim_all(job)
    with psycopg.connect(dsn) as late:
        assert late.execute(READ).fetchall() == after


def test_a_plan_that_does_not_reach_the_line_fails_instead_of_missing_rows(
    app: App, connection: Connection, dsn: str, gateway: RunningGateway
) -> None:
    """The bound that a plan carries is what it was when the plan was made; here it is put back behind the line by hand."""
    events.create(connection)
    events.put_under_modak(app, connection)
    events.tier(app)
    connection.execute("update modak.tables set cold_bound = 100")
    with psycopg.connect(dsn) as reader, pytest.raises(psycopg.errors.SerializationFailure, match="cut-line moved"):
        reader.execute(READ)
    connection.execute("update modak.tables set cold_bound = 200")
    with psycopg.connect(dsn) as reader:
        assert reader.execute(READ).fetchall() == events.ROWS


def test_a_tier_key_that_was_renamed_by_hand_reads_on(app: App, connection: Connection, dsn: str, gateway: RunningGateway) -> None:
    events.create(connection)
    events.put_under_modak(app, connection)
    events.tier(app)
    connection.execute("alter table public.events_hot rename column event_time to at")
    middle = "select id from public.events where event_time between 15 and 215 order by id"
    port = psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", port=gateway.port)
    with psycopg.connect(dsn) as reader, psycopg.connect(port) as people:
        for session in (reader, people):
            assert session.execute(READ).fetchall() == events.ROWS
            assert session.execute(middle).fetchall() == [(2,), (3,), (4,)]
