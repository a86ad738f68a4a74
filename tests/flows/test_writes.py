"""Plain SQL on the registered name once rows are cold: every statement does what it does to a plain twin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests import events
from tests.gateways import RunningGateway
from tests.writing import ODD_KEYS, Session, World, world

from modak.app import App
from modak.connection import Connection
from modak.embedded.postgres import Cluster

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def tables(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(cluster, template, tmp_path_factory) as made:
        yield made


@pytest.fixture
def session(tables: World) -> Iterator[Session]:
    """In a transaction that is rolled back, with a time zone that is not UTC."""
    with psycopg.connect(tables.dsn, options="-c timezone=Asia/Kathmandu") as connection:
        yield connection
        connection.rollback()


def content(session: Session, table: str, columns: str = "id, event_time, val, n") -> list[tuple[Any, ...]]:
    return session.execute(f"select {columns} from public.{table} order by 1, 2").fetchall()


def ran(session: Session, statement: str) -> tuple[int, list[tuple[Any, ...]]]:
    cursor = session.execute(statement.encode())
    return cursor.rowcount, sorted(cursor.fetchall()) if cursor.description else []


def same_as_plain(session: Session, statement: str, table: str, twin: str, columns: str = "id, event_time, val, n") -> None:
    """Row counts, RETURNING and what is left, for each of several statements."""
    for each in statement.split(";;"):
        found, wanted = (ran(session, each.replace("{t}", f"public.{name}")) for name in (table, twin))
        assert found == wanted, each
        assert content(session, table, columns) == content(session, twin, columns), each


STATEMENTS = {
    "update of both tiers": "update {t} set val = val || '!', n = n + 1 where id <= 4 returning id, val, n",
    "update of everything": "update {t} set n = n * 10",
    "update of nothing": "update {t} set n = 0 where id = 99 returning *",
    "twice in a row": "update {t} set n = n + 1;;update {t} set n = n + 1 where id < 3;;update {t} set n = n + 1 returning n",
    "delete in both tiers": "delete from {t} where id in (1, 4) returning id, val",
    "delete of everything": "delete from {t};;insert into {t} values (1, 10, 'again')",
    "insert on both sides of T": "insert into {t} values (10, 30, 'x'), (11, 250, 'y') returning id, event_time, val, n",
    "insert from itself": "insert into {t} select id + 100, event_time, val from {t} returning id, n",
    "defaults": "insert into {t} (id, event_time) values (10, 30), (11, 230) returning n, val",
    "cold to hot": "update {t} set event_time = event_time + 200 where id = 2 returning id, event_time",
    "hot to cold": "update {t} set event_time = event_time - 150 where id = 4 returning id, event_time",
    "there and back": "update {t} set event_time = 250 where id = 2;;update {t} set event_time = 20, val = 'back' where id = 2",
    "back and forth": "update {t} set event_time = 50 where id = 4;;update {t} set event_time = 250, n = 0 where id = 4 returning n",
    "cold to cold in a chain": "update {t} set event_time = 150 where id = 2;;update {t} set event_time = 60 where id = 2 returning val",
    "only the crossing rows": "update {t} set event_time = event_time + 95 where id in (1, 3, 4) and event_time < 200 returning *",
    "another key for a cold row": "update {t} set id = 20 where id = 2 returning id, val;;update {t} set val = 'z' where id = 20",
    "another key and another tier": "update {t} set id = 20, event_time = 250 where id = 2;;delete from {t} where id = 20 returning val",
    "another key for every row": "update {t} set id = id + 100 returning id",
    "deleted and inserted again": "delete from {t} where id = 3;;insert into {t} values (3, 120, 'new') returning n;;update {t} set n = 1",
    "update from": "update {t} t set val = x.v from (values (1, 'x'), (4, 'y'), (9, 'z')) x(id, v) where x.id = t.id "
    "returning t.id, t.val, x.v",
    "update from itself": "update {t} a set val = b.val from {t} b where b.id = a.id + 2 returning a.id, a.val",
    "a cold row met twice": "update {t} t set n = n + 1 from (values (2), (2), (2)) x(id) where x.id = t.id returning t.id, t.n",
    "a hot row met twice": "update {t} t set n = n + 1 from (values (4), (4)) x(id) where x.id = t.id returning t.id, t.n",
    "a moving row met twice": "update {t} t set event_time = 250 from (values (2), (2)) x(id) where x.id = t.id returning t.id",
    "a hot row that leaves, met twice": "update {t} t set event_time = 90 from (values (4), (4)) x(id) where x.id = t.id returning t.id",
    "a key that changes, met twice": "update {t} t set id = 30 from (values (2), (2)) x(id) where x.id = t.id returning t.id",
    "delete using": "delete from {t} t using (values (1), (2), (5)) x(id) where x.id = t.id returning t.id, t.val",
    "deleted twice": "delete from {t} t using (values (1), (1), (4), (4)) x(id) where x.id = t.id returning t.id",
    "two changes in one statement": (
        "with gone as (delete from {t} where id in (1, 4) returning *), changed as (update {t} set n = 0 where id in (2, 5) returning *) "
        "select id, n from gone union all select id, n from changed"
    ),
    "moved by way of a delete": (
        "with gone as (delete from {t} where id in (2, 5) returning *) "
        "insert into {t} select id + 50, event_time, val, n from gone returning id"
    ),
    "a sub-select of the table": "update {t} set val = (select max(val) from {t}), n = (select count(*) from {t}) where id in (2, 4)",
    "by a correlated condition": "delete from {t} a where exists (select from {t} b where b.id = a.id + 1 and b.n > 3) returning id",
    "values to NULL": "update {t} set val = null, n = default where id in (1, 5) returning val, n",
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS.keys())
def test_a_statement_does_what_it_does_to_a_plain_table(session: Session, statement: str) -> None:
    same_as_plain(session, statement, "events", "plain_events")


@pytest.mark.parametrize("case", ["update of both tiers", "delete in both tiers", "cold to hot", "hot to cold", "update from", "defaults"])
def test_the_surface_heap_does_it_through_its_view(session: Session, case: str) -> None:
    same_as_plain(session, STATEMENTS[case], "whole_all", "plain_whole")


def test_on_the_surface_heap_the_heap_stays_a_heap(session: Session) -> None:
    assert session.execute("update public.whole set val = 'x'").rowcount == 2
    assert session.execute("delete from public.whole where id = 2").rowcount == 0
    made = session.execute("insert into public.whole values (9, 50, 'late', 0), (10, 230, 'new', 0) returning id").fetchall()
    assert made == [(9,), (10,)]
    assert [row[0] for row in content(session, "whole_all")] == [1, 2, 3, 4, 5, 9, 10]
    assert session.execute("select id from public.whole where id = 4 for update").fetchall() == [(4,)]


def test_copy_takes_rows_of_both_tiers(session: Session) -> None:
    for name in ("events", "plain_events"):
        with session.cursor().copy(f"copy public.{name} (id, event_time, val) from stdin") as copy:
            for row in ((10, 30, "cold"), (11, 130, None), (12, 230, "hot")):
                copy.write_row(row)
    assert content(session, "events") == content(session, "plain_events")


KEY_STATEMENTS = [
    "update {t} set reading = reading + 1, tags = tags || tenant::text where device = {k} returning tenant, reading, doubled, tags",
    "update {t} set device = device || '/' where device = {k} and tenant = 1 returning device, doubled",
    "delete from {t} where device = {k} returning tenant, at",
    "update {t} set at = at + interval '1 month' where device = {k} and tenant = 1 returning at;;delete from {t} where device = {k}",
    "update {t} set at = at - interval '1 month' where device = {k} and tenant = 2;;update {t} set reading = 0 where device = {k}",
    # An array that held a NULL is stored otherwise than one that never did; to the eye they are the same.
    "update {t} set tags[2] = null where device = {k};;update {t} set tags[2] = 'y', doubled = default where device = {k};;"
    "update {t} set reading = 1 where device = {k} returning doubled;;delete from {t} where device = {k}",
]


@pytest.mark.parametrize("device", ODD_KEYS)
def test_odd_keys_find_their_rows(session: Session, device: str) -> None:
    columns = "tenant, device, at, reading, tags, doubled"
    for statement in KEY_STATEMENTS:
        with session.transaction(force_rollback=True):
            literal = sql.Literal(device).as_string(session)
            same_as_plain(session, statement.replace("{k}", literal), "keys", "plain_keys", columns)


def test_savepoints_take_back_what_came_after_them(session: Session) -> None:
    for name in ("events", "plain_events"):
        session.execute(f"update public.{name} set n = 100 where id in (2, 4)")
        session.execute("savepoint one")
        session.execute(f"update public.{name} set n = 200")
        session.execute(f"delete from public.{name} where id in (2, 5)")
        session.execute(f"insert into public.{name} values (10, 30, 'x')")
        session.execute("rollback to savepoint one")
        session.execute(f"update public.{name} set n = n + 1 where id in (2, 4, 10)")
    assert content(session, "events") == content(session, "plain_events")
    seen = "select coalesce(current_setting(format('modak.seen_%s', 'public.events_hot'::regclass::oid), true), '')"
    assert session.execute(seen).fetchall() == [("",)]


def test_a_rollback_leaves_no_trace(tables: World) -> None:
    with psycopg.connect(tables.dsn) as connection:
        before = content(connection, "events")
        connection.execute("update public.events set val = 'x'")
        connection.execute("delete from public.events where id = 3")
        connection.execute("insert into public.events values (10, 30, 'x')")
        connection.rollback()
        assert content(connection, "events") == before
        assert connection.execute("select count(*) from modak.delta").fetchall() == [(0,)]


FUNCTION = """
    create function pg_temp.change(wanted bigint, said text) returns bigint language plpgsql as $$
    declare total bigint := 0; made bigint; again text;
    begin
        for attempt in 1..3 loop
            begin
                update public.{t} set val = said || attempt, n = n + 1 where id = wanted returning n into made;
                total := total + made;
                if attempt = 2 then raise exception 'no'; end if;
            exception when raise_exception then total := total + 1000;
            end;
        end loop;
        perform 1 from public.{t} where id = wanted and val = said || 3;
        if not found then raise exception 'not seen'; end if;
        delete from public.{t} where id = wanted + 1;
        insert into public.{t} values (wanted + 100, 33, said);
        return total;
    end $$
