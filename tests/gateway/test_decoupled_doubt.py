"""Commits that Postgres rolled back, after others committed on top: taken out whole, or kept whole and told; never a bit of them."""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from pyiceberg.table import Table
from tests.decoupling import Client, House, house, make

from modak.catalog import overview
from modak.cli.output import Output
from modak.cli.status import show
from modak.connection import connect
from modak.core.table import Name
from modak.embedded.postgres import Cluster
from modak.errors import NotFound
from modak.failpoints import armed
from modak.gateway.decoupled import committing, parcels, settled, taking_back
from modak.gateway.decoupled.settled import Journaled
from modak.gateway.decoupled.sweeping import sweep_next
from modak.lake import commits
from modak.lake.any_files import AnyWriter, any_target
from modak.lake.change import LakeMoved, PositionDeletes
from modak.lake.delete_files import Doomed, write_deletes_at
from modak.lake.listing import files_below

_names = itertools.count(1)


@pytest.fixture(scope="module")
def world(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(cluster, template, tmp_path_factory.mktemp("doubt"), "decoupled_doubt") as made:
        yield made


@pytest.fixture
def client(world: House) -> Iterator[Client]:
    with world.client() as made:
        yield made


@pytest.fixture(autouse=True, params=[100, 1], ids=["", "manifests merged"])
def _merging(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that merged manifests along the way is undone like any other."""
    monkeypatch.setattr(committing, "_MANIFESTS_MAX", request.param)


class Peer:
    """Another node: it knows nothing of this database's journal, and takes what it finds in the lake for settled."""

    def __init__(self, world: House, name: str) -> None:
        self._world, self._name = world, name

    @property
    def table(self) -> Table:
        found: Table = self._world.lake_table(f"public.{self._name}")
        return found

    def change(self, *rows: tuple[int, int], deleting: int | None = None) -> None:
        """Add rows, and delete the one with this id, as a decoupled table's commit does."""
        table = self.table
        deletes: list[PositionDeletes] = []
        if deleting is not None:
            [(path, position)] = [place for place, key in self._places(table) if key == deleting]
            deletes = [write_deletes_at(table.location(), {}, "f" * 32, Doomed(path, 0, (), np.array([position], dtype=np.int64)))]
        commits.change(table, {settled.COMMIT_ID: f"peer{next(_names)}"}, added=self._written(table, rows), deletes=deletes)

    def _written(self, table: Table, rows: tuple[tuple[int, int], ...]) -> list[Any]:
        writer = AnyWriter(any_target(table.metadata, {}, [field.field_id for field in table.schema().fields]), "f" * 32)
        if rows:
            ids, balances = zip(*rows, strict=True)
            writer.write(pa.table({"id": ids, "balance": balances}, schema=table.schema().as_arrow()))
        return writer.close()

    def _places(self, table: Table) -> Iterator[tuple[tuple[str, int], int]]:
        for task in table.scan().plan_files():
            gone = {row for one in task.delete_files for row in _positions(table, one.file_path)}
            with table.io.new_input(task.file.file_path).open() as stream:
                ids = pa.parquet.read_table(stream).column("id").to_pylist()
            yield from (((task.file.file_path, place), key) for place, key in enumerate(ids) if place not in gone)

    def expire(self, *snapshot_ids: int) -> None:
        self.table.maintenance.expire_snapshots().by_ids(list(snapshot_ids)).commit()

    def rows(self) -> list[tuple[int, int]]:
        return sorted((row["id"], row["balance"]) for row in self.table.scan().to_arrow().to_pylist())


def _positions(table: Table, path: str) -> list[int]:
    with table.io.new_input(path).open() as stream:
        found: list[int] = pa.parquet.read_table(stream).column("pos").to_pylist()
        return found


@pytest.fixture
def name(client: Client) -> str:
    made = f"account{next(_names)}"
    make(client, made, [("id", "bigint"), ("balance", "bigint")])
    client.execute(f"insert into {made} values (1, 10), (2, 20)")  # type: ignore[arg-type]
    return made


@pytest.fixture
def peer(world: House, name: str) -> Peer:
    return Peer(world, name)


def wait(client: Client) -> None:
    until = time.monotonic() + 60
    while client.execute("select 1 from modak.lake_commits").fetchone() is not None:
        assert time.monotonic() < until
        time.sleep(0.02)


def die(world: House, client: Client, statements: list[str], meanwhile: Callable[[], object], *, table: int = 1) -> None:
    """A transaction that is in the lake, with its first so many tables, when its backend dies, and what others did before that."""
    with world.client(autocommit=False) as victim:
        pid, count = victim.info.backend_pid, itertools.count(1)
        for statement in statements:
            victim.execute(statement)  # type: ignore[arg-type]
        done: list[object] = []

        def interfere() -> None:
            if next(count) == table:
                done.append(meanwhile())
                client.execute("select pg_terminate_backend(%s, 5000)", [pid])

        with armed("decoupled.after_lake_commit", interfere), pytest.raises(psycopg.Error):
            victim.commit()
    assert done


def rows(client: Client, name: str) -> list[tuple[Any, ...]]:
    return client.execute(f"select id, balance from {name} order by 1, 2").fetchall()  # type: ignore[arg-type]


def kept(client: Client, name: str) -> list[str]:
    return [row[0] for row in client.execute("select reason from modak.kept_commits where lake_table_ref = %s", [f"public.{name}"])]


@pytest.mark.parametrize(
    ("ours", "theirs", "left"),
    [
        ("update {} set balance = 11 where id = 1", lambda peer: peer.change((1, 12), deleting=1), [(1, 12), (2, 20)]),
        ("update {} set balance = 11 where id = 1", lambda peer: peer.change(deleting=1), [(2, 20)]),
        ("insert into {} values (3, 30)", lambda peer: peer.table.delete("id = 3"), [(1, 10), (2, 20)]),
        ("delete from {} where id = 1", lambda peer: peer.table.delete("id = 2"), []),
    ],
    ids=["updated again", "deleted", "rewritten", "target rewritten"],
)
def test_what_others_rest_on_stays_whole(
    world: House, client: Client, name: str, peer: Peer, ours: str, theirs: Callable[[Peer], object], left: list[tuple[int, int]]
) -> None:
    """A peer changed what the transaction wrote, and its client was told so: nothing of it may come undone, or come twice."""
    die(world, client, [ours.format(name)], lambda: theirs(peer))
    wait(client)
    assert rows(client, name) == peer.rows() == left
    assert len(kept(client, name)) == 1
    with connect(world.dsn) as connection:
        [problem] = [one for one in overview.problems(connection) if one["table_name"] == name]
    assert "though Postgres did not confirm its transaction" in problem["message"]
    client.execute(f"insert into {name} values (9, 90)")  # type: ignore[arg-type]
    assert rows(client, name) == [*left, (9, 90)]


def test_every_table_of_the_transaction_stays(
    world: House, client: Client, name: str, peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    make(client, f"{name}_too", [("id", "bigint"), ("balance", "bigint")])
    client.execute(f"insert into {name}_too values (1, 0)")  # type: ignore[arg-type]
    statements = [f"update {table} set balance = 11 where id = 1" for table in (name, f"{name}_too")]
    die(world, client, statements, lambda: peer.change((1, 12), deleting=1), table=2)
    wait(client)
    assert rows(client, name) == [(1, 12), (2, 20)]
    assert rows(client, f"{name}_too") == [(1, 11)]
    assert kept(client, name) == ["a later commit deleted or changed rows that it added"]
    assert kept(client, f"{name}_too") == ["another table of the same transaction cannot go back"]
    with connect(world.dsn) as connection:
        show(connection, Output(json=False, quiet=False), Name("public", name), world.app.lake)
    told = " ".join(capsys.readouterr().err.split())
    assert f"stays in public.{name} though Postgres did not confirm its transaction" in told
    assert "delete from modak.kept_commits where commit_id" in told


def test_a_new_table_that_others_have_written_to_stays(world: House, client: Client) -> None:
    name = f"fresh{next(_names)}"
    columns = json.dumps([{"name": one, "type": "bigint"} for one in ("id", "balance")])
    create = f"select modak.create_iceberg_table('public', '{name}', '{columns}')"
    die(world, client, [create, f"insert into {name} values (1, 10)"], lambda: Peer(world, name).change((7, 70)))
    wait(client)
    assert client.execute("select to_regclass(%s)", [name]).fetchone() == (None,)
    assert kept(client, name) == ["others have written to the table that it created"]
    client.execute("select modak.attach_iceberg_table('public', %s, %s)", [name, f"public.{name}"])
    assert rows(client, name) == [(1, 10), (7, 70)]


@pytest.mark.parametrize("ours", ["truncate {0}; insert into {0} values (5, 50)", "delete from {}"])
def test_rows_that_went_come_back(world: House, client: Client, name: str, peer: Peer, ours: str) -> None:
    """With the deletes that they had: a row that was deleted before stays deleted."""
    client.execute(f"insert into {name} values (3, 30), (4, 40)")  # type: ignore[arg-type]
    client.execute(f"delete from {name} where id in (2, 4)")  # type: ignore[arg-type]
    die(world, client, ours.format(name).split(";"), lambda: peer.change((7, 70)))
    wait(client)
    assert rows(client, name) == peer.rows() == [(1, 10), (3, 30), (7, 70)]
    assert kept(client, name) == []
    client.execute(f"delete from {name} where id = 3")  # type: ignore[arg-type]
    assert rows(client, name) == peer.rows() == [(1, 10), (7, 70)]


def test_it_is_taken_out_once(world: House, client: Client, name: str, peer: Peer) -> None:
    die(world, client, [f"update {name} set balance = 11 where id = 1"], lambda: peer.change((7, 70)))
    wait(client)
    [commit_id] = [
        stamps[settled.COMMIT_ID].split()[0]
        for stamps in map(commits.stamps_of, peer.table.snapshots())
        if "taken back" in stamps.get(settled.COMMIT_ID, "")
    ]
    before = peer.table.metadata_location
    change = {"kind": "change", "profile": "default", "ref": f"public.{name}", "uuid": str(peer.table.metadata.table_uuid)}
    assert taking_back.take_back(decoupled(world), Journaled(commit_id, "1", (change,))) == []
    assert peer.table.metadata_location == before
    assert rows(client, name) == [(1, 10), (2, 20), (7, 70)]


def decoupled(world: House) -> Any:
    gateway = world.gateway.gateway
    assert gateway is not None
    return gateway.decoupled


def _remove_unnamed(table: Table) -> None:
    """What an engine does that expires snapshots."""
    named = {entry.file.file_path for entry in table.scan().plan_files()}
    for file in files_below(f"{table.location()}/data", {}):
        if file.location not in named:
            table.io.delete(file.location)


@pytest.mark.parametrize(
    ("ours", "left", "reasons"),
    [("insert into {} values (3, 30)", [(1, 10), (2, 20)], 0), ("truncate {0}; insert into {0} values (5, 50)", [(5, 50)], 1)],
    ids=["nothing is missing", "files are gone"],
)
def test_the_snapshot_before_has_expired(
    world: House, client: Client, name: str, peer: Peer, ours: str, left: list[tuple[int, int]], reasons: int
) -> None:
    seen: list[str] = []

    def meanwhile() -> None:
        current = peer.table.current_snapshot()
        peer.expire(current.parent_snapshot_id)  # type: ignore[union-attr,arg-type]
        _remove_unnamed(peer.table)
        # TRUNCATE has locked the name, and nobody can read it then.
        with world.client(options="-c lock_timeout=100ms") as other:
            try:
                rows(other, name)
            except psycopg.Error as failure:
                seen.append(str(failure))

    die(world, client, ours.format(name).split(";"), meanwhile)
    wait(client)
    assert len(seen) == 1
    assert ("lock timeout" if reasons else "is in doubt, and the snapshot before it has expired") in seen[0]
    assert rows(client, name) == left
    assert len(kept(client, name)) == reasons


def test_its_own_snapshot_has_expired(world: House, client: Client, name: str, peer: Peer) -> None:
    """Its files are in the snapshots after it: they are not to be removed."""

    def meanwhile() -> None:
        made = peer.table.current_snapshot()
        assert made is not None
        peer.change((7, 70))
        peer.expire(made.snapshot_id)

    die(world, client, [f"insert into {name} values (3, 30)"], meanwhile)
    wait(client)
    assert rows(client, name) == [(1, 10), (2, 20), (3, 30), (7, 70)]
    assert kept(client, name) == ["its snapshot has expired, and later ones have its files"]


def test_it_stays_open_while_others_are_faster(
    world: House, client: Client, name: str, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []

    def always(*_: object) -> bool:
        moved.append(1)
        raise LakeMoved("moved")

    with monkeypatch.context() as patched:
        patched.setattr(taking_back, "undo", always)
        die(world, client, [f"insert into {name} values (3, 30)"], lambda: peer.change((7, 70)))
        until = time.monotonic() + 60
        while len(moved) < 20:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert client.execute("select count(*) from modak.lake_commits").fetchone() == (1,)
    wait(client)
    assert rows(client, name) == [(1, 10), (2, 20), (7, 70)]


def test_one_that_cannot_be_settled_holds_up_no_other(world: House, client: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = decoupled(world).settled
    seen: list[str] = []

    def failing(intention: Journaled) -> bool:
        seen.append(intention.commit_id)
        if intention.commit_id == "first":
            raise ValueError("something nobody thought of")
        raise NotFound("gone")

    monkeypatch.setattr(found, "open_intentions", lambda: [Journaled("first", "3", ()), Journaled("second", "3", ())])
    monkeypatch.setattr(found, "_settle_anothers", failing)
    assert found.settle_all() == 0
    assert seen == ["first", "second"]


def test_files_that_nobody_knows_are_swept(world: House, client: Client, name: str, peer: Peer) -> None:
    """Ours, and old ones: another engine's, and what a transaction has just written, stay."""
    client.execute(f"delete from {name} where id = 1")  # type: ignore[arg-type]
    folder = Path(peer.table.location().removeprefix("file://")) / "data"
    names = [f"{'a' * 32}-{'b' * 12}.parquet", f"{'a' * 32}-{'b' * 12}-deletes.parquet", "00000-0-some-spark.parquet"]
    for one in names:
        (folder / one).write_bytes(b"")
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))
    fresh = folder / f"{'c' * 32}-{'b' * 12}.parquet"
    fresh.write_bytes(b"")
    client.execute("update modak.decoupled set swept_at = 'epoch' where table_name = %s", [name])
    until = time.monotonic() + 60
    # By whoever comes first: the gateway does it by itself.
    while (folder / names[0]).exists() or (folder / names[1]).exists():
        sweep_next(decoupled(world))
        assert time.monotonic() < until
    assert (folder / names[2]).exists()
    assert fresh.exists()
    assert rows(client, name) == peer.rows() == [(2, 20)]


def test_the_connection_to_the_gateway_is_cut_at_commit(world: House, client: Client, name: str, peer: Peer) -> None:
    """The lake has it, the backend lives, and the answer never comes: Postgres rolls back, and so does the lake."""
    server = world.gateway.gateway._server
    with world.client(autocommit=False) as victim:
        victim.execute("create temp table beside (id bigint)")
        others = set(server._sessions)
        victim.execute(f"insert into {name} values (3, 30)")  # type: ignore[arg-type]
        [(_, session)] = [server._sessions[number] for number in server._sessions.keys() - others]
        handle = session.channel._writer.get_extra_info("socket").fileno()

        def cut() -> None:
            with socket.socket(fileno=os.dup(handle)) as line:
                line.shutdown(socket.SHUT_RDWR)

        with armed("decoupled.after_lake_commit", cut), pytest.raises(psycopg.Error):
            victim.commit()
        victim.rollback()
        assert victim.execute("select 1").fetchone() == (1,)
    wait(client)
    assert rows(client, name) == peer.rows() == [(1, 10), (2, 20)]
    assert kept(client, name) == []


def test_a_serialization_failure_after_the_lake_has_committed(world: House, client: Client, name: str, peer: Peer) -> None:
    """Postgres looks for dependencies of SERIALIZABLE transactions last of all, when the foreign side has committed."""
    client.execute("create table one (n int); create table other (n int)")
    with world.client(autocommit=False) as victim, world.client(autocommit=False) as rival:
        for connection, read, written in ((victim, "one", "other"), (rival, "other", "one")):
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            connection.execute(f"select count(*) from {read}")  # type: ignore[arg-type]
            if connection is victim:
                connection.execute(f"insert into {name} values (3, 30)")  # type: ignore[arg-type]
            connection.execute(f"insert into {written} values (1)")  # type: ignore[arg-type]
        rival.commit()
        committed: list[int] = []
        with armed("decoupled.after_lake_commit", lambda: committed.append(1)), pytest.raises(psycopg.errors.SerializationFailure):
            victim.commit()
        assert committed
    wait(client)
    assert rows(client, name) == peer.rows() == [(1, 10), (2, 20)]
    client.execute("drop table one, other")


def test_bulk_rows_that_are_too_old_are_refused(
    world: House, client: Client, name: str, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files may have been swept: better no commit than one of files that are gone. Nothing is left of them."""
    monkeypatch.setattr(parcels, "ROW_GROUP_ROWS", 10)
    monkeypatch.setattr(parcels, "_COMMIT_SECONDS_MAX", -1.0)
    dsn = make_conninfo(world.dsn, host="127.0.0.1", port=world.gateway.port)
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as port, pytest.raises(psycopg.Error, match="too long ago"):
        port.execute(f"insert into {name} select n, n from generate_series(3, 500) n")  # type: ignore[arg-type]
    wait(client)
    assert rows(client, name) == [(1, 10), (2, 20)]
    assert len(list(files_below(f"{peer.table.location()}/data", {}))) == 1


def test_turns_go_by_the_table_itself(world: House, client: Client, name: str, peer: Peer) -> None:
    """Not by the name of its catalog, which another node may spell in another way."""
    with world.client(autocommit=False) as writer:
        writer.execute(f"update {name} set balance = 0")  # type: ignore[arg-type]
        assert client.execute("select iceberg_table from modak.claims").fetchall() == [(str(peer.table.metadata.table_uuid),)]


def test_what_postgres_has_forgotten_stays(world: House, client: Client, name: str, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that comes back after so many transactions that Postgres has forgotten this one."""
    wait(client)  # for the table's own first rows
    monkeypatch.setattr(decoupled(world).settled, "_status", lambda _: None)
    client.execute(f"insert into {name} values (3, 30)")  # type: ignore[arg-type]
    wait(client)
    assert rows(client, name) == peer.rows() == [(1, 10), (2, 20), (3, 30)]
    assert kept(client, name) == ["Postgres does not remember what became of its transaction"]
