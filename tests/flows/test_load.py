"""Loads by the library: where rows land, what labels promise, and what is refused. T is 200 in every table."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.loading import KINDS, Model, World, content, loading, world
from tests.support import rows as select
from tests.support import value

from modak.connection import Connection, connect
from modak.embedded.postgres import Cluster
from modak.errors import MissingComponent, NotRegistered, Refused, Retry, UsageError
from modak.load import LabelInFlight, LoadClient, Loader, LoadOptions, LoadRejected, LoadRequest, LoadResult, lake_storage
from modak.load.failures import LoadFailed

pytestmark = [pytest.mark.spark, pytest.mark.inline]

Row = dict[str, Any]


@pytest.fixture(scope="module")
def tables(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(cluster, template, tmp_path_factory) as made:
        yield made


def row(number: int, place: int, text: str | None = "x", n: int = 0) -> Row:
    return {"id": number, "event_time": place, "val": text, "n": n}


def part(number: int, place: int, **given: Any) -> Row:
    return {"id": number, "event_time": place, **given}


def request(label: str, rows: Any) -> LoadRequest:
    return LoadRequest(label, rows)


def labels(connection: Connection) -> list[tuple[Any, ...]]:
    return select(connection, "select label, state, hot_rows, delta_rows, spooled_rows from modak.load_labels order by label")


def delta(connection: Connection, table: str) -> dict[str, int]:
    heap = table if table == "whole" else f"{table}_hot"
    found = select(connection, f"select pk, op from modak.delta where table_id = 'public.{heap}'::regclass::oid")
    return dict(found)


# Where rows land


BATCHES: dict[str, list[list[Row]]] = {
    "new hot rows": [[row(10, 250), row(11, 299), row(12, 200)]],
    "new cold rows": [[row(10, 0), row(11, 150), row(12, 199)]],
    "both sides of T": [[row(10, 199), row(11, 200)]],
    "hot rows again": [[row(4, 210, "new", 9), row(5, 220, None, 8), row(10, 230)]],
    "cold rows again": [[row(1, 10, "new", 9), row(3, 110, None, 8)]],
    "a late row twice": [[row(10, 50)], [row(10, 50, "again", 1)], [{"id": 10, "event_time": 50, "val": "part"}]],
    "part of hot rows": [[part(4, 210, n=9), part(5, 220, val=None), part(10, 230)]],
    "part of cold rows": [[part(1, 10, n=9), part(3, 110, val=None), part(10, 20)]],
    "several sets at once": [[part(1, 10, n=9), row(2, 20), part(4, 210), part(5, 220, val="v")]],
    "keys alone": [[{"id": 1, "event_time": 10}, {"id": 4, "event_time": 210}, {"id": 9, "event_time": 90}]],
    "other places": [[row(1, 250), row(2, 150), row(4, 90), row(5, 299)]],
    "other places, in part": [[part(1, 250, n=9), part(2, 150), part(4, 90, val="v")]],
    "there and back": [[row(1, 250)], [row(1, 10, "back", 3)], [{"id": 1, "event_time": 260}], [{"id": 1, "event_time": 30, "n": 4}]],
    "nothing": [[]],
}  # fmt: skip


@pytest.mark.parametrize("table", KINDS)
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES.keys())
def test_a_batch_is_an_upsert_by_key(tables: World, table: str, batches: list[list[Row]]) -> None:
    with loading(tables.dsn, table) as (connection, loader):
        model = Model(table, content(connection, table))
        for number, rows in enumerate(batches):
            result = loader.apply(request(f"label {number}", rows))
            hot = sum(one["event_time"] >= 200 for one in rows)
            assert result == LoadResult(f"label {number}", "committed", hot, len(rows) - hot)
            model.load(rows)
            assert model.matches(content(connection, table)), number


@pytest.mark.parametrize("table", KINDS)
def test_any_sequence_of_batches_is_one_of_upserts(tables: World, table: str) -> None:
    dice = random.Random(table)
    with loading(tables.dsn, table) as (connection, loader):
        model = Model(table, content(connection, table))
        for number in range(12):
            keys = dice.sample(range(1, 16), dice.randint(1, 6))
            rows = [_random_row(dice, key) for key in keys]
            loader.apply(request(f"label {number}", iter(rows) if dice.random() < 0.3 else rows))
            model.load(rows)
            assert model.matches(content(connection, table)), (number, rows)


def _random_row(dice: random.Random, key: int) -> Row:
    given = {"val": dice.choice([None, "", f"v{dice.randint(0, 99)}"]), "n": dice.choice([None, dice.randint(0, 99)])}
    kept = {name: value for name, value in given.items() if dice.random() < 0.7}
    # Few places, so that rows meet each other.
    return {"id": key, "event_time": dice.choice([key * 10, key * 10 + 5, 205 + key, 205 + key, 290]), **kept}


def test_the_batch_of_the_scenario(tables: World) -> None:
    """82: one row on each side of T; then the same label with other rows, and the same key under another label."""
    with loading(tables.dsn, "events") as (connection, loader):
        first = loader.apply(request("a", [row(1, 250, "hot"), row(2, 40, "cold")]))
        assert first.as_dict() == {
            "label": "a", "state": "committed", "hot_rows": 1, "delta_rows": 1, "spooled_rows": 0, "staged_files": [], "replay": False,
        }  # fmt: skip
        before = content(connection, "events")
        assert [(one["id"], one["event_time"]) for one in before][:2] == [(1, 250), (2, 40)]
        again = loader.apply(request("a", [row(1, 251), row(2, 41), row(9, 299)]))
        assert (again.replay, again.hot_rows, again.delta_rows) == (True, 1, 1)
        assert again.warning is not None
        assert content(connection, "events") == before
        loader.apply(request("b", [row(1, 260, "again")]))
        assert [(one["event_time"], one["val"]) for one in content(connection, "events") if one["id"] == 1] == [(260, "again")]


def test_cold_rows_are_corrections_and_hot_ones_are_not(tables: World) -> None:
    with loading(tables.dsn, "pairs") as (connection, loader):
        loader.apply(request("a", [row(1, 10), row(9, 50), row(4, 210), row(12, 250)]))
        assert set(delta(connection, "pairs").values()) == {0}
        assert len(delta(connection, "pairs")) == 2
        # Whole rows need no place in the heap beside the delta.
        assert value(connection, "select count(*) from public.pairs_hot") == 3
    with loading(tables.dsn, "events") as (connection, loader):
        loader.apply(request("a", [row(1, 250), row(12, 250)]))
        assert delta(connection, "events") == {"1": 1}


def test_kept_heaps_keep_cold_rows(tables: World) -> None:
    """87: in the partition they belong to, and in the delta."""
    with loading(tables.dsn, "kept") as (connection, loader):
        assert loader.apply(request("a", [row(1, 10, "new"), row(9, 150)])).delta_rows == 2
        assert select(connection, "select val from public.kept_0 where id = 1") == [("new",)]
        assert select(connection, "select id from public.kept_1 where id = 9") == [(9,)]
        assert len(delta(connection, "kept")) == 2


def test_rows_of_a_list_go_straight_into_the_heap(tables: World) -> None:
    """No trace in the staging table: there is none."""
    with loading(tables.dsn, "pairs") as (connection, loader):
        made = "select count(*) from pg_class where relname like 'modak_load_%' and relpersistence = 't'"
        loader.apply(request("a", [row(20 + number, 250) for number in range(50)]))
        assert value(connection, made) == 0
        # A row that is known already takes the long way, and so do the next ones for a while.
        loader.apply(request("b", [row(20, 250, "again")]))
        assert value(connection, made) == 1
        assert len(content(connection, "pairs")) == 55


def test_a_line_that_moves_beside_a_copy_sends_the_rows_the_long_way(tables: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from modak.load import batch

    opened = Loader._open

    def older(self: Loader, label: str) -> dict[str, Any]:
        return {**opened(self, label), "line": 100}

    monkeypatch.setattr(batch.Loader, "_open", older)
    with loading(tables.dsn, "pairs") as (connection, loader):
        assert loader.apply(request("a", [{"id": 3, "event_time": 110, "n": 9}])).delta_rows == 1
        assert [one["val"] for one in content(connection, "pairs") if one["id"] == 3] == ["c"]


# Labels


def test_a_label_is_answered_from_the_record(tables: World) -> None:
    with loading(tables.dsn, "pairs") as (connection, loader):
        rows = [row(20, 250), row(21, 50)]
        first = loader.apply(request("a", rows))
        for again in (rows, iter(rows)):
            found = loader.apply(request("a", again))
            assert (found.replay, found.warning, found.hot_rows, found.delta_rows) == (True, None, 1, 1)
        for other in ([], rows[:1], list(reversed(rows)), [{**rows[0], "n": 1}, rows[1]], [{"no such column": 1}]):
            assert loader.apply(request("a", other)).warning is not None
        assert loader.find("a") == first
        assert loader.find("b") is None
        assert labels(connection) == [("a", "committed", 1, 1, 0)]


def test_an_empty_batch_commits_its_label(tables: World) -> None:
    """87."""
    with loading(tables.dsn, "events") as (connection, loader):
        for label, rows in (("list", []), ("iterator", iter([])), ("arrow", pa.table({"id": pa.array([], pa.int64())}))):
            assert loader.apply(request(label, rows)) == LoadResult(label, "committed")
        assert [name for name, *_ in labels(connection)] == ["arrow", "iterator", "list"]


def test_the_same_label_elsewhere_is_in_flight(tables: World) -> None:
    """83: told at once, not made to wait; another label of the table is not concerned."""
    with loading(tables.dsn, "pairs") as (_, one), loading(tables.dsn, "pairs") as (_, other):
        one.apply(request("a", [row(20, 250)]))
        with pytest.raises(LabelInFlight):
            other.apply(request("a", [row(20, 250)]))
        assert not other.apply(request("b", [row(21, 250)])).replay


def test_labels_are_per_table(tables: World) -> None:
    with loading(tables.dsn, "pairs") as (_, one), loading(tables.dsn, "events") as (_, other):
        assert not one.apply(request("a", [row(20, 250)])).replay
        assert not other.apply(request("a", [row(20, 250)])).replay


@pytest.mark.parametrize("label", ["", "a\nb", "x" * 257, "ü" * 129, "\x1b[31m", "\ud800", None, 5])
def test_a_label_must_be_one(tables: World, label: Any) -> None:
    with loading(tables.dsn, "pairs") as (_, loader), pytest.raises(LoadRejected, match="label"):
        loader.apply(request(label, [row(20, 250)]))


def test_long_labels_are_fine(tables: World) -> None:
    with loading(tables.dsn, "pairs") as (_, loader):
        for label in ("x" * 256, "ü" * 128, "a 'quoted\" label; {with} %s"):
            loader.apply(request(label, []))
            assert loader.apply(request(label, [])).replay


# What is refused


REFUSED: dict[str, tuple[list[Any], int | None, str | None, str]] = {
    "an unknown column": ([row(20, 250), {**row(21, 250), "nope": 1}], 2, "nope", "has no column"),
    "a key that is missing": ([row(20, 250), {"event_time": 250, "val": "x"}], 2, "id", "is missing"),
    "a tier key that is missing": ([{"id": 20, "val": "x"}], 1, "event_time", "is missing"),
    "a key that is null": ([row(20, 250), {**row(21, 250), "id": None}], 2, "id", "is null"),
    "a tier key that is null": ([row(20, 250), {**row(21, 250), "event_time": None}], 2, "event_time", "is null"),
    "a key twice": ([row(20, 250), row(21, 250), row(20, 250)], 3, None, "already"),
    "a cold key twice": ([row(20, 50), row(21, 250), row(20, 50)], 3, None, "already"),
    "a key twice in other columns": ([row(20, 250), {"id": 20, "event_time": 250}], 2, None, "already"),
    "text for a number": ([row(20, 250), row(21, 250), {**row(22, 250), "n": "abc"}], 3, "n", "invalid input syntax"),
    "a number that is too large": ([{**row(20, 250), "n": 2**31}], 1, "n", "out of range"),
    "a fraction for an integer": ([{**row(20, 250), "n": 1.5}], 1, "n", "invalid input syntax"),
    "true for an integer": ([{**row(20, 250), "n": True}], 1, "n", "invalid input syntax"),
    "a key that is no number": ([row(20, 250), {**row(21, 250), "id": "x"}], 2, "id", "invalid input syntax"),
    "a place without a partition": ([row(20, 250), row(21, 900)], 2, "event_time", 'no partition of table "public.{t}"'),
    "a row that is none": ([row(20, 250), [1, 2]], 2, None, "no row but a list"),
    "a value without a text": ([row(20, 250), {**row(21, 250), "val": object()}], 2, "val", "no text that Postgres reads"),
    "half a character": ([{**row(20, 250), "val": "a\ud800"}], 1, "val", "surrogate"),
    "a NUL": ([row(20, 250), {**row(21, 250), "val": "a\0b"}], 2, "val", "invalid byte sequence"),
}  # fmt: skip


@pytest.mark.parametrize("table", ["pairs", "events", "barest"])
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
def test_a_wrong_row_rejects_the_batch_by_name(tables: World, table: str, case: str, many: bool) -> None:
    """83: with its line, and nothing recorded: corrected, the batch goes under the same label."""
    rows, line, column, message = REFUSED[case]
    before = [row(1000 + number, 250) for number in range(2500)] if many else []
    with loading(tables.dsn, table) as (connection, loader):
        shown = content(connection, table)
        for given in ([*before, *rows], iter([*before, *rows])):
            with pytest.raises(LoadRejected) as refused:
                loader.apply(request("a", given))
            assert message.replace("{t}", table) in refused.value.message
            assert refused.value.line == (line + len(before) if line else None)
            assert column is None or refused.value.column == column
        assert labels(connection) == []
        assert content(connection, table) == shown
        assert loader.apply(request("a", [row(20, 250)])).hot_rows == 1


def test_the_value_is_named(tables: World) -> None:
    with loading(tables.dsn, "pairs") as (_, loader):
        with pytest.raises(LoadRejected) as refused:
            loader.apply(request("a", [row(20, 250), {**row(21, 250), "n": "x" * 1000}]))
        assert refused.value.value == "x" * 1000
        assert len(str(refused.value)) < 1500
        assert refused.value.as_dict()["facts"]["line"] == 2  # type: ignore[index]


@pytest.mark.parametrize("rows", ["text", b"bytes", {"id": 1}, 5, None])
def test_rows_must_be_rows(tables: World, rows: Any) -> None:
    with loading(tables.dsn, "pairs") as (_, loader), pytest.raises(LoadRejected, match="rows of a load cannot be"):
        loader.apply(request("a", rows))


def test_what_is_generated_always_takes_no_value(tables: World) -> None:
    with loading(tables.dsn, "numbered") as (_, loader):
        for column in ("seq", "twice"):
            with pytest.raises(LoadRejected, match="is generated always") as refused:
                loader.apply(request("a", [row(20, 250), {**row(21, 250), column: 1}]))
            assert (refused.value.line, refused.value.column) == (2, column)


def test_limits(tables: World) -> None:
    with loading(tables.dsn, "pairs", rows_max=10) as (connection, loader):
        loader.apply(request("a", [row(20 + number, 250) for number in range(10)]))
        for rows in ([row(20 + number, 250) for number in range(11)], (row(20 + number, 250) for number in range(11))):
            with pytest.raises(LoadRejected, match="10 rows at most"):
                loader.apply(request("b", rows))
        assert len(labels(connection)) == 1
    for wrong in ({"rows_max": 0}, {"spool_threshold": -1}, {"attempts": 0}, {"lock_seconds": 0.0}):
        with pytest.raises(UsageError):
            LoadOptions("dsn", "public.pairs", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ("public.nothing", NotRegistered, "there is no table public.nothing"),
        ("public.plain", NotRegistered, "public.plain is not a registered table"),
        ("public.events_hot", NotRegistered, "not a registered table"),
        ("events", UsageError, "must be schema.table"),
    ],
)
def test_a_table_that_cannot_be_loaded_says_why(tables: World, table: str, error: type[Exception], message: str) -> None:
    with connect(tables.dsn, autocommit=True) as connection:
        connection.execute("create table if not exists public.plain (id int)")
    with LoadClient(LoadOptions(tables.dsn, table)) as client, pytest.raises(error, match=message):
        client.load(request("a", []))


def test_a_role_needs_rights(tables: World) -> None:
    with loading(tables.dsn, "pairs") as (connection, loader):
        connection.execute("create role nobody_yet")
        for grants in ((), ("usage on schema modak", "select on modak.tables, modak.cutline, modak.load_labels")):
            for grant in grants:
                connection.execute(f"grant {grant} to nobody_yet")
            connection.execute("set local role nobody_yet")
            with pytest.raises(Refused, match="permission denied"):
                loader.apply(request("a", [row(20, 250)]))
            connection.execute("reset role")


def test_expired_rows_do_not_come_back(tables: World) -> None:
    """83: below R."""
    for table in ("pairs", "events", "barest"):
        with loading(tables.dsn, table) as (connection, loader):
            heap = connection.execute("select table_id from modak.tables where table_name = %s", [table]).fetchone()
            assert heap is not None
            connection.execute("update modak.cutline set retention_line = 100 where table_id = %s", [heap["table_id"]])
            with pytest.raises(LoadRejected, match="lies below the retention line") as refused:
                loader.apply(request("a", [row(20, 250), row(21, 150), row(22, 99)]))
            assert (refused.value.line, refused.value.column, refused.value.value) == (3, "event_time", "99")
            assert labels(connection) == []
            assert loader.apply(request("a", [row(20, 250), row(21, 100)])).delta_rows == 1


def test_a_partition_nobody_watches_is_no_trap(tables: World) -> None:
    """A row there would be in neither tier, though its label said committed."""
    for table in ("pairs", "events"):
        with loading(tables.dsn, table) as (connection, loader):
            connection.execute(f"create table public.stray partition of public.{table}_hot for values from (0) to (100)")
            with pytest.raises(LoadFailed, match=r"partition public\.stray of table .* lies below the cut-line") as failed:
                loader.apply(request("a", [row(20, 250), row(21, 50)]))
            assert failed.value.retry is Retry.LATER
            assert labels(connection) == []
            # Somebody has switched the trigger off, and the load looks for itself.
            connection.execute("alter table public.stray disable trigger modak_newcomer")
            with pytest.raises(Refused, match="a partition that Modak does not know"):
                loader.apply(request("a", [row(20, 250), row(21, 50)]))
            assert labels(connection) == []


def test_without_a_gateway_only_what_needs_it_fails(tables: World) -> None:
    whole, moved = [row(20, 250), row(21, 50), row(1, 10)], [row(30, 250)]
    tables.gateway.stop()
    try:
        with loading(tables.dsn, "pairs") as (connection, loader):
            assert loader.apply(request("a", whole)).delta_rows == 2
            with pytest.raises(MissingComponent, match="gateway"):
                loader.apply(request("b", [{"id": 2, "event_time": 20, "n": 9}]))
            # Its copy stands in the heap, so nobody has to be asked.
            connection.execute("insert into public.pairs values (9, 90, 'late', 1)")
            assert loader.apply(request("c", [part(9, 90, n=9)])).delta_rows == 1
            assert len(labels(connection)) == 2
        with loading(tables.dsn, "events") as (connection, loader):
            with pytest.raises(MissingComponent, match="gateway"):
                loader.apply(request("a", moved))
            assert loader.apply(request("b", [row(4, 211), row(5, 220)])).hot_rows == 2
            assert loader.apply(request("c", [row(1, 50), row(31, 60)])).delta_rows == 2
    finally:
        tables.gateway.start()


# Transactions


def test_batches_of_one_transaction_do_not_share_their_fate(tables: World) -> None:
    with loading(tables.dsn, "pairs") as (connection, loader):
        for number in range(5):
            rows = [row(20 + number, 250), row(20 + number, 50)]
            assert loader.apply(request(f"good {number}", rows)).delta_rows == 1
            with pytest.raises(LoadRejected):
                loader.apply(request(f"bad {number}", [row(40 + number, 250), row(40 + number, 900)]))
        assert len(labels(connection)) == 5
        found = [(one["id"], one["event_time"]) for one in content(connection, "pairs") if one["id"] >= 20]
        assert found == [(20 + number, place) for number in range(5) for place in (50, 250)]


def test_another_isolation_level_is_refused(tables: World) -> None:
    client = LoadClient(LoadOptions(tables.dsn, "public.pairs"))
    connection = client._ready()._connection
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with client, pytest.raises(UsageError, match="READ COMMITTED"):
        client.load(request("a", []))


def test_a_broken_connection_is_opened_again(tables: World) -> None:
    options = LoadOptions(tables.dsn, "public.pairs", application="to be killed")
    with LoadClient(options) as client, connect(tables.dsn, autocommit=True) as connection:
        try:
            client.load(request("broken 1", [row(900, 250)]))
            kill = "select count(pg_terminate_backend(pid, 1000)) from pg_stat_activity where application_name = 'to be killed'"
            assert value(connection, kill) == 1
            assert client.load(request("broken 2", [row(901, 250)])) == LoadResult("broken 2", "committed", 1)
            assert value(connection, kill) == 1
            assert client.load(request("broken 1", [row(900, 250)])).replay
        finally:
            connection.execute("delete from public.pairs where id in (900, 901)")
            connection.execute("delete from modak.load_labels")


def test_columns_that_change_between_batches_are_noticed(tables: World) -> None:
    with loading(tables.dsn, "pairs") as (connection, loader):
        loader.apply(request("a", [row(20, 250)]))
        loader.apply(request("b", [row(20, 250)]))
        connection.execute("alter table public.pairs_hot alter column val set default 'given'")
        loader.apply(request("c", [{"id": 21, "event_time": 250}]))
        connection.execute("alter table public.pairs_hot add column more int default 3")
        loader.apply(request("d", [{**row(22, 250), "more": 5}, {**row(20, 250), "more": 6}]))
        assert select(connection, "select id, val, more from public.pairs_hot where id >= 20 order by id") == [
            (20, "x", 6), (21, "given", 3), (22, "x", 5),
        ]  # fmt: skip


def test_constraints_and_triggers_of_the_heap_have_their_say(tables: World) -> None:
    for table in ("pairs", "barest"):
        with loading(tables.dsn, table) as (connection, loader):
            connection.execute(f"alter table public.{table}_hot add constraint small check (n < 100)")
            connection.execute(
                "create function pg_temp.shout() returns trigger language plpgsql as $$ begin "
                "if new.val = 'no' then raise exception 'not this one'; end if; new.val := upper(new.val); return new; end $$"
            )
            connection.execute(
                f"create trigger shout before insert or update on public.{table}_hot for each row execute function pg_temp.shout()"
            )
            many = [row(100 + number, 250) for number in range(300)]
            for wrong, message in (
                ({**row(20, 250), "n": 100}, "small"),
                ({**row(20, 50), "n": 100}, "small"),
                (row(20, 250, "no"), "not this one"),
            ):
                with pytest.raises(LoadRejected, match=message) as refused:
                    loader.apply(request("a", [*many, wrong]))
                assert refused.value.line == 301
            loader.apply(request("a", [row(20, 250, "yes"), row(4, 210, "also")]))
            assert select(connection, f"select val from public.{table}_hot where id in (4, 20) order by id") == [("ALSO",), ("YES",)]


def test_other_unique_keys_are_refused_not_taken(tables: World) -> None:
    with loading(tables.dsn, "pairs") as (connection, loader):
        connection.execute("create unique index on public.pairs_hot (val, event_time)")
        with pytest.raises(LoadRejected, match="duplicate key value") as refused:
            loader.apply(request("a", [row(20, 250, "u"), row(4, 210, "hot"), row(21, 220, "hot")]))
        assert refused.value.line == 3


# Cold volume


@pytest.fixture
def spooling(tables: World) -> dict[str, Any]:
    return {"storage": lake_storage(tables.dsn, tables.app.settings), "spool_threshold": 3}


@pytest.mark.parametrize("table", ["pairs", "events", "strict", "barest", "whole"])
def test_cold_volume_is_staged(tables: World, table: str, spooling: dict[str, Any]) -> None:
    """84: files in the lake's partitions with its field ids, a label that knows them, and nothing to see yet."""
    with loading(tables.dsn, table, **spooling) as (connection, loader):
        before = content(connection, table)
        rows = [row(20 + number, 40 + 20 * number, f"late {number}", number) for number in range(5)]
        result = loader.apply(request("a", [*rows, row(30, 250)]))
        assert (result.state, result.hot_rows, result.delta_rows, result.spooled_rows) == ("staged", 1, 0, 5)
        assert [one["id"] for one in content(connection, table)] == [*(one["id"] for one in before), 30]
        assert select(
            connection, "select state, tier_key_lo, tier_key_hi, staged_files, committed_at, version > 0 from modak.load_labels"
        ) == [("staged", 40, 120, list(result.staged_files), None, True)]
        assert all("/load-" in file for file in result.staged_files)
        assert sorted(file.rsplit("/", 2)[1] for file in result.staged_files) == ["part=0", "part=100"]
        found = [one for file in result.staged_files for one in _read(file)]
        assert sorted(found, key=lambda one: one["id"]) == rows
        assert loader.apply(request("a", [*rows, row(30, 250)])) == LoadResult("a", "staged", 1, 0, 5, result.staged_files, replay=True)
        few = loader.apply(request("b", rows[:3]))
        assert (few.state, few.delta_rows, few.staged_files) == ("committed", 3, ())


