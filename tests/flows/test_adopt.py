"""Staged loads on their way into the lake: what they replace, what stays on top of them, and what waits for them. T is 200."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.adopting import BOTH, Loads, row, run_adopt, run_fold, seam_of, shown
from tests.loading import Model, World, content, world
from tests.support import reclaim_all, value
from tests.support import rows as select

from modak.catalog import tables
from modak.connection import Connection, connect
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.errors import LakeError, Refused
from modak.jobs.adopt import AdoptOutcome, adopt
from modak.jobs.retain import retain
from modak.jobs.sweep import sweep
from modak.jobs.tier import tier
from modak.jobs.untier import untier
from modak.load import LoadClient, LoadOptions, LoadRequest
from modak.load.failures import AwaitsAdoption

pytestmark = [pytest.mark.spark, pytest.mark.inline]


@pytest.fixture
def made(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(cluster, template, tmp_path_factory, BOTH) as found:
        yield found


@pytest.fixture
def connection(made: World) -> Iterator[Connection]:
    with connect(made.dsn, autocommit=True) as opened:
        yield opened


def states(connection: Connection) -> list[tuple[Any, ...]]:
    return select(connection, "select label, state, committed_at is not null from modak.load_labels order by version")


@pytest.mark.parametrize("table", BOTH)
def test_every_staged_label_comes_in_with_one_commit(made: World, connection: Connection, table: str) -> None:
    loads, before = Loads(made, table), shown(connection, table)
    loads.stage(row(10, 10, "ten"), row(11, 110, "eleven"), row(12, 120, "twelve"))
    loads.stage(row(13, 130, "thirteen"))
    assert shown(connection, table) == before
    line, snapshot = seam_of(connection, table)
    outcome = run_adopt(made.app, table)
    assert (outcome.labels, outcome.rows, outcome.rows_replaced) == (2, 4, 0)
    assert seam_of(connection, table) == (line, outcome.snapshot)
    assert outcome.snapshot != snapshot
    assert states(connection) == [("label 1", "committed", True), ("label 2", "committed", True)]
    assert shown(connection, table) == before | {10: (10, "ten"), 11: (110, "eleven"), 12: (120, "twelve"), 13: (130, "thirteen")}
    assert value(connection, "select count(*) from modak.delta") == 0
    assert value(connection, "select op_kind || ' ' || phase from modak.op_log order by started_at desc limit 1") == "load advanced"


def test_nothing_staged_is_no_commit(made: World, connection: Connection) -> None:
    before = seam_of(connection, "pairs")
    assert run_adopt(made.app, "pairs") == AdoptOutcome()
    assert seam_of(connection, "pairs") == before
    assert value(connection, "select count(*) from modak.op_log where op_kind = 'load'") == 0


def test_a_replay_says_what_became_of_the_label(made: World) -> None:
    loads = Loads(made, "pairs")
    loads.stage(row(10, 10))
    with LoadClient(LoadOptions(made.dsn, "public.pairs")) as client:
        again = client.load(LoadRequest("label 1", [row(10, 10)]))
        assert (again.replay, again.state, again.spooled_rows, again.warning) == (True, "staged", 1, None)
        run_adopt(made.app, "pairs")
        assert client.load(LoadRequest("label 1", [row(10, 10)])).state == "committed"


@pytest.mark.parametrize("table", BOTH)
def test_rows_of_the_lake_with_the_same_key_are_replaced(made: World, connection: Connection, table: str) -> None:
    before = shown(connection, table)
    Loads(made, table).stage(row(1, 10, "anew"), row(3, 110, "anew"), row(30, 110, "new"))
    assert run_adopt(made.app, table).rows_replaced == 2
    assert shown(connection, table) == before | {1: (10, "anew"), 3: (110, "anew"), 30: (110, "new")}


def test_a_row_comes_in_at_another_place(made: World, connection: Connection) -> None:
    before = shown(connection, "events")
    Loads(made, "events").stage(row(1, 150, "moved"))
    assert run_adopt(made.app, "events").rows_replaced == 1
    assert shown(connection, "events") == before | {1: (150, "moved")}


@pytest.mark.parametrize("table", BOTH)
def test_the_newest_label_wins(made: World, connection: Connection, table: str) -> None:
    loads, before = Loads(made, table), shown(connection, table)
    loads.stage(row(10, 20, "first"), row(11, 25, "first"), row(1, 10, "first"))
    loads.stage(row(10, 20, "second"), row(12, 130, "second"))
    loads.stage(row(10, 20, "third"), row(1, 10, "third"))
    outcome = run_adopt(made.app, table)
    assert (outcome.labels, outcome.rows_replaced) == (3, 4)
    third, first = (20, "third"), (25, "first")
    assert shown(connection, table) == before | {10: third, 11: first, 12: (130, "second"), 1: (10, "third")}


@pytest.mark.parametrize("table", BOTH)
def test_older_corrections_give_way_and_newer_ones_stay(made: World, connection: Connection, table: str) -> None:
    loads, before = Loads(made, table), shown(connection, table)
    loads.trickle(row(1, 10, "older"), row(2, 20, "older"), row(40, 40, "older"), row(41, 41, "older, of its own"))
    loads.stage(row(1, 10, "loaded"), row(2, 20, "loaded"), row(3, 110, "loaded"), row(40, 40, "loaded"))
    connection.execute(f"update public.{table} set val = 'newer' where id = 1")
    connection.execute(f"delete from public.{table} where id = 3")
    outcome = run_adopt(made.app, table)
    assert outcome.waiting is None
    expected = before | {1: (10, "newer"), 2: (20, "loaded"), 40: (40, "loaded"), 41: (41, "older, of its own")}
    del expected[3]
    assert shown(connection, table) == expected
    run_fold(made.app, table)
    assert value(connection, "select count(*) from modak.delta") == 0
    assert shown(connection, table) == expected


@pytest.mark.parametrize("table", BOTH)
def test_a_fold_leaves_newer_corrections_until_the_load_is_in(made: World, connection: Connection, table: str) -> None:
    """In the lake it would be older than the load, which comes in later."""
    loads, before = Loads(made, table), shown(connection, table)
    loads.trickle(row(2, 20, "older"))
    loads.stage(row(1, 10, "loaded"), row(2, 20, "loaded"))
    loads.trickle(row(1, 10, "newer"))
    outcome = run_fold(made.app, table)
    assert outcome.corrections == 1
    assert "modak adopt" in str(outcome.waiting)
    run_adopt(made.app, table)
    assert run_fold(made.app, table).corrections == 1
    assert shown(connection, table) == before | {1: (10, "newer"), 2: (20, "loaded")}


def test_a_hot_row_that_came_later_is_the_newer_one(made: World, connection: Connection) -> None:
    loads, before = Loads(made, "events"), shown(connection, "events")
    loads.stage(row(10, 50, "cold"), row(11, 51, "cold"))
    loads.trickle(row(10, 250, "hot"))
    run_adopt(made.app, "events")
    expected = before | {10: (250, "hot"), 11: (51, "cold")}
    assert shown(connection, "events") == expected
    run_fold(made.app, "events")
    assert shown(connection, "events") == expected


def test_tiering_waits_where_it_could_not_tell_what_is_newer(made: World, connection: Connection) -> None:
    loads, before = Loads(made, "events"), shown(connection, "events")
    loads.stage(row(10, 50, "cold"))
    loads.trickle(row(10, 250, "hot"))
    with made.app.job(Name("public", "events")) as job, pytest.raises(Refused, match="staged loads"):
        tier(job, upto=300)
    run_adopt(made.app, "events")
    with made.app.job(Name("public", "events")) as job:
        assert tier(job, upto=300).rows > 0
        reclaim_all(job)
    run_fold(made.app, "events")
    assert shown(connection, "events") == before | {10: (250, "hot")}


def test_tiering_goes_on_where_the_key_says_its_place(made: World, connection: Connection) -> None:
    loads, before = Loads(made, "pairs"), shown(connection, "pairs")
    loads.stage(row(10, 50, "cold"))
    with made.app.job(Name("public", "pairs")) as job:
        assert tier(job, upto=300).rows == 2
    run_adopt(made.app, "pairs")
    assert shown(connection, "pairs") == before | {10: (50, "cold")}


def test_a_row_with_a_copy_in_the_heap_is_corrected_there(made: World, connection: Connection) -> None:
    """The heap's copy and the lake would say different things otherwise."""
    before = shown(connection, "pairs")
    connection.execute("update public.pairs set val = 'older' where id = 1")
    result = Loads(made, "pairs").volume([row(1, 10, "loaded"), row(10, 10, "loaded")])
    assert (result.delta_rows, result.spooled_rows) == (1, 1)
    assert shown(connection, "pairs") == before | {1: (10, "loaded")}
    run_adopt(made.app, "pairs")
    run_fold(made.app, "pairs")
    assert shown(connection, "pairs") == before | {1: (10, "loaded"), 10: (10, "loaded")}


