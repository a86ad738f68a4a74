"""Three Postgres clusters that are one mesh, and ways to hurt them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from modak.catalog.migrate import migrate
from modak.connection import connect
from modak.embedded.postgres import Cluster
from modak.mesh import Bakery

# Above three times wal_receiver_status_interval, which knows no fractions of a second.
WINDOW_MS = 4000
OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "200ms",
}
NAMES = ("anna", "berta", "clara")


def eventually(question: Callable[[], Any], *, seconds: float = 60) -> Any:
    """What it answers, once that is true. The bound is for tests that fail."""
    until = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.05)
    return answer


@dataclass
class Node:
    name: str
    folder: Path
    cluster: Cluster
    mesh: Mesh = field(repr=False)

    @property
    def dsn(self) -> str:
        return self.cluster.dsn()

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query, parameters or None).fetchall()  # type: ignore[arg-type]

    def run(self, command: str | sql.Composed) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(command)  # type: ignore[arg-type]

    def join(self, names: tuple[str, ...] | None = None) -> list[tuple[Any, ...]]:
        peers = {name: node.dsn for name, node in self.mesh.nodes.items() if names is None or name in names}
        return self.rows("select peer, is_connected from modak.join_mesh(%s, %s)", self.name, json.dumps(peers))

    def kill(self) -> None:
        """The whole server, like a power cut: nothing gets to say good-bye."""
        os.kill(self.cluster.pid, signal.SIGSTOP)
        children = Path(f"/proc/{self.cluster.pid}/task/{self.cluster.pid}/children").read_text().split()
        for pid in [*map(int, children), self.cluster.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not self.cluster.is_running())

    def start(self) -> None:
        """On the port it had: peers know no other."""
        port = self.cluster.port
        self.cluster = Cluster.start(self.folder, options=OPTIONS)
        assert self.cluster.port == port

    def listen(self, on: bool) -> None:
        """Whether it hears what its peers say; they hear it all the same."""
        for [name] in self.rows("select subname from pg_subscription"):
            self.run(sql.SQL("alter subscription {} {}").format(sql.Identifier(name), sql.SQL("enable" if on else "disable")))

    def cut(self, *peers: Node, heal: bool = False) -> None:
        """Both directions of the links to these peers."""
        for peer in peers:
            for reader, writer in ((self, peer), (peer, self)):
                [[name]] = reader.rows("select modak.mesh_slot(%s, %s)", writer.name, reader.name)
                reader.run(sql.SQL("alter subscription {} {}").format(sql.Identifier(name), sql.SQL("enable" if heal else "disable")))

    def heal(self, *peers: Node) -> None:
        self.cut(*peers, heal=True)


@dataclass
class Mesh:
    nodes: dict[str, Node] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def streams(self) -> bool:
        """Every slot of every node has its reader."""
        return all(
            node.rows("select count(*) from pg_replication_slots where slot_name like 'modak_mesh_%%' and active")[0][0]
            == len(self.nodes) - 1
            for node in self.nodes.values()
        )

    def is_quiet(self) -> bool:
        tables = ("claims", "claim_acks", "deferred_acks")
        return not any(node.rows(f"select 1 from modak.{table} limit 1") for node in self.nodes.values() for table in tables)


@pytest.fixture(scope="package")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    made = Mesh()
    try:
        for name in NAMES:
            folder = tmp_path_factory.mktemp("mesh") / name
            node = Node(name, folder, Cluster.start(folder, options=OPTIONS), made)
            made.nodes[name] = node
            with connect(node.dsn) as connection:
                migrate(connection)
            node.run(f"alter database modak set modak.peer_alive_window_ms = {WINDOW_MS}")
        for node in made.nodes.values():
            node.join()
        eventually(made.streams)
        yield made
    finally:
        for node in made.nodes.values():
            if (found := Cluster.find(node.folder)) is not None:
                found.stop("immediate")


@pytest.fixture
def anna(mesh: Mesh) -> Node:
    return mesh["anna"]


@pytest.fixture
def berta(mesh: Mesh) -> Node:
    return mesh["berta"]


@pytest.fixture
def clara(mesh: Mesh) -> Node:
    return mesh["clara"]


@pytest.fixture
def bakeries(mesh: Mesh) -> Iterator[dict[str, Bakery]]:
    """One on each node, as a gateway has it. Afterwards nothing may be left anywhere."""
    opened = {name: Bakery(node.dsn) for name, node in mesh.nodes.items()}
    yield opened
    for bakery in opened.values():
        bakery.close()
    eventually(mesh.is_quiet)