def _read(file: str) -> list[Row]:
    import pyarrow.parquet as pq

    table = pq.read_table(file.removeprefix("file://"), partitioning=None)
    assert [int(field.metadata[b"PARQUET:field_id"]) for field in table.schema] == [1, 2, 3, 4]
    return list(table.to_pylist())


def test_what_the_heap_has_to_know_of_is_not_staged(tables: World, spooling: dict[str, Any]) -> None:
    """Parts of rows, rows whose copy stands in the heap, rows for a partition that stands, and tables that keep their heap."""
    with loading(tables.dsn, "pairs", **spooling) as (connection, loader):
        connection.execute("insert into public.pairs values (20, 50, 'spilled', 1)")
        rows = [row(20, 50, "new"), {"id": 1, "event_time": 10, "n": 9}, *(row(30 + number, 50) for number in range(4))]
        result = loader.apply(request("a", rows))
        assert (result.delta_rows, result.spooled_rows) == (2, 4)
        shown = {one["id"]: (one["val"], one["n"]) for one in content(connection, "pairs")}
        assert (shown[20], shown[1]) == (("new", 0), ("a", 9))
    for table in ("standing", "kept", "moving"):
        with loading(tables.dsn, table, **spooling) as (_, loader):
            assert loader.apply(request("a", [row(30 + number, 50) for number in range(5)])).delta_rows == 5
    with loading(tables.dsn, "events", **spooling) as (connection, loader):
        result = loader.apply(request("a", [row(4, 50, "moved"), *(row(30 + number, 50) for number in range(4))]))
        assert (result.delta_rows, result.spooled_rows) == (1, 4)
        assert [(one["event_time"], one["val"]) for one in content(connection, "events") if one["id"] == 4] == [(50, "moved")]