@pytest.mark.parametrize("table", BOTH)
def test_what_a_row_leaves_out_may_be_in_a_staged_file(made: World, connection: Connection, table: str) -> None:
    """It is to be kept, and nobody can look it up yet."""
    loads, before = Loads(made, table), shown(connection, table)
    loads.stage(row(10, 50, "kept"))
    with pytest.raises(AwaitsAdoption, match="label 1"):
        loads.trickle({"id": 10, "event_time": 50, "n": 7})
    loads.trickle({"id": 11, "event_time": 150, "n": 7}) if table == "pairs" else None
    run_adopt(made.app, table)
    loads.trickle({"id": 10, "event_time": 50, "n": 7})
    expected = before | {10: (50, "kept")} | ({11: (150, None)} if table == "pairs" else {})
    assert shown(connection, table) == expected
    assert value(connection, f"select n from public.{table} where id = 10") == 7


def test_a_pin_on_the_corrections_holds_it_back_where_some_would_go(made: World, connection: Connection) -> None:
    loads = Loads(made, "pairs")
    loads.trickle(row(1, 10, "older"))
    loads.stage(row(1, 10, "loaded"))
    line, snapshot = seam_of(connection, "pairs")
    oid = tables.get(connection, Name("public", "pairs")).table_id
    connection.execute(
        "insert into modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, holder, expires_at)"
        " values (%s, %s, %s, 'a reader', now() + interval '1 hour')",
        [oid, snapshot, line],
    )
    assert "a reader" in str(run_adopt(made.app, "pairs").waiting)
    assert seam_of(connection, "pairs") == (line, snapshot)
    assert states(connection)[1] == ("label 2", "staged", False)
    connection.execute("delete from modak.read_pins")
    assert run_adopt(made.app, "pairs").labels == 1
    assert shown(connection, "pairs")[1] == (10, "loaded")


