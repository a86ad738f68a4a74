"""Decoupled tables with several writers: what each sees, who waits for whom, and what a crash leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from psycopg import IsolationLevel
from tests.decoupling import Client, House, house, make

from modak.embedded.postgres import Cluster
from modak.failpoints import armed
from modak.gateway.decoupled import serializable as decoupled_serializable
from modak.lake import commits, history
from modak.lake.listing import files_below

POINTS = ["decoupled.after_files", "decoupled.after_journal", "decoupled.after_create", "decoupled.after_lake_commit"]


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("decoupled"), "decoupled_isolation") as made:
        yield made


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client() as connection:
        make(connection, "account", [("id", "bigint"), ("balance", "bigint")])
        connection.execute("create table beside (id bigint)")
        yield connection
        connection.execute("select modak.drop_iceberg_table('public', t.table_name, true) from modak.decoupled t")
        connection.execute("drop table beside")


def test_a_repeatable_read_sees_one_snapshot(world: House, client: Client) -> None:
    client.execute("insert into account select g, 10 from generate_series(1, 100) g")
    with world.client(autocommit=False) as reader:
        reader.isolation_level = IsolationLevel.REPEATABLE_READ
        assert reader.execute("select count(*) from account").fetchone() == (100,)
        client.execute("delete from account where id > 50")
        client.execute("insert into account values (1000, 0)")
        assert reader.execute("select count(*), max(id) from account").fetchone() == (100, 100)
        reader.rollback()
        assert reader.execute("select count(*), max(id) from account").fetchone() == (51, 1000)


def test_of_two_that_change_one_row_the_second_fails_in_repeatable_read(world: House, client: Client) -> None:
    client.execute("insert into account values (1, 10), (2, 10)")
    with world.client(autocommit=False) as second:
        second.isolation_level = IsolationLevel.REPEATABLE_READ
        second.execute("select * from account").fetchall()
        client.execute("update account set balance = balance + 1 where id = 1")
        second.execute("update account set balance = balance + 1 where id = 1")
        with pytest.raises(psycopg.errors.SerializationFailure, match="concurrent update"):
            second.commit()
        second.rollback()
        second.execute("select * from account").fetchall()
        client.execute("insert into account values (3, 30)")
        second.execute("update account set balance = balance + 1 where id = 2")
        second.commit()
    assert client.execute("select * from account order by 1").fetchall() == [(1, 11), (2, 11), (3, 30)]


@pytest.mark.parametrize("tables", [("one", "two"), ("one", "two", "three")], ids=len)
def test_of_those_that_wait_for_each_other_one_ends_and_the_others_go_on(world: House, client: Client, tables: tuple[str, ...]) -> None:
    for table in tables:
        make(client, table, [("id", "bigint"), ("n", "bigint")])
        client.execute(f"insert into {table} values (1, 0)")  # type: ignore[arg-type]
    ready, found = threading.Barrier(len(tables)), []

    def work(first: str, second: str) -> None:
        with world.client(autocommit=False) as writer:
            try:
                writer.execute(f"update {first} set n = n + 1")  # type: ignore[arg-type]
                ready.wait(30)
                writer.execute(f"update {second} set n = n + 1")  # type: ignore[arg-type]
                writer.commit()
                found.append("done")
            except psycopg.errors.DeadlockDetected as deadlock:
                found.append("same order" if "same order" in str(deadlock.diag.message_hint) else "no hint")

    workers = [threading.Thread(target=work, args=(table, tables[place - 1])) for place, table in enumerate(tables)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(50)
    assert sorted(found) == [*["done"] * (len(tables) - 1), "same order"]
    total = sum(client.execute(f"select n from {table}").fetchall()[0][0] for table in tables)  # type: ignore[arg-type]
    assert total == 2 * (len(tables) - 1)


def test_nothing_acknowledged_is_lost(world: House, client: Client) -> None:
    """Writers add rows and count up the same row, each in READ COMMITTED: they take turns, and nobody is told of a conflict."""
    client.execute("insert into account values (0, 0)")
    acknowledged: list[int] = []
    failures: list[psycopg.Error] = []

    def write(writer: int) -> None:
        try:
            with world.client() as own:
                for turn in range(5):
                    with own.transaction():
                        own.execute("insert into account values (%s, 1)", [writer * 100 + turn])
                        own.execute("update account set balance = balance + 1 where id = 0")
                    acknowledged.append(writer * 100 + turn)
        except psycopg.Error as failure:
            failures.append(failure)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = client.execute("select id from account where id > 0 order by 1").fetchall()
    assert [row[0] for row in found] == sorted(acknowledged)
    assert len(acknowledged) == 20
    assert client.execute("select balance from account where id = 0").fetchone() == (20,)
    assert len(world.lake_table("public.account").snapshots()) == 21


def test_a_writer_waits_and_a_cancel_ends_it(world: House, client: Client) -> None:
    client.execute("insert into account values (1, 10)")
    with world.client(autocommit=False) as first, world.client() as second:
        first.execute("update account set balance = 11")
        threading.Timer(1.0, second.cancel_safe).start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            second.execute("update account set balance = 12")
        first.commit()
        second.execute("update account set balance = balance + 5")
    assert client.execute("select balance from account").fetchone() == (16,)


def data_files(world: House) -> list[str]:
    """Every file there is, whoever knows of it."""
    return [one.location for one in files_below(world.lake_table("public.account").location() + "/data", {})]


def settled(client: Client) -> None:
    until = time.monotonic() + 60
    while client.execute("select 1 from modak.lake_commits").fetchone() is not None:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("death", ["statement", "backend"])
@pytest.mark.parametrize("point", POINTS)
def test_postgres_and_the_lake_agree_after_a_death(world: House, client: Client, point: str, death: str) -> None:
    """The gateway's work fails at a point, or the client's backend is killed there: both tiers tell the same story afterwards."""
    client.execute("insert into account values (1, 10)")
    before = len(world.lake_table("public.account").snapshots())
    with world.client(autocommit=False) as victim:
        pid = victim.info.backend_pid
        victim.execute("insert into account values (2, 20)")
        victim.execute("update account set balance = 0 where id = 1")
        victim.execute("insert into beside values (2)")
        if point == "decoupled.after_create":
            make(victim, "fresh", [("id", "bigint")])
            victim.execute("insert into fresh values (1)")

        def kill() -> object:
            return client.execute("select pg_terminate_backend(%s, 5000)", [pid])

        with armed(point, kill if death == "backend" else "raise"), pytest.raises(psycopg.Error):
            victim.commit()
    settled(client)
    assert client.execute("select * from beside").fetchall() == []
    assert client.execute("select * from account").fetchall() == [(1, 10)]
    assert world.lake_table("public.account").scan().to_arrow().to_pylist() == [{"id": 1, "balance": 10}]
    assert client.execute("select to_regclass('fresh')").fetchone() == (None,)
    assert before == len(world.lake_table("public.account").snapshots()) == len(data_files(world)) == 1
    client.execute("insert into account values (3, 30)")
    assert client.execute("select count(*) from account").fetchone() == (2,)


def test_a_commit_that_others_built_upon_is_taken_out(world: House, client: Client) -> None:
    """Between the lake's commit and the death of the backend somebody else, who knows nothing of claims, adds rows."""
    client.execute("insert into account values (1, 10)")
    with world.client(autocommit=False) as victim:
        pid = victim.info.backend_pid

        def interfere() -> None:
            table = world.lake_table("public.account")
            table.append(pa.table({"id": [7], "balance": [70]}, schema=table.schema().as_arrow()))
            client.execute("select pg_terminate_backend(%s, 5000)", [pid])

        victim.execute("insert into account values (2, 20)")
        victim.execute("delete from account where id = 1")
        with armed("decoupled.after_lake_commit", interfere), pytest.raises(psycopg.Error):
            victim.commit()
    settled(client)
    assert client.execute("select * from account order by 1").fetchall() == [(1, 10), (7, 70)]


