"""Columns change while rows are cold: the name shows what a plain table would, before and after the lake has followed."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests import events
from tests.events import EVENTS
from tests.flows.test_alter import COLUMNS, TWIN, change
from tests.gateways import RunningGateway
from tests.support import codes, default_lake, photograph, rows, value

from modak.app import App
from modak.connection import Connection
from modak.core.registration import Options
from modak.errors import LockNotAvailable, Refused
from modak.jobs.verify import verify
from modak.registration.register import register

pytestmark = [pytest.mark.spark, pytest.mark.inline]

TABLE = """
    create table {name} (
        id bigint not null, event_time bigint not null, n integer, r real, price numeric(8, 2), val varchar(8), mood public.mood, note text,
        primary key (id, event_time)
    ) partition by range (event_time);
    create table {name}_p0 partition of {name} for values from (0) to (100);
    create table {name}_p1 partition of {name} for values from (100) to (200);
    create table {name}_p2 partition of {name} for values from (200) to (300);
    create table {name}_p3 partition of {name} for values from (300) to (400);
    insert into {name}
    select i, i * 10, i, i * 1.1, i * 1.25, 'v' || i, case i % 2 when 0 then 'good' else 'bad' end::public.mood, 'note ' || i
      from generate_series(1, 35) i;
    insert into {name} values (36, 15, null, null, null, null, null, null);
