"""WAL that mirrored tables keep is bounded (SCENARIOS 75): a warning first, then the table is parked, and nobody else is."""

from __future__ import annotations

from typing import Any

import pytest
from tests.mirroring import copy, lake_rows, problem, pump, same, start, state

from modak.app import App
from modak.catalog import mirrors, overview, profiles, tables
from modak.connection import Connection
from modak.core.registration import Options
from modak.core.table import Name
from modak.errors import LakeError, Refused
from modak.jobs.context import JobContext
from modak.jobs.mirroring.files import make
from modak.registration.policy import change, show
from modak.registration.register import register
from modak.source import replication

pytestmark = pytest.mark.inline
T, OTHER = Name("public", "items"), Name("public", "more")
World = tuple[App, Connection]
AT_ONCE = {"wal_bytes_max": 1, "wal_warned_seconds": 0}


@pytest.fixture
def followed(mirrored: World) -> World:
    app, connection = mirrored
    for name in (T, OTHER):
        connection.execute(f"create table {name} (id bigint primary key)")
        start(app, connection, name)
    return mirrored


def warning(connection: Connection, name: Name) -> str:
    row = connection.execute(
        "select message from modak.problems where table_id = %s and job = 'wal'", [tables.get(connection, name).table_id]
    ).fetchone()
    return str(row["message"]) if row else ""


def slot(connection: Connection) -> replication.Slot:
    found = replication.find_slot(connection, str(tables.get(connection, T).slot_name))
    assert found is not None
    return found


def test_a_table_that_fails_is_warned_about_and_then_parked(followed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = followed

    def fails(context: JobContext, *rest: Any) -> Any:
        if context.table.name == T:
            raise LakeError("the warehouse is away")
        return make(context, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("modak.jobs.mirroring.apply.make", fails)
        connection.execute("insert into items select generate_series(1, 1000)")
        connection.execute("insert into more values (1)")
        done = pump(app, connection, wal_bytes_max=1)
        assert (list(done.failed), done.parked) == (["public.items"], {})
        assert "it is parked" in (done.warning or "")
        assert "the warehouse is away" in warning(connection, T)
        assert warning(connection, OTHER) == ""
        assert not pump(app, connection, wal_bytes_max=1).parked, "the warning is too young"
        done = pump(app, connection, **AT_ONCE)
        assert (list(done.parked), done.failed, done.warning) == (["public.items"], {}, None)
        assert "bytes of WAL" in problem(connection, T)
        assert warning(connection, T) == ""
        assert "resync" in next(one["hint"] for one in overview.problems(connection) if one["job"] == "mirror")
        same(app, connection, OTHER)
    copy(app, T, again=True)
    pump(app, connection)
    same(app, connection, T)


def test_a_disabled_table_keeps_no_more_than_others(followed: World) -> None:
    """Nobody follows it, nor anybody else: the slot is let go all the same."""
    app, connection = followed
    for name in (T, OTHER):
        change(connection, tables.get(connection, name), {"enabled": "false"})
    connection.execute("insert into items select generate_series(1, 1000)")
    before = slot(connection).confirmed
    assert "enabled=false" in (pump(app, connection, wal_bytes_max=1).warning or "")
    assert list(pump(app, connection, **AT_ONCE).parked) == ["public.items", "public.more"]
    assert slot(connection).confirmed > before
    for name in (T, OTHER):
        change(connection, tables.get(connection, name), {"enabled": "true"})
    copy(app, T, again=True)
    assert list(pump(app, connection).parked) == ["public.more"]
    same(app, connection, T)


def test_a_copy_that_nobody_finishes_is_parked_and_starts_over(followed: World) -> None:
    app, connection = followed
    connection.execute("create table late (id bigint primary key)")
    connection.execute("insert into late values (1)")
    late, profile = Name("public", "late"), profiles.get(connection, None)
    options = Options(tier_key="id", mode="mirrored", surface="heap")
    register(connection, app.lake(profile), late, options, profile=profile.name)
    with app.job(late):  # somebody copies it
        for _ in range(2):
            assert not pump(app, connection, **AT_ONCE).parked
        assert "not finished" in warning(connection, late)
    assert list(pump(app, connection, **AT_ONCE).parked) == ["public.late"]
    assert state(connection, late).is_parked
    copy(app, late, again=True)
    assert not pump(app, connection, **AT_ONCE).parked
    assert len(lake_rows(app, connection, late)) == 1


def test_a_table_that_lost_only_a_lock_is_not_parked(followed: World) -> None:
    app, connection = followed
    connection.execute("insert into items values (1)")
    with app.job(T):
        for _ in range(2):
            assert list(pump(app, connection, **AT_ONCE).failed) == ["public.items"]
    assert "another job" in warning(connection, T)
    assert not pump(app, connection).failed
    assert warning(connection, T) == ""


def test_a_pass_that_fails_as_a_whole_is_looked_at_too(followed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = followed

    def fails(*_: Any) -> None:
        raise replication.SlotFailed("the stream says nothing")

    monkeypatch.setattr("modak.jobs.mirror._Pump._follow", fails)
    for _ in range(2):
        with pytest.raises(replication.SlotFailed):
            pump(app, connection, wal_bytes_max=1)
    assert "says nothing" in warning(connection, T)
    assert not state(connection, T).is_parked
    with pytest.raises(replication.SlotFailed):
        pump(app, connection, **AT_ONCE)
    assert state(connection, T).is_parked


def test_the_limit_is_the_tables_policy(followed: World) -> None:
    app, connection = followed
    for text, size in (("16 GB", 16 * 1024**3), ("1000", 1000), ("0", 0)):
        assert show(change(connection, tables.get(connection, T), {"wal_limit": text}))["wal_limit"] == size
    assert {row["table_name"]: row["limit_bytes"] for row in mirrors.lags(connection)} == {"items": 0, "more": mirrors.WAL_BYTES_MAX}
    with pytest.raises(Refused, match="was not changed"):
        change(connection, tables.get(connection, T), {"wal_limit": "much"})
    for name in (T, OTHER):
        change(connection, tables.get(connection, name), {"enabled": "false"})
    connection.execute("insert into more values (1)")
    for _ in range(2):
        done = pump(app, connection, **AT_ONCE)
    assert list(done.parked) == ["public.more"]
    assert "never parks it" in (done.warning or "")
    assert show(change(connection, tables.get(connection, T), {"wal_limit": ""}))["wal_limit"] is None
