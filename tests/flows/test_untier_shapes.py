"""Untier of every shape of table: all types, LIST over RANGE, constraints and identity; and then unregistered, equal to a plain twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.flows import test_types_tiering as types
from tests.gateways import RunningGateway
from tests.support import reclaim_all, rows, value

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.errors import Refused
from modak.jobs import untier_copy
from modak.jobs.fold import fold
from modak.jobs.tier import tier
from modak.jobs.untier import UntierOutcome, untier
from modak.registration.register import register
from modak.registration.unregister import unregister

pytestmark = [pytest.mark.spark, pytest.mark.inline, pytest.mark.distributed]


def make_cold(app: App, connection: Connection, name: Name, **options: Any) -> None:
    profile = profiles.get(connection, None)
    register(connection, app.lake(profile), name, Options(**{"lag": "0", **options}), profile=profile.name)
    with app.job(name) as job:
        assert tier(job).rows
        assert reclaim_all(job)


def bring_back(app: App, name: Name, key: int | None = None) -> UntierOutcome:
    with app.job(name) as job:
        return untier(job, key=key)


def leave(app: App, connection: Connection, name: Name) -> None:
    table = tables.get(connection, name)
    outcome = unregister(connection, app.lake(profiles.get(connection, None)), table, drop_lake=False)
    assert (outcome.cold_rows, outcome.spills) == (0, ())


def images(connection: Connection, table: Name) -> list[Any]:
    """Every row as Postgres prints it; the text of a row is the text of each value."""
    query = sql.SQL("select t::text from {} t order by 1").format(sql.Identifier(table.schema, table.name))
    return [row["t"] for row in connection.execute(query).fetchall()]


def test_every_type_comes_back_exactly(app: App, connection: Connection, gateway: RunningGateway) -> None:
    types._create(connection)
    things, twin = types.THINGS, Name("public", "twin")
    connection.execute(sql.SQL("create table public.twin as select * from {}").format(sql.Identifier(things.schema, things.name)))
    make_cold(app, connection, things, tier_key="id", width="100")
    dates = f'"c {list(types.VALUES).index("date")}"'
    for target in (sql.Identifier(things.schema, things.name), sql.Identifier("public", "twin")):
        # A correction whose value the lake cannot hold waits in the delta, and comes back from there.
        connection.execute(sql.SQL(f"update {{}} set {dates} = 'infinity' where id = 3").format(target))
    with app.job(things) as job:
        assert fold(job).kept == 1
    outcome = bring_back(app, things)
    assert outcome.made == ("public.low: as it was",)
    assert value(connection, "select count(*) from modak.delta") == 0
    assert images(connection, things) == images(connection, twin)
    gateway.stop()
    assert images(connection, things) == images(connection, twin)
    leave(app, connection, things)
    assert images(connection, things) == images(connection, twin)
    assert value(connection, "select relkind::text from pg_class where oid = %s::regclass", '"public"."Every thing.of"') == "p"


ORDERS = Name("public", "orders")
PLAIN = """
    create table {schema}.customers (id int primary key);
    insert into {schema}.customers select generate_series(1, 20);
    create type {schema}.mood as enum ('sad', 'glad');
    create table {schema}.orders (
        id bigint generated always as identity,
        at date not null,
        customer int references {schema}.customers on delete cascade deferrable initially deferred,
        cents int not null check (cents >= 0),
        euros numeric(12,2) generated always as (cents / 100.0) stored,
        mood {schema}.mood default 'glad',
        note text collate "C",
        primary key (id, at),
        unique (note, at)
    ) partition by range (at);
    create index orders_by_customer on {schema}.orders (customer, at);
    create function {schema}.stamp() returns trigger language plpgsql as $$ begin new.note := new.note || '*'; return new; end $$;
    create trigger stamp before insert on {schema}.orders for each row execute function {schema}.stamp();
    create table {schema}.orders_2025_01 partition of {schema}.orders for values from ('2025-01-01') to ('2025-02-01');
    create table {schema}.orders_2025_02 partition of {schema}.orders for values from ('2025-02-01') to ('2025-03-01');
    create table {schema}.orders_2025_03 partition of {schema}.orders for values from ('2025-03-01') to ('2025-04-01');
    create table {schema}.orders_2025_04 partition of {schema}.orders for values from ('2025-04-01') to ('2025-05-01');
    insert into {schema}.orders (at, customer, cents, note)
    select date '2025-01-01' + n, 1 + n % 20, n * 7, 'n' || n from generate_series(0, 110) n;
    grant select on {schema}.orders, {schema}.orders_2025_04 to public;
