"""Late rows that something in Postgres listens to: foreign keys that point to them, and the user's own triggers. T is 200.

A fold changes where a row is kept, not whether it is there: no reference may act on that, and no trigger may hear of a deletion.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests import events
from tests.events import EVENTS, fold, put_under_modak, retain, tier
from tests.gateways import RunningGateway
from tests.support import rows, unregister_table, value

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.errors import Refused
from modak.jobs.untier import untier
from modak.source import spilled

pytestmark = [pytest.mark.spark, pytest.mark.inline]

LATE = (10, -500, "late")
SPILL = "select id, event_time, val from public.events_spill order by id"
COLD = "select id, event_time, val from public.events_all where event_time < 0 order by id"
AUDIT = """
    create table public.heard (op text, id bigint);
    create function public.hear() returns trigger language plpgsql as $$
        begin insert into public.heard values (tg_op, coalesce(new.id, old.id)); return coalesce(new, old); end $$;
    create trigger audit after insert or update or delete on public.events for each row execute function public.hear();
"""


@pytest.fixture
def late(app: App, connection: Connection, gateway: RunningGateway) -> App:
    """The name is the heap's. A late row waits in the spill."""
    events.create(connection)
    put_under_modak(app, connection, surface="heap", lake_retention="100")
    tier(app)
    events.drop_tiered(app)
    connection.execute("insert into public.events values (%s, %s, %s)", LATE)
    return app


def refer(connection: Connection, action: str = "") -> None:
    """A child of the late row."""
    connection.execute(f"create table public.notes (id bigint, at bigint, foreign key (id, at) references public.events {action})")
    connection.execute("insert into public.notes values (%s, %s)", LATE[:2])


def lake_rows(app: App, connection: Connection) -> list[tuple[Any, ...]]:
    table = tables.get(connection, EVENTS)
    snapshot = tables.published_snapshot(connection, table.table_id)
    scan = app.lake(profiles.get(connection, None)).load(table.lake_table_ref).scan(snapshot_id=snapshot)
    return sorted(tuple(row.values()) for row in scan.to_arrow().to_pylist())


@pytest.mark.parametrize("action", ["on delete cascade", "on delete set null", ""])
def test_a_referenced_row_is_folded_and_keeps_its_place(late: App, connection: Connection, action: str) -> None:
    refer(connection, action)
    assert fold(late).corrections == 1
    assert LATE in lake_rows(late, connection)
    assert rows(connection, "select id, at from public.notes") == [LATE[:2]]
    assert rows(connection, SPILL) == rows(connection, COLD) == [LATE]
    assert tier(late).resumed == ()


def test_what_stays_in_place_stays_true(late: App, connection: Connection) -> None:
    """Whoever writes to the copy, by the heap's name or through the view, writes a correction; another fold carries it."""
    refer(connection)
    fold(late)
    connection.execute("update public.events set val = 'by the heap' where id = 10")
    assert rows(connection, COLD) == [(10, -500, "by the heap")]
    fold(late)
    connection.execute("update public.events_all set val = 'by the view' where id = 10")
    assert rows(connection, SPILL) == rows(connection, COLD) == [(10, -500, "by the view")]
    fold(late)
    assert (10, -500, "by the view") in lake_rows(late, connection)
    assert value(connection, "select count(*) from modak.delta") == 0
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        connection.execute("delete from public.events_all where id = 10")
    connection.execute("delete from public.notes")
    connection.execute("delete from public.events_all where id = 10")
    fold(late)
    assert rows(connection, COLD) == rows(connection, SPILL) == []
    assert len(lake_rows(late, connection)) == 3


def test_rows_that_stayed_come_back_with_the_rest(late: App, connection: Connection) -> None:
    refer(connection, "on delete cascade")
    fold(late)
    with late.job(EVENTS) as job:
        untier(job)
    assert rows(connection, SPILL) == []
    assert rows(connection, "select id, at from public.notes") == [LATE[:2]]
    assert rows(connection, "select id, event_time, val from public.events where id = 10") == [LATE]
    connection.execute("delete from public.events where id = 10")
    assert rows(connection, "select * from public.notes") == []


def test_they_stay_when_the_table_is_unregistered(late: App, connection: Connection) -> None:
    refer(connection, "on delete cascade")
    fold(late)
    outcome = unregister_table(connection, late.lake(profiles.get(connection, None)))
    assert [str(name) for name in outcome.spills] == ["public.events_spill"]
    assert rows(connection, "select id, event_time, val from public.events where id = 10") == [LATE]
    assert value(connection, "select count(*) from public.notes") == 1


def test_triggers_hear_of_no_deletion(late: App, connection: Connection) -> None:
    connection.execute(AUDIT)
    fold(late)
    assert rows(connection, SPILL) == []
    connection.execute("insert into public.events values (11, -500, 'later')")
    retain(late)
    assert rows(connection, SPILL) == []
    assert rows(connection, "select * from public.heard") == [("INSERT", 11)]


@pytest.mark.parametrize("fires", ["always", "replica"])
def test_a_trigger_that_always_hears_keeps_its_rows(late: App, connection: Connection, fires: str) -> None:
    connection.execute(AUDIT)
    connection.execute(f"alter table public.events enable {fires} trigger audit")
    fold(late)
    assert rows(connection, SPILL) == rows(connection, COLD) == [LATE]
    assert rows(connection, "select * from public.heard") == []


def test_a_role_that_cannot_silence_triggers_leaves_the_rows(late: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most managed servers give nobody the right to."""
    monkeypatch.setattr(spilled, "_may_silence", lambda _: False)
    fold(late)
    assert rows(connection, SPILL) == []  # nobody listens
    connection.execute(AUDIT)
    connection.execute("insert into public.events values (11, -500, 'later')")
    fold(late)
    assert rows(connection, SPILL) == [(11, -500, "later")]
    assert rows(connection, COLD) == [LATE, (11, -500, "later")]
    with late.job(EVENTS) as job, pytest.raises(Refused, match="trigger audit") as refused:
        untier(job)
    assert "session_replication_role" in str(refused.value.hint)
    assert rows(connection, "select * from public.heard") == [("INSERT", 11)]
    assert tier(late).partitions == ()
    assert rows(connection, COLD) == [LATE, (11, -500, "later")]


def test_a_reference_forbids_an_untier_that_would_act_on_it(late: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    refer(connection, "on delete cascade")
    fold(late)
    monkeypatch.setattr(spilled, "_may_silence", lambda _: False)
    with late.job(EVENTS) as job, pytest.raises(Refused, match="foreign key notes_id_at_fkey"):
        untier(job)
    assert rows(connection, "select id, at from public.notes") == [LATE[:2]]
    assert rows(connection, COLD) == [LATE]
