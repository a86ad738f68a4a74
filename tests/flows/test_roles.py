"""Who may do what: nobody here is a superuser but the administrator who made the roles.

``boss`` owns the catalog and runs the gateway, ``hand`` runs the jobs, ``relief`` takes its place, ``shop`` owns the tables,
``app`` and ``guest`` are applications.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.restoring import app_of
from tests.support import reclaim_all, run_cli

from modak.app import App
from modak.catalog import profiles, tables
from modak.catalog.migrate import migrate
from modak.connection import connect
from modak.core.registration import Options
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.jobs.fold import fold
from modak.jobs.retain import retain
from modak.jobs.tier import tier
from modak.load import LoadClient, LoadOptions, LoadRequest
from modak.registration.alter import alter
from modak.registration.register import register
from modak.registration.unregister import unregister

pytestmark = pytest.mark.inline

ROLES = ("boss", "hand", "relief", "app", "guest")
EVENTS, SECRET = Name("public", "events"), Name("public", "secret")
TABLE = """
    create table public.{name} (id bigint generated {identity} as identity, event_time bigint not null, val text, n int default 7,
        primary key (id, event_time)) partition by range (event_time);
    create table public.{name}_0 partition of public.{name} for values from (0) to (100);
    create table public.{name}_1 partition of public.{name} for values from (100) to (200);
    create table public.{name}_2 partition of public.{name} for values from (200) to (300);
    insert into public.{name} (event_time, val) select i * 10, 'row ' || i from generate_series(1, 25) i