"""
# Everything that a partitioned table consists of, by names and without numbers of its own.
STRUCTURE = """
    with family as (select relid as oid from pg_partition_tree(%(root)s::regclass))
    select 'relation' as what,
           concat_ws('|', c.relname, c.relkind, pg_get_expr(c.relpartbound, c.oid), pg_get_userbyid(c.relowner), c.relispartition) as it
      from pg_class c join family using (oid)
    union all
    select 'column', concat_ws('|', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated,
                               a.attcollation, a.attidentity, a.attstorage, a.attcompression, pg_get_expr(d.adbin, d.adrelid),
                               a.attinhcount, a.attislocal)
      from pg_attribute a join family f on f.oid = a.attrelid join pg_class c on c.oid = f.oid
      left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum where a.attnum > 0
    union all
    select 'constraint', concat_ws('|', k.conrelid::regclass, k.conname, pg_get_constraintdef(k.oid), k.convalidated, k.coninhcount,
                                   k.conislocal, k.conparentid <> 0)
      from pg_constraint k join family f on f.oid = k.conrelid
    union all
    select 'index', concat_ws('|', pg_get_indexdef(i.indexrelid), i.indisvalid, i.indisprimary, h.inhparent::regclass)
      from pg_index i join family f on f.oid = i.indrelid left join pg_inherits h on h.inhrelid = i.indexrelid
    union all
    select 'trigger', concat_ws('|', t.tgrelid::regclass, t.tgname, t.tgenabled, t.tgparentid <> 0)
      from pg_trigger t join family f on f.oid = t.tgrelid where not t.tgisinternal
