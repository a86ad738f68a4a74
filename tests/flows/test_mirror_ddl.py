"""Columns that change under a mirrored table, and what cannot be followed (SCENARIOS 75)."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.mirroring import copy, frontier, lake_rows, problem, pump, run, same, start

from modak.app import App
from modak.catalog import mirrors, profiles, tables
from modak.catalog.migrate import migrate
from modak.cli.main import main
from modak.connection import Connection, connect
from modak.core.registration import Options
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.errors import Refused
from modak.failpoints import FailpointError, armed
from modak.registration.register import register
from modak.registration.unregister import unregister
from modak.settings import load

pytestmark = pytest.mark.inline
T, OTHER = Name("public", "items"), Name("public", "other")
# Every database has the one of its mesh, whether or not it ever joins one.
OWN_PUBLICATIONS = "select count(*) as n from pg_publication where pubname <> 'modak_mesh'"
World = tuple[App, Connection]


def create(connection: Connection) -> None:
    connection.execute("create table items (id int primary key, n int, note varchar(10), extra text)")
    connection.execute("insert into items values (1, 1, 'a', 'x'), (2, 2, 'b', 'y')")
    connection.execute("create table other (id int primary key)")


def test_columns_come_go_and_change_their_names_in_order(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    insert = "insert into items (id, n) values ({}, {})"
    run(app, connection, insert.format(3, 3), "alter table items add column new text", "insert into items (id, new) values (4, 'valued')")
    run(app, connection, "alter table items rename column note to remark", "update items set remark = 'r' where id = 1")
    run(app, connection, "alter table items drop column extra", "insert into items (id, remark) values (5, 'five')")
    run(app, connection, "alter table items alter column n type bigint", "insert into items (id, n) values (6, 5000000000)")
    run(app, connection, "alter table items alter column remark type varchar(40)", "update items set remark = repeat('l', 30) where id = 2")
    # Back to a name that was there before.
    run(app, connection, "alter table items rename column remark to note", "update items set note = 'back' where id = 5")


def test_columns_that_change_without_a_row_in_the_stream(mirrored: World) -> None:
    """F passes the change, so the lake has to have it: also what rows got by a default, and after a crash."""
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    run(app, connection, "alter table items add column c int default 5")
    run(app, connection, "alter table items drop column extra, add column d text")
    run(app, connection, "insert into items (id, d) values (3, 'after')", "alter table items rename column note to remark")
    connection.execute("alter table items add column e int default 7")
    with armed("mirror.after_fill"), pytest.raises(FailpointError):
        pump(app, connection)
    run(app, connection)
    assert pump(app, connection).commits == 0
    connection.execute("alter table items add column f float8 default random()")
    assert list(pump(app, connection).parked) == ["public.items"]
    assert "default" in problem(connection, T)


def test_a_registration_that_was_never_copied(mirrored: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """SCENARIOS 70: neither a journal of the copy nor a frontier. The error says so, and how to go on."""
    app, connection = mirrored
    create(connection)
    profile = profiles.get(connection, None)
    register(connection, app.lake(profile), T, Options(tier_key="id", mode="mirrored", surface="heap"), profile=profile.name)
    monkeypatch.setenv("MODAK_DSN", app.dsn)
    monkeypatch.setenv("MODAK_DATA", str(app.settings.data))
    with pytest.raises(SystemExit) as ended:
        main(["mirror", "public.items"])
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "partial registration" in told
    assert "modak register public.items" in told
    copy(app, T)
    mirrors.check_registration(connection, tables.get(connection, T))


def test_many_changes_before_one_pass(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    run(
        app,
        connection,
        "insert into items values (3, 3, 'c', 'z')",
        "alter table items add column first int",
        "insert into items (id, first) values (4, 4)",
        "alter table items rename column note to between",
        "update items set first = 5 where id = 1",
        "alter table items rename column between to remark",
        "update items set first = 5, remark = 'r' where id = 1",
        "alter table items drop column extra",
        "update items set first = 6 where id = 2",
        "delete from items where id = 3",
    )


def test_columns_change_within_a_transaction(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    with connection.transaction():
        connection.execute("insert into items (id, note) values (3, 'before')")
        connection.execute("alter table items add column new int")
        connection.execute("update items set new = 1 where id = 3")
        connection.execute("alter table items rename column note to remark")
        connection.execute("insert into items (id, remark) values (4, 'after')")
    run(app, connection)


CANNOT = {
    "a default": (["alter table items add column new float default random()"], "added with a default"),
    "another type": (["alter table items alter column n type text"], "column n was integer and is text"),
    "a shorter type": (["alter table items alter column note type varchar(5)"], "column note"),
    "a key's name": (["alter table items rename column id to key"], "key column id"),
    "too much at once": (
        ["alter table items add column one int", "insert into items (id) values (20)", "alter table items rename column one to two"],
        "came and went",
    ),
    "the same name again": (["alter table items drop column n", "alter table items add column n int"], "dropped and added again"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_followed_stops_that_table_only(mirrored: World, name: str) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    start(app, connection, OTHER)
    statements, expected = CANNOT[name]
    connection.execute("insert into items (id) values (10)")
    for statement in statements:
        connection.execute(statement)
    key = "key" if name == "a key's name" else "id"
    connection.execute(f"insert into items ({key}) values (11)")
    connection.execute("insert into other values (1)")
    before = frontier(connection, T)
    assert list(pump(app, connection).parked) == ["public.items"]
    assert expected in problem(connection, T)
    assert (frontier(connection, T), [row["id"] for row in lake_rows(app, connection, T)]) == (before, [1, 2])
    same(app, connection, OTHER)
    connection.execute("insert into other values (2)")
    pump(app, connection)
    same(app, connection, OTHER)
    if key == "id":
        copy(app, T, again=True)
        same(app, connection, T)
        run(app, connection, "insert into items (id) values (12)", "delete from items where id = 1")


PARTITIONS = {
    "truncated": "truncate p1",
    "attached with rows": "alter table items attach partition p3 for values from (200) to (300)",
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_that_take_or_bring_rows_in_silence(mirrored: World, name: str) -> None:
    app, connection = mirrored
    connection.execute("create table items (id int primary key, note text) partition by range (id)")
    connection.execute("create table p1 partition of items for values from (0) to (100)")
    connection.execute("create table p2 partition of items for values from (100) to (200)")
    connection.execute("create table p3 (id int not null, note text)")
    connection.execute("insert into p3 values (205, 'brought')")
    connection.execute("insert into items select i, 'n' from generate_series(1, 199, 3) i")
    start(app, connection, T)
    connection.execute(PARTITIONS[name])
    connection.execute("insert into items values (150, 'more')")
    assert list(pump(app, connection).parked) == ["public.items"]
    assert "partition public.p" in problem(connection, T)
    copy(app, T, again=True)
    same(app, connection, T)
    run(app, connection, "insert into items values (152, 'more')")


def test_a_lost_slot_is_noticed_and_a_new_copy_mends_it(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    connection.execute("insert into items (id) values (3)")
    connection.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not temporary")
    assert list(pump(app, connection).parked) == ["public.items"]
    assert "slot" in problem(connection, T)
    copy(app, T, again=True)
    same(app, connection, T)
    run(app, connection, "insert into items (id) values (4)")
    # Moved by somebody else.
    connection.execute("insert into items (id) values (5)")
    connection.execute("select pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) from pg_replication_slots where not temporary")
    assert list(pump(app, connection).parked) == ["public.items"]
    copy(app, T, again=True)
    run(app, connection, "delete from items where id = 1")


def test_a_slot_that_lost_its_wal_is_made_anew(mirrored: World) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    connection.execute("alter system set max_slot_wal_keep_size = '1MB'")
    connection.execute("select pg_reload_conf()")
    try:
        for number in range(4):
            connection.execute("insert into items (id) values (%s)", [10 + number])
            connection.execute("select pg_switch_wal()")
        connection.execute("checkpoint")
        assert "lost its WAL" in pump(app, connection).parked["public.items"]
    finally:
        connection.execute("alter system reset max_slot_wal_keep_size")
        connection.execute("select pg_reload_conf()")
    copy(app, T, again=True)
    same(app, connection, T)
    run(app, connection, "insert into items (id) values (4)")


def test_unregister_takes_everything_back(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("create table items (id int primary key, code int not null, unique (code))")
    connection.execute("create unique index by_code on items (code)")
    connection.execute("alter table items replica identity using index by_code")
    connection.execute("create table other (id int primary key)")
    start(app, connection, T)
    start(app, connection, OTHER)

    def one(query: str) -> Any:
        row = connection.execute(query).fetchone()
        return next(iter(row.values())) if row else None

    assert one("select relreplident from pg_class where oid = 'public.items'::regclass") == "d"
    lake = app.lake(profiles.get(connection, None))
    unregister(connection, lake, tables.get(connection, T), drop_lake=True)
    assert one("select relreplident from pg_class where oid = 'public.items'::regclass") == "i"
    assert one("select count(*) from pg_publication_tables where tablename = 'items'") == 0
    assert one("select count(*) from pg_replication_slots where not temporary") == 1
    unregister(connection, lake, tables.get(connection, OTHER), drop_lake=False)
    assert (one("select count(*) from pg_replication_slots where not temporary"), one(OWN_PUBLICATIONS)) == (0, 0)


def test_what_cannot_be_mirrored_is_refused_with_the_way_out(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("create table items (id int primary key, twice int generated always as (id * 2) stored)")
    with pytest.raises(Refused, match="generated"):
        start(app, connection, T)
    connection.execute("create table other (id int, code int)")
    with pytest.raises(Refused, match="no index proves"):
        start(app, connection, OTHER, primary_key=("code",))
    connection.execute("create table late (id int primary key deferrable)")
    with pytest.raises(Refused, match="not deferrable"):
        start(app, connection, Name("public", "late"))
    assert tables.listing(connection) == []
    row = connection.execute(OWN_PUBLICATIONS).fetchone()
    assert row is not None
    assert row["n"] == 0


def test_a_server_without_a_logical_stream_is_told_from_the_start(tmp_path: Path) -> None:
    cluster = Cluster.start(tmp_path / "replica", options={"wal_level": "replica", "fsync": "off"})
    try:
        with connect(cluster.dsn(), autocommit=True) as connection:
            migrate(connection)
            connection.execute("create table public.items (id int primary key)")
            connection.execute("create role weak; grant all on schema public, modak, modak_lake to weak")
            connection.execute("grant all on all tables in schema modak, modak_lake to weak")
            app = App(load({}, dsn=cluster.dsn(), data=str(tmp_path / "data")))
            with pytest.raises(Refused, match="wal_level is replica"):
                start(app, connection, T)
            connection.execute("alter table public.items owner to weak; set role weak")
            with pytest.raises(Refused, match="may not replicate"):
                start(app, connection, T)
    finally:
        cluster.stop("immediate")


def test_a_unique_index_may_stand_for_the_key(mirrored: World) -> None:
    app, connection = mirrored
    connection.execute("create table items (id int not null, note text)")
    connection.execute("create unique index by_id on items (id)")
    connection.execute("insert into items values (1, 'a'), (2, 'b')")
    start(app, connection, T, primary_key=("id",))
    run(app, connection, "update items set id = 3 where id = 1", "delete from items where id = 2")


def test_values_that_an_alter_table_converts_in_silence(mirrored: World) -> None:
    """The type stays, so that the stream has nothing to tell; a plain rewrite of the file is nobody's business."""
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    run(app, connection, "vacuum full items", "insert into items values (3, 3)")
    run(app, connection, "alter table items alter column n set default 7", "insert into items values (4)")
    run(app, connection, "truncate items", "alter table items alter column n drop default", "insert into items values (1, 1)")
    connection.execute("alter table items alter column n type int using n * 2")
    assert "rewritten by an ALTER TABLE" in pump(app, connection).parked["public.items"]
    copy(app, T, again=True)
    run(app, connection, "insert into items values (5, 5)")


