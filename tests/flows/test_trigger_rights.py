"""Triggers on the heap run as its owner where a view's trigger writes there: nobody with fewer rights may have a say in what they do."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests import events
from tests.gateways import RunningGateway
from tests.support import value

from modak.app import App
from modak.connection import Connection

pytestmark = [pytest.mark.spark, pytest.mark.inline]
WAYS = {
    "update of a hot row": "update public.events set val = 'x' where id = 4",
    "update of a cold row": "update public.events set val = 'x' where id = 2",
    "delete of a hot row": "delete from public.events where id = 4",
    "delete of a cold row": "delete from public.events where id = 2",
    "a move across the line": "update public.events set event_time = 50 where id = 4",
    "copy": "copy",
    "a late row that replaces another": "insert into public.events values (70, 60, 'second')",
}


@pytest.fixture
def table(app: App, connection: Connection, gateway: RunningGateway) -> App:
    """The superuser's, with cold rows, and a late one."""
    events.create(connection)
    events.put_under_modak(app, connection)
    events.tier(app)
    events.drop_tiered(app)
    connection.execute("insert into public.events values (70, 50, 'late')")
    return app


@pytest.fixture
def tom(table: App, connection: Connection) -> Iterator[psycopg.Connection]:
    name = f"tom_{value(connection, 'select oid::text from pg_database where datname = current_database()')}"
    connection.execute(f"create role {name}; grant all on all tables in schema public to {name}; grant create on database "
                       f"{connection.info.dbname} to {name}")  # fmt: skip
    with psycopg.connect(table.dsn, autocommit=True) as session:
        session.execute(f"set role {name}")  # type: ignore[arg-type]
        yield session
    connection.execute(f"drop owned by {name} cascade; drop role {name}")


def do(session: psycopg.Connection, statement: str) -> None:
    if statement != "copy":
        session.execute(statement)  # type: ignore[arg-type]
        return
    with session.cursor() as cursor, cursor.copy("copy public.events from stdin") as copy:
        copy.write_row((80, 230, "copied"))
        copy.write_row((81, 30, "copied"))


def is_superuser(connection: Connection, session: psycopg.Connection) -> bool:
    name = (session.execute("select current_user").fetchone() or ("",))[0]
    return bool(value(connection, f"select rolsuper from pg_roles where rolname = '{name}'"))


@pytest.mark.parametrize(
    ("place", "way"),
    [
        *(("events_hot", way) for way in WAYS),
        ("p2", "update of a hot row"),
        ("p2", "copy"),
        ("events_spill", "update of a cold row"),
        ("events_spill", "a late row that replaces another"),
    ],
)
def test_a_trigger_of_somebody_else_gets_nobodys_rights(connection: Connection, tom: psycopg.Connection, place: str, way: str) -> None:
    statement = WAYS[way]
    tom.execute("""
        create function pg_temp.evil() returns trigger language plpgsql as $$
        begin
            begin execute format('alter role %I superuser', current_setting('role')); exception when insufficient_privilege then end;
            return coalesce(new, old);
        end $$
    """)
    tom.execute(f"create trigger evil before insert or update or delete on public.{place} for each row execute function pg_temp.evil()")  # type: ignore[arg-type]
    hint = ""
    try:
        do(tom, statement)
    except psycopg.errors.InsufficientPrivilege as refused:
        hint = str(refused.diag.message_hint)
    assert "ALTER FUNCTION" in hint
    assert not is_superuser(connection, tom)
    # The table's owner decides: what is his may run as he.
    connection.execute("drop trigger evil on public." + place)
    do(tom, statement)


@pytest.mark.parametrize("statement", WAYS.values(), ids=WAYS.keys())
def test_a_trigger_of_the_owner_finds_nothing_of_the_callers(connection: Connection, tom: psycopg.Connection, statement: str) -> None:
    """It names a function and a table without their schemas, as most do. On a plain table it would run as the caller."""
    connection.execute("""
        create table public.told (id bigint);
        create function public.tell(id bigint) returns void language sql as 'insert into public.told values ($1)';
        create function public.audit() returns trigger language plpgsql as $$
        begin
            perform tell(coalesce(new.id, old.id));
            insert into told values (coalesce(new.id, old.id));
            return coalesce(new, old);
        end $$;
        create trigger audit before insert or update or delete on public.events_hot for each row execute function public.audit();
        grant insert on public.told to public
    """)
    tom.execute("""
        create schema evil;
        create function evil.become() returns boolean language plpgsql as $$
        begin
            execute format('alter role %I superuser', current_setting('role'));
            return true;
        exception when insufficient_privilege then return false;
        end $$;
        create function evil.tell(id bigint) returns void language plpgsql as 'begin perform evil.become(); end';
        create temporary table told (id bigint check (evil.become() or true));
        set search_path = evil, pg_temp, public, pg_catalog
    """)
    do(tom, statement)
    assert not is_superuser(connection, tom)
    assert (tom.execute("show search_path").fetchone() or ("",))[0] == "evil, pg_temp, public, pg_catalog"
    if not statement.startswith("insert") and statement != "copy":
        assert value(connection, "select count(*) > 0 from public.told")


def test_the_owner_and_his_members_notice_nothing(table: App, connection: Connection) -> None:
    connection.execute("""
        create schema mine; create table mine.told (id bigint);
        create function mine.audit() returns trigger language plpgsql as $$ begin insert into told values (new.id); return new; end $$;
        create trigger audit before update on public.events_hot for each row execute function mine.audit();
        set search_path = mine, public
    """)
    connection.execute("update public.events set val = 'x' where id in (2, 4)")
    connection.execute("set search_path = pg_catalog, public")
    assert value(connection, "select array_agg(id order by id)::text from mine.told") == "{2,4}"
