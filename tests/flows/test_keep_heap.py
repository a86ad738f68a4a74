"""Keep-heap on the fixture table E: tiering copies, the heap keeps every row, and both stay the same whatever is written where."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests import events, seam, worlds
from tests.events import EVENTS, ROWS, drop_tiered, fold, put_under_modak, tier
from tests.gateways import RunningGateway
from tests.support import rows, run_cli, unregister_table, value

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.errors import Refused
from modak.jobs import fold as folding
from modak.jobs import tier as tiering
from modak.jobs.verify import Verified, verify
from modak.lake.iceberg import IcebergLake
from modak.registration.register import register

pytestmark = [pytest.mark.spark, pytest.mark.inline]

SELECT = "select id, event_time, val from {} order by id, event_time"


@pytest.fixture
def kept(app: App, connection: Connection, gateway: RunningGateway) -> App:
    """E after its first pass: p0 and p1 are in both tiers."""
    events.create(connection)
    put_under_modak(app, connection, keep_heap=True)
    tier(app)
    return app


def view(connection: Connection) -> list[tuple[Any, ...]]:
    return rows(connection, SELECT.format("public.events"))


def heap(connection: Connection) -> list[tuple[Any, ...]]:
    return rows(connection, SELECT.format("public.events_hot"))


def delta(connection: Connection) -> list[tuple[Any, ...]]:
    return rows(connection, "select pk, op, tier_key, old_tier_key from modak.delta order by pk")


def lake_rows(app: App, connection: Connection) -> list[tuple[Any, ...]]:
    table = tables.get(connection, EVENTS)
    snapshot = tables.published_snapshot(connection, table.table_id)
    scan = app.lake(profiles.get(connection, None)).load(table.lake_table_ref).scan(snapshot_id=snapshot)
    return sorted(tuple(row.values()) for row in scan.to_arrow().to_pylist())


def triggers(connection: Connection) -> list[str]:
    found = rows(connection, "select c.relname from pg_trigger t join pg_class c on c.oid = t.tgrelid where tgname like 'modak_capture%'")
    return sorted({name for (name,) in found})


def run_verify(app: App, *, repair: bool = False) -> Verified:
    with app.job(EVENTS) as job:
        return verify(job, repair=repair)


def check_same(app: App, connection: Connection, expected: list[tuple[Any, ...]]) -> None:
    """Through the name, in the heap, in the seam as a stranger reads it, and again when the corrections are folded."""
    for _ in range(2):
        assert view(connection) == heap(connection) == expected
        assert seam.read(app, EVENTS) == {str(row[0]): row for row in expected}
        fold(app)
    assert delta(connection) == []
    line = value(connection, "select tier_key_hi from modak.cutline")
    assert lake_rows(app, connection) == [row for row in expected if row[1] < line]
    assert run_verify(app).differences == ()


def test_tiering_copies_and_the_heap_keeps_its_rows(kept: App, connection: Connection, gateway: RunningGateway) -> None:
    assert lake_rows(kept, connection) == ROWS[:3]
    assert heap(connection) == view(connection) == ROWS
    assert seam.states(connection, EVENTS) == {"p0": "tiered", "p1": "tiered", "p2": "hot"}
    assert triggers(connection) == ["p0", "p1"]
    assert drop_tiered(kept).dropped == ()
    assert tier(kept).partitions == ()
    assert heap(connection) == ROWS


def test_the_command_drops_nothing(app: App, connection: Connection, dsn: str, tmp_path: Path) -> None:
    events.create(connection)
    put_under_modak(app, connection, keep_heap=True)
    for _ in range(2):
        done = run_cli(dsn, "tier", "public.events", data=tmp_path / "data")
        assert done.returncode == 0, done.stderr
    assert seam.states(connection, EVENTS) == {"p0": "tiered", "p1": "tiered", "p2": "hot"}
    assert heap(connection) == ROWS


@pytest.mark.parametrize("door", ["public.events", "public.events_hot", "public.p0"])
def test_every_door_reaches_both_tiers(kept: App, connection: Connection, door: str) -> None:
    assert connection.execute(f"update {door} set val = 'corrected' where id = 1").rowcount == 1
    assert connection.execute(f"delete from {door} where id = 2").rowcount == 1
    assert connection.execute(f"insert into {door} values (6, 60, 'new')").rowcount == 1
    assert delta(connection) == [("1", 0, 10, None), ("2", 1, 20, None), ("6", 0, 60, None)]
    check_same(kept, connection, [(1, 10, "corrected"), *ROWS[2:], (6, 60, "new")])


def test_upsert_and_delete_by_key(kept: App, connection: Connection) -> None:
    def call(function: str, row: str) -> str:
        return str(value(connection, f"select public.{function}('public.events', %s::jsonb)", row))

    assert call("modak_upsert", '{"id": 1, "event_time": 10, "val": "corrected"}') == "cold"
    assert call("modak_upsert", '{"id": 6, "event_time": 60, "val": "new"}') == "cold"
    assert call("modak_upsert", '{"id": 3, "event_time": 30, "val": "moved"}') == "cold"
    assert call("modak_upsert", '{"id": 7, "event_time": -70, "val": "late"}') == "cold"
    assert call("modak_delete", '{"id": 2}') == "cold"
    assert call("modak_delete", '{"id": 5}') == "hot"
    expected = [(1, 10, "corrected"), (3, 30, "moved"), (4, 210, "hot"), (6, 60, "new"), (7, -70, "late")]
    check_same(kept, connection, expected)


@pytest.mark.parametrize("door", ["public.events", "public.events_hot"])
def test_moves_leave_the_old_place(kept: App, connection: Connection, door: str) -> None:
    connection.execute(f"update {door} set event_time = 150 where id = 1")
    assert delta(connection) == [("1", 0, 150, 10)]
    connection.execute(f"update {door} set event_time = 250 where id = 2")
    connection.execute(f"update {door} set event_time = 50 where id = 4")
    connection.execute(f"update {door} set event_time = 30, id = 33 where id = 3")
    assert delta(connection) == [("1", 0, 150, 10), ("2", 1, 20, None), ("3", 1, 110, None), ("33", 0, 30, None), ("4", 0, 50, None)]
    check_same(kept, connection, [(1, 150, "a"), (2, 250, "b"), (4, 50, "hot"), (5, 220, "hot"), (33, 30, "c")])


def test_hot_rows_are_nobodys_business(kept: App, connection: Connection) -> None:
    connection.execute("update public.events set val = 'x' where id = 4")
    connection.execute("delete from public.events_hot where id = 5")
    connection.execute("insert into public.p2 values (6, 260, 'new')")
    assert delta(connection) == []
    check_same(kept, connection, [*ROWS[:3], (4, 210, "x"), (6, 260, "new")])


def test_a_rolled_back_write_leaves_no_trace(kept: App, connection: Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as client:
        client.execute("update public.events set val = 'x' where id = 1")
        client.execute("savepoint s")
        client.execute("delete from public.events_hot where id = 1")
        client.execute("rollback to savepoint s")
        assert client.execute("select val from public.events where id = 1").fetchone() == ("x",)
        client.rollback()
    assert delta(connection) == []
    check_same(kept, connection, ROWS)


def test_late_rows_stay_in_the_heap_when_they_are_folded(kept: App, connection: Connection) -> None:
    connection.execute("insert into public.events values (7, -70, 'late'), (8, -80, 'late')")
    expected = [*ROWS, (7, -70, "late"), (8, -80, "late")]
    check_same(kept, connection, expected)
    assert rows(connection, "select id from public.events_spill order by id") == [(7,), (8,)]
    connection.execute("update public.events set val = 'again' where id = 7")
    connection.execute("delete from public.events_hot where id = 8")
    check_same(kept, connection, [*ROWS, (7, -70, "again")])


def test_the_next_partition_follows(kept: App, connection: Connection) -> None:
    connection.execute("create table public.p3 partition of public.events_hot for values from (300) to (400)")
    connection.execute("insert into public.events values (6, 310, 'new')")
    connection.execute("update public.events set event_time = 130 where id = 4")
    connection.execute("update public.events set event_time = 230 where id = 3")
    assert tier(kept).partitions == ("public.p2",)
    assert triggers(connection) == ["p0", "p1", "p2"]
    check_same(kept, connection, [*ROWS[:2], (3, 230, "c"), (4, 130, "hot"), (5, 220, "hot"), (6, 310, "new")])


def test_truncate_is_refused_where_rows_are_in_the_lake(kept: App, connection: Connection) -> None:
    for table in ("public.p0", "public.events_hot", "public.events_spill"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="TRUNCATE") as refused:
            connection.execute(f"truncate {table}")
        assert "DELETE" in str(refused.value.diag.message_hint)
    connection.execute("truncate public.p2")
    check_same(kept, connection, ROWS[:3])


@pytest.mark.parametrize("surface", ["view", "heap"])
def test_on_conflict_and_merge_on_the_heap(app: App, connection: Connection, gateway: RunningGateway, surface: str) -> None:
    events.create(connection)
    put_under_modak(app, connection, keep_heap=True, surface=surface)
    tier(app)
    name, both = ("public.events_hot", "public.events") if surface == "view" else ("public.events", "public.events_all")
    connection.execute(
        f"insert into {name} as e values (1, 10, 'again'), (4, 210, 'again'), (6, 60, 'new') "
        "on conflict (id, event_time) do update set val = excluded.val || ', was ' || e.val"
    )
    connection.execute(f"insert into {name} values (2, 20, 'ignored') on conflict do nothing")
    connection.execute(
        f"merge into {name} e using (values (3, 110), (7, 170)) s (id, at) on e.id = s.id and e.event_time = s.at "
        "when matched then delete when not matched then insert values (s.id, s.at, 'merged')"
    )
    expected = [(1, 10, "again, was a"), (2, 20, "b"), (4, 210, "again, was hot"), (5, 220, "hot"), (6, 60, "new"), (7, 170, "merged")]
    assert delta(connection) == [("1", 0, 10, None), ("3", 1, 110, None), ("6", 0, 60, None), ("7", 0, 170, None)]
    for _ in range(2):
        assert rows(connection, SELECT.format(name)) == rows(connection, SELECT.format(both)) == expected
        fold(app)
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute(f"insert into {name} values (1, 10, 'twice')")
    assert run_verify(app).differences == ()


@pytest.mark.parametrize(
    ("before", "behind", "key"),
    [
        ("select 1", "update public.p0 set val = 'other' where id = 1", "1"),
        ("select 1", "delete from public.p1 where id = 3", "1:3"),
        ("select 1", "insert into public.p1 values (9, 190, 'x')", "9"),
        ("update public.events set val = 'corrected' where id = 1", "update public.p0 set val = 'other' where id = 1", "1"),
        ("update public.events set val = 'corrected' where id = 1", "delete from public.p0 where id = 1", "1"),
        ("delete from public.events where id = 1", "insert into public.p0 values (1, 10, 'back')", "1"),
        ("insert into public.events values (7, -70, 'late')", "update public.events_spill set val = 'other'", "7"),
        ("insert into public.events values (7, -70, 'late')", "delete from public.events_spill", "7"),
        ("select 1", "insert into public.events_hot values (7, -70, 'late')", "7"),
    ],
)
@pytest.mark.parametrize("folded", [False, True])
def test_the_heap_is_the_truth(kept: App, connection: Connection, before: str, behind: str, key: str, folded: bool) -> None:
    connection.execute(before)
    if folded:
        fold(kept)
    for table in ("p0", "p1", "events_spill"):
        connection.execute(f"alter table public.{table} disable trigger user")
    connection.execute(behind)
    for table in ("p0", "p1"):
        connection.execute(f"alter table public.{table} enable always trigger modak_capture")
    connection.execute("alter table public.events_spill enable trigger user")
    assert view(connection) != heap(connection)
    found = run_verify(kept, repair=True)
    assert [difference.key.removeprefix("1:") for difference in found.differences] == [key.removeprefix("1:")]
    assert found.repaired == 1
    check_same(kept, connection, heap(connection))


def test_unregister_leaves_a_plain_complete_table(kept: App, connection: Connection, lake: IcebergLake) -> None:
    connection.execute("update public.events set val = 'corrected' where id = 1")
    connection.execute("insert into public.events values (7, -70, 'late')")
    with pytest.raises(Refused, match="not unregistered") as refused:
        unregister_table(connection, lake)
    assert "fold" in str(refused.value)
    fold(kept)
    expected = heap(connection)
    unregister_table(connection, lake)
    assert view(connection) == expected == [(1, 10, "corrected"), *ROWS[1:], (7, -70, "late")]
    assert value(connection, "select relkind from pg_class where oid = 'public.events'::regclass") == "p"
    assert value(connection, "select count(*) from pg_trigger where tgname like 'modak%'") == 0
    assert value(connection, "select count(*) from pg_proc p where p.pronamespace = 'modak'::regnamespace and proname ~ '_[0-9]+$'") == 0
    connection.execute("truncate public.p0")
    connection.execute("delete from public.events where id = 3")


def test_unregister_with_corrections_that_go_with_the_lake(kept: App, connection: Connection, lake: IcebergLake) -> None:
    connection.execute("update public.events set val = 'corrected' where id = 1")
    unregister_table(connection, lake, drop_lake=True)
    assert view(connection) == [(1, 10, "corrected"), *ROWS[1:]]


def test_tiering_refuses_where_the_trigger_cannot_stand(app: App, connection: Connection, gateway: RunningGateway) -> None:
    events.create(connection)
    put_under_modak(app, connection, keep_heap=True)
    connection.execute("create function public.no_triggers() returns event_trigger language plpgsql as "
                       "$$ begin raise exception 'no triggers in this database'; end $$")  # fmt: skip
    connection.execute(
        "create event trigger no_triggers on ddl_command_start when tag in ('CREATE TRIGGER') execute function public.no_triggers()"
    )
    with pytest.raises(Refused, match="cannot be installed: no triggers in this database") as refused:
        tier(app)
    assert refused.value.facts["partition"] == "public.p0"
    assert value(connection, "select tier_key_hi from modak.cutline") == 0
    assert seam.states(connection, EVENTS) == {"p0": "hot", "p1": "hot", "p2": "hot"}
    assert rows(connection, "select phase from modak.op_log") == [("abandoned",)]
    assert value(connection, "select count(*) from modak.problems where job = 'tier'") == 1
    connection.execute("drop event trigger no_triggers")
    assert len(tier(app).partitions) == 2
    check_same(app, connection, ROWS)


def test_a_partition_that_somebody_took_away(kept: App, connection: Connection) -> None:
    """Its rows are in the lake; nothing is left to compare them with."""
    connection.execute("alter table public.events_hot detach partition public.p1")
    assert run_verify(kept, repair=True).differences == ()
    assert view(connection) == ROWS


def test_values_of_every_type_are_recognised(app: App, connection: Connection, gateway: RunningGateway) -> None:
    """A write through the name compares the lake's image of a row with the heap's; they must be the same to the last bit."""
    kind, values, bounds = worlds.KEYS["timestamptz"]
    connection.execute(
        f"create table public.t (id bigint not null, key {kind} not null, {worlds.COLUMNS}, primary key (id, key)) partition by range (key)"
    )
    for number, (lower, upper) in enumerate(itertools.pairwise(bounds)):
        connection.execute(f"create table public.t_{number} partition of public.t for values from ('{lower}') to ('{upper}')")
    connection.execute(f"insert into public.t {worlds.FILL.format(key=values, rows=200)}")
    connection.execute("create table public.p as select * from public.t")
    name, profile = Name("public", "t"), profiles.get(connection, None)
    chosen = Options(tier_key="key", primary_key=("id",), lag="0 days", keep_heap=True)
    register(connection, app.lake(profile), name, chosen, profile=profile.name)
    with app.job(name) as job:
        assert tiering.tier(job).rows > 100
    for table in ("public.t", "public.p"):
        connection.execute(f"update {table} set n = n + 1, t = coalesce(t, '') || '!' where id % 3 = 0")
        connection.execute(f"delete from {table} where id % 7 = 0")
    expected = rows(connection, "select x::text from public.p x order by id")
    for _ in range(2):
        assert rows(connection, "select x::text from public.t x order by id") == expected
        assert rows(connection, "select x::text from public.t_hot x order by id") == expected
        with app.job(name) as job:
            folding.fold(job)
    with app.job(name) as job:
        assert verify(job).differences == ()


def random_statement(dice: random.Random, number: int) -> str:
    """A change for ``{t}``; keys are where partitions are, or below all of them."""
    key = dice.choice([dice.randrange(0, 500), dice.randrange(0, 500), dice.randrange(-100, 0)])
    some = f"id % {dice.randrange(3, 9)} = {dice.randrange(0, 3)}"
    return dice.choice(
        [
            f"insert into {{t}} values ({1000 + number}, {key}, 'new {number}')",
            f"insert into {{t}} select {2000 + 20 * number} + n, {key}, 'many {number}' from generate_series(1, {dice.randrange(2, 9)}) n",
            f"update {{t}} set val = 'changed {number}' where {some}",
            f"update {{t}} set val = val || '.' where event_time between {key} and {key + 60}",
            f"update {{t}} set event_time = {key} where id = (select min(id) from {{t}} where {some})",
            f"update {{t}} set id = id + 100000, event_time = {key} where id = (select max(id) from {{t}} where id < 100000 and {some})",
            f"delete from {{t}} where id in (select id from {{t}} where {some} order by id limit {dice.randrange(1, 4)})",
            f"delete from {{t}} where event_time = {key}",
        ]
    )


@pytest.mark.parametrize("seed", range(3))
def test_against_a_plain_twin(app: App, connection: Connection, gateway: RunningGateway, seed: int) -> None:
    """The same random changes to both, by either door, while passes and folds go on: three places that always agree."""
    dice = random.Random(seed)
    events.create(connection, partitions=5)
    connection.execute("create table public.twin as table public.events")
    put_under_modak(app, connection, keep_heap=True)
    passes = {8: lambda: tier(app, upto=200), 20: lambda: fold(app), 30: lambda: tier(app, upto=300), 40: lambda: fold(app, batch_rows=5)}
    for number in range(50):
        if number in passes:
            passes[number]()
        statement = random_statement(dice, number)
        door = dice.choice(["public.events", "public.events_hot"])
        with connection.transaction(force_rollback=dice.random() < 0.15):
            counts = {connection.execute(statement.format(t=name)).rowcount for name in (door, "public.twin")}
            assert len(counts) == 1, f"seed {seed}, {door}: {statement}"
        expected = rows(connection, SELECT.format("public.twin"))
        assert view(connection) == expected, f"seed {seed}, {door}: {statement}"
        assert heap(connection) == expected, f"seed {seed}, {door}: {statement}"
    check_same(app, connection, rows(connection, "select id, event_time, val from public.twin order by id"))