def test_a_standing_doubt_is_not_shown(world: House, client: Client) -> None:
    """While Postgres has not committed, others read what was there before."""
    client.execute("insert into account values (1, 10)")
    with world.client(autocommit=False) as writer, world.client() as other:
        seen: list[object] = []
        with armed("decoupled.after_lake_commit", lambda: seen.append(other.execute("select count(*) from account").fetchone())):
            writer.execute("insert into account values (2, 20)")
            writer.commit()
        assert seen == [(1,)]
        assert other.execute("select count(*) from account").fetchone() == (2,)


def test_a_truncate_that_postgres_rolls_back_never_was(world: House, client: Client) -> None:
    """Also alone in its transaction and below a savepoint, where Postgres 15 tells nobody who truncates."""
    client.execute("insert into account values (1, 10)")
    for statements in (["truncate account"], ["savepoint a", "truncate account"]):
        with world.client(autocommit=False) as victim:
            pid = victim.info.backend_pid
            for statement in statements:
                victim.execute(statement)  # type: ignore[arg-type]
            with (
                armed("decoupled.after_lake_commit", lambda pid=pid: client.execute("select pg_terminate_backend(%s, 5000)", [pid])),
                pytest.raises(psycopg.Error),
            ):
                victim.commit()
        settled(client)
        assert client.execute("select * from account").fetchall() == [(1, 10)]
    with world.client(autocommit=False) as own:
        own.execute("savepoint a")
        own.execute("truncate account")
        own.execute("rollback to a")
        own.commit()
        assert own.execute("select count(*) from account").fetchone() == (1,)
        own.execute("truncate account")
        own.execute("insert into account values (2, 20)")
        own.commit()
    assert client.execute("select * from account").fetchall() == [(2, 20)]