"""


def test_what_changed_rows_of_the_lake_cannot_be_prepared(session: Session) -> None:
    """Postgres's own limit of foreign tables: nothing is left of the transaction."""
    session.execute("update public.events set val = 'x' where id = 2")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="postgres_fdw"):
        session.execute("prepare transaction 'cold'")
    session.rollback()
    assert session.execute("select val from public.events where id = 2").fetchone() == ("b",)


def test_functions_do_blocks_and_prepared_statements(session: Session) -> None:
    totals = []
    for name in ("events", "plain_events"):
        session.execute(FUNCTION.replace("{t}", name))
        totals.append(session.execute("select pg_temp.change(2, 'f'), pg_temp.change(4, 'g')").fetchall())
        session.execute(
            f"do $$ declare k bigint := 1; v text := 'it''s'; begin update public.{name} set val = v where id = k; "
            f"update public.{name} set event_time = event_time + 1 where id in (1, 102); end $$"
        )
        session.execute("drop function pg_temp.change")
        change = f"update public.{name} set val = val || $2, n = n + 1 where id = $1 returning n"
        session.execute(f"prepare change_{name} (bigint, text) as {change}")
        session.execute("set local plan_cache_mode = force_generic_plan")
        answers = [session.execute(f"execute change_{name} ({key}, '!')").fetchall() for key in (1, 2, 102, 1, 77, 102)]
        assert answers[0][0][0] + 1 == answers[3][0][0]
        assert answers[4] == []
        session.execute(f"deallocate change_{name}")
    assert totals[0] == totals[1]
    assert content(session, "events") == content(session, "plain_events")