"""


def structure(connection: Connection, schema: str) -> list[tuple[Any, ...]]:
    found = connection.execute(STRUCTURE, {"root": f"{schema}.orders"}).fetchall()
    return sorted((row["what"], str(row["it"]).replace(f"{schema}.", "")) for row in found)


def make_orders(connection: Connection) -> None:
    connection.execute("create schema plain")
    for schema in ("public", "plain"):
        connection.execute(PLAIN.format(schema=schema))


def test_after_everything_came_back_and_unregistered_it_is_the_plain_table(
    app: App, connection: Connection, gateway: RunningGateway
) -> None:
    make_orders(connection)
    make_cold(app, connection, ORDERS, tier_key="at", lag="10 days")
    assert seen_partitions(connection) == ["orders_2025_04", "orders_spill"]
    for schema in ("public", "plain"):
        connection.execute(f"update {schema}.orders set mood = 'sad', cents = cents + 1 where id in (5, 40, 100)")
        connection.execute(f"delete from {schema}.orders where id = 50")
        connection.execute(f"insert into {schema}.orders (at, customer, cents, note) values ('2025-02-27', 3, 9, 'late')")
    outcome = bring_back(app, ORDERS)
    assert outcome.rows == 90
    assert outcome.made == tuple(f"public.orders_2025_0{month}: as it was" for month in (1, 2, 3))
    grants = "select relacl::text from pg_class where oid = %s::regclass"
    assert value(connection, grants, "public.orders_2025_01") == value(connection, grants, "public.orders_2025_04") is not None
    leave(app, connection, ORDERS)
    # A row that is written to cold rows anew went through the table's own trigger, as a late one does.
    mended = "update {}.orders set note = rtrim(note, '*') || '*'"
    for schema in ("public", "plain"):
        connection.execute(mended.format(schema))
    assert images(connection, ORDERS) == images(connection, Name("plain", "orders"))
    assert structure(connection, "public") == structure(connection, "plain")
    for schema in ("public", "plain"):
        connection.execute(f"insert into {schema}.orders (at, customer, cents, note) values ('2025-01-15', 4, 1, 'after')")
        connection.execute(f"delete from {schema}.customers where id = 7")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(f"insert into {schema}.orders (id, at, cents) overriding system value values (2, '2025-01-02', 1)")
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(f"insert into {schema}.orders (at, cents) values ('2025-01-02', -1)")
    assert images(connection, ORDERS) == images(connection, Name("plain", "orders"))


def seen_partitions(connection: Connection) -> list[str]:
    query = "select inhrelid::regclass::text from pg_inherits where inhparent = 'public.orders_hot'::regclass order by 1"
    return [str(row[0]).removeprefix("public.") for row in rows(connection, query)]


def test_no_filled_partition_is_read_when_it_is_attached(
    app: App, connection: Connection, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_orders(connection)
    make_cold(app, connection, ORDERS, tier_key="at", lag="10 days")
    told: list[str] = []
    monkeypatch.setattr(untier_copy, "failpoint", lambda reached: told.clear() if reached == "untier.after_commit" else None)
    with app.job(ORDERS) as job:
        job.connection.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
        job.connection.execute("set client_min_messages = debug1")
        untier(job)
    implied = [text for text in told if "orders_2025" in text and "implied by existing constraints" in text]
    assert len(implied) == 3
    # Neither its own rows nor those they refer to; only the spill, which is nearly empty.
    assert {text for text in told if text.startswith(("verifying", "validating", "building"))} <= {'verifying table "orders_spill"'}


def test_a_reference_that_went_meanwhile_is_named(app: App, connection: Connection, gateway: RunningGateway) -> None:
    make_orders(connection)
    make_cold(app, connection, ORDERS, tier_key="at", lag="10 days")
    connection.execute("delete from public.customers where id = 3")
    with pytest.raises(Refused, match="violates foreign key constraint") as refused:
        bring_back(app, ORDERS)
    assert "(3)" in str(refused.value)
    assert value(connection, "select count(*) from public.orders where customer = 3") > 3
    assert value(connection, "select to_regclass('public.orders_2025_01') is null")
    connection.execute("insert into public.customers values (3)")
    bring_back(app, ORDERS)


REGIONS = Name("public", "visits")


def make_regions(app: App, connection: Connection) -> None:
    connection.execute("create table public.visits (id bigint, region text not null, at bigint, note text) partition by list (region)")
    for region, values in (("eu", "'de', 'fr'"), ("us", "'us'"), ("other", "")):
        bound = f"for values in ({values})" if values else "default"
        connection.execute(f"create table public.visits_{region} partition of public.visits {bound} partition by range (at)")
        for number in range(3):
            bounds = f"from ({number * 100}) to ({number * 100 + 100})"
            connection.execute(f"create table public.visits_{region}_{number} partition of public.visits_{region} for values {bounds}")
    connection.execute(
        "insert into public.visits select n, (array['de', 'us', 'fr', 'jp'])[1 + n % 4], n, 'n' || n from generate_series(0, 259) n"
    )
    make_cold(app, connection, REGIONS, tier_key="at", primary_key=("region", "id"), width="100")


def test_regions_get_their_rows_back(app: App, connection: Connection, gateway: RunningGateway) -> None:
    make_regions(app, connection)
    connection.execute("update public.visits set note = 'corrected' where id in (5, 150)")
    connection.execute("update public.visits set region = 'us' where id = 6")
    connection.execute("insert into public.visits values (300, 'fr', 17, 'late')")
    before = images(connection, REGIONS)
    outcome = bring_back(app, REGIONS, 100)
    assert len(outcome.made) == 3
    assert images(connection, REGIONS) == before
    outcome = bring_back(app, REGIONS)
    assert outcome.made[0] == "public.visits_eu_0: as it was"
    assert images(connection, Name("public", "visits_hot")) == before
    assert value(connection, "select count(*) from public.visits_other where region = 'jp'") == 65
    gateway.stop()
    assert images(connection, REGIONS) == before
    leave(app, connection, REGIONS)
    assert images(connection, REGIONS) == before


def test_a_key_without_an_index_is_found_by_one_for_the_time(app: App, connection: Connection, gateway: RunningGateway) -> None:
    make_regions(app, connection)
    seen: list[int] = []
    helpers = "select count(*) from pg_class where relname like 'modak_untier_key%'"
    original = untier_copy.compare

    def spy(*given: Any, **options: Any) -> None:
        seen.append(value(connection, helpers))
        original(*given, **options)

    monkey = pytest.MonkeyPatch()
    monkey.setattr("modak.jobs.untier.compare", spy)
    try:
        bring_back(app, REGIONS)
    finally:
        monkey.undo()
    assert seen == [0, 6]
    assert value(connection, helpers) == 0


def test_a_task_that_runs_twice_copies_once(
    app: App, connection: Connection, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_regions(app, connection)
    before, again = images(connection, REGIONS), list[int]()
    original: Callable[..., Any] = untier_copy._spread

    def twice(context: Any, task: Any) -> Any:
        first = original(context, task)
        again.extend(task.run(number).rows for number in range(len(task.copies)))
        assert again == [one.rows for one in first]
        return first

    monkeypatch.setattr(untier_copy, "_spread", twice)
    assert bring_back(app, REGIONS).rows == sum(again) == 200
    assert images(connection, Name("public", "visits_hot")) == before


def test_what_has_expired_stays_away(app: App, connection: Connection, gateway: RunningGateway) -> None:
    """R is a floor: T does not go below it, and the partition begins there."""
    make_orders(connection)
    make_cold(app, connection, ORDERS, tier_key="at", lag="10 days")
    # Retention's own job moves R; here only the line matters.
    connection.execute("delete from public.orders where at < '2025-02-10'")
    with app.job(ORDERS) as job:
        fold(job)
    connection.execute("update modak.cutline set retention_line = date '2025-02-10' - date '1970-01-01'")
    outcome = bring_back(app, ORDERS)
    assert len(outcome.made) == 2
    bound = "select pg_get_expr(relpartbound, oid) from pg_class where oid = 'public.orders_2025_02'::regclass"
    assert value(connection, bound) == "FOR VALUES FROM ('2025-02-10') TO ('2025-03-01')"
    assert value(connection, "select count(*) from public.orders") == value(connection, "select count(*) from plain.orders") - 40
    with pytest.raises(psycopg.errors.DatetimeFieldOverflow):
        connection.execute("insert into public.orders (at, cents) values ('2025-02-09', 1)")


def test_no_trigger_of_the_users_hears_of_it(
    app: App, connection: Connection, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_orders(connection)
    connection.execute("""
        create table public.heard (what text, id bigint);
        create function public.hear() returns trigger language plpgsql
            as $$ begin insert into public.heard values (tg_op, coalesce(new.id, old.id)); return null; end $$;
        create trigger hear after insert or update or delete on public.orders for each row execute function public.hear();
    """)
    make_cold(app, connection, ORDERS, tier_key="at", lag="10 days")
    late = "insert into public.orders (at, customer, cents, note) values ('2025-02-27', 3, 9, 'late')"
    monkeypatch.setattr("modak.jobs.untier.failpoint", lambda point: connection.execute(late) if point == "untier.after_copy" else None)
    outcome = bring_back(app, ORDERS)
    assert outcome.corrections == 1
    assert rows(connection, "select what from public.heard") == [("INSERT",)]
    assert value(connection, "select tableoid::regclass::text from public.orders_hot where note = 'late*'") == "public.orders_2025_02"