def test_a_copied_database_does_not_truncate(world: House, client: Client) -> None:
    client.execute("insert into account values (1, 10)")
    client.execute("update modak.ownership set system_id = 'another'")
    try:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="restored or copied"):
            client.execute("truncate account")
    finally:
        client.execute("update modak.ownership set system_id = (select system_identifier::text from pg_control_system())")
    assert client.execute("select * from account").fetchall() == [(1, 10)]


TRANSFER = ["insert into other values (1, 5)", "update account set balance = balance - 5 where id = 1"]


def test_two_tables_are_one_snapshot(world: House, client: Client) -> None:
    """A transaction that changed both is in both or in none, however the first looks fall around its commit."""
    make(client, "other", [("id", "bigint"), ("balance", "bigint")])
    client.execute("insert into account values (1, 10)")
    with world.client(autocommit=False) as reader, world.client(autocommit=False) as writer:
        reader.isolation_level = IsolationLevel.REPEATABLE_READ
        assert reader.execute("select balance from account").fetchone() == (10,)
        for statement in TRANSFER:
            writer.execute(statement)  # type: ignore[arg-type]
        writer.commit()
        assert reader.execute("select count(*) from other").fetchone() == (0,)
        assert reader.execute("select count(*) from account join other using (id)").fetchone() == (0,)
        reader.commit()
        assert reader.execute("select a.balance, b.balance from account a join other b using (id)").fetchone() == (5, 5)
        reader.commit()
        # One that begins while the lake has one of the two already.
        seen = []

        def look() -> None:
            seen.append(reader.execute("select (select sum(balance) from account), (select sum(balance) from other)").fetchone())

        with armed("decoupled.after_lake_commit", look):
            for statement in TRANSFER:
                writer.execute(statement)  # type: ignore[arg-type]
            writer.commit()
        assert set(seen) == {(5, 5)}
        assert reader.execute("select (select sum(balance) from account), (select sum(balance) from other)").fetchone() == (5, 5)


