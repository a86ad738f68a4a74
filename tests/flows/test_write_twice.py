"""Rows that one statement meets twice, or that its own triggers get at before it does: as on a plain table, or a loud refusal."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.flows.test_writes import content, same_as_plain
from tests.writing import Session, World, world

from modak.embedded.postgres import Cluster

pytestmark = pytest.mark.spark
NAMES = (("events", "events_hot"), ("plain_events", "plain_events"))
MANY = 1500  # more than fit into one note


@pytest.fixture(scope="module")
def tables(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(cluster, template, tmp_path_factory) as made:
        yield made


@pytest.fixture
def session(tables: World) -> Iterator[Session]:
    with psycopg.connect(tables.dsn) as connection:
        yield connection
        connection.rollback()


def with_trigger(session: Session, when: str, body: str) -> None:
    """The same trigger on the heap and on the plain twin; ``{t}`` is the table's name and ``{h}`` its heap's."""
    for name, heap in NAMES:
        text = body.replace("{t}", f"public.{name}").replace("{h}", f"public.{heap}")
        session.execute(f"create function pg_temp.act_{name}() returns trigger language plpgsql as $$ begin {text} end $$".encode())
        session.execute(f"create trigger act {when.replace('{h}', f'public.{heap}')} execute function pg_temp.act_{name}()".encode())


TELL = "insert into public.told values ('{t}', old.id, old.n); return null;"


def told_of(session: Session) -> list[list[tuple[int, int]]]:
    """What the triggers of the table and those of its twin have told."""
    read = "select id, n from public.told where who = %s order by 1, 2"
    return [session.execute(read, [f"public.{name}"]).fetchall() for name, _ in NAMES]


UNCHANGED = {
    "a hot row that is as it shall be": "update {t} t set val = 'hot' from (values (4), (4), (4)) x(id) where x.id = t.id returning t.id",
    "a cold row that is as it shall be": "update {t} t set val = 'b' from (values (2), (2)) x(id) where x.id = t.id returning t.id",
    "both tiers": "update {t} t set n = n from (values (1), (4), (1), (4)) x(id) where x.id = t.id returning t.id, t.n",
    "in a second statement": "update {t} set n = n where id in (2, 4);;update {t} t set n = t.n from (values (2), (4), (2)) x(id) "
    "where x.id = t.id returning t.id;;update {t} set n = n + 1 returning id, n",
    "in two parts of one statement": "with a as (update {t} set n = n where id in (2, 4) returning id) select * from a;;"
    "update {t} t set n = n from (values (2), (4), (2), (4)) x(id) where x.id = t.id",
}


@pytest.mark.parametrize("statement", UNCHANGED.values(), ids=UNCHANGED.keys())
def test_a_row_that_the_first_meeting_left_as_it_was_is_counted_once(session: Session, statement: str) -> None:
    same_as_plain(session, statement, "events", "plain_events")


def test_it_is_its_first_value_that_stays(session: Session) -> None:
    """Postgres does not say which of several values a row gets; that it gets one, and that the command says so, it does."""
    answer = session.execute("update public.events t set n = x.v from (values (4, 4), (4, 9)) x(id, v) where x.id = t.id returning t.n")
    assert answer.rowcount == 1
    assert answer.fetchall() == session.execute("select n from public.events where id = 4").fetchall()


@pytest.mark.parametrize("statement", [
    "delete from {t} t using public.items i where i.id = t.id",
    "delete from {t} t using public.items i where i.id = t.id returning t.id",
    "update {t} t set event_time = 50 from public.items i where i.id = t.id",
    "update {t} t set id = t.id + 100000 from public.items i where i.id = t.id",
])  # fmt: skip
def test_very_many_rows_are_met_again_after_they_have_gone(session: Session, statement: str) -> None:
    session.execute("create table public.items (id bigint, line int)")
    session.execute(f"insert into public.items select n, line from generate_series(1000, {1000 + MANY}) n, generate_series(1, 3) line")
    for name, _ in NAMES:
        session.execute(f"insert into public.{name} select n, 250, 'x', 0 from generate_series(1000, {1000 + MANY}) n")
    same_as_plain(session, statement, "events", "plain_events")


FOLLOW = "update {h} set n = n + 100 where id = 5; return null;"


def test_what_a_trigger_changed_before_the_statement_came_to_it_is_not_passed_over(session: Session) -> None:
    """A view's rows come one by one, and the heap's triggers with them: what they would do to later rows is refused, never lost."""
    with_trigger(session, "after update on {h} for each row when (new.id = 4)", FOLLOW)
    with pytest.raises(psycopg.errors.TriggeredDataChangeViolation, match="already modified") as refused, session.transaction():
        session.execute("update public.events set val = 'x' where id in (4, 5)")
    assert "events_hot" in str(refused.value.diag.message_hint)
    session.execute("update public.events_hot set val = 'x' where id in (4, 5)")
    session.execute("update public.plain_events set val = 'x' where id in (4, 5)")
    assert content(session, "events") == content(session, "plain_events")
    # Rows that nothing else changes, and the next statement, go on.
    same_as_plain(session, "update {t} set n = n + 1 where id in (1, 4);;update {t} set n = n + 1 where id <> 4", "events", "plain_events")


def test_a_row_is_deleted_whatever_a_trigger_did_to_it_before(session: Session) -> None:
    with_trigger(session, "after delete on {h} for each row when (old.id = 4)", FOLLOW)
    same_as_plain(session, "delete from {t} where id in (2, 4, 5)", "events", "plain_events")


def test_a_join_that_meets_rows_twice_goes_on_where_there_are_triggers(session: Session) -> None:
    session.execute("create table public.told (who text, id bigint, n int)")
    with_trigger(
        session, "after update or delete on {h} for each row", "insert into public.told values ('{t}', old.id, old.n); return null;"
    )
    same_as_plain(
        session,
        "update {t} t set n = n + 1 from (values (2), (4), (2), (4), (5)) x(id) where x.id = t.id returning t.id, t.n;;"
        "update {t} t set n = n from (values (2), (4), (2), (4)) x(id) where x.id = t.id returning t.id;;"
        "delete from {t} t using (values (1), (4), (1), (4)) x(id) where x.id = t.id returning t.id",
        "events",
        "plain_events",
    )
    told = [
        session.execute("select id, n from public.told where who = %s order by 1, 2", [f"public.{name}"]).fetchall() for name, _ in NAMES
    ]
    assert told[0] == told[1] != []


THRICE = "update {t} t set n = n + 1 from (values (2), (4), (2), (4), (2), (4)) x(id) where x.id = t.id returning t.id, t.n"


def test_a_join_may_meet_a_row_more_than_twice_where_there_are_triggers(session: Session) -> None:
    """A BEFORE trigger has the row locked first, and for a cold row in a subtransaction."""
    with_trigger(session, "before update on {h} for each row", "new.val := new.val || '+'; return new;")
    same_as_plain(session, f"{THRICE};;{THRICE}", "events", "plain_events")


VETOES = {
    "one that keeps the row": TELL,
    "one that marks it through the name": "update {t} set val = 'deleted' where id = old.id; return null;",
    "one that marks it in the heap": "update {h} set val = 'deleted' where id = old.id; return null;",
}


@pytest.mark.parametrize("body", VETOES.values(), ids=VETOES.keys())
def test_a_trigger_that_refuses_a_deletion_fires_once(session: Session, body: str) -> None:
    session.execute("create table public.told (who text, id bigint, n int, primary key (who, id))")
    with_trigger(session, "before delete on {h} for each row", body)
    same_as_plain(session, "delete from {t} where id in (4, 5)", "events", "plain_events")
    told = told_of(session)
    assert told[0] == told[1]


def test_a_trigger_that_refuses_an_update_fires_once(session: Session) -> None:
    session.execute("create table public.told (who text, id bigint, n int, primary key (who, id))")
    with_trigger(session, "before update on {h} for each row", TELL)
    same_as_plain(session, "update {t} set n = n + 1 where id in (4, 5)", "events", "plain_events")
    told = told_of(session)
    assert told[0] == told[1] == [(4, 4), (5, 5)]


def test_a_cold_row_that_breaks_a_later_rule_can_be_corrected(session: Session) -> None:
    """Rules that came after the row went cold were never checked on it: the new image has to obey, the old one need not."""
    for _, heap in NAMES:
        session.execute(f"alter table public.{heap} add constraint sane check (val <> 'b') not valid")
    with_trigger(session, "after update on {h} for each row", "return null;")
    same_as_plain(session, "update {t} set val = 'mended' where id = 2 returning id, val", "events", "plain_events")
    for name, _ in NAMES:
        with pytest.raises(psycopg.errors.CheckViolation), session.transaction():
            session.execute(f"update public.{name} set val = 'b' where id = 1")
