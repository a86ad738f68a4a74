"""Functions that run with more rights than their callers: what each must be, and what people try with such functions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.restoring import app_of, put_under_modak, run_tier
from tests.support import rows, value

from modak.app import App
from modak.catalog.migrate import migrate
from modak.connection import connect
from modak.core.registration import Options
from modak.core.table import Name
from modak.embedded.postgres import Cluster

pytestmark = pytest.mark.inline

# May be called by anybody, each for a reason: views, rules and parsed functions call them as whoever uses those, and
# who makes a partition needs those of its triggers.
FOR_EVERYBODY = {"cold_bound", "explain_tiers", "heap_bound", "heap_of", "insert_seam", "newcomer", "next_identity"}
# Leave the session's search path to the heap's own triggers, so that every name in them is written in full.
IN_FULL = ("write", "check_keys")

# Ends a function's body in a careless template, is a comment, a placeholder, a variable of ours, and a quote.
NAMES = ["$body$; drop table public.victim; --", "$$", "a'b", 'a"b', "{table_id}", "%s", "new", "old", "standing", "image", "u", "/*", "--"]
NASTY = Name("public", "nasty $body$ '\" -- table")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class World:
    app: App
    gateway: RunningGateway
    tom: str


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Tables of every mode and surface, registered by a superuser; ``lisa`` owns the one that ``tom`` may write to."""
    suffix, folder = os.getpid(), tmp_path_factory.mktemp("definers")
    database, lisa, tom = f"definers_{suffix}", f"lisa_{suffix}", f"tom_{suffix}"
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"create role {lisa} login; create role {tom} login password 'tom'")
        admin.execute(f"create database {database} template {template}")
    app = app_of(cluster.dsn(database), folder)
    running = RunningGateway(app)
    try:
        running.start()
        with inlined(), connect(app.dsn, autocommit=True) as connection:
            migrate(connection)
            _build(app, connection, lisa, tom)
        yield World(app, running, make_conninfo(app.dsn, user=tom, password="tom"))
    finally:
        running.stop()
        with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
            admin.execute(f"drop database {database} with (force)")  # type: ignore[arg-type]
            admin.execute(f"drop role {lisa}; drop role {tom}")


def _build(app: App, connection: Any, lisa: str, tom: str) -> None:
    connection.execute(f"grant create on schema public to {lisa}, {tom}; grant create on database definers_{os.getpid()} to {tom}")
    connection.execute("create table public.victim (id int)")
    for name, owner in (("events", lisa), ("whole", lisa), ("strict", "postgres"), ("copied", "postgres")):
        connection.execute(f"set role {owner}" if owner == lisa else "reset role")
        connection.execute(f"""
            create table public.{name} (id bigint generated always as identity, event_time bigint not null, val text,
                                        primary key (id, event_time)) partition by range (event_time);
            create table public.{name}_0 partition of public.{name} for values from (0) to (100);
            create table public.{name}_1 partition of public.{name} for values from (100) to (200);
            insert into public.{name} (event_time, val) select i * 10, 'row ' || i from generate_series(1, 15) i
        """)
        if owner == lisa:
            connection.execute(f"grant select, insert, update, delete on public.{name} to {tom}")
    connection.execute("reset role")
    table, columns = quoted(NASTY.name), ", ".join(f"{quoted(name)} text" for name in NAMES)
    connection.execute(f"""
        create table public.{table} (id bigint, "key $body$" bigint, {columns}, primary key (id, "key $body$"))
            partition by range ("key $body$");
        create table public.nasty_0 partition of public.{table} for values from (0) to (100);
        create table public.nasty_1 partition of public.{table} for values from (100) to (200);
        insert into public.{table} (id, "key $body$", {quoted(NAMES[0])}) values (1, 10, 'cold'), (2, 110, 'hot')
    """)
    chosen = {"tier_key": "event_time", "lag": "0", "width": "100"}
    put_under_modak(app, connection, Name("public", "events"), Options(**chosen, primary_key=("id",)))  # type: ignore[arg-type]
    put_under_modak(app, connection, Name("public", "whole"), Options(**chosen, surface="heap"))  # type: ignore[arg-type]
    put_under_modak(app, connection, Name("public", "strict"), Options(**chosen, check_cold_keys=True))  # type: ignore[arg-type]
    put_under_modak(app, connection, Name("public", "copied"), Options(tier_key="event_time", mode="mirrored", surface="heap"))
    put_under_modak(app, connection, NASTY, Options(tier_key="key $body$", lag="0", width="100"))
    for name in (Name("public", "events"), Name("public", "whole"), Name("public", "strict"), NASTY):
        run_tier(app, name, drop=name.name != "whole")


ROUTINES = """
    select p.proname::text, p.prosecdef, l.lanname::text, coalesce(p.proconfig, '{}'), p.prosrc,
           exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0) as is_public,
           p.prosqlbody is not null as is_parsed
      from pg_proc p join pg_language l on l.oid = p.prolang
     where (p.pronamespace = 'modak'::regnamespace or p.proname like 'modak\\_%')
       and not exists (select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
"""


