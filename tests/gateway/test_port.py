"""The gateway's own port and modak.query: whole queries at one seam, and everything else as Postgres does it."""

from __future__ import annotations

import logging
import threading
from typing import Any

import psycopg
import pytest
from tests.worlds import KEYS, QUERIES, World

pytestmark = pytest.mark.spark

Session = psycopg.Connection[tuple[Any, ...]]


@pytest.mark.parametrize("key_type", KEYS)
def test_every_query_gives_what_the_plain_twin_gives(people: Session, key_type: str) -> None:
    for query in QUERIES:
        found = people.execute(query.format(t=f"public.t_{key_type}")).fetchall()
        expected = people.execute(query.format(t=f"public.p_{key_type}")).fetchall()
        assert found == expected, query


def test_the_lake_answers_what_it_can(world: World, people: Session) -> None:
    """Otherwise the test above would pass with an engine that declines everything."""
    routes = {}
    for query in QUERIES:
        lines = people.execute("select * from public.modak_explain(%s)", [query.format(t="public.t_bigint")]).fetchall()
        routes[query] = next(line[0] for line in lines if line[0].startswith("gateway: engine"))
    by_lake = [query for query, route in routes.items() if route == "gateway: engine: lake"]
    assert len(by_lake) >= len(QUERIES) // 2, routes


def test_modak_query_gives_the_same_inside_postgres(session: Session) -> None:
    sql = "select n, count(*) as many, sum(num) as total, max(at) as last from public.{} where small <> 3 group by n order by n"
    shape = "t(n int, many bigint, total numeric, last timestamptz)"
    found = session.execute(f"select * from modak.query(%s) as {shape}", [sql.format("t_bigint")]).fetchall()
    assert found == session.execute(sql.format("p_bigint")).fetchall()
    declined = "select id, j->>'k', tags from public.{} where j @> '{{\"k\": 3}}' order by id"
    found = session.execute("select * from modak.query(%s) as t(id bigint, k text, tags text[])", [declined.format("t_bigint")]).fetchall()
    assert found == session.execute(declined.format("p_bigint")).fetchall()
    with session.transaction(force_rollback=True):
        session.execute("insert into public.t_bigint (id, key) values (777777, 4500)")
        assert session.execute(
            "select * from modak.query('select count(*) from public.t_bigint where id = 777777') as t(n bigint)"
        ).fetchall() == [(1,)]


def test_own_changes_are_seen_and_rolled_back(people: Session) -> None:
    with people.transaction(force_rollback=True):
        before = people.execute("select count(*) from public.t_bigint").fetchall()[0][0]
        people.execute("insert into public.t_bigint (id, key) values (888888, 4500), (888889, 15)")
        people.execute("delete from public.t_bigint where id = 40")
        assert people.execute("select count(*) from public.t_bigint").fetchall()[0][0] == before + 1
    assert people.execute("select count(*) from public.t_bigint").fetchall()[0][0] == before


def test_what_a_view_cannot_do_goes_to_the_heap(people: Session) -> None:
    with people.transaction(force_rollback=True):
        change = "on conflict (id, key) do update set t = excluded.t || t_bigint.t"
        upsert = f"insert into public.t_bigint (id, key, t) values (470, 4700, 'x') {change}"
        assert people.execute(upsert).rowcount == 1
        locked = people.execute("select id, t from public.t_bigint where id = %s for update", [470]).fetchall()
        assert locked[0][1].startswith("x")
        holders = people.execute("select count(*) from pg_locks where mode = 'RowShareLock' and relation = 'public.t_bigint_hot'::regclass")
        assert holders.fetchall()[0][0] == 1


@pytest.mark.parametrize(
    ("statement", "sqlstate", "way"),
    [
        ("truncate public.t_bigint", "42809", "public.t_bigint_hot"),
        # Inside a block nothing is replaced, as through any function of yours.
        ("do $$ begin insert into public.t_bigint (id, key) values (1, 1) on conflict do nothing; end $$", "0A000", "modak_upsert"),
        (
            "do $$ begin merge into public.t_bigint t using (select 1 as id) s on t.id = s.id when matched then delete; end $$",
            "0A000",
            "public.t_bigint_hot",
        ),
    ],
)
def test_what_postgres_forbids_on_a_view_says_the_way(people: Session, statement: str, sqlstate: str, way: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        people.execute(statement)
    assert refused.value.sqlstate == sqlstate
    assert way in str(refused.value.diag.message_hint)
    assert refused.value.diag.source_function is not None
    with pytest.raises(psycopg.errors.WrongObjectType) as plain:
        people.execute("truncate pg_catalog.pg_tables")
    assert plain.value.diag.message_hint is None


def test_a_transaction_with_one_snapshot_is_answered_by_the_lake_at_it(
    people: Session, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    count = "select count(*), max(id) from public.t_bigint where key < 4500"
    for level in ("repeatable read read only", "serializable read only deferrable"):
        with caplog.at_level(logging.DEBUG, "modak.gateway"):
            caplog.clear()
            people.execute(f"begin isolation level {level}")
            before = people.execute(count).fetchall()
            session.execute("insert into public.t_bigint (id, key) values (999999, 4400), (999998, 44)")
            try:
                people.execute("savepoint s")
                assert people.execute(count).fetchall() == people.execute(count, prepare=True).fetchall() == before
                people.execute("rollback to s")
                assert not [record for record in caplog.records if "left to Postgres" in record.getMessage()]
                assert people.execute(count).fetchall() == before, "by Postgres now, whose snapshot it is"
                people.execute("commit")
                after = people.execute(count).fetchall()
                assert (after[0][0], after[0][1]) == (before[0][0] + 2, 999_999)
            finally:
                session.execute("delete from public.t_bigint where id in (999998, 999999)")


def test_serializable_is_left_to_postgres_and_says_why(people: Session, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "modak.gateway"):
        people.execute("begin isolation level serializable")
        assert people.execute("select count(*) from public.t_large").fetchall() == [(80_000,)]
        people.execute("commit")
    assert [record for record in caplog.records if "SERIALIZABLE is watched over by Postgres alone" in record.getMessage()]


def test_cancel_reaches_a_lake_query(people: Session) -> None:
    # cancel() would hold the GIL that the gateway in this process needs.
    timer = threading.Timer(1.0, people.cancel_safe)
    timer.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        people.execute("select count(*) from t_large a join t_large b on a.t <> b.t join t_large c on c.id <> b.id where a.key < 60000")
    timer.join()
    assert people.execute("select count(*) from t_large where key < 10").fetchall() == [(10,)]