def test_statements_inside_statements(session: Session) -> None:
    """A trigger of the heap and a function in a condition write through the name while a statement on it is under way."""
    for name, heap in (("events", "events_hot"), ("plain_events", "plain_events")):
        session.execute(
            f"create function pg_temp.follow_{name}() returns trigger language plpgsql as $$ begin "
            f"update public.{name} set n = n + 100 where id = 3; return null; end $$"
        )
        session.execute(
            f"create trigger follow after update on public.{heap} for each row when (new.id = 4) execute function pg_temp.follow_{name}()"
        )
        session.execute(
            f"create function pg_temp.and_more(k bigint) returns boolean language plpgsql as $$ begin "
            f"if k = 1 then delete from public.{name} where id = 5; end if; return true; end $$"
        )
        session.execute(f"update public.{name} set val = 'outer' where id in (1, 2, 4) and pg_temp.and_more(id)")
        session.execute("drop function pg_temp.and_more")
    assert content(session, "events") == content(session, "plain_events")


def test_a_row_that_a_called_function_changed_is_refused_as_on_a_heap(session: Session) -> None:
    inner = "update public.{} set val = 'inner' where id = k"
    # With a handler it runs in a subtransaction, which has ended by the time the outer statement comes to the row.
    for name, body in itertools.product(("events", "plain_events"), (inner, f"begin {inner}; exception when others then raise; end")):
        for key in (2, 4):
            session.execute(
                f"create or replace function pg_temp.meddle(k bigint) returns text language plpgsql as $$ begin "
                f"{body.format(name)}; return 'outer'; end $$"
            )
            with pytest.raises(psycopg.errors.TriggeredDataChangeViolation, match="already modified"), session.transaction():
                session.execute(f"update public.{name} set val = pg_temp.meddle(id) where id = {key}")


