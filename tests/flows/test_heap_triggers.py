"""Row triggers that people have on the heap: an UPDATE of a cold row fires what it fires on a plain table."""

from __future__ import annotations

import psycopg
import pytest
from tests import events
from tests.gateways import RunningGateway
from tests.support import rows

from modak.app import App
from modak.connection import Connection
from modak.core.registration import Options
from modak.registration.register import look

TRIGGERS = """
    create function public.made_{t}() returns trigger language plpgsql as $$ begin
        new.val := 'made'; return new;
    end $$;
    create function public.changed_{t}() returns trigger language plpgsql as $$ begin
        if new.id = 3 then return null; end if;
        new.val := new.val || '+'; return new;
    end $$;
    create function public.tell_{t}() returns trigger language plpgsql as $$ begin
        if current_setting('modak.returning', true) is distinct from 'public.{t}' then
            insert into public.told values ('{t}', tg_op, new.id, new.val);
        end if;
        return null;
    end $$;
    create trigger made before insert on public.{heap} for each row execute function public.made_{t}();
    create trigger changed before update on public.{heap} for each row execute function public.changed_{t}();
    create trigger tell after insert or update on public.{heap} for each row execute function public.tell_{t}();
"""
CHANGES = [
    "update public.{t} set val = 'x' where id in (1, 2, 3, 4) returning id, val",
    "update public.{t} set val = val || 'y' where id in (1, 3) returning id, val",
    "update public.{t} set event_time = event_time + 40 where id in (1, 4) returning id, event_time, val",
    "update public.{t} set id = 30 where id = 2 returning id, event_time, val",
    "insert into public.{t} values (40, 40, 'x'), (41, 240, 'x') returning id, event_time, val",
    "update public.{t} set val = 'z' where id >= 30 returning id, event_time, val",
]


@pytest.mark.spark
@pytest.mark.inline
def test_an_update_fires_the_triggers_of_an_update(app: App, connection: Connection, gateway: RunningGateway) -> None:
    """Cold rows as hot ones; what INSERT triggers do to a row that comes back is undone."""
    events.create(connection)
    connection.execute("create table public.plain (like public.events, primary key (id))")
    connection.execute("insert into public.plain select * from public.events")
    connection.execute("create table public.told (who text, what text, id bigint, val text)")
    events.put_under_modak(app, connection)
    events.tier(app)
    events.drop_tiered(app)
    for name, heap in (("events", "events_hot"), ("plain", "plain")):
        connection.execute(TRIGGERS.replace("{t}", name).replace("{heap}", heap).encode())
    for change in CHANGES:
        found, wanted = (sorted(rows(connection, change.replace("{t}", name))) for name in ("events", "plain"))
        assert found == wanted, change
        found, wanted = (rows(connection, f"select * from public.{name} order by id") for name in ("events", "plain"))
        assert found == wanted, change
    found, wanted = (
        rows(connection, f"select what, id, val from public.told where who = '{name}' order by 1, 2, 3") for name in ("events", "plain")
    )
    assert found == wanted
    assert events.fold(app).commits == 1
    found, wanted = (rows(connection, f"select * from public.{name} order by id") for name in ("events", "plain"))
    assert found == wanted


@pytest.mark.spark
@pytest.mark.inline
def test_a_trigger_that_refuses_the_row_loses_none(app: App, connection: Connection, gateway: RunningGateway) -> None:
    events.create(connection)
    events.put_under_modak(app, connection)
    events.tier(app)
    events.drop_tiered(app)
    connection.execute("create function public.no() returns trigger language plpgsql as $$ begin return null; end $$")
    connection.execute("create trigger no before insert on public.events_hot for each row execute function public.no()")
    before = rows(connection, "select * from public.events order by id")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not let a cold row be changed"):
        connection.execute("update public.events set val = 'x' where id = 2")
    assert rows(connection, "select * from public.events order by id") == before


def test_the_plan_lists_them(connection: Connection) -> None:
    events.create(connection)
    connection.execute("create function public.no() returns trigger language plpgsql as $$ begin return null; end $$")
    connection.execute("create trigger audit after delete on public.events for each row execute function public.no()")
    connection.execute("create trigger whole before insert on public.events for each statement execute function public.no()")
    found = look(connection, events.EVENTS, Options(tier_key="event_time", lag="0", width="100")).decision.notes
    assert [note for note in found if "trigger" in note and "(audit)" in note]
