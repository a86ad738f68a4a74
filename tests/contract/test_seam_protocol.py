"""The published seam protocol, step by step, as a stranger would write it: two SQL statements, DuckDB, and nothing of Modak's own.

The statements are those of the protocol's page, to the letter. One thing the page leaves unsaid is done here: its "single transaction" is
REPEATABLE READ, since under READ COMMITTED the line may move between two statements of it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from tests import events, seam
from tests.events import EVENTS, ROWS, drop_tiered, put_under_modak, tier
from tests.flows.test_pinned_seam import no_spark  # noqa: F401 - fixture
from tests.support import value

from modak.app import App
from modak.connection import Connection
from modak.jobs import reclaim

PIN = """
    INSERT INTO modak.read_pins
        (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)
    SELECT c.table_id, c.lake_snapshot_id, c.tier_key_hi, now() + interval '15 minutes'
      FROM modak.cutline c
     WHERE c.table_id = :table_oid
    RETURNING pin_id, pinned_tier_key_hi AS t, pinned_lake_snapshot_id AS s;
"""
HANDLES = """
    SELECT lake_props->>'metadata_location' AS metadata_location,
           lake_props->>'snapshot_id'       AS snapshot_id
      FROM modak.cutline WHERE table_id = :table_oid;
"""
RELEASE = "DELETE FROM modak.read_pins WHERE pin_id = :pin"

MERGED = """
    SELECT * FROM hot
    UNION ALL
    SELECT id, event_time, val FROM cold WHERE id::VARCHAR NOT IN (SELECT pk FROM delta)
    UNION ALL
    SELECT id, event_time, val FROM (SELECT *, row_number() OVER (PARTITION BY pk ORDER BY version DESC) AS place FROM delta)
     WHERE place = 1 AND op = 0
    ORDER BY id
"""


@dataclass(frozen=True)
class Pinned:
    table_oid: int
    pin: int
    t: int
    s: int | None
    metadata_location: str | None
    snapshot_id: str | None


def named(text: str, **values: Any) -> str:
    """The page writes :name where psycopg wants a value."""
    for name, given in values.items():
        text = text.replace(f":{name}", str(int(given)))
    return text


def pin(connection: psycopg.Connection[Any]) -> Pinned:
    """Step 1, inside the caller's transaction."""
    row = connection.execute("select 'public.events_hot'::regclass::oid").fetchone()
    assert row is not None
    oid = row[0]
    pinned = connection.execute(named(PIN, table_oid=oid)).fetchone()  # type: ignore[call-overload]
    handles = connection.execute(named(HANDLES, table_oid=oid)).fetchone()  # type: ignore[call-overload]
    return Pinned(oid, *pinned, *handles)


def read(connection: psycopg.Connection[Any], pinned: Pinned) -> list[tuple[Any, ...]]:
    """Steps 2 to 5."""
    hot = connection.execute("select id, event_time, val from public.events_hot where event_time >= %s", [pinned.t]).fetchall()
    delta = connection.execute(
        "select pk, op, version, payload ->> 'id', payload ->> 'event_time', payload ->> 'val' from modak.delta where table_id = %s",
        [pinned.table_oid],
    ).fetchall()
    engine = lake_engine()
    engine.execute("create table hot (id bigint, event_time bigint, val varchar)")
    engine.execute("create table delta (pk varchar, op smallint, version bigint, id bigint, event_time bigint, val varchar)")
    for table, found in (("hot", hot), ("delta", delta)):
        for row in found:
            engine.execute(f"insert into {table} values ({', '.join('?' * len(row))})", row)
    if pinned.metadata_location is None or pinned.s is None:
        engine.execute("create table cold (id bigint, event_time bigint, val varchar)")
    else:
        engine.execute("create view cold as select * from iceberg_scan('" + pinned.metadata_location.replace("'", "''") + "')")
    return engine.execute(MERGED).fetchall()


def lake_engine() -> duckdb.DuckDBPyConnection:
    engine = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    for name in ("avro", "iceberg"):
        wheel = Path(str(importlib.import_module(f"duckdb_extension_{name}").__file__)).parent
        engine.execute(f"load '{wheel}/extensions/v{duckdb.__version__}/{name}.duckdb_extension'")
    return engine