def test_every_function_with_more_rights_is_closed(world: World) -> None:
    with world.app.connection() as connection:
        found = rows(connection, ROUTINES)
    definers = [one for one in found if one[1]]
    assert len(definers) > 20
    for name, _, language, config, source, is_public, _ in definers:
        kind = re.sub(r"_\d+$", "", name)
        assert language == "plpgsql", name
        assert not is_public or kind in FOR_EVERYBODY, f"{name} may be called by anybody"
        if kind in IN_FULL:
            assert config == []
            assert_in_full(source)
        else:
            assert "search_path=pg_catalog, pg_temp" in config, name
    for name, is_definer, _, config, _, _, is_parsed in found:
        if not is_definer and not is_parsed and name not in ("carry_out", "query", "modak_explain"):
            assert "search_path=pg_catalog, pg_temp" in config, name


def test_what_writes_corrections_runs_as_the_workers_role(world: World) -> None:
    """A superuser registered all of these, and none of their triggers has his rights."""
    with world.app.connection() as connection:
        found = rows(
            connection,
            "select p.proname::text, pg_get_userbyid(p.proowner)::text, p.prosecdef from pg_proc p"
            r" where p.pronamespace = 'modak'::regnamespace and p.proname ~ '^(spill_guard|spill_mirror|capture)_\d+$'",
        )
        behind = rows(
            connection,
            r"select c.relname::text, pg_get_userbyid(c.relowner)::text from pg_class c"
            r" where c.relnamespace = 'modak'::regnamespace and c.relname ~ '^cold_\d+_\d+(_\d+)?$'",
        )
    assert {re.sub(r"_\d+$", "", name) for name, _, _ in found} == {"spill_guard", "spill_mirror", "capture"}
    assert [one for one in found if one[1:] != ("modak_worker", True)] == []
    assert {owner for _, owner in behind} == {"modak_worker"}


def assert_in_full(source: str) -> None:
    """Operators, types and functions with their schema; identifiers in quotes and texts do not count."""
    code = re.sub(r"--[^\n]*|'(?:[^']|'')*'", "''", re.sub(r'"(?:[^"]|"")*"', "q", source))
    assert re.findall(r"::\s*(?!q\.q|pg_catalog\.)\S+", code) == []
    words = "row|values|coalesce|exists|and|or|not|case|if|found|elsif|select|into|from|exception|return|when|q"
    called = [name for name in re.findall(r"(?<![\w.])([a-z_]+)\s*\(", code) if not re.fullmatch(words, name)]
    assert called == []
    # These look for an operator by its bare name.
    assert re.findall(r"\b(?:distinct\s+from|between|like|similar|in\s*\(|any\s*\(|all\s*\()", code, re.I) == []
    bare = re.sub(r"OPERATOR\(pg_catalog\.[^)]*\)", "", code)
    assignments = r":=|<<(?:here|work)>>|q = (?:new|old)\.q|\bset q =|(?:errcode|hint) = (?:''|pg_catalog\.concat)"
    assert re.findall(r"[^:<>=!](?:=|<>|<=|>=|<|>|\|\||~)[^=>].*", re.sub(assignments, "", bare)) == []


EVIL = """
    create schema evil;
    create table evil.who (name text, what text);
    grant usage on schema evil to public; grant insert, select on evil.who to public;
    create function evil.seen(what text) returns boolean language plpgsql as
        $$ begin insert into evil.who values (current_user, what); return true; end $$;
    create function evil.equal(a bigint, b bigint) returns boolean language sql as
        $$ select evil.seen('=') and a operator(pg_catalog.=) b $$;
    create function evil.less(a bigint, b bigint) returns boolean language sql as
        $$ select evil.seen('<') and a operator(pg_catalog.<) b $$;
    create function evil.same(a text, b text) returns boolean language sql as
        $$ select evil.seen('text =') and a operator(pg_catalog.=) b $$;
    create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.equal);
    create operator evil.< (leftarg = bigint, rightarg = bigint, function = evil.less);
    create operator evil.= (leftarg = text, rightarg = text, function = evil.same);
    create function evil.record_image_eq(a record, b record) returns boolean language plpgsql as
        $$ begin return evil.seen('record_image_eq'); end $$;
    create function evil.concat(a bigint) returns text language sql as
        $$ select case when evil.seen('concat') then a::pg_catalog.text end $$;
    create function evil.current_setting(a text, b boolean) returns text language sql as
        $$ select evil.seen('setting')::pg_catalog.text $$;
    create function evil.nextval(a text) returns bigint language sql as
        $$ select case when evil.seen('nextval') then 1::bigint end $$;
    create table evil.cutline (table_id bigint, tier_key_hi bigint);
    create domain evil.oid as pg_catalog.oid check (evil.seen('oid'));
    create domain evil.text as pg_catalog.text check (evil.seen('text'));
    create domain evil.bigint as pg_catalog.int8 check (evil.seen('bigint'));
"""
TEMPORARY = """
    create domain pg_temp.oid as pg_catalog.oid check (evil.seen('temporary oid'));
    create domain pg_temp.text as pg_catalog.text check (evil.seen('temporary text'));
    create type pg_temp.pair as (a pg_catalog.int8, b pg_catalog.int8, c pg_catalog.text);
    create domain pg_temp.record as pg_temp.pair check (evil.seen('temporary record'));
    create temporary table cutline (table_id pg_catalog.int8, tier_key_hi pg_catalog.int8);
    create temporary table delta (like cutline);
"""


