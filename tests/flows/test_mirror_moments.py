"""Several mirrored tables at one moment: what is true at every transaction's end is true at every tag, while writers go on."""

from __future__ import annotations

import random
import threading
from typing import Any

import duckdb
import psycopg
import pytest
from tests.mirroring import pump, start

from modak.app import App
from modak.catalog import profiles, tables
from modak.connection import Connection
from modak.core.table import Name
from modak.duckdb import pinned_relations
from modak.errors import UsageError
from modak.failpoints import FailpointError, armed
from modak.jobs.mirroring.tags import tag_name
from modak.pinned.moment import NoMoment, moment
from modak.registration.policy import change

pytestmark = pytest.mark.inline
LEFT, RIGHT = Name("public", "purses"), Name("public", "vaults")
NAMES = [str(LEFT), str(RIGHT)]
World = tuple[App, Connection]
TOTAL = 2_000


def create(app: App, connection: Connection) -> None:
    for name in ("purses", "vaults"):
        connection.execute(f"create table {name} (id int primary key, amount bigint not null)")
        connection.execute(f"insert into {name} select i, 100 from generate_series(1, 10) i")
    start(app, connection, LEFT)
    start(app, connection, RIGHT)


def transfer(dsn: str, over: threading.Event, seed: int) -> None:
    """Between the tables and within them, sometimes by deleting a row and writing it anew; the sum over both never changes."""
    chance = random.Random(seed)
    with psycopg.connect(dsn) as connection:
        while not over.wait(0.004):
            one, other = chance.choice([("purses", "vaults"), ("vaults", "purses"), ("purses", "purses")])
            amount, first, second = chance.randint(1, 20), chance.randint(1, 10), chance.randint(1, 10)
            try:
                with connection.transaction():
                    connection.execute(f"update {one} set amount = amount - %s where id = %s", [amount, first])  # type: ignore[arg-type]
                    connection.execute(f"update {other} set amount = amount + %s where id = %s", [amount, second])  # type: ignore[arg-type]
            except psycopg.errors.DeadlockDetected:
                continue


def tags(app: App, connection: Connection, name: Name) -> dict[str, int]:
    """The sum of the table's amounts at each of its tags, as any reader of Iceberg finds it."""
    lake = app.lake(profiles.get(connection, None)).load(tables.get(connection, name).lake_table_ref)
    found = {}
    for tag, ref in lake.metadata.refs.items():
        if tag.startswith("lsn_"):
            found[tag] = sum(lake.scan(snapshot_id=ref.snapshot_id).to_arrow()["amount"].to_pylist())
    return found


def moments(connection: Connection) -> list[dict[str, Any]]:
    return connection.execute("select * from modak.mirror_moments order by lsn").fetchall()


def total(app: App) -> int:
    with pinned_relations(app.dsn, NAMES, settings=app.settings) as relations:
        rows = [relations[name].aggregate("sum(amount)::bigint").fetchone() for name in NAMES]
    return sum(row[0] for row in rows if row)