@pytest.mark.parametrize("change", ["id = 3", "id = 3, event_time = 30", "id = id + 1"])
def test_an_update_never_takes_another_rows_key(session: Session, change: str) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation) as refused, session.transaction():
        session.execute(f"update public.events set {change} where id in (1, 2)")
    assert 'table "public.events"' in str(refused.value)
    assert "already exists" in str(refused.value.diag.message_detail)
    with pytest.raises(psycopg.errors.UniqueViolation), session.transaction():
        session.execute("update public.events set id = 1, event_time = 150 where id = 4")
    session.execute("insert into public.events values (10, 30, 'late')")
    with pytest.raises(psycopg.errors.UniqueViolation), session.transaction():
        session.execute("update public.events set id = 2 where id = 10")
    with pytest.raises(psycopg.errors.UniqueViolation), session.transaction():
        session.execute("update public.events_hot set id = 2 where id = 10")
    session.execute("delete from public.events where id = 2")
    session.execute("update public.events set id = 2 where id = 10")
    assert content(session, "events", "id, val")[1] == (2, "late")


def test_a_place_without_a_partition_is_named_after_the_users_table(session: Session) -> None:
    for key in (2, 4):
        refused = pytest.raises(psycopg.errors.CheckViolation, match=r'no partition of table "public.events" for event_time = 900')
        with refused, session.transaction():
            session.execute(f"update public.events set event_time = 900 where id = {key}")