def test_a_column_with_a_default_is_filled(mirrored: World) -> None:
    """Rows that stood there have the value, whatever its type; rows before in the same pass too."""
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    run(
        app,
        connection,
        "update items set extra = 'before' where id = 1",
        "alter table items add column new int not null default 5",
        "insert into items (id) values (3)",
        "update items set new = 6 where id = 2",
    )
    run(
        app,
        connection,
        "alter table items add column at timestamptz default '2026-01-02 03:04:05.678+02', add column price numeric(6, 2) default 1.5",
        "alter table items add column words text default 'a, {b} \"c\"', add column none int default null, alter column new drop default",
        "delete from items where id = 3",
        "insert into items (id, new) values (4, 1)",
    )
    assert {row["price"] for row in lake_rows(app, connection, T)} == {Decimal("1.50")}


@pytest.mark.parametrize("point", ["mirror.after_fill", "mirror.after_commit", "mirror.in_publish"])
def test_a_column_is_filled_again_after_a_death(mirrored: World, point: str) -> None:
    app, connection = mirrored
    create(connection)
    start(app, connection, T)
    connection.execute("alter table items add column new int default 5")
    connection.execute("insert into items (id) values (3)")
    with armed(point), pytest.raises(FailpointError):
        pump(app, connection)
    assert len(lake_rows(app, connection, T)) == 2
    run(app, connection, "update items set new = 7 where id = 1")
