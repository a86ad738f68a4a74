"""Two writers of several rows at once: the second learns of each what became of it, also of those it never got to wait for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.flows.test_write_races import KEYS, SECONDS_MAX, Statements, cold, connect, key, statements, values  # noqa: F401
from tests.writing import Session

from modak.app import App
from modak.connection import Connection

pytestmark = [pytest.mark.spark, pytest.mark.inline]

DELETE = "delete from public.events where id = any('{}')"
UPDATE = "update public.events set val = val || '+second' where id = any('{}')"
# Rows of a case: hot in two partitions, late, in the lake alone and corrected there, all of them.
KINDS = ("hot", "late", "cold", "all")


def _fresh(connection: Connection, kind: str, number: int) -> list[int]:
    first = 1000 + 10 * number
    hot, late = (list(range(first + at, first + at + 3)) for at in (0, 3))
    lake = [21 + 2 * number, 22 + 2 * number]
    if kind in ("hot", "all"):
        connection.execute(f"insert into public.events select n, 210 + (n % 2) * 100, 'x' from unnest(array{hot}::bigint[]) n")
    if kind in ("late", "all"):
        connection.execute(f"insert into public.events select n, 30, 'x' from unnest(array{late}::bigint[]) n")
    if kind in ("cold", "all"):
        connection.execute(f"update public.events set val = 'x' where id = {lake[1]}")
    return {"hot": hot, "late": late, "cold": lake, "all": lake + late + hot}[kind]


def _ids(ids: list[int]) -> str:
    return "{" + ",".join(map(str, ids)) + "}"


@pytest.mark.parametrize("key", KEYS)
def test_rows_that_the_first_deleted_are_gone_for_the_second(
    cold: App,  # noqa: F811
    connection: Connection,
    connect: Callable[[], Session],  # noqa: F811
    statements: Statements,  # noqa: F811
    key: tuple[str, ...],  # noqa: F811
) -> None:
    cases = [(kind, second, commits) for kind in KINDS for second in (DELETE, UPDATE) for commits in (True, False)]
    for number, (kind, second, commits) in enumerate(cases):
        ids = _fresh(connection, kind, number)
        first = connect()
        assert first.execute(DELETE.replace("{}", _ids(ids)).encode()).rowcount == len(ids)
        waiting = statements.start(second.replace("{}", _ids(ids)))
        assert not waiting.done(), (kind, second)
        first.commit() if commits else first.rollback()
        assert waiting.result(SECONDS_MAX) == (0 if commits else len(ids)), (kind, second, commits)
        left = {row: val for row, (_, val) in values(connection).items() if row in ids}
        assert left == ({} if commits or second == DELETE else dict.fromkeys(ids, "x+second")), (kind, second, commits)


def test_rows_that_went_another_way_meanwhile_are_not_waited_for_in_vain(
    cold: App,  # noqa: F811
    connection: Connection,
    connect: Callable[[], Session],  # noqa: F811
    statements: Statements,  # noqa: F811
) -> None:
    """Rows that stay and rows that were deleted in one statement: what the first did not touch is changed, the rest is gone."""
    ids = _fresh(connection, "all", 0)
    session, first = connect(), connect()
    first.execute(DELETE.replace("{}", _ids(ids[::2])).encode())
    waiting = statements.start(UPDATE.replace("{}", _ids(ids)), session, commit=False)
    first.commit()
    assert waiting.result(SECONDS_MAX) == len(ids) - len(ids[::2])
    # The next statement of the transaction has nothing to do with it, and nothing stays open.
    assert session.execute(DELETE.replace("{}", _ids(ids)).encode()).rowcount == len(ids) - len(ids[::2])
    assert session.execute("select count(*) from pg_cursors").fetchone() == (0,)
    session.commit()
    assert not set(ids) & values(connection).keys()


ELSEWHERE = [
    "update public.{t} set id = id + 5000, event_time = 520 - event_time where id = {last}",
    "update public.{t} set id = id + 5000 where id = {last}",
    "update public.{t} set event_time = 520 - event_time where id = {last}",
    "update public.{t} set val = 'theirs' where id = {last}",
    # In its partition first, and then away from it.
    "update public.{t} set val = 'theirs' where id = {last}; "
    "update public.{t} set id = id + 5000, event_time = 520 - event_time where id = {last}",
    "update public.{t} set id = id + 5000, event_time = 30 where id = {last}",
]


@pytest.mark.parametrize("key", KEYS)
def test_one_that_lives_on_elsewhere_is_no_deleted_one(
    cold: App,  # noqa: F811
    connection: Connection,
    connect: Callable[[], Session],  # noqa: F811
    statements: Statements,  # noqa: F811
    key: tuple[str, ...],  # noqa: F811
) -> None:
    """The first deletes some, and one goes to another key, another partition, or both: by the name, and by the heap's own."""
    cases = [(change, table, kind) for change in ELSEWHERE for table in ("events", "events_hot") for kind in ("hot", "late")]
    for number, (change, table, kind) in enumerate(cases):
        ids = _fresh(connection, kind, number)
        first = connect()
        first.execute(DELETE.replace("{}", _ids(ids[:-1])).encode())
        moved = change.replace("{t}", table).replace("{last}", str(ids[-1]))
        if kind == "late":
            moved = moved.replace("520 -", "250 -")
        first.execute(moved.encode())
        waiting = statements.start(DELETE.replace("{}", _ids(ids)))
        assert not waiting.done(), (change, table, kind)
        first.commit()
        assert waiting.result(SECONDS_MAX) == "40001", (change, table, kind)
        assert {ids[-1], ids[-1] + 5000} & values(connection).keys(), (change, table, kind)


def test_one_that_was_moved_and_then_changed_by_a_third_is_no_deleted_one(
    cold: App,  # noqa: F811
    connection: Connection,
    connect: Callable[[], Session],  # noqa: F811
    statements: Statements,  # noqa: F811
) -> None:
    ids = _fresh(connection, "hot", 0)
    first, other = connect(), connect()
    first.execute(f"delete from public.events where id = {ids[0]}")
    waiting = statements.start(DELETE.replace("{}", _ids(ids)))
    assert not waiting.done()
    other.execute(f"update public.events_hot set id = id + 5000, event_time = 520 - event_time where id = {ids[2]}")
    other.commit()
    other.execute(f"update public.events_hot set val = 'third' where id = {ids[2] + 5000}")
    other.commit()
    first.commit()
    assert waiting.result(SECONDS_MAX) == "40001"
    assert values(connection)[ids[2] + 5000][1] == "third"
