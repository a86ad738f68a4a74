"""A commit to a decoupled table that a REST catalog answers with an error and carries out later: its client was told that it is rolled
back, and so it is, whenever it arrives."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.decoupling import Client, House, house, make
from tests.faults import FaultProxy, fault_proxy
from tests.gateways import RunningGateway
from tests.serving import RunningHttp

from modak.app import App
from modak.core.profile import Profile
from modak.embedded.postgres import Cluster
from modak.errors import LakeError
from modak.gateway.decoupled import arrivals, committing
from modak.settings import load

TOKEN = "a-token-of-a-slow-catalog"
COMMIT = r"/tables/(account|other)$"
CREATE = r"/tables$"


@dataclass
class Remote:
    """A database whose lake is in another one's catalog, by REST, and a proxy before that."""

    own: House
    catalog: App
    proxy: FaultProxy

    def table(self, name: str) -> Any:
        return self.catalog.lake(Profile("default")).load(f"public.{name}")

    def files(self, name: str) -> set[str]:
        folder = Path(self.table(name).location().removeprefix("file://")) / "data"
        return {path.name for path in folder.rglob("*.parquet")}


@pytest.fixture(scope="module")
def remote(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with house(cluster, template, tmp_path_factory.mktemp("catalog"), f"late_catalog_{os.getpid()}") as shared:
        server = RunningHttp(App(replace(shared.app.settings, rest_token=TOKEN)))
        name = f"late_{os.getpid()}"
        with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
            admin.execute(f"create database {name} template {template}")  # type: ignore[arg-type]
        with fault_proxy(f"http://127.0.0.1:{server.server.port}") as proxy:
            with psycopg.connect(cluster.dsn(name), autocommit=True) as connection:
                connection.execute("update modak.storage_profiles set credential_ref = 'SHARED' where is_default")
            given = {
                "HOME": os.environ.get("HOME", "/"),
                "MODAK_CATALOG": f"{proxy.url}/iceberg",
                "MODAK_CREDENTIALS_SHARED": f"token={TOKEN}",
            }
            app = App(load(given, dsn=cluster.dsn(name), data=str(tmp_path_factory.mktemp("late"))))
            running = RunningGateway(app)
            running.start()
            try:
                yield Remote(House(app, cluster.dsn(name), running), shared.app, proxy)
            finally:
                running.stop()
                server.stop()


@pytest.fixture
def client(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(arrivals, "_LOOK_SECONDS", (0.1, 0.1))
    with remote.own.client() as connection:
        for name in ("account", "other"):
            make(connection, name, [("id", "bigint"), ("balance", "bigint")])
            connection.execute(f"insert into {name} values (1, 10)")  # type: ignore[arg-type]
        eventually(lambda: journaled(connection) == 0)
        yield connection
        connection.execute("select modak.drop_iceberg_table('public', t.table_name, true) from modak.decoupled t")


def journaled(client: Client) -> int:
    row = client.execute("select count(*) from modak.lake_commits").fetchone()
    assert row is not None
    return int(row[0])


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def rows(client: Client, name: str = "account") -> list[tuple[Any, ...]]:
    return client.execute(f"select id, balance from {name} order by id").fetchall()  # type: ignore[arg-type]


@pytest.mark.parametrize("statement", ["insert into account values (2, 20)", "update account set balance = 11"])
def test_it_is_taken_out_when_it_arrives(remote: Remote, client: Client, statement: str) -> None:
    before = remote.files("account")
    with remote.proxy.failing(method="POST", path=COMMIT, late=True, times=1) as fault:
        with pytest.raises(psycopg.Error, match="did not say whether it committed") as failure:
            client.execute(statement)  # type: ignore[arg-type]
        assert failure.value.sqlstate == "58030"
        assert "rolled back" in str(failure.value.diag.message_hint)
        # Whatever looks meanwhile finds nothing, and removes nothing.
        remote.own.gateway.gateway.decoupled.settled.settle_all()
        time.sleep(0.3)
        assert remote.own.gateway.gateway.decoupled.settled.settle_all() == 0
        assert rows(client) == [(1, 10)]
        assert journaled(client) == 1
        assert len(remote.files("account")) > len(before)
        fault.arrive()
    assert rows(client) == [(1, 10)]
    eventually(lambda: journaled(client) == 0)
    assert rows(client) == [(1, 10)]
    assert len(remote.table("account").snapshots()) == 1
    assert remote.table("account").scan().to_arrow().num_rows == 1
    assert remote.files("account") == before
    client.execute("insert into account values (3, 30)")
    assert rows(client) == [(1, 10), (3, 30)]


@pytest.mark.parametrize("moves_on", [True, False])
def test_one_that_never_arrives_is_forgotten(remote: Remote, client: Client, monkeypatch: pytest.MonkeyPatch, moves_on: bool) -> None:
    before = remote.files("account")
    with remote.proxy.failing(method="POST", path=COMMIT, late=True, times=1) as fault:
        with pytest.raises(psycopg.Error, match="did not say"):
            client.execute("insert into account values (2, 20)")
        assert remote.files("account") > before
        if moves_on:
            # By a commit that came after it the first one has lost for good: its number is given away.
            client.execute("insert into account values (2, 20)")
        else:
            monkeypatch.setattr(arrivals, "ARRIVAL_SECONDS", 0.0)
        eventually(lambda: journaled(client) == 0)
        assert len(remote.files("account")) == len(before) + moves_on
        if moves_on:
            fault.arrive()
    assert rows(client) == [(1, 10), (2, 20)][: 1 + moves_on]
    assert remote.table("account").scan().to_arrow().num_rows == 1 + moves_on


def test_the_other_table_does_not_wait_for_it(remote: Remote, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there of the transaction goes at once; the rest when it comes."""
    with remote.proxy.failing(method="POST", path=r"/tables/other$", late=True, times=1) as fault:
        client.execute("begin")
        client.execute("insert into account values (2, 20)")
        client.execute("insert into other values (2, 20)")
        with pytest.raises(psycopg.Error, match="did not say"):
            client.execute("commit")
        assert len(remote.table("account").snapshots()) == 1
        fault.arrive()
    assert len(remote.table("other").snapshots()) == 2
    assert rows(client, "other") == [(1, 10)]
    eventually(lambda: len(remote.table("other").snapshots()) == 1)
    monkeypatch.setattr(arrivals, "ARRIVAL_SECONDS", 0.0)
    eventually(lambda: journaled(client) == 0)
    for name in ("account", "other"):
        assert rows(client, name) == [(1, 10)]
        assert len(remote.table(name).snapshots()) == 1
        assert len(remote.files(name)) == 1


def test_a_new_table_that_comes_late_goes_again(remote: Remote, client: Client) -> None:
    with remote.proxy.failing(method="POST", path=CREATE, late=True, times=1) as fault:
        with pytest.raises(psycopg.Error, match="did not say"):
            make(client, "fresh", [("id", "bigint")])
        assert client.execute("select to_regclass('fresh')").fetchone() == (None,)
        fault.arrive()
    eventually(lambda: journaled(client) == 0)
    lake = remote.catalog.lake(Profile("default"))
    assert lake.find("public.fresh") is None
    make(client, "fresh", [("id", "bigint")])
    client.execute("insert into fresh values (1)")
    assert lake.load("public.fresh").scan().to_arrow().num_rows == 1


def test_an_answer_that_cannot_be_read_is_none(remote: Remote, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something of which nobody thought, after the commit was sent: nothing is removed that may be in use."""
    settled = remote.own.gateway.gateway.decoupled.settled
    monkeypatch.setattr(settled.arrivals, "is_due", lambda _: False)
    change = committing.commits.change

    def sent(*given: Any, **named: Any) -> Any:
        change(*given, **named)
        raise ValueError("what is that?")

    with monkeypatch.context() as patch:
        patch.setattr(committing.commits, "change", sent)
        patch.setattr(settled, "take_back", unreachable)
        with pytest.raises(psycopg.Error, match="did not say whether it committed: ValueError"):
            client.execute("insert into account values (2, 20)")
    assert rows(client) == [(1, 10)]
    monkeypatch.undo()
    eventually(lambda: journaled(client) == 0)
    assert rows(client) == [(1, 10)]
    assert len(remote.table("account").snapshots()) == 1


def unreachable(*_: Any, **__: Any) -> bool:
    raise LakeError("the catalog does not answer")


def test_the_embedded_catalog_is_asked_by_a_lock(cluster: Cluster, template: str, tmp_path: Path) -> None:
    """There a commit is a row of Postgres's: while somebody changes it nobody can tell, and afterwards everybody."""
    with house(cluster, template, tmp_path, f"late_embedded_{os.getpid()}") as world, world.client() as client:
        make(client, "account", [("id", "bigint")])
        found = world.gateway.gateway.decoupled.settled.arrivals
        change = {"kind": "change", "profile": "default", "ref": "public.account"}
        with world.client(autocommit=False) as other:
            other.execute("update modak_lake.iceberg_tables set metadata_location = metadata_location where table_name = 'account'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                found.awaited("a", [change])
            other.rollback()
        assert found.awaited("a", [change]) is None