"""


def both(connection: Connection, statement: str) -> None:
    for name in ("public.events", TWIN):
        connection.execute(statement.format(name))


def assert_as_twin(connection: Connection, key: str = "id", columns: str = "*") -> None:
    assert [line[:2] for line in rows(connection, COLUMNS, "public.events")] == [line[:2] for line in rows(connection, COLUMNS, TWIN)]
    wanted = rows(connection, f"select {columns} from {TWIN} order by {key}")
    assert rows(connection, f"select {columns} from public.events order by {key}") == wanted


def lake_schema(app: App) -> dict[str, str]:
    with app.job(EVENTS) as job:
        return {field.name: str(field.field_type) for field in job.lake.load(job.table.lake_table_ref).schema().fields}


@pytest.fixture
def cold(app: App, connection: Connection, gateway: RunningGateway) -> None:
    """Rows below 100 are cold and still stand in the heap; some of them are corrected, one is removed, one came late."""
    connection.execute("create type public.mood as enum ('good', 'bad')")
    for name in ("public.events", TWIN):
        connection.execute(TABLE.format(name=name))
    connection.execute(f"create table {TWIN}_late partition of {TWIN} for values from (-100) to (0)")
    chosen = Options(tier_key="event_time", primary_key=("id", "event_time"), lag="0", width="100")
    register(connection, default_lake(app, connection), EVENTS, chosen, profile="default")
    events.tier(app, upto=100)
    both(connection, "update {} set r = 0.1, val = 'new', note = null where id in (2, 3)")
    both(connection, "delete from {} where id = 5")
    both(connection, "insert into {} values (40, -7, 40, 1.1, 4.5, 'late', 'bad', 'late')")
    assert_as_twin(connection)


def test_every_change_shows_in_both_tiers(app: App, connection: Connection, cold: None) -> None:
    key = "id"
    for text in (
        "drop column note",
        "alter column n type bigint, alter column price type numeric(12, 2)",
        "alter column r type double precision",
        "alter column val type text, alter column mood type text",
        "rename column val to label",
        "rename column id to key",
        "rename column event_time to at",
        "add column note integer",
        "add constraint small check (key < 1000)",
    ):
        connection.execute(f"alter table {TWIN} {text}")
        change(app, text)
        key = "key" if text.startswith("rename column id") else key
        assert_as_twin(connection, key)
    assert lake_schema(app)["val"] == "string", "the lake has not followed yet"
    floats = ("r = 0.1::real", "r = 0.1", "r < 3.3", "r >= 2.2::real and r <= 6.6", "r in (1.1, 1.1::real, 4.4)")
    others = ("n > 5000000000", "n < 5000000000 and n >= 4", "price < 99999999.99", "label > 'v2'", "mood = 'good' and at < 150")
    for condition in (*floats, *others):
        found, wanted = (rows(connection, f"select key from {name} where {condition} order by key") for name in ("public.events", TWIN))
        assert found == wanted, condition
    both(connection, "update {} set label = 'a longer label', note = 1 where key in (3, 4, 40)")
    both(connection, "update {} set n = 5000000000 where key in (2, 6, 30)")
    both(connection, "delete from {} where key in (7, 31)")
    assert_as_twin(connection, key)
    with app.job(EVENTS) as job:
        assert verify(job).differences == ()
    events.tier(app, upto=200)
    assert lake_schema(app) == {
        "key": "long", "at": "long", "n": "long", "r": "double", "price": "decimal(12, 2)", "label": "string", "mood": "string",
        "note": "int",
    }  # fmt: skip
    assert_as_twin(connection, key)
    both(connection, "update {} set note = 2 where key in (8, 12)")
    assert_as_twin(connection, key)
    assert rows(connection, "select key from public.events where at < 200 and label = 'v12' and n = 12") == [(12,)]
    for condition in floats:
        found, wanted = (rows(connection, f"select key from {name} where {condition} order by key") for name in ("public.events", TWIN))
        assert found == wanted, condition
    with app.job(EVENTS) as job:
        assert verify(job).differences == ()
    events.drop_tiered(app)
    assert_as_twin(connection, key)


def test_what_cold_rows_cannot_follow_is_refused(app: App, connection: Connection, cold: None) -> None:
    for text, code in {
        "alter column n type text": "column_type",
        "alter column n type smallint": "column_type",
        "alter column r type numeric": "column_type",
        "alter column price type numeric(12, 3)": "column_type",
        "alter column val type varchar(5)": "column_type",
        "alter column note type jsonb using to_jsonb(note)": "computed",
        "add column c int not null default 5": "added_column",
        "add column twice bigint generated always as (n * 2) stored": "added_column",
        "add column c int default 5": "added_column",  # its default would stand in the heap's copies
        "drop column id": "key_column",
    }.items():
        before = photograph(connection, app.settings.data), rows(connection, "select * from modak.delta")
        with pytest.raises(Refused) as refused:
            change(app, text)
        assert codes(refused.value) == [code], text
        assert (photograph(connection, app.settings.data), rows(connection, "select * from modak.delta")) == before
    events.drop_tiered(app)
    done = change(app, "add column c int default 5")
    assert "cold rows have NULL in c" in done.notes[0]
    assert rows(connection, "select id, c from public.events where id in (1, 20, 40) order by id") == [(1, None), (20, 5), (40, 5)]
    assert change(app, "alter column c set default 6").notes == ()
    both(connection, "insert into {} (id, event_time) values (50, 50), (51, 350)")
    assert rows(connection, "select id, c from public.events where id in (50, 51) order by id") == [(50, 6), (51, 6)]


def test_renames_by_hand_are_followed_by_the_next_pass(app: App, connection: Connection, cold: None) -> None:
    connection.execute("create view public.labels as select id, val from public.events")
    for text in ("rename column val to label", "rename column note to val", "add column ms integer default 7"):
        connection.execute(f"alter table public.events_hot {text}; alter table {TWIN} {text}")
    with pytest.raises(psycopg.Error):
        connection.execute("update public.events_hot set ms = 2 where id = 1")
    connection.execute("insert into public.events_hot (id, event_time, label) values (60, 360, 'hot')")
    connection.execute(f"insert into {TWIN} (id, event_time, label) values (60, 360, 'hot')")
    events.tier(app, upto=200)
    connection.execute(f"update {TWIN} set ms = null where event_time < 100 and id not in (2, 3, 40)")
    assert_as_twin(connection)
    assert value(connection, "select val from public.labels where id = 2") == "new"
    both(connection, "update {} set val = 'changed', ms = 1 where id in (2, 12, 25, 40)")
    assert_as_twin(connection)
    assert {"label", "val", "ms"} <= lake_schema(app).keys()
    # A key: the pass writes the new name down and asks to be run again.
    connection.execute(f"alter table public.events_hot rename column id to key; alter table {TWIN} rename column id to key")
    with pytest.raises(LockNotAvailable, match="key columns"):
        events.tier(app)
    events.tier(app)
    assert_as_twin(connection, "key")
    assert lake_schema(app)["key"] == "long"


def test_an_unsupported_column_by_hand_is_named_and_hot_writes_go_on(app: App, connection: Connection, cold: None) -> None:
    connection.execute("create type public.pair as (a int, b int); alter table public.events_hot add column both_of public.pair")
    with pytest.raises(Refused, match="both_of"):
        events.tier(app)
    connection.execute("insert into public.events_hot (id, event_time) values (61, 361)")
    connection.execute("update public.events set n = 5 where id = 30")
    connection.execute("alter view public.events rename column n to number")
    with pytest.raises(Refused):
        events.tier(app)
    found: Any = value(connection, "select count(*) from public.events")
    assert found == 37