def test_the_sum_holds_at_every_moment(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = mirrored
    kept = 4
    monkeypatch.setattr("modak.jobs.mirroring.tags.KEPT", kept)
    create(app, connection)
    over = threading.Event()
    writers = [threading.Thread(target=transfer, args=(app.dsn, over, seed)) for seed in range(3)]
    for writer in writers:
        writer.start()
    seen: set[str] = set()
    try:
        while len(seen) < kept + 2:
            pump(app, connection)
            assert total(app) == TOTAL
            left, right = tags(app, connection, LEFT), tags(app, connection, RIGHT)
            assert left.keys() == right.keys()
            assert {left[tag] + right[tag] for tag in left} == {TOTAL}
            seen |= left.keys()
    finally:
        over.set()
        for writer in writers:
            writer.join()
    # The first one of a minute stays longer.
    longer = {row["tag"] for row in moments(connection) if row["kept_until"] is not None}
    assert sorted(left) == sorted({*sorted(seen)[-kept:], *(longer & seen)})
    assert len({left[tag] for tag in left}) > 1
    assert {(row["tag"], *row["tables"]) for row in moments(connection)} == {(tag, *NAMES) for tag in left}


def test_the_first_moment_of_a_minute_stays_for_an_hour(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of another engine may take its time; the others go as new ones come."""
    app, connection = mirrored
    monkeypatch.setattr("modak.jobs.mirroring.tags.KEPT", 2)
    create(app, connection)

    def passes(number: int) -> None:
        for _ in range(number):
            connection.execute("update purses set amount = amount where id = 1")
            assert pump(app, connection).tagged

    def aged(tag: str, age: str) -> None:
        connection.execute("update modak.mirror_tags set created_at = now() - %s::interval where tag = %s", [age, tag])

    passes(1)
    first = next(iter(tags(app, connection, LEFT)))
    aged(first, "50 minutes")
    passes(2)
    # Of one minute, whatever the clock says: only the first of them stays.
    second, third = sorted(set(tags(app, connection, LEFT)) - {first})
    for tag, age in ((second, "20 minutes"), (third, "20 minutes - 1 microsecond")):
        aged(tag, age)
    connection.execute("update modak.mirror_tags set created_at = date_trunc('minute', created_at) where tag = any (%s)", [[second, third]])
    passes(3)
    for name in (LEFT, RIGHT):
        assert {first, second} <= set(tags(app, connection, name))
        assert third not in tags(app, connection, name)
    assert [row["tag"] for row in moments(connection)][:2] == [first, second]
    assert {row["tag"] for row in moments(connection)} == set(tags(app, connection, LEFT))
    aged(first, "61 minutes")
    passes(1)
    assert first not in tags(app, connection, LEFT)
    assert first not in {row["tag"] for row in moments(connection)}


def test_a_moment_is_held_while_the_tables_go_on(mirrored: World) -> None:
    app, connection = mirrored
    create(app, connection)
    pump(app, connection)
    with pinned_relations(duckdb.connect(), app.dsn, NAMES, settings=app.settings) as relations:
        connection.execute("update purses set amount = 0")
        pump(app, connection)
        assert sum(relations[name].aggregate("sum(amount)::bigint").fetchone()[0] for name in NAMES) == TOTAL  # type: ignore[index]
        pins = connection.execute("select count(*) as n from modak.read_pins").fetchone()
        assert pins == {"n": 2}
    assert connection.execute("select count(*) as n from modak.read_pins").fetchone() == {"n": 0}
    assert total(app) == TOTAL - 1000


def test_while_one_table_is_ahead_the_last_common_moment_counts(mirrored: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, connection = mirrored
    create(app, connection)
    pump(app, connection)
    with connection.transaction():
        connection.execute("update purses set amount = amount - 5 where id = 1")
        connection.execute("update vaults set amount = amount + 5 where id = 1")
    # Killed when the first of them is published and the other is not.
    with armed("mirror.after_publish"), pytest.raises(FailpointError):
        pump(app, connection)
    lines = connection.execute("select count(distinct replicated_lsn) as n from modak.cutline").fetchone()
    assert lines == {"n": 2}
    assert total(app) == TOTAL
    pump(app, connection)
    assert total(app) == TOTAL


def test_a_pass_that_dies_at_its_tags_leaves_none_behind(mirrored: World) -> None:
    app, connection = mirrored
    create(app, connection)
    with armed("mirror.after_tags"), pytest.raises(FailpointError):
        pump(app, connection)
    lost = set(tags(app, connection, LEFT))
    assert len(lost) == 1
    connection.execute("update purses set amount = amount + 1 where id = 1")
    done = pump(app, connection)
    assert done.lsn is not None
    assert set(tags(app, connection, LEFT)) == {tag_name(done.lsn)} == set(tags(app, connection, RIGHT))
    assert not pump(app, connection).tagged, "nothing happened since"


def test_what_has_no_moment_is_refused(mirrored: World) -> None:
    app, connection = mirrored
    create(app, connection)
    with pytest.raises(NoMoment, match="no place"), moment(app.dsn, NAMES):
        pass
    pump(app, connection)
    wrong: list[Any] = [[], [NAMES[0], NAMES[0]]]
    for names in wrong:
        with pytest.raises(UsageError), moment(app.dsn, names):
            pass


def test_a_table_that_sheds_partitions_is_at_no_moment(mirrored: World) -> None:
    """Its lake lacks corrections of older rows that were committed before F: they are folded when the pump has passed."""
    app, connection = mirrored
    create(app, connection)
    connection.execute("create table kept (id int, at int not null, amount bigint, primary key (id, at)) partition by range (at)")
    for lower in (0, 100, 200):
        connection.execute(f"create table kept_{lower} partition of kept for values from ({lower}) to ({lower + 100})")
    connection.execute("insert into kept select i, i, 1 from generate_series(1, 250) i")
    kept = Name("public", "kept")
    start(app, connection, kept, "at", width="100")
    pump(app, connection)
    assert tags(app, connection, kept).keys() == tags(app, connection, LEFT).keys() != set()
    change(connection, tables.get(connection, kept), {"heap_retention": "100"})
    connection.execute("insert into kept_hot values (251, 251, 1)")
    connection.execute("update purses set amount = amount")
    done = pump(app, connection)
    assert (done.failed, done.parked, done.tagged) == ({}, {}, True)
    assert tags(app, connection, kept) == {}
    assert len(tags(app, connection, LEFT)) == 2
    table_id = tables.get(connection, kept).table_id
    assert connection.execute("select count(*) as n from modak.mirror_tags where table_id = %s", [table_id]).fetchone() == {"n": 0}
    with pytest.raises(UsageError, match="sheds partitions"), moment(app.dsn, [*NAMES, str(kept)]):
        pass