def test_a_repeatable_read_sees_one_world(made: World, connection: Connection) -> None:
    loads = Loads(made, "pairs")
    loads.trickle(row(1, 10, "older"))
    loads.stage(row(1, 10, "loaded"), row(10, 50, "loaded"))
    with psycopg.connect(made.dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        query = "select id, val from public.pairs order by id"
        before = reader.execute(query).fetchall()
        run_adopt(made.app, "pairs")
        assert reader.execute(query).fetchall() == before
    assert shown(connection, "pairs")[10] == (50, "loaded")


def test_untier_waits_for_staged_loads(made: World) -> None:
    Loads(made, "pairs").stage(row(10, 50))
    with made.app.job(Name("public", "pairs")) as job, pytest.raises(Refused, match="not untiered"):
        untier(job)


def test_retention_never_passes_a_staged_load(made: World, connection: Connection) -> None:
    connection.execute("update modak.tables set lake_retention_lag = '100'")
    Loads(made, "pairs").stage(row(10, 50))
    with made.app.job(Name("public", "pairs")) as job:
        kept = retain(job).retention_line
        assert kept is None or kept <= 50
        adopt(job)
        later = retain(job).retention_line
        assert later is not None
        assert later > 50


def test_a_file_that_is_gone_is_an_error_that_names_it(made: World, connection: Connection) -> None:
    staged = Loads(made, "pairs").stage(row(10, 50))
    [path] = staged.staged_files
    file = Path(path.removeprefix("file://"))
    kept = file.rename(file.with_suffix(".kept"))
    with pytest.raises(LakeError, match="parquet"):
        run_adopt(made.app, "pairs")
    assert states(connection) == [("label 1", "staged", False)]
    kept.rename(file)
    assert run_adopt(made.app, "pairs").labels == 1


def test_a_sweep_takes_files_that_no_label_names(made: World, connection: Connection) -> None:
    loads = Loads(made, "pairs")
    adopted = loads.stage(row(10, 50))
    run_adopt(made.app, "pairs")
    staged = loads.stage(row(11, 60))
    [kept] = staged.staged_files
    orphan = Path(kept.removeprefix("file://")).with_name("load-0123456789ab-dead.parquet")
    orphan.write_bytes(b"left behind")
    with made.app.job(Name("public", "pairs")) as job:
        assert sweep(job) == 0
        assert orphan.exists()
        assert sweep(job, older_than=timedelta(0)) == 1
    assert not orphan.exists()
    assert all(Path(path.removeprefix("file://")).exists() for path in (*adopted.staged_files, kept))
    assert run_adopt(made.app, "pairs").rows == 1
    assert {10, 11} <= shown(connection, "pairs").keys()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("table", BOTH)
def test_any_order_of_loads_and_jobs_ends_as_the_labels_say(made: World, connection: Connection, table: str, seed: int) -> None:
    """What the table shows once everything is adopted is what upserts in the order of their labels make."""
    chance, loads = random.Random(seed), Loads(made, table)
    model = Model(table, content(connection, table))
    for _ in range(25):
        kind = chance.choice(["volume", "volume", "trickle", "trickle", "adopt", "fold"])
        if kind == "adopt":
            run_adopt(made.app, table)
        elif kind == "fold":
            run_fold(made.app, table)
        else:
            ids = chance.sample(range(1, 12), chance.randint(1, 4))
            rows = [row(number, chance.choice([10, 50, 110, 150, 210, 250]), f"{seed} {chance.random()}") for number in ids]
            loads.volume(rows) if kind == "volume" else loads.trickle(*rows)
            model.load(rows)
    run_adopt(made.app, table)
    assert model.matches(content(connection, table)), (model.rows, content(connection, table))
    run_fold(made.app, table)
    assert model.matches(content(connection, table)), (model.rows, content(connection, table))
