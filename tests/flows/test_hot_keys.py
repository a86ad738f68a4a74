"""A key that a hot row has: who writes a cold row may not take it, and tiering drops neither of two rows that share one."""

from __future__ import annotations

import psycopg
import pytest
from tests import events
from tests.gateways import RunningGateway
from tests.support import at_failpoint, rows, value

from modak.app import App
from modak.connection import Connection
from modak.errors import Refused
from modak.jobs import tier as tiering
from modak.jobs.publishing import tier as publishing

pytestmark = [pytest.mark.spark, pytest.mark.inline]

ALL = "select id, event_time from public.events order by id, event_time"


def cold(app: App, connection: Connection, *, key: str = "primary key (id, event_time)", **options: object) -> None:
    """T = 200; 4 and 5 are hot."""
    events.create(connection, key=key)
    events.put_under_modak(app, connection, **options)
    events.tier(app)


TAKEN = (
    "insert into public.events values (4, 30, 'late')",
    "insert into public.events values (4, -30, 'spilled')",
    "insert into public.events_hot values (4, 130, 'late')",
    "insert into public.events_hot values (4, 130, 'late') on conflict do nothing",
    "insert into public.p1 values (4, 130, 'late')",
    "update public.events set id = 5 where id = 2",
    "update public.events set id = 4 where id = 5",
    "update public.events set id = 4, event_time = 40 where id = 5",
    "update public.events set id = 5, event_time = 230 where id = 3",
    "update public.events_hot set id = 4 where id = 2",
    "copy public.events from stdin",
)


def write(connection: Connection, statement: str) -> None:
    with connection.cursor() as cursor:
        if not statement.startswith("copy"):
            cursor.execute(statement.encode())
            return
        with cursor.copy(statement.encode()) as copy:
            copy.write("4\t30\tlate\n")


@pytest.mark.parametrize("checks", [False, True])
def test_the_key_of_a_hot_row_is_refused(app: App, connection: Connection, gateway: RunningGateway, checks: bool) -> None:
    cold(app, connection, check_cold_keys=checks)
    for standing in (True, False):
        before = rows(connection, ALL)
        for statement in TAKEN if standing else [one for one in TAKEN if ".p1" not in one and "_hot set" not in one]:
            with pytest.raises(psycopg.errors.UniqueViolation) as refused:
                write(connection, statement)
            assert refused.value.diag.message_detail in ("Key (id)=(4) already exists.", "Key (id)=(5) already exists.")
            assert "The row is hot" in (refused.value.diag.message_hint or ""), statement
        assert rows(connection, ALL) == before
        if standing:
            events.drop_tiered(app)
    events.tier(app, upto=300)
    assert rows(connection, ALL) == before


def test_a_row_may_move_and_a_freed_key_is_free(app: App, connection: Connection, gateway: RunningGateway) -> None:
    cold(app, connection, check_cold_keys=True)
    events.drop_tiered(app)
    connection.execute("update public.events set event_time = 30 where id = 4")
    connection.execute("update public.events_hot set event_time = 40 where id = 5")
    connection.execute("update public.events set event_time = 250 where id = 2")
    connection.execute("update public.events set event_time = 260 where id = 4")
    connection.execute("delete from public.events where id = 2")
    connection.execute("insert into public.events values (2, 50, 'free again')")
    connection.execute("update public.events set id = 6 where id = 4")
    connection.execute("insert into public.events values (4, 60, 'free as well')")
    expected = [(1, 10), (2, 50), (3, 110), (4, 60), (5, 40), (6, 260)]
    assert rows(connection, ALL) == expected
    events.tier(app, upto=300)
    assert rows(connection, ALL) == expected
    events.fold(app)
    assert rows(connection, ALL) == expected


