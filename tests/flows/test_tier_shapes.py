"""Tiering of tables that are not the fixture: other key types, regions, odd bounds and names, columns that come and change."""

from __future__ import annotations

import itertools

import psycopg
import pytest
from tests import events, seam
from tests.events import EVENTS, add_partition, put_under_modak
from tests.events import tier as tier_events
from tests.support import reclaim_all

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.errors import Refused
from modak.jobs import flush
from modak.jobs.tier import TierOutcome, tier
from modak.jobs.verify import verify
from modak.registration.register import register
from modak.source.relation import describe

pytestmark = [pytest.mark.spark, pytest.mark.inline]


def put(app: App, connection: Connection, name: Name, **options: object) -> None:
    profile = profiles.get(connection, None)
    register(connection, app.lake(profile), name, Options(**options), profile=profile.name)  # type: ignore[arg-type]


def move(app: App, name: Name) -> TierOutcome:
    """One pass, checked by content, and the heap copies dropped."""
    with app.job(name) as job:
        outcome = tier(job)
        found = verify(job)
        assert found.differences == ()
        reclaim_all(job)
    return outcome


def lake_rows(app: App, connection: Connection, name: Name) -> int:
    table = tables.get(connection, name)
    pointer = app.lake(profiles.get(connection, table.storage_profile)).find(table.lake_table_ref)
    return pointer.total_rows or 0 if pointer else 0


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("kind", "width", "bounds", "values"),
    [
        (
            "timestamptz",
            "day",
            ["2026-06-29 00:00+00", "2026-06-30 00:00+00", "2026-07-01 00:00+00", "2026-07-02 00:00+00"],
            ["2026-06-29 08:00+00", "2026-06-29 20:30+00", "2026-06-30 12:00+00", "2026-07-01 01:00+00", "2026-07-01 09:00:00.000001+00"],
        ),
        (
            "timestamp",
            "hour",
            ["1969-12-31", "1970-01-01", "1970-01-02", "1970-01-03"],
            ["1969-12-31 23:59:59.999999", "1970-01-01", "1970-01-02"],
        ),
        ("date", "month", ["0044-01-01 BC", "0001-01-01", "2026-01-01", "2026-02-01"], ["0044-03-15 BC", "1999-12-31", "2026-01-31"]),
        ("smallint", "10", ["-100", "0", "100", "200"], ["-99", "-1", "0", "99", "150"]),
        ("integer", None, ["-100", "0", "100", "200"], ["-99", "-1", "0", "99", "150"]),
    ],
)
def test_every_key_type_tiers(app: App, connection: Connection, kind: str, width: str | None, bounds: list[str], values: list[str]) -> None:
    name = Name("public", "things")
    connection.execute(f"create table public.things (id bigint, at {kind}, note text, primary key (id, at)) partition by range (at)")
    for number in range(3):
        ends = f"from ('{bounds[number]}') to ('{bounds[number + 1]}')"
        connection.execute(f"create table public.things_{number} partition of public.things for values {ends}")
    for number, value in enumerate(values):
        connection.execute("insert into public.things values (%s, %s, %s)", [number, value, f"row {value}"])
    put(app, connection, name, tier_key="at", lag="0" if kind in ("smallint", "integer") else "0 days", width=width)
    connection.execute("set timezone = 'Pacific/Apia'")
    cold = connection.execute("select count(*) as n from public.things where at < %s", [bounds[2]]).fetchone()
    outcome = move(app, name)
    assert outcome.partitions == ("public.things_0", "public.things_1")
    assert cold == {"n": lake_rows(app, connection, name)}
    left = connection.execute("select count(*) as n from public.things_hot").fetchone()
    assert left == {"n": len(values) - lake_rows(app, connection, name)}


def test_all_regions_of_a_period_go_together(app: App, connection: Connection) -> None:
    name = Name("public", "readings")
    connection.execute(
        "create table public.readings (region text, id bigint, at integer, primary key (region, id, at)) partition by list (region)"
    )
    for region in ("eu", "us"):
        parent = f"public.readings_{region}"
        connection.execute(f"create table {parent} partition of public.readings for values in ('{region}') partition by range (at)")
        for number in range(3):
            ends = f"from ({number * 100}) to ({number * 100 + 100})"
            connection.execute(f"create table public.r_{region}_{number} partition of {parent} for values {ends}")
    connection.execute("insert into public.readings select 'eu', n, n % 280 from generate_series(0, 279) n")
    connection.execute("insert into public.readings select 'us', n, (n % 140) * 2 from generate_series(0, 139) n")
    put(app, connection, name, tier_key="at", lag="0")
    outcome = move(app, name)
    assert set(outcome.partitions) == {"public.r_eu_0", "public.r_us_0", "public.r_eu_1", "public.r_us_1"}
    assert outcome.tier_key_hi == 200
    assert lake_rows(app, connection, name) == 200 + 100
    assert connection.execute("select count(*) as n from public.readings_hot").fetchone() == {"n": 80 + 40}