@pytest.mark.parametrize("table", ["events", "events_hot", "whole", "whole_all"])
def test_nothing_below_the_retention_line(session: Session, table: str) -> None:
    registered = table.partition("_")[0]
    view = {"events_hot": "events", "whole": "whole_all"}.get(table, table)
    session.execute(f"insert into public.{table} values (9, 12, 'old', 0), (10, 60, 'kept', 0)")
    raised = "update modak.cutline c set retention_line = 50 from modak.tables t where t.table_id = c.table_id and t.table_name = %s"
    session.execute(raised, [registered])
    refused = [
        f"insert into public.{table} values (11, 49, 'x', 0)",
        f"update public.{table} set event_time = 40 where id = 4",
        f"update public.{table} set event_time = 40 where id = 10",
        f"update public.{table} set val = 'x' where id = 9",
        f"update public.{table} set event_time = 70 where id = 9",
        f"update public.{table} set event_time = 230 where id = 9",
        f"delete from public.{table} where id = 9",
        f"update public.{view} set val = 'x' where id = 2",
        f"update public.{view} set event_time = 60 where id = 2",
        f"update public.{view} set event_time = 10 where id = 3",
        f"delete from public.{view} where id = 1",
        f"select modak_upsert('public.{registered}', '{{\"id\": 12, \"event_time\": 49}}')",
        f"select modak_upsert('public.{registered}', '{{\"id\": 4, \"event_time\": 49}}')",
        f"select modak_upsert('public.{registered}', '{{\"id\": 2, \"event_time\": 250}}')",
        f"select modak_delete('public.{registered}', '{{\"id\": 2, \"event_time\": 20}}')",
        f"select modak_delete('public.{registered}', '{{\"id\": 2}}')",
    ]
    for statement in refused:
        with pytest.raises(psycopg.errors.DatetimeFieldOverflow, match=r"below the retention line"), session.transaction():
            session.execute(statement.encode())
    late = session.cursor()
    with (
        pytest.raises(psycopg.errors.DatetimeFieldOverflow),
        session.transaction(),
        late.copy(f"copy public.{table} (id, event_time) from stdin") as copy,
    ):
        copy.write_row((11, 49))
    assert session.execute(f"update public.{view} set event_time = 51 where id = 3").rowcount == 1
    assert session.execute(f"delete from public.{view} where id in (10, 3)").rowcount == 2


def test_what_a_view_cannot_do_fails_before_anything_is_written(session: Session) -> None:
    """Postgres refuses these before anything of ours could run; the guide says what to do instead."""
    statements = {
        "insert into public.events values (1, 10, 'x', 0) on conflict do nothing": psycopg.errors.FeatureNotSupported,
        "insert into public.events values (1, 10, 'x', 0) on conflict (id, event_time) do update set val = 'x'": (
            psycopg.errors.FeatureNotSupported
        ),
        "truncate public.events": psycopg.errors.WrongObjectType,
        "merge into public.events e using (values (1)) x(id) on e.id = x.id when matched then delete": psycopg.errors.FeatureNotSupported,
    }
    before = content(session, "events")
    for statement, error in statements.items():
        with pytest.raises(error), session.transaction():
            session.execute(statement.encode())
    assert content(session, "events") == before


@pytest.mark.parametrize("heap", ["events_hot", "whole", "strict_hot"])
def test_on_conflict_on_the_heap_is_right_for_hot_and_spilled_rows(session: Session, heap: str) -> None:
    view = {"events_hot": "events", "whole": "whole_all", "strict_hot": "strict"}[heap]
    session.execute(f"insert into public.{heap} values (9, 30, 'late', 0)")
    for key, place in ((4, 210), (9, 30)):
        nothing = f"insert into public.{heap} values ({key}, {place}, 'x', 0) on conflict do nothing"
        assert session.execute(nothing.encode()).rowcount == 0
        change = f"on conflict (id, event_time) do update set val = {heap}.val || excluded.val, n = 8"
        upsert = f"insert into public.{heap} as {heap} values ({key}, {place}, '+', 0) {change} returning val"
        assert session.execute(upsert.encode()).fetchall() in ([("hot+",)], [("late+",)])
    new = f"insert into public.{heap} values (11, 31, 'n', 0), (12, 231, 'n', 0) on conflict do nothing"
    assert session.execute(new.encode()).rowcount == 2
    found = {row[0]: row[1:] for row in content(session, view)}
    assert (found[4], found[9]) == ((210, "hot+", 8), (30, "late+", 8))
    assert (found[11], found[12]) == ((31, "n", 0), (231, "n", 0))


