"""Three nodes with a gateway each write one decoupled table of one catalog: every acknowledged commit is there once, and no other."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest
from tests.decoupling import make
from tests.gateways import RunningGateway
from tests.mesh.conftest import Mesh, eventually
from tests.serving import RunningHttp

from modak.app import App
from modak.embedded.postgres import Cluster
from modak.failpoints import armed
from modak.settings import load

TOKEN = "a-token-of-the-shared-catalog"
_ids = itertools.count(1)


@dataclass
class Writer:
    """A node's database with the gateway that it reaches the lake by."""

    name: str
    dsn: str
    gateway: RunningGateway
    environment: dict[str, str] = field(repr=False)

    def client(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.dsn, **{"autocommit": True, **options})


@dataclass
class Lakehouse:
    catalog: App
    writers: dict[str, Writer] = field(default_factory=dict)

    def table(self, ref: str) -> Any:
        from modak.core.profile import Profile

        return self.catalog.lake(Profile("default")).load(ref)


@pytest.fixture(scope="module")
def lakehouse(cluster: Cluster, template: str, mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    """One catalog beside the nodes, spoken to by REST; it outlives any of them."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute(f"create database shared_catalog template {template}")  # type: ignore[arg-type]
    home = {"HOME": os.environ.get("HOME", "/")}
    folder = tmp_path_factory.mktemp("shared")
    app = App(load(home, dsn=cluster.dsn("shared_catalog"), data=str(folder)))
    server = RunningHttp(App(replace(app.settings, rest_token=TOKEN)))
    made = Lakehouse(app)
    try:
        for node in mesh.nodes.values():
            node.run("update modak.storage_profiles set credential_ref = 'SHARED' where is_default")
            given = {**home, "MODAK_CATALOG": f"http://127.0.0.1:{server.port}/iceberg", "MODAK_CREDENTIALS_SHARED": f"token={TOKEN}"}
            data = str(tmp_path_factory.mktemp(node.name))
            running = RunningGateway(App(load(given, dsn=node.dsn, data=data)))
            running.start()
            made.writers[node.name] = Writer(node.name, node.dsn, running, {**given, "MODAK_DSN": node.dsn, "MODAK_DATA": data})
        with made.writers["anna"].client() as client:
            make(client, "events", [("id", "bigint"), ("node", "text"), ("counted", "bigint")])
        for name in ("berta", "clara"):
            eventually(lambda name=name: mesh[name].rows("select 1 from pg_class where oid = to_regclass('public.events')"))
        yield made
    finally:
        for writer in made.writers.values():
            writer.gateway.stop()
        server.stop()


def test_what_one_node_wrote_all_read_at_once(lakehouse: Lakehouse) -> None:
    for name, writer in lakehouse.writers.items():
        with writer.client() as client:
            client.execute("insert into events values (%s, %s, 0)", [-next(_ids), name])
        for other in lakehouse.writers.values():
            with other.client() as client:
                assert client.execute("select count(*) from events where node = %s", [name]).fetchone() == (1,)
    with lakehouse.writers["berta"].client() as client:
        client.execute("delete from events where id < 0")
    with lakehouse.writers["clara"].client() as client:
        assert client.execute("select count(*) from events").fetchone() == (0,)


@dataclass
class Story:
    """What writers were told. ``unknown`` are those who were told nothing: the connection broke when they had asked to commit."""

    acknowledged: dict[int, str] = field(default_factory=dict)
    turns: list[int] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def write(self, writer: Writer, turns: int, *, patient: bool) -> None:
        done = 0
        while done < turns and not self.over.is_set():
            number = next(_ids)
            asked = False
            try:
                with writer.client(autocommit=False, connect_timeout=5) as client:
                    client.execute("insert into events values (%s, %s, 0)", [number, writer.name])
                    client.execute("update events set counted = counted + 1 where id = 0")
                    asked = True
                    client.commit()
            except psycopg.Error as failure:
                # Whoever was told an error by Postgres itself knows that nothing happened.
                certain = failure.sqlstate is not None and not failure.sqlstate.startswith(("08", "57"))
                (self.unknown if asked and not certain else self.refused).add(number)
                self.errors.append(f"{failure.sqlstate} {failure}".splitlines()[0])
                if not patient:
                    return
                self.over.wait(0.2)
            else:
                self.acknowledged[number] = writer.name
                done += 1
        self.turns.append(done)


def run(lakehouse: Lakehouse, story: Story, writers: int, turns: int, *, patient: bool) -> list[threading.Thread]:
    threads = [
        threading.Thread(target=story.write, args=(writer, turns), kwargs={"patient": patient})
        for writer in lakehouse.writers.values()
        for _ in range(writers)
    ]
    for thread in threads:
        thread.start()
    return threads


def check(lakehouse: Lakehouse, story: Story) -> None:
    rows = lakehouse.table("public.events").scan().to_arrow().to_pylist()
    found = [row["id"] for row in rows if row["id"] > 0]
    assert len(found) == len(set(found)), "a commit is there twice"
    assert story.acknowledged.keys() <= set(found), "an acknowledged commit is lost"
    assert set(found) <= story.acknowledged.keys() | story.unknown, "a commit is there that failed"
    [count] = [row["counted"] for row in rows if row["id"] == 0]
    assert count == len(found), "a change of the common row is lost"
    for writer in lakehouse.writers.values():
        with writer.client() as client:
            assert client.execute("select count(*) from events where id > 0").fetchone() == (len(found),)


@pytest.fixture
def common_row(lakehouse: Lakehouse) -> Iterator[None]:
    with lakehouse.writers["anna"].client() as client:
        client.execute("insert into events values (0, 'all', 0)")
        yield
        client.execute("delete from events")


@pytest.mark.usefixtures("common_row")
@pytest.mark.parametrize(("writers", "turns"), [(2, 2), pytest.param(10, 4, marks=pytest.mark.soak)])
def test_many_writers_on_three_nodes(lakehouse: Lakehouse, mesh: Mesh, writers: int, turns: int) -> None:
    """No conflict reaches anybody, and snapshots stand in the order of tickets."""
    story, started = Story(), time.monotonic()
    before = lakehouse.table("public.events").current_snapshot().sequence_number
    for thread in run(lakehouse, story, writers, turns, patient=False):
        thread.join()
    seconds = time.monotonic() - started
    assert story.errors == []
    assert len(story.acknowledged) == 3 * writers * turns
    check(lakehouse, story)
    check_order(lakehouse, before)
    eventually(mesh.is_quiet)
    show(lakehouse, story, seconds)


def check_order(lakehouse: Lakehouse, before: int) -> None:
    """Commits stand in the order of their tickets; what was taken back has none."""
    later = [one.summary for one in lakehouse.table("public.events").snapshots() if one.sequence_number > before]
    tickets = [(int(one["modak.ticket"]), one["modak.node"]) for one in later if one["modak.ticket"] is not None]
    assert tickets == sorted(tickets)


def show(lakehouse: Lakehouse, story: Story, seconds: float) -> None:
    share = {name: sum(node == name for node in story.acknowledged.values()) for name in lakehouse.writers}
    figures = {"commits": len(story.acknowledged), "commits/s": round(len(story.acknowledged) / seconds, 1), "share": share}
    print(json.dumps({**figures, "fewest and most of a writer": [min(story.turns), max(story.turns)], "refused": len(story.refused)}))


@pytest.mark.usefixtures("common_row")
def test_a_gateway_a_connection_and_a_link_die(lakehouse: Lakehouse, mesh: Mesh) -> None:
    """All while three writers on each node go on: what they were told is what the lake has, in the order of tickets."""
    story, started = Story(), time.monotonic()
    before = lakehouse.table("public.events").current_snapshot().sequence_number
    lakehouse.writers["clara"].gateway.stop()
    with gateway_process(lakehouse.writers["clara"]) as process:
        threads = run(lakehouse, story, 3, 1_000_000, patient=True)
        try:
            progress(story)
            process.kill()
            process.wait()
            progress(story)
            lakehouse.writers["clara"].gateway.start()
            for death in (_drop_connections, _drop_link):
                death(lakehouse, mesh)
                progress(story)
            eventually(lambda: list(story.acknowledged.values()).count("clara") >= 3)
        finally:
            story.over.set()
            for thread in threads:
                thread.join()
    seconds = time.monotonic() - started
    eventually(lambda: not any(_has_doubts(writer) for writer in lakehouse.writers.values()))
    check(lakehouse, story)
    check_order(lakehouse, before)
    assert set(story.acknowledged.values()) == set(lakehouse.writers)
    eventually(mesh.is_quiet)
    show(lakehouse, story, seconds)


def progress(story: Story) -> None:
    have = len(story.acknowledged)
    eventually(lambda: len(story.acknowledged) > have + 5)


def _has_doubts(writer: Writer) -> bool:
    with writer.client() as client:
        return client.execute("select 1 from modak.lake_commits").fetchone() is not None


@contextmanager
def gateway_process(writer: Writer) -> Iterator[subprocess.Popen[bytes]]:
    """The node's gateway in a process of its own, which can be killed; on the port that the node knows."""
    environment = {
        **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
        **writer.environment,
        "MODAK_GATEWAY": f"127.0.0.1:{writer.gateway.port}",
    }
    process = subprocess.Popen([sys.executable, "-m", "modak.cli.main", "gateway"], env=environment, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _answers(writer))
        yield process
    finally:
        process.kill()
        process.wait()


def _answers(writer: Writer) -> bool:
    try:
        with writer.client() as client:
            return client.execute("select 1 from events limit 1").fetchone() is not None
    except psycopg.Error:
        return False


def _drop_connections(lakehouse: Lakehouse, mesh: Mesh) -> None:
    """Every session of a node but its replication: clients, and what its gateway waits and works on."""
    mesh["berta"].run(
        "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    )


def _drop_link(lakehouse: Lakehouse, mesh: Mesh) -> None:
    mesh["clara"].cut(mesh["anna"])
    eventually(lambda: not mesh.streams())
    mesh["clara"].heal(mesh["anna"])
    eventually(mesh.streams)


@pytest.mark.soak
@pytest.mark.usefixtures("common_row")
def test_a_peer_builds_on_the_commit_of_a_dead_node(lakehouse: Lakehouse, mesh: Mesh) -> None:
    """The server dies between the lake's commit and its own; a peer changes the same row; back again, it finds: rolled back."""
    died: list[int] = []

    def die() -> None:
        if not died:
            died.append(1)
            mesh["clara"].kill()

    with armed("decoupled.after_lake_commit", die):
        with pytest.raises(psycopg.Error), lakehouse.writers["clara"].client() as client:
            client.execute("update events set counted = 1 where id = 0")
        with lakehouse.writers["berta"].client() as client:
            client.execute("update events set counted = counted + 10 where id = 0")
            assert client.execute("select counted from events where id = 0").fetchall() == [(11,)]
    mesh["clara"].start()
    eventually(mesh.streams)
    eventually(lambda: not _has_doubts(lakehouse.writers["clara"]))
    for writer in lakehouse.writers.values():
        with writer.client() as client:
            assert client.execute("select counted from events where id = 0").fetchall() == [(11,)]
    assert mesh["clara"].rows("delete from modak.kept_commits returning reason") == [
        ("a later commit deleted or changed rows that it added",),
    ]


@pytest.mark.soak
@pytest.mark.usefixtures("common_row")
def test_nodes_gateways_and_links_die(lakehouse: Lakehouse, mesh: Mesh) -> None:
    """Writers go on trying while a server is killed and restarted, a gateway is restarted, and a node is cut off and healed."""
    story = Story()
    threads = run(lakehouse, story, 3, 1_000_000, patient=True)
    deaths = [_kill_node, _restart_gateway, _cut_off]
    try:
        for death in deaths:
            have = len(story.acknowledged)
            death(lakehouse, mesh)
            eventually(lambda have=have: len(story.acknowledged) > have + 6, seconds=120)
    finally:
        story.over.set()
        for thread in threads:
            thread.join()
    eventually(lambda: not any(_has_doubts(writer) for writer in lakehouse.writers.values()))
    check(lakehouse, story)
    assert set(story.acknowledged.values()) == set(lakehouse.writers)


def _kill_node(lakehouse: Lakehouse, mesh: Mesh) -> None:
    mesh["clara"].kill()
    time.sleep(3)
    mesh["clara"].start()
    eventually(mesh.streams)


def _restart_gateway(lakehouse: Lakehouse, mesh: Mesh) -> None:
    lakehouse.writers["berta"].gateway.stop()
    time.sleep(1)
    lakehouse.writers["berta"].gateway.start()


def _cut_off(lakehouse: Lakehouse, mesh: Mesh) -> None:
    mesh["clara"].cut(mesh["anna"], mesh["berta"])
    time.sleep(6)
    mesh["clara"].heal(mesh["anna"], mesh["berta"])
