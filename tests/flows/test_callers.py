"""modak.query and modak_explain are planned in sessions of the gateway's, which may do everything: nothing of the caller's runs there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.restoring import app_of, put_under_modak, run_tier
from tests.support import value

from modak.app import App
from modak.catalog.migrate import migrate
from modak.connection import connect, pinned
from modak.core.registration import Options
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.errors import CatalogError
from modak.gateway.analytics.reader import Reader

pytestmark = pytest.mark.inline

TABLE = """
    create domain public.note as text check (public.may_be(value));
    create type public.span as range (subtype = int4);
    create table public.events (id bigint, event_time bigint not null, val text, remark public.note, amount numeric(10, 2),
                                at timestamptz default '2026-01-01', spans public.span, primary key (id, event_time))
        partition by range (event_time);
    create table public.events_0 partition of public.events for values from (0) to (100);
    create table public.events_1 partition of public.events for values from (100) to (200);
    insert into public.events (id, event_time, val, remark) select i, i * 10, 'row ' || i, 'x' from generate_series(1, 15) i;
"""
# What lisa owns refuses to be run by the gateway: then the lake would not answer.
LISA = """
    create function public.may_be(text) returns boolean language plpgsql as $$
        begin
            if current_setting('application_name') = 'modak-gateway' then raise exception 'run by the gateway'; end if;
            return true;
        end $$;
"""
ROWS = "select vals from modak.ask_gateway('rows', %s, %s) g(vals)"
COUNT = "select count(*) from public.events"


@dataclass(frozen=True)
class World:
    app: App
    tom: str
    lisa: str

    def session(self, who: str) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(make_conninfo(self.app.dsn, user=who, password=who), autocommit=True)


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """``lisa`` owns the table, ``tom`` may read it and has a schema of his own; a superuser runs the gateway."""
    database, lisa, tom = (f"{name}_{os.getpid()}" for name in ("callers", "caller_lisa", "caller_tom"))
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
        for name in (lisa, tom):
            admin.execute(f"create role {name} login password '{name}'")  # type: ignore[arg-type]
        admin.execute(f"create database {database} template {template}")  # type: ignore[arg-type]
    app = app_of(cluster.dsn(database), tmp_path_factory.mktemp("callers"))
    running = RunningGateway(app)
    try:
        running.start()
        with inlined(), connect(app.dsn, autocommit=True) as connection:
            migrate(connection)
            connection.execute(f"grant create on schema public to {lisa}; grant create on database {database} to {tom}")
            connection.execute(f"set role {lisa}")
            connection.execute(LISA)
            connection.execute(TABLE)
            connection.execute(f"grant select on public.events to {tom}; reset role")
            connection.execute(f"select modak.grant_app_access('{tom}')")
            put_under_modak(app, connection, Name("public", "events"), Options(tier_key="event_time", lag="0", width="100"))
            run_tier(app, Name("public", "events"), drop=True)
            connection.execute("update public.events set val = 'changed' where id = 3")
        yield World(app, tom, lisa)
    finally:
        running.stop()
        with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
            admin.execute(f"drop database {database} with (force)")  # type: ignore[arg-type]
            admin.execute(f"drop role {lisa}; drop role {tom}")  # type: ignore[arg-type]


# Whatever tom gets to run in a session takes the role back that it began with, and notes whose that is.
EVIL = """
    create schema evil;
    create table evil.who (name text, what text);
    grant usage on schema evil to public; grant insert on evil.who to public;
    create function evil.seen(what text) returns boolean language plpgsql as $$
        begin
            perform pg_catalog.set_config('role', 'none', false);
            insert into evil.who values (session_user, what);
            return true;
        end $$;
    create function evil.multiply(a numeric, b int) returns numeric language plpgsql as
        $$ begin perform evil.seen('*'); return a operator(pg_catalog.*) b; end $$;
    create operator evil.* (leftarg = numeric, rightarg = int, function = evil.multiply);
    create function evil.same(a text, b text) returns boolean language plpgsql as
        $$ begin perform evil.seen('='); return a operator(pg_catalog.=) b; end $$;
    create operator evil.= (leftarg = text, rightarg = text, function = evil.same);
    create function evil.same(a name, b name) returns boolean language plpgsql as
        $$ begin perform evil.seen('name ='); return a operator(pg_catalog.=) b; end $$;
    create operator evil.= (leftarg = name, rightarg = name, function = evil.same);
    create operator evil.<> (leftarg = name, rightarg = name, function = evil.same);
    create function evil.least_of(a oid, b int) returns boolean language plpgsql as $$ begin return evil.seen('>='); end $$;
    create operator evil.>= (leftarg = oid, rightarg = int, function = evil.least_of);
    create function evil.format_type(a oid, b int) returns text language plpgsql as
        $$ begin perform evil.seen('format_type'); return 'bigint'; end $$;
    create function evil.lower(a text) returns text language plpgsql as $$ begin perform evil.seen('lower'); return a; end $$;
    create domain evil.checked as text check (evil.seen('domain'));
    create domain evil.text as pg_catalog.text check (evil.seen('text'));
    create type evil.pair as (a evil.checked);
    create function evil.as_text(evil.pair) returns text language plpgsql as $$ begin perform evil.seen('cast'); return 'x'; end $$;
    create cast (evil.pair as text) with function evil.as_text(evil.pair);
    create type evil.span as range (subtype = evil.checked);
    create function evil.several() returns setof int language plpgsql as $$ begin perform evil.seen('from'); end $$;
    create view evil.seeing as select id, event_time from public.events where evil.seen('view');
    create table evil.events (id bigint, event_time bigint);