@pytest.mark.parametrize("known", [True, False])
def test_a_table_is_read_as_it_was_though_its_metadata_file_is_gone(
    world: House, client: Client, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Many commits later; whether this gateway had read the table before the moment or not."""
    monkeypatch.setattr(history, "_recent", history.Recent(0, 0))
    make(client, "other", [("id", "bigint"), ("balance", "bigint")])
    client.execute("insert into other values (1, 10)")
    with world.lake_table("public.other").transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "2"})
    client.execute("insert into other values (2, 20)")
    then = world.lake_table("public.other").metadata_location.removeprefix("file://")
    if not known:
        monkeypatch.setattr(history, "_heads", history.Heads())
    with world.client(autocommit=False) as reader:
        reader.isolation_level = IsolationLevel.REPEATABLE_READ
        assert reader.execute("select count(*) from account").fetchone() == (0,)
        until = time.monotonic() + 30
        while not known and not history.known_heads([f"file://{then}"]):
            assert time.monotonic() < until
            time.sleep(0.1)
        for number in range(3, 8):
            client.execute("insert into other values (%s, 0)", [number])
        client.execute("update other set balance = 0")
        assert not Path(then).exists()
        assert reader.execute("select id, balance from other order by id").fetchall() == [(1, 10), (2, 20)]
        reader.execute("insert into other values (100, 0)")
        assert reader.execute("select count(*) from other").fetchone() == (3,)
        reader.commit()
    assert client.execute("select count(*), sum(balance) from other").fetchone() == (8, 0)


def test_a_statement_that_changes_rows_sees_all_tables_as_they_are(world: House, client: Client) -> None:
    """READ COMMITTED: the table that is changed, and the one that it is joined with."""
    make(client, "other", [("id", "bigint"), ("balance", "bigint")])
    client.execute("insert into account values (1, 10)")
    with world.client(autocommit=False) as writer:
        assert writer.execute("select count(*) from account, other").fetchone() == (0,)
        for statement in TRANSFER:
            client.execute(statement)  # type: ignore[arg-type]
        writer.execute("update account a set balance = a.balance + b.balance from other b where b.id = a.id")
        writer.commit()
    assert client.execute("select balance from account").fetchone() == (10,)


@pytest.mark.parametrize("lock", ["select * from account for update", "select a.* from account a join other b using (id) for update of a"])
def test_a_lock_reads_what_is_there_now(world: House, client: Client, lock: str) -> None:
    make(client, "other", [("id", "bigint")])
    client.execute("insert into account values (1, 10)")
    client.execute("insert into other values (1)")
    with world.client(autocommit=False) as first, world.client(autocommit=False) as second:
        assert first.execute(lock).fetchall() == [(1, 10)]  # type: ignore[arg-type]
        second.execute("set local statement_timeout = '1s'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            second.execute(lock)  # type: ignore[arg-type]
        second.rollback()
        first.execute("update account set balance = 11")
        first.commit()
        # Read before, changed by another, locked: never the old row as if it were locked now.
        second.execute("select * from account").fetchall()
        client.execute("update account set balance = 12")
        with pytest.raises(psycopg.errors.SerializationFailure):
            second.execute(lock)  # type: ignore[arg-type]
        second.rollback()
        # Once Postgres has told that it is READ COMMITTED, it reads again.
        second.execute("insert into other values (2)")
        assert second.execute("select balance from account").fetchall() == [(12,)]
        client.execute("update account set balance = 13")
        assert second.execute(lock).fetchall() == [(1, 13)]  # type: ignore[arg-type]
        second.execute("update account set balance = 14")
        second.commit()
    assert client.execute("select * from account").fetchall() == [(1, 14)]


def test_a_lock_on_a_table_that_moved_since_the_moment(world: House, client: Client) -> None:
    """Another table was read first: the one that is locked belongs to the same moment, though nobody has looked at it yet."""
    make(client, "other", [("id", "bigint"), ("balance", "bigint")])
    client.execute("insert into account values (1, 10)")
    client.execute("insert into other values (1, 10), (2, 20)")
    with world.client(autocommit=False) as reader:
        reader.isolation_level = IsolationLevel.REPEATABLE_READ
        assert reader.execute("select balance from account").fetchone() == (10,)
        client.execute("update account set balance = 11")
        client.execute("update other set balance = 11 where id = 1")
        with pytest.raises(psycopg.errors.SerializationFailure):
            reader.execute("select * from other for update")
        reader.rollback()
        # What only came is not seen, and in nobody's way.
        assert reader.execute("select balance from account").fetchone() == (11,)
        client.execute("insert into other values (3, 30)")
        assert reader.execute("select id from other order by id for update").fetchall() == [(1,), (2,)]
        reader.rollback()
        # The turn is its own already, by an update of another row.
        reader.execute("select * from account").fetchall()
        client.execute("update other set balance = 22 where id = 2")
        reader.execute("update other set balance = 12 where id = 1")
        with pytest.raises(psycopg.errors.SerializationFailure):
            reader.execute("select * from other where id = 2 for update")


@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ])
def test_locks_before_reads_meet_no_conflict(world: House, client: Client, level: IsolationLevel) -> None:
    """One table after the other, the second one after somebody else had it."""
    make(client, "other", [("id", "bigint"), ("balance", "bigint")])
    for table in ("account", "other"):
        client.execute(f"insert into {table} values (1, 10)")  # type: ignore[arg-type]
    with world.client(autocommit=False) as own:
        own.isolation_level = level
        assert own.execute("select balance from account for update").fetchone() == (10,)
        client.execute("update other set balance = 11")
        assert own.execute("select balance from other for update").fetchone() == (11,)
        assert own.execute("select a.balance + b.balance from account a, other b").fetchone() == (21,)
        own.execute("update account set balance = 0")
        own.execute("update other set balance = balance + 10")
        own.commit()
    assert client.execute("select a.balance, b.balance from account a, other b").fetchone() == (0, 21)


def serializable(world: House) -> Client:
    made = world.client(autocommit=False)
    made.isolation_level = IsolationLevel.SERIALIZABLE
    return made


def test_no_write_skew_in_serializable(world: House, client: Client) -> None:
    """Each reads what the other one writes: there is no order in which both could have happened."""
    make(client, "other", [("id", "bigint"), ("balance", "bigint")])
    with serializable(world) as one, serializable(world) as another:
        for reader, read, written in ((one, "account", "other"), (another, "other", "account")):
            assert reader.execute(f"select count(*) from {read}").fetchone() == (0,)  # type: ignore[arg-type]
            reader.execute(f"insert into {written} values (1, 10)")  # type: ignore[arg-type]
        one.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            another.commit()
        another.rollback()
        # Again, and alone: it sees what the first one did.
        assert another.execute("select count(*) from other").fetchone() == (1,)
        another.execute("insert into account values (1, 10)")
        another.commit()
        # One table is enough: both add to what both have counted.
        for reader in (one, another):
            assert reader.execute("select count(*) from account").fetchone() == (1,)
            reader.execute("insert into account values (2, 20)")
        another.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            one.commit()
    assert client.execute("select count(*) from account").fetchone() == (2,)


def test_two_that_wait_for_each_other_in_serializable(world: House, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the turn at the table that the other one has read. One of them goes on, or none."""
    monkeypatch.setattr(decoupled_serializable, "_PATIENCE_SECONDS", (0.2, 3.0))
    make(client, "other", [("id", "bigint"), ("balance", "bigint")])
    for table in ("account", "other"):
        client.execute(f"insert into {table} values (1, 10)")  # type: ignore[arg-type]
    failed: list[psycopg.Error] = []
    both = threading.Barrier(2)

    def withdraw(table: str) -> None:
        with serializable(world) as own:
            try:
                found = own.execute("select (select balance from account) + (select balance from other)").fetchone()
                assert found == (20,)
                own.execute(f"update {table} set balance = balance - 20")  # type: ignore[arg-type]
                both.wait(30)
                own.commit()
            except psycopg.errors.SerializationFailure as failure:
                failed.append(failure)

    threads = [threading.Thread(target=withdraw, args=(table,)) for table in ("account", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(failed) <= 2
    total = client.execute("select (select balance from account) + (select balance from other)").fetchone()
    assert total == (20 if len(failed) == 2 else 0,)


def test_what_is_no_conflict_in_serializable(world: House, client: Client) -> None:
    """Rows that are added by who has read nothing, tables that nobody writes to, and files that were written anew."""
    make(client, "other", [("id", "bigint"), ("balance", "bigint")])
    client.execute("insert into account values (1, 10)")
    with serializable(world) as one, serializable(world) as another:
        for number, writer in enumerate((one, another), start=2):
            writer.execute("insert into account values (%s, 0)", [number])
        one.commit()
        another.commit()
        assert one.execute("select count(*) from account").fetchone() == (3,)
        assert another.execute("select count(*) from account").fetchone() == (3,)
        commits.change(world.lake_table("public.account"), {}, is_rewrite=True)
        one.execute("insert into other values (1, 1)")
        another.execute("insert into other values (2, 2)")
        one.commit()
        another.commit()
        # Who only reads is as of his moment.
        assert one.execute("select count(*) from other").fetchone() == (2,)
        client.execute("insert into other values (3, 3)")
        one.commit()
    assert client.execute("select count(*) from other").fetchone() == (3,)