def test_a_cold_insert_replaces_unless_keys_are_checked(session: Session) -> None:
    session.execute("insert into public.events values (2, 20, 'again', 0), (3, 150, 'elsewhere', 0)")
    assert content(session, "events")[1:3] == [(2, 20, "again", 0), (3, 150, "elsewhere", 0)]
    assert len(content(session, "events")) == 5
    # What still stands in the heap is the heap's own affair.
    with pytest.raises(psycopg.errors.UniqueViolation), session.transaction():
        session.execute("insert into public.events values (2, 20, 'once more', 0)")


@pytest.mark.parametrize("name", ["strict", "strict_hot"])
def test_checked_keys_fail_as_on_a_heap(session: Session, name: str) -> None:
    session.execute(f"insert into public.{name} values (9, 30, 'late', 0)")
    for key, place in ((2, 20), (2, 99), (3, 110), (9, 30), (9, 31)):
        taken = pytest.raises(psycopg.errors.UniqueViolation, match="duplicate key value violates unique constraint")
        with taken as refused, session.transaction():
            session.execute(f"insert into public.{name} values ({key}, {place}, 'x', 0)")
        assert f"({key}" in str(refused.value.diag.message_detail)
        if place not in (30,):
            assert 'table "public.strict"' in str(refused.value)
            assert (refused.value.diag.schema_name, refused.value.diag.table_name) == ("public", "strict")
            assert f"Key (id)=({key}) already exists." == refused.value.diag.message_detail
    with pytest.raises(psycopg.errors.UniqueViolation), session.transaction():
        session.execute(f"insert into public.{name} values (20, 30, 'x', 0), (20, 31, 'twice', 0)")
    with (
        pytest.raises(psycopg.errors.UniqueViolation),
        session.transaction(),
        session.cursor().copy(f"copy public.{name} (id, event_time) from stdin") as copy,
    ):
        copy.write_row((1, 10))
    # A key whose newest correction is a tombstone is free, and so is one that nobody has.
    session.execute("delete from public.strict where id in (2, 9)")
    session.execute(f"insert into public.{name} values (2, 20, 'new', 0), (9, 33, 'new', 0), (21, 30, 'x', 0)")
    assert [row[:3] for row in content(session, "strict")] == [
        (1, 10, "a"), (2, 20, "new"), (3, 110, "c"), (4, 210, "hot"), (5, 220, "hot"), (9, 33, "new"), (21, 30, "x"),
    ]  # fmt: skip
    with pytest.raises(psycopg.errors.UniqueViolation), session.transaction():
        session.execute(f"insert into public.{name} values (2, 21, 'taken again', 0)")


CASES = ["update of both tiers", "cold to cold in a chain", "there and back", "hot to cold", "another key for a cold row"]


@pytest.mark.parametrize("case", CASES)
def test_checked_keys_do_not_stand_in_the_way_of_updates(session: Session, case: str) -> None:
    same_as_plain(session, STATEMENTS[case], "strict", "plain_strict")


@pytest.mark.inline
def test_a_key_may_hold_a_boolean(app: App, connection: Connection, gateway: RunningGateway) -> None:
    connection.execute(
        "create table public.events (id bigint, is_test boolean, event_time bigint, val text, primary key (id, is_test, event_time)) "
        "partition by range (event_time)"
    )
    for number in range(3):
        events.add_partition(connection, number)
    connection.execute("insert into public.events select n / 2, n % 2 = 1, n * 40, 'x' from generate_series(0, 6) n")
    events.put_under_modak(app, connection, primary_key=("id", "is_test"))
    events.tier(app)
    assert events.drop_tiered(app).dropped
    assert connection.execute("update public.events set val = 'y' where id = 1 and is_test returning event_time").fetchall() == [
        {"event_time": 120}
    ]
    assert connection.execute("update public.events set is_test = not is_test, id = id + 10 where id = 0").rowcount == 2
    assert connection.execute("delete from public.events where not is_test and id = 1").rowcount == 1
    for _ in range(2):
        found = connection.execute("select id, is_test, val from public.events order by 1, 2").fetchall()
        assert [tuple(row.values()) for row in found] == [
            (1, True, "y"), (2, False, "x"), (2, True, "x"), (3, False, "x"), (10, False, "x"), (10, True, "x"),
        ]  # fmt: skip
        events.fold(app)


