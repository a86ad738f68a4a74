"""Dumps of databases with mirrored tables: slots stay behind, and everything else comes along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests import mirroring, restoring
from tests.restoring import app_of, apply, codes, gateway_of, look
from tests.support import rows, value

from modak.app import App
from modak.connection import Connection, connect
from modak.core.table import Name
from modak.failpoints import FailpointError, armed

pytestmark = pytest.mark.inline
NAME = Name("public", "mirrored")
DROP_SLOTS = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()"


def test_a_mirrored_table_starts_over(new_database: Callable[..., str], template: str, tmp_path: Path) -> None:
    """Slots are in no dump, and a copy that follows the stream of a slot that is gone follows nothing."""
    source = app_of(new_database(template), tmp_path / "data")
    with source.connection() as connection:
        connection.execute("create table public.mirrored (gone int, id bigint primary key, v text)")
        connection.execute("alter table public.mirrored drop column gone")  # a dump knows nothing of it: the others change their numbers
        connection.execute("insert into public.mirrored values (1, 'a'), (2, 'b')")
        mirroring.start(source, connection, NAME)
        connection.execute("insert into modak.mirror_tags (table_id, lsn, tag, lake_props) select table_id, 1, 'x', '{}' from modak.tables")
        restoring.dump(source.dsn, tmp_path / "dump")
        connection.execute(DROP_SLOTS)
    app = app_of(new_database("template0"), tmp_path / "data")
    restoring.restore(app.dsn, tmp_path / "dump")
    assert codes(look(app)) == {"moved", "numbers", "slot"}
    done = apply(app, "this")
    assert done.findings == ()
    assert any("modak resync public.mirrored" in line for line in done.done)
    with app.connection() as connection:
        assert value(connection, "select count(*) from modak.mirror_tags") == 0
        connection.execute("insert into public.mirrored values (3, 'c')")
        mirroring.copy(app, NAME, again=True)
        connection.execute("insert into public.mirrored values (4, 'd')")
        mirroring.pump(app, connection)
        found = sorted(row["id"] for row in mirroring.lake_rows(app, connection, NAME))
        assert found == [1, 2, 3, 4]
        connection.execute(DROP_SLOTS)


SHOWN = "select * from public.mirrored order by id"


def shed(app: App, connection: Connection) -> None:
    """T stands at 200; [100, 200) still stands in the heap; an update, a delete and a late row wait as corrections."""
    connection.execute(
        """create table public.mirrored (gone int, id bigint, at bigint, note text, primary key (id, at)) partition by range (at);
        alter table public.mirrored drop column gone;
        create table public.mirrored_0 partition of public.mirrored for values from (0) to (100);
        create table public.mirrored_1 partition of public.mirrored for values from (100) to (200);
        create table public.mirrored_2 partition of public.mirrored for values from (200) to (300);
        insert into public.mirrored select i, i, 'n' || i from generate_series(1, 299) i"""
    )
    mirroring.start(app, connection, NAME, "at", surface="view", heap_retention="99", width="100")
    mirroring.pump(app, connection)
    assert value(connection, "select tier_key_hi from modak.cutline") == 200
    connection.execute("update public.mirrored set note = 'corrected' where id = 7")
    connection.execute("delete from public.mirrored where id = 8")
    connection.execute("insert into public.mirrored values (1000, 55, 'late')")
    assert value(connection, "select count(*) from modak.delta") == 3


def seal(app: App, connection: Connection) -> None:
    """The next partition is due, and a pass that was to move T over it is under way."""
    connection.execute("create table public.mirrored_3 partition of public.mirrored_hot for values from (300) to (400)")
    connection.execute("insert into public.mirrored values (399, 399, 'pushes')")
    with armed("shed.after_seal"), pytest.raises(FailpointError):
        mirroring.pump(app, connection)
    assert value(connection, "select state from modak.partitions where partition_name = 'mirrored_2'") == "tiering"


@pytest.mark.parametrize("whose", ["this", "other"])
def test_a_mirror_that_shed_partitions(new_database: Callable[..., str], template: str, tmp_path: Path, whose: str) -> None:
    """What is below T is the lake's and its corrections', whatever becomes of the stream."""
    source = app_of(new_database(template), tmp_path / "data")
    with gateway_of(source), connect(source.dsn, autocommit=True) as connection:
        shed(source, connection)
        if whose == "this":
            seal(source, connection)
        shown = rows(connection, SHOWN)
        restoring.dump(source.dsn, tmp_path / "dump")
        connection.execute(DROP_SLOTS)
    app = app_of(new_database("template0"), tmp_path / "data")
    restoring.restore(app.dsn, tmp_path / "dump")
    assert apply(app, whose).findings == ()
    with gateway_of(app), connect(app.dsn, autocommit=True) as connection:
        assert rows(connection, SHOWN) == shown
        assert value(connection, "select count(*) from modak.delta_other") == 0
        connection.execute("create table public.twin as select * from public.mirrored")
        for name in ("public.mirrored", "public.twin"):
            connection.execute(f"update {name} set note = 'again' where id in (7, 9, 250, 1000)")
            connection.execute(f"delete from {name} where id in (10, 251)")
            connection.execute(f"insert into {name} values (1001, 66, 'later'), (1002, 266, 'new')")
        twin = "select * from public.twin order by id"
        assert rows(connection, SHOWN) == rows(connection, twin)
        if whose == "this":
            mirroring.copy(app, NAME, again=True)
            done = mirroring.pump(app, connection)
            assert (done.failed, done.parked, done.shed) == ({}, {}, ["public.mirrored_2"])
            assert rows(connection, SHOWN) == rows(connection, twin)
            assert sorted(row["id"] for row in mirroring.lake_rows(app, connection, NAME)) == [row[0] for row in rows(connection, twin)]
            assert codes(look(app)) == set()
            connection.execute(DROP_SLOTS)