"""
TEXTS = [
    COUNT,
    f"{COUNT} where val = 'row 3'",
    f"{COUNT} where lower(val) = 'row 3'",
    f"{COUNT} where evil.lower(val) = 'row 3'",
    f"{COUNT} where val operator(evil.=) 'row 3'",
    f"{COUNT} where val::evil.checked is not null",
    f"{COUNT} where val::text is not null",
    f"{COUNT} where '(1)'::evil.pair is not null",
    f"{COUNT} where ('(1)'::evil.pair)::text is not null",
    f"{COUNT} where '{{1}}'::evil.checked[] is not null",
    f"{COUNT} where '[1,2]'::evil.span is not null",
    f"{COUNT} where evil.span '[1,2]' is not null",
    f"{COUNT} where cast('[1,2]' as evil.span) is not null",
    f"{COUNT} /* /* */ where '[1,2]'::evil.span is not null -- */",
    f"{COUNT} where val <> $a$'$a$ and '[1,2]'::evil.span is not null and val <> $a$'$a$",
    f"{COUNT} where val <> E'\\'' or '[1,2]'::evil.span is not null or val <> ''",
    "select count(*) from evil.seeing",
    "select count(*) from events where event_time < 100",
    "select count(*) from public.events e, evil.several()",
    "select count(*) from (select amount * 2 as n from public.events) e where n is null",
    "select count(*) from public.events where at < now()",
]


@pytest.fixture
def evil(world: World) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with world.session(world.tom) as session:
        session.execute(EVIL)
        yield session
        session.execute("set search_path = pg_catalog; drop schema evil cascade")


@pytest.mark.parametrize("path", ["public, pg_catalog", "evil, public, pg_catalog", "pg_catalog, public, evil"])
def test_nothing_of_the_callers_runs_as_the_gateway(world: World, evil: psycopg.Connection[tuple[Any, ...]], path: str) -> None:
    """In his own session it may run, as he."""
    evil.execute("select set_config('search_path', %s, false)", [path])
    failures = []
    for text in TEXTS:
        for asked in ("select * from modak.query(%s) as t(n pg_catalog.int8)", "select * from public.modak_explain(%s)"):
            try:
                evil.execute(asked, [text])  # type: ignore[arg-type]
            except psycopg.Error as cause:
                failures.append((text, cause.sqlstate, str(cause)))
    # What Postgres itself says to some of these is another matter than a gateway that fails.
    assert [one for one in failures if one[1] in ("40001", "55000", "XX000")] == []
    assert evil.execute("select distinct w.name, w.what from evil.who w where w.name operator(pg_catalog.<>) session_user").fetchall() == []


def test_the_lake_answers_nevertheless(world: World) -> None:
    with world.session(world.tom) as session:
        for text, answer in (
            (COUNT, "15"),
            ("select count(*) from events where lower(val) like 'row%' and event_time < 140", "12"),
            ("select count(*) from public.events e where e.val = 'changed' and e.at < now() and remark = 'x'", "1"),
        ):
            assert session.execute("select modak_explain(%s)", [text]).fetchall()[0] == ("gateway: engine: lake",)
            assert session.execute(ROWS, [text, '["public"]']).fetchall() == [([answer],)]
            assert session.execute("select * from modak.query(%s) as t(n bigint)", [text]).fetchall() == [(int(answer),)]


def test_what_the_tables_owner_wrote_is_not_run_for_others_either(world: World) -> None:
    """Corrections are read by the type under a domain; a range of the owner's may have a function, so those are Postgres's to read."""
    with world.session(world.tom) as session:
        found = session.execute(ROWS, ["select remark from events where id = 3", '["public"]'])
        assert found.fetchall() == [(["x"],)]
        assert "span" in str(session.execute("select modak_explain('select spans from events')").fetchall()[1])


def test_names_are_the_callers(world: World, evil: psycopg.Connection[tuple[Any, ...]]) -> None:
    """His schemas in his order, and none that is closed to him."""
    asked = "select a.vals[1] from modak.ask_gateway('explain', 'select count(*) from events', %s) a(vals)"
    lake, own = ("engine: lake",), ("engine: postgres",)
    evil.execute("drop operator evil.* (numeric, int); drop operator evil.= (text, text); drop operator evil.= (name, name)")
    evil.execute("drop operator evil.<> (name, name); drop operator evil.>= (oid, int)")
    for path, engine in (('["public"]', lake), ('["evil", "public"]', own), ('["public", "evil"]', lake), ("[]", own)):
        assert evil.execute(asked, [path]).fetchone() == engine
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        evil.execute(asked, ["public"])
    with connect(world.app.dsn, autocommit=True) as admin:
        admin.execute("revoke usage on schema public from public")
        try:
            assert evil.execute(asked, ['["public"]']).fetchone() == own
        finally:
            admin.execute("grant usage on schema public to public")


def test_who_asks_is_whose_rights_count(world: World) -> None:
    """Code of lisa's that runs inside a superuser's statement is lisa's, and asks the gateway as her."""
    asked = "modak.ask_gateway('explain', 'select count(*) from public.events', '[\"public\"]')"
    with world.session(world.lisa) as session, connect(world.app.dsn, autocommit=True) as admin:
        admin.execute(f"select modak.grant_app_access('{world.lisa}')")
        session.execute("create table public.bait (a int); insert into public.bait select generate_series(1, 3)")
        session.execute("create table public.told (who text, engine text)")
        session.execute(f"""
            create function public.tell() returns void language plpgsql as
                $$ begin insert into public.told select current_user, g.vals[1] from {asked} g(vals) limit 1; end $$;
            create function public.note(a int) returns int immutable language plpgsql as
                $$ begin perform public.tell(); return a; end $$;
            create index on public.bait (public.note(a));
            truncate public.told;
        """)  # type: ignore[arg-type]
        assert session.execute(f"select vals[1] from {asked} g(vals)").fetchone() == ("engine: lake",)  # type: ignore[arg-type]
        session.execute("revoke select on public.events from current_user")
        try:
            admin.execute("analyze public.bait")
        finally:
            session.execute("grant select on public.events to current_user")
        assert session.execute("select distinct who, engine from public.told").fetchall() == [(world.lisa, "engine: postgres")]
        session.execute("drop table public.bait, public.told; drop function public.note(int), public.tell()")


