"""Somebody dropped the two-tier view: it is named with the remedy, and `modak register` makes it anew, with all that stands behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import events, seam
from tests.commands import Modak
from tests.events import EVENTS, drop_tiered, put_under_modak, tier
from tests.gateways import RunningGateway
from tests.support import rows, value

from modak.app import App
from modak.catalog import overview, tables
from modak.connection import Connection
from modak.errors import Refused, ViewMissing
from modak.failpoints import FailpointError, armed
from modak.registration import missing_view

pytestmark = pytest.mark.inline

AGAIN = ("register", "public.events", "--tier-key", "event_time")
ALL = {str(row[0]): row for row in events.ROWS}


@pytest.fixture
def dropped(app: App, connection: Connection, gateway: RunningGateway) -> Iterator[App]:
    """E with T = 200 and a correction; then its view is gone."""
    events.create(connection)
    connection.execute("create role missing_view_reader; grant select on public.events to missing_view_reader")
    connection.execute("comment on table public.events is 'what happened'")
    put_under_modak(app, connection)
    tier(app)
    drop_tiered(app)
    connection.execute("update public.events set val = 'corrected' where id = 2")
    drop_view(connection)
    yield app
    connection.execute("drop owned by missing_view_reader; drop role missing_view_reader")


def drop_view(connection: Connection, name: str = "public.events") -> None:
    """Past whatever may protect it."""
    connection.execute("set session_replication_role = replica")
    connection.execute(f"drop view {name} cascade")  # type: ignore[arg-type]
    connection.execute("reset session_replication_role")


def read(connection: Connection) -> dict[str, tuple[object, ...]]:
    return {str(row[0]): row for row in rows(connection, "select id, event_time, val from public.events")}


def test_it_is_made_anew(dropped: App, connection: Connection, modak: Modak) -> None:
    grants = "select relacl::text, pg_get_userbyid(relowner), obj_description(oid) from pg_class where oid = %s::regclass"
    expected = rows(connection, grants, "public.events_hot")
    told = modak(*AGAIN)
    assert "public.events was registered already; settings are in place, and so is the view public.events, which was gone" in told.out
    assert read(connection) == ALL | {"2": (2, 20, "corrected")}
    assert rows(connection, grants, "public.events") == expected
    assert value(connection, "select has_table_privilege('missing_view_reader', 'public.events', 'select')")
    assert tables.get(connection, EVENTS).tier_lag == "0"
    connection.execute("insert into public.events values (6, 30, 'late'), (7, 250, 'new')")
    connection.execute("update public.events set val = 'hot, too' where id = 4")
    connection.execute("delete from public.events where id = 1")
    now = {
        str(row[0]): row
        for row in [(2, 20, "corrected"), (3, 110, "c"), (4, 210, "hot, too"), (5, 220, "hot"), (6, 30, "late"), (7, 250, "new")]
    }
    assert read(connection) == now
    events.fold(dropped)
    assert (read(connection), seam.read(dropped, EVENTS)) == (now, now)
    assert modak("status", "--json").json[0]["problems"] is None
    assert "which was gone" not in modak(*AGAIN).out


def test_status_and_every_pass_name_it(dropped: App, connection: Connection, modak: Modak) -> None:
    message = "the view public.events is gone: somebody dropped it"
    hint = "`modak register public.events --tier-key event_time` makes the view anew, with the owner and the grants of the heap"
    shown = modak("status", "public.events")
    assert f"! public.events view: {message}" in shown.err
    assert hint in shown.err
    [problem] = modak("status", "--json").json[0]["problems"]
    assert (problem["job"], problem["message"], problem["hint"]) == ("view", message, hint)
    assert [(one["job"], one["code"]) for one in overview.problems(connection)] == [("view", "view_missing")]
    for command in (("tier", "public.events"), ("fold", "public.events"), ("alter", "public.events", "add column n int")):
        failed = modak(*command, code=1)
        assert f"error: {message}" in failed.err
        assert f"hint: {hint}" in failed.err
    assert {one["job"] for one in overview.problems(connection, tables.get(connection, EVENTS).table_id)} == {"view", "tier", "fold"}
    modak(*AGAIN)
    modak("tier", "public.events")
    modak("fold", "public.events")
    assert overview.problems(connection) == []


def test_columns_that_came_meanwhile(dropped: App, connection: Connection, modak: Modak) -> None:
    connection.execute("alter table public.events_hot add column n int default 7")
    modak(*AGAIN)
    # The correction's row stands in the spill, and got the default there.
    assert rows(connection, "select id, n from public.events order by id") == [(1, None), (2, 7), (3, None), (4, 7), (5, 7)]


@pytest.mark.parametrize("change", ["rename column val to word", "drop column val"])
def test_columns_that_changed_or_went_meanwhile(dropped: App, connection: Connection, modak: Modak, change: str) -> None:
    connection.execute(f"alter table public.events_hot {change}")  # type: ignore[arg-type]
    failed = modak(*AGAIN, code=1)
    assert "the columns of the heap changed" in failed.err
    assert "the view was made for id, event_time, val; the heap has id, event_time" in failed.err
    assert value(connection, "select to_regclass('public.events') is null")


def test_a_name_that_somebody_took(dropped: App, connection: Connection, modak: Modak) -> None:
    connection.execute("create table public.events (id int)")
    failed = modak(*AGAIN, code=1)
    assert "public.events is not the view that Modak made" in failed.err
    assert "rename that relation or drop it; then `modak register" in failed.err
    connection.execute("drop table public.events")
    modak(*AGAIN)
    assert len(read(connection)) == 5


def test_killed_in_between_nothing_is_half_there(dropped: App, connection: Connection) -> None:
    table = tables.get(connection, EVENTS)
    with armed("restore_view.before_commit"), pytest.raises(FailpointError):
        missing_view.restore(connection, table)
    assert tables.get(connection, EVENTS) == table
    with pytest.raises(ViewMissing):
        missing_view.refuse(connection, table)
    missing_view.restore(connection, table)
    missing_view.refuse(connection, table)


def test_the_other_surface_and_other_ways_to_register(app: App, connection: Connection, modak: Modak) -> None:
    events.create(connection)
    put_under_modak(app, connection, surface="heap", keep_heap=True, check_cold_keys=True)
    drop_view(connection, "public.events_all")
    [problem] = modak("status", "--json").json[0]["problems"]
    command = "modak register public.events --tier-key event_time --keep-heap --check-cold-keys"
    assert f"`{command}`" in problem["hint"]
    modak(*command.split()[1:])
    assert value(connection, "select count(*) from public.events_all") == 5


def test_a_column_that_the_lake_cannot_take(dropped: App, connection: Connection) -> None:
    connection.execute("alter table public.events_hot add column w money")
    with pytest.raises(Refused, match="columns that the lake cannot take"):
        missing_view.restore(connection, tables.get(connection, EVENTS))


def test_it_can_be_unregistered_all_the_same(dropped: App, connection: Connection, modak: Modak) -> None:
    modak("unregister", "public.events", "--drop-lake")
    assert rows(connection, "select id from public.events order by id") == [(2,), (4,), (5,)]
