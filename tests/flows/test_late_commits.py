"""A commit that the lake carries out after its operation was given up: of a leader that was paused in the middle of it, or by a catalog
that was slower than our patience. It may come at any moment, also during the next pass, which has the same rows once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests import events, mirroring, seam
from tests.events import EVENTS
from tests.gateways import RunningGateway

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection
from modak.core.table import Name
from modak.errors import LakeError
from modak.jobs.foreign import ForeignSnapshot
from modak.lake import commits
from modak.lake.change import LakeMoved

pytestmark = [pytest.mark.spark, pytest.mark.inline]
ALL = {str(row[0]): row for row in events.ROWS}
AtPoint = Callable[[str, Callable[[], Any]], None]
ITEMS = Name("public", "items")


class Slow:
    """The first commit is not answered in time, and is carried out when ``arrive`` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._change = commits.change
        self._waiting: list[Callable[[], Any]] = []
        self._is_first = True
        monkeypatch.setattr(commits, "change", self.change)

    def change(self, table: Any, stamps: Any, **given: Any) -> Any:
        if not self._is_first:
            return self._change(table, stamps, **given)
        self._is_first = False
        self._waiting.append(lambda: self._change(table, stamps, **given))
        raise LakeError("the catalog does not answer")

    def arrive(self) -> None:
        self._waiting.pop()()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


@pytest.fixture
def table(app: App, connection: Connection, gateway: RunningGateway) -> App:
    events.create(connection)
    events.put_under_modak(app, connection)
    return app


def test_a_late_copy_of_a_partition(table: App, connection: Connection, slow: Slow, at_point: AtPoint) -> None:
    with pytest.raises(LakeError):
        events.tier(table)
    at_point("tier.after_files", slow.arrive)
    with pytest.raises(LakeMoved, match="came to lake table"):
        events.tier(table)
    assert connection.execute("select tier_key_hi, lake_snapshot_id from modak.cutline").fetchall() == [
        {"tier_key_hi": 0, "lake_snapshot_id": None}
    ]
    assert seam.read(table, EVENTS) == ALL
    events.tier(table)
    assert connection.execute("select count(*) as n from modak.op_log where phase = 'advanced'").fetchone() == {"n": 1}
    assert seam.read(table, EVENTS) == ALL
    assert connection.execute("select count(*) as n from public.events").fetchone() == {"n": 5}
    assert len(seam.data_commits(table, EVENTS)) == 1


def test_a_late_fold(table: App, connection: Connection, at_point: AtPoint, monkeypatch: pytest.MonkeyPatch) -> None:
    events.tier(table)
    events.drop_tiered(table)
    connection.execute("insert into public.events values (10, 30, 'late')")
    connection.execute("update public.events set val = 'corrected' where id = 2")
    slow = Slow(monkeypatch)
    with pytest.raises(LakeError):
        events.fold(table)
    # Corrected again meanwhile: what arrives is old by then.
    connection.execute("update public.events set val = 'corrected again' where id = 2")
    at_point("fold.after_files", slow.arrive)
    with pytest.raises(LakeMoved):
        events.fold(table)
    expected = ALL | {"2": (2, 20, "corrected again"), "10": (10, 30, "late")}
    assert seam.read(table, EVENTS) == expected
    assert events.fold(table).corrections == 2
    assert seam.read(table, EVENTS) == expected
    assert connection.execute("select count(*) as n from public.events").fetchone() == {"n": 6}


def test_foreign_rows_are_not_accepted_on_top_of_it(table: App, connection: Connection, slow: Slow) -> None:
    """Nor are they undone by somebody who said that he wants them."""
    with pytest.raises(LakeError):
        events.tier(table)
    slow.arrive()
    lake = table.lake(profiles.get(connection, None)).load("public.events")
    lake.append(lake.scan().to_arrow().slice(0, 1))
    for choice in ("refuse", "accept"):
        with pytest.raises(ForeignSnapshot):
            events.tier(table, foreign_snapshots=choice)
    events.tier(table, foreign_snapshots="rollback")
    assert seam.read(table, EVENTS) == ALL


def test_a_late_commit_of_the_pump(mirrored: tuple[App, Connection], at_point: AtPoint, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = mirrored
    connection.execute("create table items (id bigint primary key, note text)")
    connection.execute("insert into items values (1, 'one'), (2, 'two')")
    mirroring.start(app, connection, ITEMS)
    connection.execute("insert into items values (3, 'three')")
    slow = Slow(monkeypatch)
    mirroring.pump(app, connection)
    assert "does not answer" in mirroring.problem(connection, ITEMS)
    connection.execute("update items set note = 'changed' where id = 3")
    # After the pass has looked at the lake, and before it has made anything of what it read.
    at_point("mirror.after_journal", slow.arrive)
    mirroring.pump(app, connection)
    mirroring.pump(app, connection)
    mirroring.same(app, connection, ITEMS)
    assert mirroring.problem(connection, ITEMS) == ""


def test_a_late_part_of_a_giant_transaction(mirrored: tuple[App, Connection], at_point: AtPoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of the pass that reads it are built upon; one of an earlier pass is none of them."""
    app, connection = mirrored
    connection.execute("create table items (id bigint primary key, note text)")
    mirroring.start(app, connection, ITEMS)
    with connection.transaction():
        connection.execute("insert into items select n, 'n' || n from generate_series(1, 90) n")
        connection.execute("delete from items where id % 3 = 0")
    slow = Slow(monkeypatch)
    mirroring.pump(app, connection, changes_max=20)
    at_point("mirror.after_files", slow.arrive)
    for _ in range(3):
        mirroring.pump(app, connection, changes_max=20)
    mirroring.same(app, connection, ITEMS)
