"""What the gateway knows of registered tables, and when it notices a change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support import register_events

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import LakeError, NotRegistered
from modak.gateway.analytics.relations import Relations, fingerprints_sql
from modak.lake.iceberg import IcebergLake
from modak.sqlfiles import trusted


@pytest.fixture
def relations(app: App, connection: Connection) -> Iterator[Relations]:
    found = Relations(app.dsn, lambda name: app.storage(profiles.get(connection, name)))
    yield found
    found.close()


def test_a_registered_table_is_known_by_name_id_and_oid(relations: Relations, connection: Connection, lake: IcebergLake) -> None:
    table = register_events(connection, lake)
    found = relations.by_id(table.table_id)
    assert (found.name, found.heap, found.view) == (Name("public", "events"), Name("public", "events_hot"), Name("public", "events"))
    assert [column.name for column in found.columns] == ["id", "event_time", "val"]
    assert found.problem is None
    assert found.tier_key == "event_time"
    assert found.primary_key == ("id",)
    assert relations.names() == {"events"}
    assert relations.by_oid(found.view_oid) == found
    assert relations.by_oid(found.table_id) is None, "the heap of a table behind a view is a table of its own"
    assert relations.resolve(["events"], ["other", "public"]) == found
    assert relations.resolve(["public", "events"], []) == found
    assert relations.resolve(["events"], ["other"]) is None
    assert relations.resolve(["public", "events_hot"], []) is None


def test_with_the_heap_as_surface_both_names_mean_both_tiers(relations: Relations, connection: Connection, lake: IcebergLake) -> None:
    table = register_events(connection, lake, surface="heap")
    found = relations.by_id(table.table_id)
    assert relations.names() == {"events", "events_all"}
    assert relations.by_oid(found.table_id) == relations.by_oid(found.view_oid) == found


def test_changes_are_seen(relations: Relations, connection: Connection, lake: IcebergLake) -> None:
    table = register_events(connection, lake)
    before = relations.by_id(table.table_id)
    connection.execute("alter table public.events_hot add column extra integer")
    relations.refresh(force=True)
    after = relations.by_id(table.table_id)
    assert after.fingerprint != before.fingerprint
    assert after.columns == before.columns, "the view does not show it yet"
    connection.execute("alter table public.events_hot rename column val to value")
    relations.refresh(force=True)
    assert relations.by_id(table.table_id).problem == "its view and its heap name their columns differently"
    connection.execute("alter view public.events rename column val to value")
    relations.refresh(force=True)
    assert relations.by_id(table.table_id).problem == "its view reads corrections under other names"


def test_a_fingerprint_holds_until_something_changes(relations: Relations, connection: Connection, lake: IcebergLake) -> None:
    table = register_events(connection, lake)
    found = relations.by_id(table.table_id)
    connection.execute("insert into public.events values (9, 250, 'x')")
    connection.execute("vacuum analyze public.events_hot")
    rows = connection.execute(trusted(fingerprints_sql([table.table_id]))).fetchall()
    assert [row["fingerprint"] for row in rows] == [found.fingerprint]


@pytest.mark.parametrize(
    "statement",
    [
        "alter view public.events set (security_invoker = true)",
        "alter table public.events_hot enable row level security, force row level security",
    ],
)
def test_rows_that_depend_on_the_reader_are_left_to_postgres(
    relations: Relations, connection: Connection, lake: IcebergLake, statement: str
) -> None:
    table = register_events(connection, lake)
    connection.execute(statement)  # type: ignore[arg-type]
    assert relations.by_id(table.table_id).problem == "its rows depend on who reads them"


def test_an_unregistered_table_is_forgotten(relations: Relations, connection: Connection, lake: IcebergLake) -> None:
    table = register_events(connection, lake)
    relations.by_id(table.table_id)
    connection.execute("delete from modak.tables")
    relations.refresh(force=True)
    assert relations.names() == frozenset()
    with pytest.raises(NotRegistered):
        relations.by_id(table.table_id)


def test_metadata_of_a_snapshot(relations: Relations, connection: Connection, lake: IcebergLake) -> None:
    table = register_events(connection, lake)
    assert relations.current_snapshot(table.table_id) is None
    assert relations.metadata_location(table.table_id, None).endswith(".metadata.json")
    with pytest.raises(LakeError, match="no published metadata"):
        relations.metadata_location(table.table_id, 3)
    props = '{"metadata_location": "m4", "snapshot_id": "77"}'
    connection.execute("update modak.cutline set lake_snapshot_id = 4, lake_props = %s", [props])
    assert relations.metadata_location(table.table_id, 3) == "m4", "the newest published file knows older snapshots"
    relations.published(table.table_id, 5, "m5")
    assert relations.metadata_location(table.table_id, 5) == "m5"


def test_a_broken_connection_is_replaced(relations: Relations, connection: Connection, lake: IcebergLake) -> None:
    table = register_events(connection, lake)
    relations.by_id(table.table_id)
    connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'modak-gateway' and datname = current_database()"
    )
    relations.refresh(force=True)
    assert relations.by_id(table.table_id).name == Name("public", "events")