def test_without_an_index_late_rows_are_not_looked_for_among_hot_ones(app: App, connection: Connection, gateway: RunningGateway) -> None:
    """That would read every hot row for each of them. What changes a key is looked up all the same."""
    cold(app, connection, key="")
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("update public.events set id = 4 where id = 5")
    connection.execute("insert into public.events values (4, 30, 'late')")
    with pytest.raises(Refused, match="share the key"):
        events.tier(app, upto=300)
    assert value(connection, "select count(*) from public.events where id = 4") == 2
    # An index that begins with something else does not help, one of the key does.
    connection.execute("create index on public.events_hot (event_time, id)")
    connection.execute("insert into public.events values (5, 30, 'late')")
    connection.execute("create index on public.events_hot (id)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("insert into public.events values (5, 31, 'late')")


@pytest.mark.parametrize(
    ("remedy", "left"),
    [
        ("delete from public.events where id = 7 and event_time = 210", [(7, 30)]),
        ("delete from public.events where id = 7 and event_time = 30", [(7, 210)]),
        ("update public.events set id = 8 where id = 7 and event_time = 210", [(7, 30), (8, 210)]),
    ],
)
def test_tiering_refuses_rows_that_share_a_key(
    app: App, connection: Connection, gateway: RunningGateway, remedy: str, left: list[tuple[int, int]]
) -> None:
    """A hot row that is inserted is not looked up; both stay until somebody says which one it is."""
    cold(app, connection)
    events.drop_tiered(app)
    connection.execute("insert into public.events values (7, 30, 'late')")
    connection.execute("insert into public.events values (7, 210, 'hot')")
    before = rows(connection, ALL)
    with pytest.raises(Refused, match="share the key") as refused:
        events.tier(app, upto=300)
    assert refused.value.facts["key"] == "7"
    assert (refused.value.facts["cold"], refused.value.facts["hot"]) == ("30", "210")
    assert rows(connection, ALL) == before
    assert "share the key" in value(connection, "select message from modak.problems where job = 'tier'")
    assert value(connection, "select count(*) from modak.partitions where state in ('sealing', 'tiering')") == 0
    connection.execute(remedy.encode())
    after = rows(connection, ALL)
    events.tier(app, upto=300)
    assert rows(connection, ALL) == after
    assert [row for row in after if row[0] in (7, 8)] == left
    events.fold(app)
    assert rows(connection, ALL) == after
    assert rows(connection, "select from modak.problems") == []


DURING = {
    "a late row comes": ("insert into public.events values (7, 210, 'hot')", "insert into public.p0 values (7, 30, 'late')"),
    "a hot row comes": ("insert into public.events values (7, 30, 'late')", "insert into public.events values (7, 210, 'hot')"),
    "both come": ("", "insert into public.events values (7, 30, 'late'); insert into public.events values (7, 210, 'hot')"),
}


@pytest.mark.parametrize("key", ["", "primary key (id, event_time)"])
@pytest.mark.parametrize("case", DURING)
def test_rows_that_come_to_share_a_key_during_the_copy(
    app: App, connection: Connection, dsn: str, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, case: str, key: str
) -> None:
    cold(app, connection, key=key)
    before, meanwhile = DURING[case]
    if before:
        connection.execute(before.encode())

    # As a writer does it who looked before the other row was there, and commits now.
    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as writer:
            if key and case == "a late row comes":
                table = value(connection, "select table_id from modak.tables")
                writer.execute(f"create or replace function modak.older_{table}(made public.events_hot, own_place oid, own_version tid) "
                               "returns table (place oid, version tid) language sql as 'select 0::oid, null::tid where false'")  # fmt: skip
            writer.execute(meanwhile.encode())

    at_failpoint(monkeypatch, tiering, "tier.after_files", write)
    with pytest.raises(Refused, match="share the key"):
        events.tier(app, upto=300)
    monkeypatch.undo()
    both = [(7, 30), (7, 210)]
    assert [row for row in rows(connection, ALL) if row[0] == 7] == both
    connection.execute("update public.events set id = 8 where id = 7 and event_time = 210")
    # The first pass takes back what the one that was given up had committed.
    events.tier(app, upto=300)
    assert [row for row in rows(connection, ALL) if row[0] > 5] == [(7, 30), (8, 210)]
    events.fold(app)
    assert [row for row in rows(connection, ALL) if row[0] > 5] == [(7, 30), (8, 210)]


@pytest.mark.parametrize("gone", [30, 210])
def test_one_of_two_that_goes_during_the_copy_takes_not_the_other(
    app: App, connection: Connection, dsn: str, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    cold(app, connection)
    events.drop_tiered(app)

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as writer:
            writer.execute("insert into public.events values (7, 30, 'late')")
            writer.execute("insert into public.events values (7, 210, 'hot')")
            writer.execute("delete from public.events where id = 7 and event_time = %s", [gone])

    at_failpoint(monkeypatch, tiering, "tier.after_files", write)
    events.tier(app, upto=300)
    left = [(7, 240 - gone)]
    assert [row for row in rows(connection, ALL) if row[0] == 7] == left
    events.fold(app)
    assert [row for row in rows(connection, ALL) if row[0] == 7] == left


def test_a_publication_that_finds_them_is_given_up(
    app: App, connection: Connection, dsn: str, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the lock somebody may commit."""
    cold(app, connection)
    real = publishing.lock_seam

    def late(*arguments: object) -> None:
        with psycopg.connect(dsn, autocommit=True) as writer:
            writer.execute("insert into public.events values (7, 30, 'late'); insert into public.events values (7, 210, 'hot')")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(publishing, "lock_seam", late)
    with pytest.raises(Refused, match="share the key"):
        events.tier(app, upto=300, lock_attempts=1)
    monkeypatch.undo()
    assert value(connection, "select phase from modak.op_log order by started_at desc limit 1") == "abandoned"
    assert [row for row in rows(connection, ALL) if row[0] == 7] == [(7, 30), (7, 210)]
