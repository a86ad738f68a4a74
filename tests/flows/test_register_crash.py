"""Registration and unregistration interrupted between any two steps: everything or nothing, and the next attempt succeeds."""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from tests.support import (
    EVENTS,
    at_failpoint,
    create_events,
    default_lake,
    files,
    photograph,
    register_events,
    register_table,
    run_cli,
    unregister_table,
    value,
)

from modak.app import App
from modak.catalog import tables
from modak.connection import Connection, connect
from modak.errors import LakeError
from modak.failpoints import FailpointError, armed
from modak.lake.iceberg import IcebergLake
from modak.registration import register as flow

REGISTER = ["register.after_lake", "register.after_lock", "register.after_ddl", "register.before_commit"]
UNREGISTER = ["unregister.before_commit", "unregister.after_commit"]
SIGKILL = -9


@pytest.mark.parametrize("point", REGISTER)
def test_an_error_in_registration_leaves_nothing(connection: Connection, app: App, lake: IcebergLake, point: str) -> None:
    create_events(connection)
    before = photograph(connection, app.settings.data)
    with armed(point), pytest.raises(FailpointError):
        register_table(connection, lake)
    assert photograph(connection, app.settings.data) == before
    register_table(connection, lake)


@pytest.mark.parametrize("point", REGISTER)
def test_a_killed_registration_leaves_nothing_that_the_next_one_minds(
    connection: Connection, app: App, dsn: str, lake: IcebergLake, point: str
) -> None:
    create_events(connection)
    before = photograph(connection)
    command = ("register", "public.events", "--tier-key", "event_time", "--primary-key", "id")
    killed = run_cli(dsn, *command, data=app.settings.data, env={"MODAK_FAILPOINTS": f"{point}=kill"})
    assert killed.returncode == SIGKILL
    _wait_for_backends(connection)
    left = photograph(connection)
    assert left.pop(("lake table", "public.events")), "the empty lake table is all that a crash may leave"
    assert left == before
    again = run_cli(dsn, *command, data=app.settings.data)
    assert again.returncode == 0, again.stderr
    assert len(tables.listing(connection)) == 1
    assert len(files(app.settings.data / "warehouse")) == 1


def _wait_for_backends(connection: Connection) -> None:
    """The server notices a dead client only when it next reads from it."""
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    connection.execute(f"select pg_terminate_backend(pid) {others}")
    for _ in range(200):
        if value(connection, f"select count(*) {others}") == 0:
            return
        connection.execute("select pg_sleep(0.02)")
    raise AssertionError("a killed client's backend stays")


@pytest.mark.parametrize("drop_lake", [False, True])
@pytest.mark.parametrize("point", UNREGISTER)
def test_an_error_in_unregistration_is_all_or_nothing(
    connection: Connection, app: App, lake: IcebergLake, point: str, drop_lake: bool
) -> None:
    create_events(connection)
    plain = photograph(connection)
    register_table(connection, lake)
    registered = photograph(connection, app.settings.data)
    with armed(point), pytest.raises(FailpointError):
        unregister_table(connection, lake, drop_lake=drop_lake)
    if point == "unregister.before_commit":
        assert photograph(connection, app.settings.data) == registered
        unregister_table(connection, lake, drop_lake=drop_lake)
    after = photograph(connection)
    after.pop(("lake table", "public.events"), None)
    assert after == plain
    register_table(connection, lake)


@pytest.mark.parametrize("point", UNREGISTER)
def test_a_killed_unregistration_can_be_run_again(connection: Connection, app: App, dsn: str, lake: IcebergLake, point: str) -> None:
    create_events(connection)
    plain = photograph(connection, app.settings.data / "warehouse")
    register_table(connection, lake)
    command = ("unregister", "public.events", "--drop-lake")
    killed = run_cli(dsn, *command, data=app.settings.data, env={"MODAK_FAILPOINTS": f"{point}=kill"})
    assert killed.returncode == SIGKILL
    _wait_for_backends(connection)
    again = run_cli(dsn, *command, data=app.settings.data)
    assert again.returncode == 0, again.stderr
    assert photograph(connection, app.settings.data / "warehouse") == plain


def test_a_connection_lost_before_the_commit_leaves_only_the_empty_lake_table(
    connection: Connection, app: App, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_events(connection)
    before = photograph(connection)
    with contextlib.suppress(psycopg.OperationalError), connect(dsn, autocommit=True) as own:
        pid = value(own, "select pg_backend_pid()")
        kill = "select pg_terminate_backend(%s, 5000)"
        at_failpoint(monkeypatch, flow, "register.before_commit", lambda: connection.execute(kill, [pid]))
        with pytest.raises(psycopg.OperationalError):
            register_table(own, default_lake(app, own))
    left = photograph(connection)
    assert left.pop(("lake table", "public.events"))
    assert left == before
    monkeypatch.undo()
    register_table(connection, default_lake(app, connection))


def test_a_connection_lost_at_the_commit_never_costs_a_registered_table_its_lake(
    connection: Connection, app: App, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit went through and only its answer was lost: the table is registered, so the lake table must stay."""
    create_events(connection)
    original = flow._change_postgres

    def lose_the_answer(own: Connection, *arguments: object) -> None:
        original(own, *arguments)  # type: ignore[arg-type]
        own.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(flow, "_change_postgres", lose_the_answer)
    with connect(dsn, autocommit=True) as own, pytest.raises(psycopg.OperationalError):
        register_table(own, default_lake(app, own))
    table = tables.get(connection, EVENTS)
    assert default_lake(app, connection).find(table.lake_table_ref) is not None


def test_an_interrupt_right_after_the_commit_never_costs_a_registered_table_its_lake(
    connection: Connection, lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_events(connection)
    original = flow._change_postgres

    def interrupt(*arguments: object) -> None:
        original(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(flow, "_change_postgres", interrupt)
    with pytest.raises(KeyboardInterrupt):
        register_table(connection, lake)
    assert lake.find(tables.get(connection, EVENTS).lake_table_ref) is not None


def test_a_lake_that_fails_while_cleaning_up_does_not_hide_the_first_error(
    connection: Connection, lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_events(connection)

    def fail(*_arguments: object, **_given: object) -> None:
        raise LakeError("the storage is gone")

    monkeypatch.setattr(lake, "drop", fail)
    with armed("register.after_ddl"), pytest.raises(FailpointError):
        register_table(connection, lake)
    monkeypatch.undo()
    register_table(connection, lake)


def test_a_lake_that_cannot_create_leaves_no_trace(connection: Connection, app: App, lake: IcebergLake) -> None:
    create_events(connection)
    warehouse = app.settings.data / "warehouse"
    warehouse.parent.mkdir(parents=True, exist_ok=True)
    warehouse.write_text("a file where the folder should be")
    before = photograph(connection, app.settings.data)
    with pytest.raises(LakeError) as refused:
        register_table(connection, lake)
    assert refused.value.hint
    assert photograph(connection, app.settings.data) == before


def test_storage_that_is_gone_stops_unregister_before_it_changes_anything(
    connection: Connection, lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_events(connection, lake)

    def fail(_ref: str) -> None:
        raise LakeError("the storage is gone")

    before = photograph(connection)
    monkeypatch.setattr(lake, "find", fail)
    with pytest.raises(LakeError):
        unregister_table(connection, lake)
    assert photograph(connection) == before
