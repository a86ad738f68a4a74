"""Settings of a registered table: policy, a second register, disable and enable, export and import (SCENARIOS 4, 8, 10)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import EVENTS, create_events, default_lake, options, register_events, register_table, rows, value

from modak.app import App
from modak.catalog import profiles, tables
from modak.catalog.tables import Registered
from modak.connection import Connection, connect
from modak.core.profile import Profile
from modak.core.table import Name
from modak.errors import Refused, UsageError
from modak.lake.iceberg import IcebergLake
from modak.progress import SILENT
from modak.registration import policy, transfer

Change = Callable[..., Registered]


@pytest.fixture
def change(connection: Connection, lake: IcebergLake) -> Change:
    register_events(connection, lake, width="10")

    def apply(**wanted: str) -> Registered:
        pairs = {key.replace("maintenance_", "maintenance."): text for key, text in wanted.items()}
        return policy.change(connection, tables.get(connection, EVENTS), pairs)

    return apply


def test_pairs_are_set_shown_and_stored(connection: Connection, change: Change) -> None:
    changed = change(lag="0100", lake_retention="1000", reclaim_lag="50", premake="3", enabled="off", maintenance_target_mb="64")
    assert tables.get(connection, EVENTS) == changed
    assert policy.show(changed) == {
        "lag": "100",
        "lake_retention": "1000",
        "reclaim_lag": "50",
        "heap_retention": None,
        "premake": 3,
        "enabled": False,
        "keep_heap": False,
        "hybrid": False,
        "wal_limit": None,
        "maintenance.target_mb": "64",
    }
    assert value(connection, "select enabled from modak.status") is False


def test_an_empty_value_resets_every_key(change: Change) -> None:
    before = change()
    change(lag="100", lake_retention="1000", reclaim_lag="5", premake="3", enabled="no", maintenance_manifests="5")
    assert change(lag="", lake_retention="", reclaim_lag="", premake="", enabled="", maintenance_manifests="") == before


WRONG: list[tuple[dict[str, str], list[str]]] = [
    ({"lagg": "1"}, ["unknown policy key 'lagg'", "known: lag,"]),
    ({"lag": "30 days"}, ["lag: "]),
    ({"premake": "1001"}, ["0 to 1000"]),
    ({"premake": "-1"}, ["0 to 1000"]),
    ({"premake": "²"}, ["0 to 1000"]),
    ({"enabled": "perhaps"}, ["neither true nor false"]),
    ({"keep_heap": "true"}, ["decided at registration"]),
    ({"heap_retention": "5"}, ["for mirrored tables"]),
    ({"hybrid": "true"}, ["for mirrored tables"]),
    ({"lag": "100", "lake_retention": "100"}, ["must exceed the hot period"]),
    ({"lake_retention": "0"}, ["must exceed the hot period"]),
    ({"lagg": "1", "premake": "x", "heap_retention": "5"}, ["unknown", "premake", "mirrored"]),
    ({"maintenance.": "1"}, ["unknown policy key"]),
    ({"maintenance.target": "1"}, ["unknown maintenance key 'target'"]),
    ({"maintenance.target_mb": "much"}, ["whole number from 1 to 2048"]),
]


@pytest.mark.parametrize(("wanted", "words"), WRONG)
def test_wrong_pairs_are_all_named_and_none_is_applied(
    connection: Connection, change: Change, wanted: dict[str, str], words: list[str]
) -> None:
    before = tables.get(connection, EVENTS)
    with pytest.raises(Refused) as refused:
        policy.change(connection, before, {"reclaim_lag": "7", **wanted})
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert tables.get(connection, EVENTS) == before


def test_retention_is_measured_against_what_stands(change: Change) -> None:
    change(lag="100", lake_retention="200")
    with pytest.raises(Refused, match="must exceed"):
        change(lag="200")
    change(lag="199")


def test_retention_needs_a_layout_and_no_kept_heap(connection: Connection, lake: IcebergLake) -> None:
    plain = register_events(connection, lake)
    with pytest.raises(Refused, match="needs a partitioned lake table"):
        policy.change(connection, plain, {"lake_retention": "1000"})
    connection.execute("create table public.kept (id bigint, event_time bigint) partition by range (event_time)")
    kept = register_table(connection, lake, Name("public", "kept"), options(keep_heap=True, width="5"))
    with pytest.raises(Refused) as refused:
        policy.change(connection, kept, {"lake_retention": "1000", "reclaim_lag": "5"})
    assert len(refused.value.problems) == 2


def test_a_second_register_updates_in_place(connection: Connection, lake: IcebergLake) -> None:
    table = register_events(connection, lake, width="10", lag="50")
    before = value(connection, "select table_id from modak.tables")
    changed = policy.apply_options(connection, table, options(lag="70", premake=2, width="010"), primary_key=("id",))
    assert (changed.tier_lag, changed.premake) == ("70", 2)
    assert rows(connection, "select table_id, tier_lag, premake from modak.tables") == [(before, "70", 2)]
    assert policy.apply_options(connection, changed, options(), primary_key=()) == changed


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"tier_key": "id"}, "--tier-key"),
        ({"primary_key": ("id", "event_time")}, "--primary-key"),
        ({"mode": "mirrored"}, "--mode"),
        ({"surface": "heap"}, "--surface"),
        ({"keep_heap": True}, "--keep-heap"),
        ({"check_cold_keys": True}, "--check-cold-keys"),
        ({"text_columns": ("val",)}, "--as-text"),
        ({"lake_table": "public.other"}, "--lake-table"),
        ({"width": "20"}, "--width"),
        ({"width": "day"}, "--width"),
        ({"profile": "elsewhere"}, "--profile"),
    ],
)
def test_a_second_register_of_another_shape_is_refused(connection: Connection, lake: IcebergLake, given: dict[str, Any], flag: str) -> None:
    table = register_events(connection, lake, width="10")
    wanted = options(**{"lag": "70", **given})
    with pytest.raises(Refused, match=flag) as refused:
        policy.apply_options(connection, table, wanted, primary_key=wanted.primary_key)
    assert len(refused.value.problems) == 1
    assert tables.get(connection, EVENTS) == table


def test_export_and_import_carry_every_setting(
    connection: Connection, app: App, lake: IcebergLake, new_database: Callable[..., str], template: str, tmp_path: Path
) -> None:
    names = [EVENTS, Name("public", "2024 Sales")]
    build = """
        create table public."2024 Sales" ("K" timestamptz, id uuid, note text, primary key (id, "K")) partition by range ("K");
        create table public.plain (id bigint, event_time bigint) partition by range (event_time);
    """
    create_events(connection)
    connection.execute(build)
    register_table(connection, lake, EVENTS, options(width="10", lag="5", lake_retention="50", reclaim_lag="7", premake=2))
    odd = options("K", (), surface="heap", keep_heap=True, check_cold_keys=True, width="month", lag="1 year 2 mons", text_columns=("note",))
    register_table(connection, lake, names[1], odd)
    register_table(connection, lake, Name("public", "plain"), options())
    policy.change(connection, tables.get(connection, EVENTS), {"enabled": "no", "maintenance.target_mb": "5"})
    exported = json.dumps(transfer.export(connection))

    other_dsn = new_database(template)
    with connect(other_dsn, autocommit=True) as other:
        create_events(other)
        other.execute(build)
        from dataclasses import replace

        other_app = App(replace(app.settings, dsn=other_dsn, data=tmp_path / "other"))
        lake_of = lambda profile: other_app.lake(profile)  # noqa: E731
        entries = transfer.read(exported)
        assert [transfer.load(other, lake_of, entry, SILENT) for entry in entries] == ["registered"] * 3
        assert json.dumps(transfer.export(other)) == exported
        assert [transfer.load(other, lake_of, entry, SILENT) for entry in entries] == ["policy set"] * 3
        assert json.dumps(transfer.export(other)) == exported


NO_EXPORTS = ["", "[]", "{}", "null", '{"modak_export": 2, "tables": []}', '{"modak_export": 1, "tables": 5}']


@pytest.mark.parametrize("text", [*NO_EXPORTS, '{"modak_export": 1, "tables": [{"table": "a.b"}]}'])
def test_a_file_that_is_no_export_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        transfer.read(text)


def test_import_into_a_missing_profile_names_it(connection: Connection, app: App, lake: IcebergLake) -> None:
    create_events(connection)
    profiles.save(connection, Profile("far", warehouse=str(app.settings.data / "far")))
    table = register_table(connection, app.lake(profiles.get(connection, "far")), EVENTS, options())
    entry = transfer.export(connection)["tables"][0] | {"profile": "nowhere", "table": "public.other"}
    with pytest.raises(Exception, match="no storage profile nowhere") as refused:
        transfer.load(connection, lambda profile: default_lake(app, connection), entry, SILENT)
    assert "far" in str(refused.value.hint)  # type: ignore[attr-defined]
    assert tables.listing(connection) == [table]
