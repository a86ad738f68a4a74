"""The sampler: figures of every table for the price of a few statements, however many tables there are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest

from modak.catalog import overview
from modak.connection import Connection
from modak.worker import samples
from modak.worker.health import HealthCheck
from modak.worker.samples import Figures, Sampler, Samples
from modak.worker.state import LoopState
from modak.worker.survey import Survey

pytestmark = pytest.mark.inline


def populate(connection: Connection, first: int, last: int) -> None:
    """Rows of the catalog and heaps as register leaves them: T at 100, and a partition of which all rows are older than the lag."""
    for number in range(first, last):
        heap = f"public.t{number}"
        connection.execute(f"create table {heap} (id bigint not null, at bigint not null) partition by range (at)")
        connection.execute(f"create table {heap}_1 partition of {heap} for values from (100) to (200)")
        connection.execute(f"create table {heap}_2 partition of {heap} for values from (200) to (900)")
        connection.execute(f"insert into {heap} values (1, 110), (2, 350)")
        connection.execute(
            """insert into modak.tables (table_id, schema_name, table_name, primary_key_cols, tier_key_col, lake_table_ref, tier_lag)
               values (%(heap)s::regclass::oid, 'public', %(name)s, '{id,at}', 'at', %(name)s, '100')""",
            {"heap": heap, "name": f"t{number}"},
        )
        connection.execute("insert into modak.cutline (table_id, tier_key_hi) values (%s::regclass::oid, 100)", [heap])
        for part, lower, upper in ((1, 100, 200), (2, 200, 900)):
            connection.execute(
                """insert into modak.partitions (table_id, partition_id, schema_name, partition_name, tier_key_lo, tier_key_hi)
                   values (%s::regclass::oid, %s::regclass::oid, 'public', %s, %s, %s)""",
                [heap, f"{heap}_{part}", f"t{number}_{part}", lower, upper],
            )
        connection.execute("select modak.open_delta(%s::regclass::oid::bigint)", [heap])
    connection.execute("select pg_stat_force_next_flush()")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every statement of this process's sessions."""
    found: list[Any] = []
    execute = psycopg.Connection.execute

    def noted(self: Any, query: Any, *given: Any, **more: Any) -> Any:
        found.append(query)
        return execute(self, query, *given, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", noted)
    return found


def counted(asked: list[Any], act: Callable[[], None]) -> int:
    asked.clear()
    act()
    return len(asked)


def test_tables_at_rest_cost_nothing_each(connection: Connection, asked: list[Any]) -> None:
    now = [1000.0]
    sampler = Sampler(lambda: nullcontext(connection), lambda _: pytest.fail("no lake is asked"), clock=lambda: now[0])
    populate(connection, 0, 2)
    sampler.take()
    few = counted(asked, sampler.take)
    populate(connection, 2, 12)
    sampler.take()
    assert counted(asked, sampler.take) == few
    found = sampler.samples.latest("public.t11")
    assert found is not None
    assert (found.partitions_due, found.hot_period, found.delta_rows) == (1, 250.0, 0)
    assert found.hot_bytes
    # One table is written to, and one is gone.
    connection.execute("insert into public.t3 values (3, 890)")
    connection.execute("delete from modak.tables where table_name = 't4'")
    now[0] += samples._NEWEST_SECONDS
    connection.execute("select pg_stat_force_next_flush()")
    assert counted(asked, sampler.take) > few
    assert value_of(sampler, "public.t3").partitions_due == 1
    assert value_of(sampler, "public.t3").hot_period == 790.0
    assert value_of(sampler, "public.t5") == found
    assert sampler.samples.latest("public.t4") is None


def value_of(sampler: Sampler, table: str) -> Figures:
    found = sampler.samples.latest(table)
    assert found is not None
    return found


def test_more_tables_than_one_sample_looks_at(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "LOOKS_MAX", 2)
    sampler = Sampler(lambda: nullcontext(connection), lambda _: pytest.fail("no lake is asked"))
    populate(connection, 0, 5)
    known = []
    for _ in range(3):
        sampler.take()
        known.append(sum(value_of(sampler, f"public.t{number}").hot_bytes is not None for number in range(5)))
    assert known == [2, 4, 5]


def test_many_corrections_are_estimated(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample must not take longest when most waits."""
    monkeypatch.setattr(samples, "COUNTED_MAX", 3)
    populate(connection, 0, 3)

    def correct(name: str, count: int) -> None:
        connection.execute(
            "insert into modak.delta (table_id, pk, op, tier_key, version) "
            "select %s::regclass::oid::bigint, n::text, 1, n, n from generate_series(1, %s) n",
            [name, count],
        )

    correct("public.t0", 2)
    correct("public.t1", 50)
    correct("public.t2", 7)
    connection.execute("update modak.tables set enabled = false where table_name = 't2'")
    connection.execute("select pg_stat_force_next_flush()")
    original, counted = Survey._corrections, list[int]()
    monkeypatch.setattr(Survey, "_corrections", lambda *given: counted.append(original(*given)) or counted[-1])
    sampler = Sampler(lambda: nullcontext(connection), lambda _: pytest.fail("no lake is asked"))
    sampler.take()
    assert counted == [2, 4], "no further than the limit"
    found = [sampler.samples.latest(f"public.t{number}") for number in range(3)]
    assert [one.delta_rows for one in found if one] == [2, 50, 7]
    # Where a crash took the counters, the last analyze is what is known.
    connection.execute("analyze modak.delta")
    connection.execute("select pg_stat_reset()")
    assert [row["delta_rows"] for row in overview.watched(connection)] == [2, 50, 7]


def test_what_a_parked_mirror_left_open_is_not_stuck(connection: Connection) -> None:
    """It waits for `modak resync`, and that is said once."""
    populate(connection, 0, 1)
    (table_id,) = (row["table_id"] for row in connection.execute("select table_id from modak.tables").fetchall())
    connection.execute("insert into modak.mirrors (table_id, applied_lsn) values (%s, 0)", [table_id])
    connection.execute(
        "insert into modak.op_log (op_id, table_id, op_kind, started_at) values ('left', %s, 'mirror', now() - interval '1 hour')",
        [table_id],
    )
    connection.execute("alter table modak.op_log disable trigger all")
    connection.execute("update modak.op_log set updated_at = started_at")
    health = HealthCheck(lambda: nullcontext(connection), LoopState(), Samples())
    assert [one["kind"] for one in health().stuck] == ["mirror"]
    connection.execute("update modak.mirrors set parked_at = now() - interval '50 minutes'")
    assert (health().stuck, health().is_fine) == ((), True)