@contextlib.contextmanager
def stranger(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        yield connection


@pytest.fixture
def table(app: App, connection: Connection, no_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Fixture E under Modak, nothing cold yet. That reclaim compares contents before it drops is tested elsewhere, with Spark."""
    events.create(connection)
    put_under_modak(app, connection)
    monkeypatch.setattr(reclaim, "_check_content", lambda *_: None)


def correct(connection: Connection) -> list[tuple[int, int, str]]:
    """Change the cold rows in every way; returns the table as it is then."""
    connection.execute("update public.events_hot set val = 'once' where id = 2")
    connection.execute("update public.events_hot set val = 'twice' where id = 2")
    connection.execute("delete from public.events_hot where id = 3")
    connection.execute("insert into public.events_hot values (10, 30, 'late')")
    return [(1, 10, "a"), (2, 20, "twice"), (4, 210, "hot"), (5, 220, "hot"), (10, 30, "late")]


def test_one_transaction_does_it_all(table: None, app: App, connection: Connection, dsn: str) -> None:
    """Before anything is cold, with cold rows, and with corrections; the pin goes by its own statement or with the transaction."""
    with stranger(dsn) as reader:
        assert read(reader, pin(reader)) == ROWS
        reader.rollback()
        tier(app)
        pinned = pin(reader)
        assert (pinned.t, pinned.s) == (200, 1)
        assert read(reader, pinned) == ROWS
        reader.execute(named(RELEASE, pin=pinned.pin))  # type: ignore[call-overload]
        reader.commit()
        wanted = correct(connection)
        assert read(reader, pin(reader)) == wanted
        reader.rollback()
    assert value(connection, "select count(*) from modak.read_pins") == 0


def test_a_pass_between_pin_and_read(table: None, app: App, connection: Connection, dsn: str) -> None:
    """The transaction's snapshot decides: heap, delta and line are of the pin's moment, whatever is tiered and corrected meanwhile."""
    tier(app, upto=100)
    with stranger(dsn) as reader:
        pinned = pin(reader)
        tier(app, upto=200)
        wanted = correct(connection)
        # What was cold for the reader already may go.
        assert drop_tiered(app, patience=0).dropped == ("public.p0",)
        assert seam.states(connection, EVENTS)["p1"] == "tiered"
        assert read(reader, pinned) == ROWS
        reader.commit()
        assert read(reader, pin(reader)) == wanted


def test_a_pin_keeps_what_its_reader_needs(table: None, app: App, connection: Connection, dsn: str) -> None:
    """The pin is committed and no transaction stands open: partitions that were hot for the reader stay until it is released."""
    with stranger(dsn) as reader:
        pinned = pin(reader)
        reader.commit()
        tier(app)
        assert drop_tiered(app, patience=0).dropped == ()
        assert seam.states(connection, EVENTS) == {"p0": "tiered", "p1": "tiered", "p2": "hot"}
        assert read(reader, pinned) == ROWS
        reader.execute(named(RELEASE, pin=pinned.pin))  # type: ignore[call-overload]
        reader.commit()
    assert drop_tiered(app).dropped == ("public.p0", "public.p1")
    assert seam.states(connection, EVENTS) == {"p0": "dropped", "p1": "dropped", "p2": "hot"}
    with stranger(dsn) as reader:
        assert read(reader, pin(reader)) == ROWS


def test_the_cold_side_stays_at_its_snapshot(table: None, app: App, connection: Connection, dsn: str) -> None:
    """The newest metadata knows more rows than the pinned one shows."""
    tier(app, upto=100)
    with stranger(dsn) as reader:
        pinned = pin(reader)
        reader.commit()
        tier(app, upto=200)
        engine = lake_engine()
        scans = [pinned.metadata_location, value(connection, "select lake_props->>'metadata_location' from modak.cutline")]
        counts = [engine.execute(f"select count(*) from iceberg_scan('{location}')").fetchall() for location in scans]
        assert counts == [[(2,)], [(3,)]]
        assert read(reader, pinned) == ROWS


def test_an_expired_pin_holds_nothing(table: None, app: App, connection: Connection, dsn: str) -> None:
    with stranger(dsn) as reader:
        pin(reader)
    connection.execute("update modak.read_pins set expires_at = now() - interval '1 second'")
    tier(app)
    assert drop_tiered(app).dropped == ("public.p0", "public.p1")


def test_a_pin_that_was_rolled_back_leaves_no_trace(table: None, app: App, connection: Connection, dsn: str) -> None:
    with stranger(dsn) as reader:
        pin(reader)
        reader.rollback()
        assert value(connection, "select count(*) from modak.read_pins") == 0
        tier(app)
        assert drop_tiered(app).dropped == ("public.p0", "public.p1")


def test_a_pin_of_the_present_line_does_not_hold_what_is_below_it(table: None, app: App, connection: Connection, dsn: str) -> None:
    tier(app)
    with stranger(dsn) as reader:
        pinned = pin(reader)
        reader.commit()
        assert drop_tiered(app).dropped == ("public.p0", "public.p1")
        assert read(reader, pinned) == ROWS