def test_values_and_tables_that_the_lake_cannot_take_are_not_staged(tables: World, spooling: dict[str, Any]) -> None:
    rows = [row(30 + number, 50) for number in range(5)]
    with loading(tables.dsn, "numbered", **spooling) as (_, loader):
        assert loader.apply(request("a", rows)).delta_rows == 5
    with loading(tables.dsn, "pairs", **spooling) as (connection, loader):
        connection.execute("create table public.parent (id int primary key)")
        connection.execute("insert into public.parent values (4), (5)")
        connection.execute("alter table public.pairs_hot add foreign key (n) references public.parent")
        with pytest.raises(LoadRejected, match="foreign key"):
            loader.apply(request("a", rows))
        connection.execute("insert into public.parent values (0)")
        assert loader.apply(request("a", rows)).delta_rows == 5


def test_constraints_hold_for_staged_rows(tables: World, spooling: dict[str, Any]) -> None:
    with loading(tables.dsn, "pairs", **spooling) as (connection, loader):
        connection.execute("alter table public.pairs_hot add constraint small check (n < 100), alter column val set not null")
        rows = [row(30 + number, 50) for number in range(5)]
        for wrong, name in ({"n": 100}, "small"), ({"val": None}, "val"):
            with pytest.raises(LoadRejected, match=name) as refused:
                loader.apply(request("a", [*rows, {**row(40, 50), **wrong}]))
            assert refused.value.line == 6
        with pytest.raises(LoadRejected, match="stands in line 1"):
            loader.apply(request("a", [*rows, rows[0]]))
        assert loader.apply(request("a", rows)).spooled_rows == 5
