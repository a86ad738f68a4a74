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
        connection.execute("update public.events set event_time = 21 where id = 2")
    assert rows(connection, "select * from public.events order by id") == before


def test_the_plan_lists_them(connection: Connection) -> None:
    events.create(connection)
    connection.execute("create function public.no() returns trigger language plpgsql as $$ begin return null; end $$")
    connection.execute("create trigger audit after delete on public.events for each row execute function public.no()")
    connection.execute("create trigger whole before insert on public.events for each statement execute function public.no()")
    found = look(connection, events.EVENTS, Options(tier_key="event_time", lag="0", width="100")).decision.notes
    assert [note for note in found if "of UPDATE and DELETE" in note and "(audit)" in note]
    assert [note for note in found if "WARNING: statement triggers (whole)" in note and "once for each row" in note]
    assert [note for note in found if "WARNING: triggers of INSERT (whole)" in note and "or DELETE" in note and "modak.returning" in note]


COUNT = """
    create function public.count_{t}() returns trigger language plpgsql as $$ begin
        insert into public.counted values ('{t}', tg_op, case tg_op when 'INSERT' then 1 else -1 end);
        return null;
    end $$;
    create trigger counter after insert or delete on public.{heap} for each row {asks} execute function public.count_{t}();
"""


def _count(connection: Connection, asks: str) -> list[object]:
    """What a counter says of the table and of its twin, after an INSERT, an UPDATE and a DELETE of cold rows."""
    connection.execute("create table public.counted (who text, what text, n bigint)")
    for name, heap in (("events", "events_hot"), ("plain", "plain")):
        text = COUNT.replace("{t}", name).replace("{heap}", heap)
        connection.execute(text.replace("{asks}", asks).encode())
        connection.execute(f"insert into public.{name} values (40, 40, 'late')")
        connection.execute(f"update public.{name} set val = val || '+' where id in (1, 2)")
        connection.execute(f"update public.{name} set val = val || '+' where id in (1, 2, 4)")
        connection.execute(f"delete from public.{name} where id in (2, 3)")
    return [dict(rows(connection, f"select what, sum(n)::int from public.counted where who = '{name}' group by 1"))
            for name in ("events", "plain")]  # fmt: skip


@pytest.fixture
def cold(app: App, connection: Connection, gateway: RunningGateway) -> App:
    """``events`` with cold rows, and a plain twin."""
    events.create(connection)
    connection.execute("create table public.plain (like public.events, primary key (id))")
    connection.execute("insert into public.plain select * from public.events")
    events.put_under_modak(app, connection)
    events.tier(app)
    events.drop_tiered(app)
    return app


@pytest.mark.spark
@pytest.mark.inline
def test_a_counter_counts_no_updates_and_may_ask(cold: App, connection: Connection) -> None:
    """An UPDATE fires nothing where nothing is for UPDATE; a DELETE brings the row back, and the counter can tell."""
    found, wanted = _count(connection, "when (current_setting('modak.returning', true) is distinct from 'public.events')")
    assert found == wanted == {"INSERT": 1, "DELETE": -2}
    assert rows(connection, "select * from public.events order by id") == rows(connection, "select * from public.plain order by id")
    assert events.fold(cold).commits == 1
    assert rows(connection, "select * from public.events order by id") == rows(connection, "select * from public.plain order by id")


@pytest.mark.spark
@pytest.mark.inline
def test_a_counter_that_does_not_ask_counts_rows_that_come_back_to_be_deleted(cold: App, connection: Connection) -> None:
    """As the guide says and `modak plan` warns: the two that were deleted came first."""
    found, wanted = _count(connection, "")
    assert (found, wanted) == ({"INSERT": 3, "DELETE": -2}, {"INSERT": 1, "DELETE": -2})


RULES = """
    alter table public.{heap} add constraint short check (length(val) < 9), alter column val set not null,
        add constraint whole check (public.is_whole(val));
    create trigger made before insert on public.{heap} for each row execute function public.no_{t}();
"""


@pytest.mark.spark
@pytest.mark.inline
def test_rules_of_the_heap_are_asked_where_no_trigger_fires(cold: App, connection: Connection) -> None:
    connection.execute("create function public.is_whole(t text) returns boolean language sql immutable as $$ select t <> 'half' $$")
    for name, heap in (("events", "events_hot"), ("plain", "plain")):
        connection.execute(f"create function public.no_{name}() returns trigger language plpgsql as $$ begin return null; end $$")
        connection.execute(RULES.replace("{heap}", heap).replace("{t}", name).encode())
    for change in ("val = 'much too long'", "val = null", "val = 'half'", "val = 'fine'", "val = val || '!'"):
        states = []
        for name in ("events", "plain"):
            try:
                states.append(rows(connection, f"update public.{name} set {change} where id = 2 returning id, val"))
            except psycopg.errors.IntegrityError as error:
                states.append([(error.sqlstate, error.diag.constraint_name, error.diag.column_name)])
        assert states[0] == states[1], change
    assert rows(connection, "select val from public.events where id = 2") == [("fine!",)]
    # It stands in the delta alone, and is changed there, deleted and folded as any other correction.
    assert rows(connection, "select count(*) from public.events_hot where id = 2") == [(0,)]
    for sets in ("val = val", "val = val || '?'"):
        twice = f"update public.events t set {sets} from (values (2), (1), (2), (1), (4), (4)) x(id) where x.id = t.id"
        assert connection.execute(twice).rowcount == 3
    assert rows(connection, "select id, val from public.events where id in (1, 2, 4) order by 1") == [(1, "a?"), (2, "fine!?"), (4, "hot?")]
    assert events.fold(cold).commits == 1
    assert rows(connection, "select id, val from public.events where id in (1, 2, 4) order by 1") == [(1, "a?"), (2, "fine!?"), (4, "hot?")]
    connection.execute("delete from public.events where id = 2")
    assert rows(connection, "select id from public.events where id < 4 order by 1") == [(1,), (3,)]


STATEMENTS = """
    create function public.saw_{t}() returns trigger language plpgsql as $$
    declare
        one record;
    begin
        for one in select * from changed loop
            insert into public.told values ('{t}', tg_op, one.id, one.val);
        end loop;
        return null;
    end $$;
    create trigger saw_update after update on public.{heap} referencing new table as changed
        for each statement execute function public.saw_{t}();
    create trigger saw_delete after delete on public.{heap} referencing old table as changed
        for each statement execute function public.saw_{t}();
    create trigger saw_insert after insert on public.{heap} referencing new table as changed
        for each statement when (current_setting('modak.returning', true) is distinct from 'public.{t}')
        execute function public.saw_{t}();
"""


@pytest.mark.spark
@pytest.mark.inline
def test_triggers_of_statements_see_cold_rows(cold: App, connection: Connection) -> None:
    """Row by row, but all of them, and each as what it is."""
    connection.execute("create table public.told (who text, what text, id bigint, val text)")
    for name, heap in (("events", "events_hot"), ("plain", "plain")):
        connection.execute(STATEMENTS.replace("{t}", name).replace("{heap}", heap).encode())
        connection.execute(f"update public.{name} set val = val || '+' where id in (1, 2, 4)")
        connection.execute(f"delete from public.{name} where id in (2, 3, 5)")
        connection.execute(f"insert into public.{name} values (40, 40, 'late'), (41, 240, 'hot')")
    found, wanted = (
        rows(connection, f"select what, id, val from public.told where who = '{name}' order by 1, 2, 3") for name in ("events", "plain")
    )
    assert found == wanted
    assert len(found) == 8