@pytest.mark.inline
def test_a_key_may_hold_bytes(app: App, connection: Connection, gateway: RunningGateway) -> None:
    """Of any kind: a look-up of such a row in the lake found it only where all of them can be printed."""
    keys = [b"\x1f", b"\x00", b"", b"\xff\xfe", b"\\", b"'", b"plain", "ä".encode()]
    connection.execute(
        "create table public.events (id bigint, digest bytea, event_time bigint, val text, primary key (id, digest, event_time)) "
        "partition by range (event_time)"
    )
    for number in range(3):
        events.add_partition(connection, number)
    for number, key in enumerate([*keys, b"hot"]):
        connection.execute("insert into public.events values (%s, %s, %s, 'x')", [number, key, 10 if number < len(keys) else 210])
    events.put_under_modak(app, connection, primary_key=("id", "digest"))
    events.tier(app)
    assert events.drop_tiered(app).dropped
    for change, left in (("update public.events set val = val || '!'", "x!"), ("delete from public.events", None)):
        for number, key in enumerate(keys):
            assert connection.execute("select id from public.events where digest = %s", [key]).fetchall() == [{"id": number}], key
            assert connection.execute(f"{change} where id = %s and digest = %s", [number, key]).rowcount == 1, key
        for _ in range(2):
            found = connection.execute("select digest, val from public.events where event_time < 200 order by id").fetchall()
            assert [(row["digest"], row["val"]) for row in found] == [(key, left) for key in keys if left]
            events.fold(app)


@pytest.mark.inline
def test_columns_may_be_called_as_what_the_triggers_call_theirs(app: App, connection: Connection, gateway: RunningGateway) -> None:
    names = ["standing", "in_heap", "same_key", "changed", "found", "tg_op", "new", "old", "seen", "held", "known", "maker", "moved"]
    names += ["verdict", "looked", "older", "line", "made", "one", "other", "tombstone", "place"]
    columns = ", ".join(f'"{name}" text' for name in names)
    connection.execute(f"create table public.events (id bigint, event_time bigint, {columns}) partition by range (event_time)")
    for number in range(3):
        events.add_partition(connection, number)
    connection.execute("insert into public.events (id, event_time, found) select n, n * 100 - 50, 'x' from generate_series(1, 3) n")
    events.put_under_modak(app, connection)
    events.tier(app)
    assert events.drop_tiered(app).dropped
    sets = ", ".join(f"\"{name}\" = '{name}' || id" for name in names)
    for statement in (f"update public.events set {sets}", "update public.events set event_time = 260 - event_time where id <> 2"):
        assert connection.execute(statement).rowcount in (2, 3)
    events.fold(app)
    rows = connection.execute("select * from public.events order by id").fetchall()
    assert [(row["id"], row["event_time"]) for row in rows] == [(1, 210), (2, 150), (3, 10)]
    assert all(row[name] == f"{name}{row['id']}" for row in rows for name in names)
    assert connection.execute("delete from public.events returning *").rowcount == 3


@pytest.mark.parametrize("statement", ["update {t} set n = n + 1 where n < {count}", "delete from {t} where n < {count}"])
def test_rows_are_not_planned_one_by_one(session: Session, statement: str) -> None:
    told = list[str]()
    session.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
    session.execute("insert into public.events select n, 250, 'x', n from generate_series(1000, 1020) n")
    for setting in ("log_min_duration = 0", "log_nested_statements = on"):
        session.execute(f"load 'auto_explain'; set local auto_explain.{setting}".encode())
    session.execute("set local client_min_messages = log")
    assert session.execute(statement.format(t="public.events", count=2000).encode()).rowcount > 20
    plans = [text for text in told if f"Query Text: {statement[:6]}" in text and "generate_series" in text]
    # Five with the row's values in them, as Postgres always makes first; then one for all.
    by_values = [text for text in plans if "Limit  (cost=0.00..400" in text]
    assert len(plans) > 20
    assert len(by_values) == 5
