"""Reading the registered name once rows are cold: what Postgres shows is what the table was."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import psycopg
import pytest
from tests.worlds import KEYS, QUERIES, World

pytestmark = pytest.mark.spark

Session = psycopg.Connection[tuple[Any, ...]]


@pytest.mark.parametrize("key_type", KEYS)
def test_every_query_gives_what_the_plain_twin_gives(session: Session, key_type: str) -> None:
    for query in QUERIES:
        found = session.execute(query.format(t=f"public.t_{key_type}")).fetchall()
        expected = session.execute(query.format(t=f"public.p_{key_type}")).fetchall()
        assert found == expected, query


@pytest.mark.parametrize("key_type", KEYS)
def test_the_cut_line_itself_and_the_step_before_it(session: Session, key_type: str) -> None:
    line = session.execute(
        "select modak.key_text(tier_key_hi, tier_key_type) from modak.cutline join modak.tables using (table_id) where table_name = %s",
        [f"t_{key_type}"],
    ).fetchall()[0][0]
    line = f"{line}+00" if key_type == "timestamptz" else line
    for operator in ("=", "<", "<=", ">", ">=", "<>"):
        query = f"select count(*), sum(id) from public.{{}}_{key_type} where key {operator} %s"
        assert session.execute(query.format("t"), [line]).fetchall() == session.execute(query.format("p"), [line]).fetchall(), operator


def test_a_generic_plan_and_a_function_read_both_tiers(session: Session) -> None:
    session.execute("set plan_cache_mode = force_generic_plan")
    for value in (3, 40, 300, 470, 10001):
        found = session.execute("select * from public.t_bigint where id = %s", [value], prepare=True).fetchall()
        assert found == session.execute("select * from public.p_bigint where id = %s", [value], prepare=True).fetchall()
    session.execute(
        """do $$ declare a int; b int; begin
           for i in 1..5 loop
               select count(*) into a from public.t_bigint where id between i * 50 and i * 80;
               select count(*) into b from public.p_bigint where id between i * 50 and i * 80;
               if a is distinct from b then raise exception '% %', a, b; end if;
           end loop; end $$"""
    )


def test_a_joined_look_up_reaches_both_tiers_by_key_and_rescans(session: Session) -> None:
    session.execute("create temporary table wanted as select id from generate_series(1, 470, 60) id")
    session.execute("analyze wanted")
    query = "select w.id, t.t from wanted w join public.{} t on t.id = w.id order by 1"
    plan = "\n".join(row[0] for row in session.execute(f"explain (verbose) {query.format('t_large')}").fetchall())
    assert "Nested Loop" in plan
    assert "((a1 = $" in plan or "(($1::bigint = a1))" in plan or "= a1))" in plan, plan  # the key is part of the remote query
    assert len(session.execute(query.format("t_large")).fetchall()) == 8
    assert session.execute(query.format("t_bigint")).fetchall() == session.execute(query.format("p_bigint")).fetchall()
    session.execute("set enable_material = off; set enable_hashjoin = off; set enable_mergejoin = off")
    rescans = "select count(*) from wanted w, lateral (select * from public.{} t where t.n > w.id / 100 limit 3) x"
    assert session.execute(rescans.format("t_bigint")).fetchall() == session.execute(rescans.format("p_bigint")).fetchall()


def test_a_prepared_look_up_is_not_planned_each_time(session: Session) -> None:
    """Each plan with the value in it would ask the gateway what it costs."""
    session.execute("prepare look_up(bigint) as select * from public.t_large where id = $1")
    for number in range(1, 8):
        session.execute(f"execute look_up({number})".encode())
    plan = "\n".join(row[0] for row in session.execute("explain (verbose, costs off) execute look_up(3)").fetchall())
    assert "((a1 = $1::bigint))" in plan.replace("$2", "$1"), plan


def test_order_by_and_limit_reach_the_lake(session: Session) -> None:
    plan = session.execute("explain (verbose) select id from public.t_bigint where key < 500 order by key limit 3").fetchall()
    text = "\n".join(row[0] for row in plan)
    assert "Merge Append" in text
    assert "ORDER BY a2" in text


def test_corrections_are_found_by_index(session: Session) -> None:
    session.execute("set enable_seqscan = off; set enable_bitmapscan = off")
    for key_type in KEYS:
        for condition in ("id = 10041", f"key = (select key from public.p_{key_type} where id = 10041)"):
            query = f"select * from public.{{}}_{key_type} where {condition} order by id"
            assert session.execute(query.format("t")).fetchall() == session.execute(query.format("p")).fetchall()
            plan = "\n".join(row[0] for row in session.execute(f"explain {query.format('t')}").fetchall())
            assert re.search(r"Index Scan using delta_\d+_by_\w+ on delta_\d+ d", plan), plan


def test_hot_queries_do_not_need_a_gateway(world: World) -> None:
    line = {"bigint": "4000", "timestamptz": "2026-07-03 00:00+00", "timestamp": "1970-01-03", "date": "0001-02-03"}
    world.gateway.stop()
    try:
        with psycopg.connect(world.dsn, autocommit=True) as session:
            for key_type in KEYS:
                hot = f"select count(*), min(id) from public.{{}}_{key_type} where key >= '{line[key_type]}'"
                assert session.execute(hot.format("t")).fetchall() == session.execute(hot.format("p")).fetchall()
                with pytest.raises(psycopg.OperationalError, match="modak_gateway"):
                    session.execute(f"select count(*) from public.t_{key_type}")
            recent = "select count(*), min(id) from public.{} where key >= now() - (now() - timestamptz '2026-07-03 00:00+00')"
            assert session.execute(recent.format("t_timestamptz")).fetchall() == session.execute(recent.format("p_timestamptz")).fetchall()
            for mode in ("auto", "force_generic_plan"):
                session.execute(f"set plan_cache_mode = {mode}")
                session.execute("prepare hot (bigint) as select count(*) from public.t_bigint where key >= $1")
                for _ in range(8):  # past the sixth Postgres makes a plan for any value
                    assert (
                        session.execute("execute hot (4000)").fetchall()
                        == session.execute("select count(*) from public.p_bigint where key >= 4000").fetchall()
                    )
                session.execute("deallocate hot")
    finally:
        world.gateway.start()
    with psycopg.connect(world.dsn, autocommit=True) as session:
        assert (
            session.execute("select count(*) from public.t_bigint").fetchall()
            == session.execute("select count(*) from public.p_bigint").fetchall()
        )


def test_a_scan_without_a_pin_is_refused(session: Session) -> None:
    foreign = session.execute("select c.oid::regclass::text from pg_class c where relkind = 'f' order by 1 limit 1").fetchall()[0][0]
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="which snapshot"):
        session.execute(f"select count(*) from {foreign}")


def test_analyze_gives_the_planner_statistics(session: Session) -> None:
    foreign = session.execute(
        "select c.oid::regclass::text from pg_class c join modak.tables t on c.relname like 'cold_' || t.table_id || '%' "
        "where relkind = 'f' and table_name = 't_bigint'"
    ).fetchall()[0][0]
    session.execute(f"analyze {foreign}")
    found = session.execute(
        "select attname, n_distinct from pg_stats where schemaname || '.' || tablename = %s and attname in ('n', 'small') order by 1",
        [foreign],
    ).fetchall()
    # Postgres writes a large number of distinct values as a share of the rows.
    assert {name: value if value > 0 else -value * 400 for name, value in found} == {"n": 50, "small": 7}


def test_estimates_follow_the_lake(session: Session) -> None:
    def rows(condition: str) -> int:
        plan = session.execute(f"explain (format json) select * from public.t_large where {condition}").fetchall()[0][0]

        def find(node: dict[str, Any]) -> int:
            if node["Node Type"] == "Foreign Scan":
                return int(node["Plan Rows"])
            return sum(find(child) for child in node.get("Plans", ()))

        return find(plan[0]["Plan"])

    assert 58_000 <= rows("true") <= 61_000
    assert rows("id = 7") <= 2
    assert 2_000 <= rows("key < 5000") <= 6_000


def test_cancel_stops_a_cold_scan(world: World) -> None:
    with psycopg.connect(world.dsn, autocommit=True) as session:
        many = " cross join ".join(["public.t_bigint"] + [f"public.t_bigint t{n}" for n in range(3)])
        failed: list[BaseException] = []

        def run() -> None:
            try:
                session.execute(f"select count(*) from {many}")
            except psycopg.Error as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(1)
        # A cancel before the statement has begun is none.
        for _ in range(60):
            session.cancel_safe()
            thread.join(1)
            if not thread.is_alive():
                break
        assert not thread.is_alive()
        assert isinstance(failed[0], psycopg.errors.QueryCanceled)
        assert session.execute("select count(*) > 0 from public.t_bigint").fetchall() == [(True,)]


def test_a_transaction_with_savepoints_reads_on(session: Session) -> None:
    with session.transaction():
        before = session.execute("select count(*) from public.t_bigint").fetchall()
        with pytest.raises(psycopg.errors.DivisionByZero), session.transaction():
            session.execute("select 1 / (count(*) - count(*)) from public.t_bigint")
        session.execute("declare both_tiers cursor for select id from public.t_bigint order by id")
        assert [row[0] for row in session.execute("fetch 3 from both_tiers").fetchall()] == [0, 1, 2]
        assert session.execute("select count(*) from public.t_bigint").fetchall() == before