def test_open_and_far_bounds_do_not_stop_the_others(app: App, connection: Connection) -> None:
    name = Name("public", "eras")
    connection.execute("create table public.eras (id bigint, at timestamptz, primary key (id, at)) partition by range (at)")
    edges = ["minvalue", "'0100-01-01 BC'", "'0043-01-01 BC'", "'2038-01-19'", "'9999-12-31'"]
    ranges = [*itertools.pairwise(edges), ("'10000-01-01'", "'20000-01-01'"), ("'294270-01-01'", "maxvalue")]
    for number, (low, high) in enumerate(ranges):
        connection.execute(f"create table public.eras_{number} partition of public.eras for values from ({low}) to ({high})")
    for identity, moment in enumerate(["4000-01-01 BC", "0044-03-15 BC", "2020-01-01", "2050-01-01", "15000-01-01"]):
        connection.execute("insert into public.eras values (%s, %s)", [identity, moment])
    put(app, connection, name, tier_key="at", lag="14000 years", width="none")
    outcome = move(app, name)
    assert outcome.partitions == ("public.eras_0", "public.eras_1")
    assert lake_rows(app, connection, name) == 2


@pytest.mark.distributed
def test_odd_names_tier(app: App, connection: Connection) -> None:
    connection.execute('create schema "My schema"')
    name = Name("My schema", 'Big "table".of things')
    connection.execute(
        'create table "My schema"."Big ""table"".of things" ("the Id" bigint, "a.b" integer, "select" text, primary key ("the Id", "a.b")) '
        'partition by range ("a.b")'
    )
    for number in range(2):
        connection.execute(
            f'create table "My schema"."part {number}" partition of "My schema"."Big ""table"".of things" '
            f"for values from ({number * 10}) to ({number * 10 + 10})"
        )
    connection.execute('insert into "My schema"."Big ""table"".of things" values (1, 5, \'x\'), (2, 15, \'y\')')
    put(app, connection, name, tier_key="a.b", lag="0", width="10")
    assert move(app, name).rows == 1
    assert lake_rows(app, connection, name) == 1


def test_a_new_column_reaches_view_triggers_and_lake(app: App, connection: Connection) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    tier_events(app, upto=100)
    connection.execute("alter table public.events_hot add column ms integer default 7")
    connection.execute("update public.events_hot set ms = 1 where id = 3")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="columns of table"):
        connection.execute("update public.events_hot set ms = 2 where id = 1")
    tier_events(app)
    assert connection.execute("select ms from public.events where id = 4 and event_time = 210").fetchone() == {"ms": 7}
    connection.execute("update public.events_hot set ms = 2 where id = 1")
    found = seam.read(app, EVENTS)
    assert found["1"] == (1, 10, "a", 2)
    assert found["2"] == (2, 20, "b", None)
    assert found["3"] == (3, 110, "c", 1)


def test_a_renamed_column_is_renamed_in_the_lake(app: App, connection: Connection) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    tier_events(app, upto=100)
    connection.execute("alter table public.events_hot rename column val to label")
    tier_events(app)
    assert "label" in [column.name for column in describe(connection, EVENTS).columns]
    table = app.lake(profiles.get(connection, None)).load("public.events")
    assert [field.name for field in table.schema().fields] == ["id", "event_time", "label"]
    assert seam.read(app, EVENTS)["1"] == (1, 10, "a")


def test_a_type_the_lake_cannot_take_keeps_the_table_hot(app: App, connection: Connection) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    connection.execute("alter table public.events_hot add column price money")
    with pytest.raises(Refused, match="price"):
        tier_events(app)
    assert set(seam.states(connection, EVENTS).values()) == {"hot"}


@pytest.mark.distributed
def test_one_huge_partition_is_cut_into_chunks(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page ranges, not keys: no index is needed, and every row is read once."""
    monkeypatch.setattr(flush, "CHUNK_BYTES_MIN", 1024 * 1024)
    events.create(connection)
    connection.execute("insert into public.events select n, n % 100, repeat('x', 200) from generate_series(100, 40099) n")
    put_under_modak(app, connection)
    outcome = tier_events(app, upto=100)
    assert outcome.rows == 40_002
    files = connection.execute("select count(*) as n from modak.op_progress").fetchone()
    assert files is not None
    assert files["n"] >= 4
    add_partition(connection, 7, "public.events_hot")


def test_partitions_are_premade_ahead_of_the_newest_row(app: App, connection: Connection) -> None:
    name = Name("public", "readings")
    connection.execute("create table public.readings (id bigint, at timestamptz, primary key (id, at)) partition by range (at)")
    connection.execute("create table public.r1 partition of public.readings for values from ('2025-11-01+00') to ('2025-12-01+00')")
    connection.execute("insert into public.readings values (1, '2025-11-15+00')")
    put(app, connection, name, tier_key="at", lag="90 days", premake=2)
    with app.job(name) as job:
        made = tier(job).premade
        assert len(made) == 2
        assert tier(job).premade == ()
    connection.execute("insert into public.readings values (2, '2025-12-31 23:59+00'), (3, '2026-01-31 12:00+00')")
    with pytest.raises(psycopg.errors.CheckViolation, match=r"public\.readings"):
        connection.execute("insert into public.readings values (4, '2026-02-01 00:00+00')")