@pytest.fixture
def evil(world: World) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """tom, who shadows everything that a careless function could name."""
    with psycopg.connect(world.tom, autocommit=True) as session:
        session.execute(EVIL)
        session.execute(TEMPORARY)
        session.execute("set search_path = pg_temp, evil, public, pg_catalog")
        yield session
        session.execute("set search_path = public, pg_catalog")
        session.execute("drop schema evil cascade")


def test_shadows_never_run_as_somebody_else(world: World, evil: psycopg.Connection[tuple[Any, ...]]) -> None:
    """In tom's own statements they may run, as tom; inside ours never."""
    for name in ("public.events", "public.whole_all"):
        evil.execute(f"insert into {name} (event_time, val) values (33::pg_catalog.int8, 'late'), (133::pg_catalog.int8, 'hot')")  # type: ignore[arg-type]
        with evil.cursor() as cursor, cursor.copy(f"copy {name} (event_time, val) from stdin") as copy:  # type: ignore[arg-type]
            copy.write_row((34, "copied"))
            copy.write_row((134, "copied"))
        for place in ("operator(pg_catalog.<) 60", "operator(pg_catalog.>) 120"):
            evil.execute(f"update {name} set val = 'changed' where event_time {place}")  # type: ignore[arg-type]
            evil.execute(f"update {name} set event_time = 45 where event_time operator(pg_catalog.=) 40")  # type: ignore[arg-type]
            evil.execute(f"delete from {name} where event_time operator(pg_catalog.=) 20")  # type: ignore[arg-type]
    evil.execute('select public.modak_upsert(\'public.events\', \'{"id": 3, "event_time": 30, "val": "x"}\')')
    ran_as = {name for (name,) in evil.execute("select distinct w.name from evil.who w").fetchall()}
    assert ran_as <= {psycopg.conninfo.conninfo_to_dict(world.tom)["user"]}


def test_a_made_up_cursor_runs_as_who_made_it(world: World, evil: psycopg.Connection[tuple[Any, ...]]) -> None:
    """A statement asks cursors of its own at its end for rows it missed; a caller may open others under their names."""
    with world.app.connection() as connection:
        table_id = value(connection, "select table_id from modak.tables where table_name = 'events'")
    with evil.transaction():
        for which, answer, end in (("look", "1::pg_catalog.int8", ""), ("lock", "null::pg_catalog.tid", "limit 0")):
            evil.execute(f"declare \"modak.missed_{table_id}_1_{which}\" cursor for select {answer} from evil.seen('cursor') s {end}")  # type: ignore[arg-type]
        evil.execute(f"set local modak.watched_{table_id} = 'modak.missed_{table_id}_1 '; set local modak.asked_{table_id} = '{{x}}'")  # type: ignore[arg-type]
        evil.execute("update public.events set val = 'changed' where event_time operator(pg_catalog.>) 120")
    ran = evil.execute("select distinct w.name from evil.who w where w.what::pg_catalog.text operator(pg_catalog.~~) 'cursor'").fetchall()
    assert ran == [(psycopg.conninfo.conninfo_to_dict(world.tom)["user"],)]


def test_a_role_that_was_set_is_the_one_that_asks(world: World) -> None:
    with psycopg.connect(world.app.dsn, autocommit=True) as session:
        asked = "select * from modak.query('select count(*) from public.strict') as t(n bigint)"
        assert session.execute(asked).fetchone() == (15,)
        session.execute(f"set role tom_{os.getpid()}")  # type: ignore[arg-type]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(asked)


def test_names_that_are_more_than_names(world: World) -> None:
    table, first = f"public.{quoted(NASTY.name)}", quoted(NAMES[0])
    with connect(world.app.dsn, autocommit=True) as connection:
        connection.execute(f"update {table} set {first} = 'changed' where id in (1, 2)")
        connection.execute(f'insert into {table} (id, "key $body$", {first}) values (3, 50, $x$late$x$)')
        connection.execute(f"delete from {table} where id = 3")
        found = rows(connection, f'select id, "key $body$", {first} from {table} order by id')
        assert found == [(1, 10, "changed"), (2, 110, "changed")]
        assert value(connection, "select to_regclass('public.victim') is not null")