def test_an_answer_is_for_nobody_else(world: World) -> None:
    with world.session(world.tom) as session:
        for statement in ("select caller from modak.gateway_answers", "select * from modak.gateway_query"):
            with pytest.raises((psycopg.errors.UndefinedColumn, psycopg.errors.InsufficientPrivilege)):
                session.execute(statement)  # type: ignore[arg-type]
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            session.execute("select * from modak.gateway_answers where kind = 'rows' and sql = '7b7d' and path = '7b7d'")


def test_what_a_worker_makes_is_not_taken_for_the_catalog(world: World) -> None:
    """It may create in the schema, for registered tables; a function beside the catalog's own gets nobody's rights."""
    wim = world.tom.replace("tom", "wim")
    body = f"returns void language plpgsql as $$ begin execute 'alter role {wim} superuser'; end $$"
    with connect(world.app.dsn, autocommit=True) as admin:
        admin.execute(f"create role {wim} login password '{wim}'; grant modak_worker to {wim}")
        try:
            with world.session(wim) as session:
                with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.DuplicateFunction)):
                    session.execute(f"create or replace function modak.grant_app_access(role text) {body}")  # type: ignore[arg-type]
                for kind in ("name", "varchar", "anyelement"):
                    session.execute(f"create function modak.grant_app_access(role {kind}) {body}")  # type: ignore[arg-type]
            for call in (f"select modak.grant_app_access('{world.tom}')", "select modak.set_up_roles()"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is not the catalog's"):
                    admin.execute(call)  # type: ignore[arg-type]
            with pytest.raises(CatalogError, match="is not the catalog's"):
                migrate(admin)
            assert not value(admin, f"select rolsuper from pg_roles where rolname = '{wim}'")
        finally:
            admin.execute(f"drop owned by {wim} cascade; drop role {wim}")
        admin.execute(f"select modak.grant_app_access('{world.tom}')")


def test_what_drivers_ask_is_answered_by_built_in_operators(world: World) -> None:
    """ADBC learns the types as it connects, before it can be told a search path."""
    with world.session(world.lisa) as session:
        session.execute("""
            create table public.driven (who text); grant insert on public.driven to public;
            create function public.differs(a regproc, b int) returns boolean language plpgsql as
                $$ begin insert into public.driven values (session_user); return true; end $$;
            create operator public.!= (leftarg = regproc, rightarg = int, function = public.differs);
        """)
        try:
            Reader(world.app.dsn).close()
            with adbc.connect(pinned(world.app.dsn)):
                pass
            assert session.execute("select count(*) from public.driven").fetchone() == (0,)
            with adbc.connect(world.app.dsn):
                pass
            assert session.execute("select count(*) > 0 from public.driven").fetchone() == (True,)  # or this test tests nothing
        finally:
            session.execute("drop operator public.!= (regproc, int); drop function public.differs(regproc, int); drop table public.driven")