"""


@dataclass(frozen=True)
class World:
    """``as_role`` connects; ids are the numbers of the two tables."""

    boss: App
    hand: App
    dsn: str
    suffix: str
    gateway: RunningGateway
    numbers: dict[str, int]

    def role(self, name: str) -> str:
        return f"{name}_{self.suffix}"

    def dsn_of(self, name: str, **options: Any) -> str:
        return make_conninfo(self.dsn, user=self.role(name), password=f"{name} secret", **options)

    def as_role(self, name: str, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.dsn_of(name, **options), autocommit=True)


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    suffix, folder = f"{os.getpid()}", tmp_path_factory.mktemp("roles")
    database = f"roles_{suffix}"
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
        for name in ROLES:
            admin.execute(f"create role {name}_{suffix} login password '{name} secret'")
        admin.execute(f"create role shop_{suffix}; grant shop_{suffix} to hand_{suffix}; grant modak_worker to hand_{suffix}")
        admin.execute(f"grant shop_{suffix}, modak_worker, pg_read_all_stats to relief_{suffix}")
        admin.execute(f"create database {database} owner boss_{suffix} template template0")
    dsn = cluster.dsn(database)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"create extension postgres_fdw; grant usage on foreign data wrapper postgres_fdw to boss_{suffix}")
        admin.execute(f"grant create on schema public to boss_{suffix}, shop_{suffix}; grant pg_read_all_stats to hand_{suffix}")
        admin.execute(f"create schema app_own authorization app_{suffix}; create schema guest_own authorization guest_{suffix}")
        admin.execute(f"set role shop_{suffix}")
        for name, identity in (("events", "always"), ("secret", "by default")):
            admin.execute(TABLE.format(name=name, identity=identity))  # type: ignore[arg-type]
        admin.execute(
            f"grant select, insert, update, delete on public.events to app_{suffix}; grant select (id) on public.secret to guest_{suffix}"
        )
    made = {name: make_conninfo(dsn, user=f"{name}_{suffix}", password=f"{name} secret") for name in ROLES}
    boss, hand = app_of(made["boss"], folder), app_of(made["hand"], folder)
    with connect(boss.dsn) as connection:
        assert migrate(connection).roles_missing == ()
        connection.execute("select modak.grant_app_access(%s)", [f"app_{suffix}"])
        connection.execute("select modak.grant_app_access(%s)", [f"guest_{suffix}"])
    running = RunningGateway(boss)
    try:
        running.start()
        with inlined(), connect(hand.dsn, autocommit=True) as connection:
            numbers = {name.name: _make_cold(hand, connection, name) for name in (EVENTS, SECRET)}
        yield World(boss, hand, dsn, suffix, running, numbers)
    finally:
        running.stop()
        with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
            admin.execute(f"drop database if exists {database} with (force)")  # type: ignore[arg-type]
            for name in (*ROLES, "shop"):
                admin.execute(f"drop role {name}_{suffix}")  # type: ignore[arg-type]


def _make_cold(hand: App, connection: Any, name: Name) -> int:
    chosen = Options(tier_key="event_time", primary_key=("id",), lag="0", width="100", lake_retention="100")
    table = register(connection, hand.lake(profiles.get(connection, None)), name, chosen, profile="default")
    with hand.job(name) as job:
        assert tier(job).rows == 19
        assert len(reclaim_all(job)) == 2
    return table.table_id


def test_an_application_reads_and_writes_both_tiers(world: World) -> None:
    with world.as_role("app") as session:
        assert session.execute("select count(*), min(event_time) from public.events").fetchone() == (25, 10)
        session.execute("update public.events set val = 'changed' where id in (3, 22)")
        session.execute("delete from public.events where id in (4, 23)")
        session.execute("insert into public.events (event_time, val) values (15, 'late'), (215, 'new')")
        with session.cursor() as cursor, cursor.copy("copy public.events (id, event_time, val) from stdin") as copy:
            copy.write_row((100, 16, "copied"))
            copy.write_row((101, 216, "copied"))
        image = '{"id": 5, "event_time": 50, "val": "by function"}'
        assert session.execute("select modak_upsert('public.events', %s)", [image]).fetchone() == ("cold",)
        assert session.execute("select modak_delete('public.events', '{\"id\": 6}')").fetchone() == ("cold",)
        expected = (26, "by function", 2, 2)
        counts = ", ".join(f"count(*) filter (where val = '{text}')" for text in ("copied", "changed"))
        query = f"select count(*), max(val) filter (where id = 5), {counts}"
        assert session.execute(f"{query} from public.events").fetchone() == expected
        whole = f"select * from modak.query($$ {query} from public.events $$) as t(a bigint, b text, c bigint, d bigint)"
        assert session.execute(whole).fetchone() == expected
        assert session.execute("select count(*) from modak_explain('select count(*) from public.events')").fetchone() != (0,)
    with world.as_role("app", host="127.0.0.1", port=world.gateway.port) as session:
        assert session.execute("select count(*) from public.events where val in ('late', 'new')").fetchone() == (2,)


def test_a_worker_does_the_rest(world: World) -> None:
    """Loads, folds, retention, another pass, and the end of a registration: all without a superuser."""
    client = LoadClient(LoadOptions(dsn=world.hand.dsn, table="public.secret"))
    rows = [{"id": 500, "event_time": 199, "val": "loaded"}, {"id": 501, "event_time": 250, "val": "loaded"}]
    assert client.load(LoadRequest("first", rows)).state == "committed"
    with world.hand.job(SECRET) as job:
        assert fold(job).corrections == 1
        assert retain(job).retention_line is not None
    with world.hand.connection() as connection:
        connection.execute(f"set role {world.role('shop')}")
        found = connection.execute(
            "select min(event_time) as low, count(*) filter (where val = 'loaded') as n from public.secret"
        ).fetchone()
        assert found == {"low": 100, "n": 2}
        connection.execute("create table public.going (id bigint, t bigint not null, primary key (id, t)) partition by range (t)")
        connection.execute("create table public.going_0 partition of public.going for values from (0) to (10)")
        connection.execute("reset role")
        lake = world.hand.lake(profiles.get(connection, None))
        table = register(connection, lake, Name("public", "going"), Options(tier_key="t", lag="0"), profile="default")
        with world.hand.job(table.name) as job:
            for action in ("add column more integer", "drop column more"):
                table = alter(job.connection, job.lake, tables.get(job.connection, table.name), action).table
        assert unregister(connection, lake, table, drop_lake=True).lake_dropped


def test_a_partition_of_somebody_else_stops_no_pass_and_no_registration(world: World) -> None:
    """As a tool makes them that runs as a superuser. The pass may do nothing with it, and goes on without."""
    with psycopg.connect(world.dsn, autocommit=True) as admin, world.hand.connection() as connection:
        admin.execute("create table public.events_3 partition of public.events_hot for values from (300) to (400)")
        admin.execute(f"grant select on public.events_3 to {world.role('shop')}")
        with world.as_role("app") as session:
            session.execute("insert into public.events (event_time, val) values (350, 'theirs')")
        with world.hand.job(EVENTS) as job:
            tier(job, upto=200)
        with world.as_role("app") as session:
            assert session.execute("delete from public.events where event_time = 350").rowcount == 1
        admin.execute("drop table public.events_3")
        admin.execute(f"set role {world.role('shop')}")
        admin.execute("create table public.mixed (id bigint, t bigint, primary key (id, t)) partition by range (t)")
        admin.execute("reset role")
        admin.execute("create table public.mixed_0 partition of public.mixed for values from (0) to (10)")
        admin.execute(f"grant select on public.mixed_0 to {world.role('shop')}")
        lake = world.hand.lake(profiles.get(connection, None))
        table = register(connection, lake, Name("public", "mixed"), Options(tier_key="t", lag="0"), profile="default")
        admin.execute("insert into public.mixed values (1, 5), (2, -5)")
        assert admin.execute("select count(*) from public.mixed").fetchone() == (2,)
        admin.execute("delete from public.mixed")
        assert unregister(connection, lake, table, drop_lake=True).lake_dropped
        admin.execute("drop table public.mixed")


def test_what_writes_through_the_name_runs_as_the_tables_owner(world: World) -> None:
    """Whoever registered it may write corrections of any table; a trigger that the owner puts on the heap may not."""
    with psycopg.connect(world.dsn, autocommit=True) as admin:
        ours = r"'^(write|unseat|missed|same|taken|older|check_keys)_\d+$'"
        asked = f"select distinct pg_get_userbyid(proowner)::text from pg_proc where proname ~ {ours}"
        assert admin.execute(asked).fetchall() == [(world.role("shop"),)]
        assert admin.execute("select has_schema_privilege(%s, 'modak', 'create')", [world.role("shop")]).fetchone() == (False,)
        admin.execute(f"set role {world.role('shop')}")  # type: ignore[arg-type]
        admin.execute("""
            create table public.seen (name text); grant insert on public.seen to public;
            create function public.see() returns trigger language plpgsql as
                $$ begin insert into public.seen values (current_user); return new; end $$;
            create trigger see before update on public.events_hot for each row execute function public.see()
        """)
        with world.as_role("app") as session:
            session.execute("update public.events set val = 'seen' where event_time > 230")
            # Each row is met twice, and gone the second time: to find out why, the owner needs everything that looks into it.
            with session.transaction(force_rollback=True):
                there = session.execute("select count(*) from public.events where event_time > 230").fetchone()
                moved = session.execute(
                    "update public.events set event_time = event_time - 1 from (values (1), (2)) v(n) where event_time > 230"
                )
                assert (moved.rowcount,) == there
        assert admin.execute("select distinct name from public.seen").fetchall() == [(world.role("shop"),)]
        admin.execute("drop trigger see on public.events_hot; drop function public.see(); drop table public.seen")


FORBIDDEN = [
    "select * from modak.{relation}",
    "delete from modak.{relation}",
]
RELATIONS = ["tables", "cutline", "delta", "delta_{secret}", "delta_{events}", "captured", "folded", "read_pins", "op_log", "partitions"]
RELATIONS += ["load_labels", "gateway", "gateway_query", "ownership", "storage_profiles", "cold_{secret}_1", "cold_{events}_1", "mirrors"]
CALLS = [
    "select modak.put_delta({secret}, '1', 0::smallint, 10, null, '{{}}')",
    "select modak.hold_line({secret})",
    "select modak.open_delta({secret})",
    "select modak.compose_write('delete', 'public.secret', 'public.secret'::regclass, '{{\"id\": 1}}')",
    "insert into modak.write_orders (kind, name, relation, given) values ('delete', 'x', 'public.secret'::regclass, '{{\"id\": 1}}')",
    "insert into modak.write_orders (kind, name, relation, given, caller) values ('delete', 'x', null, '{{}}', 'shop_{suffix}')",
    "select modak.close_delta({secret})",
    "select modak.lend_schema({secret}, true)",
    "select modak.index_delta({secret}, 'event_time', 'id')",
    "select modak.set_up_roles()",
    "select modak.grant_app_access('guest')",
    "update modak.cutline set tier_key_hi = 0",
    "insert into modak.read_pins (table_id, pinned_tier_key_hi) values ({events}, 0)",
    "insert into modak.delta (table_id, pk, op, tier_key, payload) values ({secret}, '1', 1, 10, null)",
    "insert into modak_lake.iceberg_tables (catalog_name, table_namespace, table_name) values ('modak', 'public', 'x')",
    "select * from modak_lake.iceberg_tables",
    "alter server modak_gateway options (set host 'elsewhere')",
    # The password of the server's user mapping is everybody's; the server is not.
    "create foreign table {role}_own.stolen (val text) server modak_gateway options (schema_name '{secret}', table_name '1:0:200')",
    "import foreign schema x from server modak_gateway into {role}_own",
    "drop view public.events",
    "set role shop_{suffix}",
]
SECRETS = [
    "select * from public.secret",
    "select * from public.secret_hot",
    "select val from public.secret where id = 1",
    "update public.secret set val = 'x'",
    "delete from public.secret",
    "insert into public.secret (event_time) values (10)",
    "copy public.secret (event_time) from stdin",
    "select * from modak.query('select val from public.secret') as t(val text)",
    "select * from modak.query('select e.val from public.events e join public.secret s using (id)') as t(val text)",
    "select * from modak_explain('select val from public.secret')",
    'select modak_upsert(\'public.secret\', \'{{"id": 1, "event_time": 110, "val": "x"}}\')',
    "select modak_delete('public.secret', '{{\"id\": 1}}')",
]


def refused(session: psycopg.Connection[Any], statement: str) -> bool:
    """Whether a statement is refused for want of a right; whatever else it says is a failure of the test."""
    try:
        if statement.startswith("copy"):
            with session.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write_row((10,))
        else:
            session.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        return True
    except psycopg.Error as error:
        return "permission denied" in str(error)
    return False


@pytest.mark.parametrize("role", ["app", "guest"])
def test_an_application_gets_no_further(world: World, role: str) -> None:
    facts = {**world.numbers, "suffix": world.suffix, "role": role}
    statements = [form.format(relation=relation.format(**facts)) for form in FORBIDDEN for relation in RELATIONS]
    statements += [one.format(**facts) for one in (*CALLS, *SECRETS)]
    with world.as_role(role) as session:
        allowed = [one for one in statements if not refused(session, one)]
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.SerializationFailure)):
            session.execute("select * from modak.ask_gateway('rows', 'select val from public.secret', '[\"public\"]')")
    with world.as_role(role, host="127.0.0.1", port=world.gateway.port) as session:
        allowed += [f"port: {one.format(**facts)}" for one in SECRETS[:3] if not refused(session, one.format(**facts))]
    assert allowed == []


def test_a_right_on_one_column_is_no_more(world: World) -> None:
    with world.as_role("guest") as session:
        assert session.execute("select count(id) from public.secret").fetchone() != (0,)
        assert refused(session, "select count(n) from public.secret")
        assert refused(session, "select * from modak.query('select count(n) from public.secret') as t(n bigint)")


def test_no_trigger_of_ours_on_a_table_of_theirs(world: World) -> None:
    """It would write corrections of another's rows, with the rights of whoever registered them."""
    with world.as_role("app") as session:
        columns = "id bigint, event_time bigint, val text, n int"
        session.execute(f"create temporary table mine ({columns})")  # type: ignore[arg-type]
        session.execute("create temporary view seen as select * from mine")
        number = world.numbers["secret"]
        for function in ("spill_guard", "spill_mirror", "capture", "check_keys"):
            name = sql.Identifier("modak", f"{function}_{number}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(sql.SQL("create trigger t after insert on mine for each row execute function {}()").format(name))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(f"create trigger t instead of insert on seen for each row execute function modak.write_{number}()")  # type: ignore[arg-type]


def test_a_reader_sees_states_and_no_rows(world: World, cluster: Cluster) -> None:
    with psycopg.connect(world.dsn, autocommit=True) as admin:
        admin.execute("set role modak_reader")
        assert admin.execute("select count(*) from modak.status").fetchone() == (2,)
        for relation in ("delta", "captured", "folded", "gateway", f"delta_{world.numbers['secret']}", "gateway_query"):
            assert refused(admin, f"select * from modak.{relation}")
        assert refused(admin, "update modak.cutline set tier_key_hi = 0")


def test_roles_that_cannot_be_made_are_named(world: World, cluster: Cluster) -> None:
    """Another database of the server may have them: then they are taken as they are."""
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
        admin.execute("alter role modak_reader rename to set_aside")
        try:
            done = run_cli(world.boss.dsn, "migrate", data=world.boss.settings.data)
            assert done.returncode == 0, done.stderr
            assert "create role modak_reader nologin;" in done.stderr
            with connect(world.dsn) as connection:
                assert migrate(connection).roles_missing == ()
        finally:
            with psycopg.connect(world.dsn, autocommit=True) as there:
                there.execute("drop owned by modak_reader; drop role modak_reader")
            admin.execute("alter role set_aside rename to modak_reader")
    with connect(world.boss.dsn) as connection:
        assert migrate(connection).roles_missing == ()


def test_another_worker_takes_its_place(world: World) -> None:
    """It replaces and grows what the first one made: triggers, and the cold side."""
    relief = app_of(world.dsn_of("relief"), world.hand.settings.data)
    with world.as_role("app") as session:
        session.execute("insert into public.events (event_time, val) values (17, 'late'), (217, 'new')")
    with relief.connection() as connection:
        connection.execute("create table public.events_3 partition of public.events_hot for values from (300) to (400)")
        connection.execute(f"alter table public.events_3 owner to {world.role('shop')}")
        connection.execute("insert into public.events_hot (event_time, val) values (310, 'pushes')")
        connection.execute("alter table public.events_hot add column later text")
    with relief.job(EVENTS) as job:
        assert fold(job).corrections > 0
        assert tier(job).tier_key_hi == 300
        assert len(reclaim_all(job)) == 1
    with world.as_role("app") as session:
        session.execute("insert into public.events (event_time, val) values (218, 'late as well')")
        texts = ["late", "new", "late as well", "pushes"]
        found = session.execute("select count(*) from public.events where event_time in (17, 217, 218, 310) and val = any(%s)", [texts])
        assert found.fetchone() == (4,)
