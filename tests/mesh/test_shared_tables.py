"""A decoupled table that one node makes is there on its peers, and goes with its lake table. Berta has Anna's catalog, Clara her own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest
from tests.gateways import RunningGateway
from tests.mesh.conftest import Mesh, Node, eventually
from tests.serving import RunningHttp

from modak.app import App
from modak.cli import status
from modak.cli.output import Output
from modak.connection import connect
from modak.gateway.decoupled import following
from modak.settings import load

TOKEN = "a-token-of-annas"
COLUMNS = [
    {"name": "id", "type": "bigint", "not_null": True},
    {"name": "code", "type": "varchar(3)", "default": "'new'"},
    {"name": "data", "type": "jsonb"},
]


@dataclass
class Neighbours:
    apps: dict[str, App]
    gateways: dict[str, RunningGateway]
    mesh: Mesh

    def __getitem__(self, name: str) -> Node:
        return self.mesh[name]


@pytest.fixture(scope="module")
def neighbours(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neighbours]:
    home, patch = {"HOME": os.environ.get("HOME", "/")}, pytest.MonkeyPatch()
    # What failed is tried again soon.
    patch.setattr(following, "_AGAIN_SECONDS", 0.5)
    apps, gateways = {}, {}
    server = None
    try:
        for node in mesh.nodes.values():
            given = dict(home)
            node.run("update modak.storage_profiles set credential_ref = null where is_default")
            # What tests before this one made is in a catalog that is gone.
            for [name] in node.rows(
                "select oid::regclass::text from pg_class where relkind = 'f' and relnamespace = 'public'::regnamespace"
            ):
                node.run(f"drop foreign table {name}")
            node.run("delete from modak.decoupled; delete from modak.shared_tables; delete from modak.followed_tables")
            if node.name == "berta":
                server = RunningHttp(App(replace(apps["anna"].settings, rest_token=TOKEN)))
                given |= {"MODAK_CATALOG": f"http://127.0.0.1:{server.port}/iceberg", "MODAK_CREDENTIALS_ANNAS": f"token={TOKEN}"}
                node.run("update modak.storage_profiles set credential_ref = 'ANNAS' where is_default")
            apps[node.name] = App(load(given, dsn=node.dsn, data=str(tmp_path_factory.mktemp(node.name))))
            gateways[node.name] = RunningGateway(apps[node.name])
            gateways[node.name].start()
        yield Neighbours(apps, gateways, mesh)
    finally:
        for gateway in gateways.values():
            gateway.stop()
        if server is not None:
            server.stop()
        patch.undo()


def create(node: Node, name: str, columns: list[dict[str, Any]] = COLUMNS) -> None:
    node.rows("select modak.create_iceberg_table('public', %s, %s)", name, json.dumps(columns))


def drop(node: Node, name: str) -> None:
    node.rows("select modak.drop_iceberg_table('public', %s, true)", name)


def is_there(node: Node, name: str) -> bool:
    return node.rows("select to_regclass(%s) is not null", name) == [(True,)]


def kinds(node: Node, name: str) -> list[tuple[Any, ...]]:
    return node.rows(
        "select attname::text, format_type(atttypid, atttypmod), attnotnull from pg_attribute where attrelid = %s::regclass and attnum > 0"
        " order by attnum",
        name,
    )


def problems(node: Node) -> list[tuple[Any, ...]]:
    return node.rows("select schema_name, table_name, message, hint from modak.lake_problems where code = 'table_not_followed'")


def test_a_column_that_one_node_adds_is_each_nodes_own_to_show(neighbours: Neighbours) -> None:
    """Berta reaches the lake by the REST protocol, Anna by her own database."""
    anna, berta = neighbours["anna"], neighbours["berta"]
    create(anna, "wider")
    anna.run("insert into wider (id) values (1)")
    eventually(lambda: is_there(berta, "wider"))
    country, note = ({"name": name, "type": kind} for name, kind in (("country", "char(2)"), ("note", "jsonb")))
    anna.rows("select modak.add_iceberg_column('public', 'wider', %s)", json.dumps(country))
    anna.run("insert into wider values (2, 'two', null, 'de')")
    assert berta.rows("select * from wider order by id") == [(1, "new", None), (2, "two", None)]
    berta.run("insert into wider (id, code) values (3, 'all')")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="country"):
        berta.run("update wider set code = 'one' where id = 1")
    berta.rows("select modak.add_iceberg_column('public', 'wider', %s)", json.dumps(note))
    berta.run("insert into wider values (4, 'fou', null, '{\"n\": 4}')")
    for node, one in ((berta, country), (anna, note)):
        node.rows("select modak.add_iceberg_column('public', 'wider', %s)", json.dumps(one))
    berta.run("update wider set code = 'one' where id = 1")
    seen = "select id, code, country, note->>'n' from wider order by id"
    assert (
        anna.rows(seen)
        == berta.rows(seen)
        == [(1, "one", None, None), (2, "two", "de", None), (3, "all", None, None), (4, "fou", None, "4")]
    )
    drop(anna, "wider")


def test_a_table_comes_and_goes_with_the_node_that_made_it(neighbours: Neighbours) -> None:
    anna, berta = neighbours["anna"], neighbours["berta"]
    for node in (anna, berta):
        node.run("create role shopkeeper; grant create on schema public to shopkeeper")
    with psycopg.connect(anna.dsn, autocommit=True) as session:
        session.execute("grant modak_worker to shopkeeper; set role shopkeeper")
        session.execute("select modak.create_iceberg_table('public', 'shared', %s)", [json.dumps(COLUMNS)])
        session.execute("insert into shared (id, data) values (1, '{\"k\": 1}')")
    eventually(lambda: is_there(berta, "shared"))
    assert kinds(berta, "shared") == kinds(anna, "shared")
    assert berta.rows("select pg_get_userbyid(relowner) from pg_class where relname = 'shared'") == [("shopkeeper",)]
    assert berta.rows("select id, code, data->>'k' from shared") == [(1, "new", "1")]
    berta.run("insert into shared (id) values (2)")
    assert anna.rows("select count(*) from shared") == [(2,)]
    # The same call there is a notice, and what a script attaches by hand, too.
    create(berta, "shared")
    berta.rows("select modak.attach_iceberg_table('public', 'shared', 'public.shared')")
    drop(anna, "shared")
    eventually(lambda: not is_there(berta, "shared"))
    assert berta.rows("select * from modak.decoupled where lake_table_ref = 'public.shared'") == []
    eventually(lambda: berta.rows("select * from modak.followed_tables") == [])
    for node in (anna, berta):
        node.run("drop owned by shopkeeper; drop role shopkeeper")


def test_a_rollback_tells_nobody(neighbours: Neighbours) -> None:
    anna, berta = neighbours["anna"], neighbours["berta"]
    with psycopg.connect(anna.dsn) as session:
        session.execute("select modak.create_iceberg_table('public', 'never', %s)", [json.dumps(COLUMNS)])
        session.rollback()
    create(anna, "told")
    eventually(lambda: is_there(berta, "told"))
    assert not is_there(berta, "never")
    assert berta.rows("select table_name from modak.shared_tables where node = 'anna'") == [("told",)]
    drop(anna, "told")
    eventually(lambda: not is_there(berta, "told"))


def test_what_was_let_go_of_stays_so(neighbours: Neighbours) -> None:
    anna, berta = neighbours["anna"], neighbours["berta"]
    create(anna, "left")
    eventually(lambda: is_there(berta, "left"))
    berta.rows("select modak.drop_iceberg_table('public', 'left')")
    create(anna, "later")
    eventually(lambda: is_there(berta, "later"))
    assert not is_there(berta, "left")
    assert anna.rows('select count(*) from "left"') == [(0,)]
    # Nor does it come back when the nodes meet again; by hand it does.
    anna.join()
    eventually(lambda: len(berta.rows("select * from modak.shared_tables where node = 'anna'")) == 2)
    assert not is_there(berta, "left")
    berta.rows("select modak.attach_iceberg_table('public', 'left', 'public.left')")
    # Whatever somebody attached by hand is his to drop, and says clearly what became of its lake table.
    for name in ("left", "later"):
        drop(anna, name)
    eventually(lambda: not is_there(berta, "later"))
    with pytest.raises(
        psycopg.errors.UndefinedTable, match=r"lake table public\.left of public\.left is not in its catalog any more"
    ) as gone:
        eventually(lambda: berta.rows('select 1 from "left"'))
    assert "DROP FOREIGN TABLE" in str(gone.value.diag.message_hint)
    berta.rows("select modak.drop_iceberg_table('public', 'left')")


def test_another_table_of_the_same_name(neighbours: Neighbours) -> None:
    """Dropped and made anew, with other columns by the same numbers: never the rows of the one read as those of the other."""
    anna, berta = neighbours["anna"], neighbours["berta"]
    create(anna, "anew", [{"name": "first", "type": "text"}, {"name": "second", "type": "text"}])
    anna.run("insert into anew values ('1', '2')")
    eventually(lambda: is_there(berta, "anew"))
    neighbours.gateways["berta"].stop()
    drop(anna, "anew")
    create(anna, "anew", [{"name": "second", "type": "text"}, {"name": "first", "type": "text"}])
    anna.run("insert into anew values ('2', '1')")
    berta.run("alter database modak set modak.follow_peers = off")
    berta.run("create view on_top as select first from anew")
    neighbours.gateways["berta"].start()
    with pytest.raises(psycopg.errors.UndefinedTable, match="is another one by now, with other columns"):
        berta.rows("select first from on_top")
    # What depends on it keeps it, and it is told.
    eventually(lambda: "other objects depend on it" in str(problems(berta)))
    berta.run("drop view on_top")
    eventually(lambda: not is_there(berta, "anew"))
    berta.run("alter database modak reset modak.follow_peers")
    neighbours.gateways["berta"].stop()
    neighbours.gateways["berta"].start()
    eventually(lambda: is_there(berta, "anew"))
    assert berta.rows("select first, second from anew") == [("1", "2")]
    drop(anna, "anew")
    eventually(lambda: not is_there(berta, "anew"))


def test_what_stands_in_the_way_is_told(neighbours: Neighbours) -> None:
    anna, berta = neighbours["anna"], neighbours["berta"]
    berta.run("create table taken ()")
    create(anna, "taken")
    eventually(lambda: [row[:3] for row in problems(berta)] == [("public", "taken", "relation public.taken exists already")])
    berta.run("drop table taken")
    eventually(lambda: is_there(berta, "taken") and problems(berta) == [])
    anna.run("create schema annas")
    anna.rows("select modak.create_iceberg_table('annas', 'hers', %s)", json.dumps(COLUMNS))
    eventually(lambda: [row[2] for row in problems(berta)] == ['there is no schema "annas"'])
    berta.run("create schema annas")
    eventually(lambda: is_there(berta, "annas.hers"))
    anna.rows("select modak.drop_iceberg_table('annas', 'hers', true)")
    drop(anna, "taken")
    eventually(lambda: not is_there(berta, "annas.hers") and not is_there(berta, "taken"))
    for node in (anna, berta):
        node.run("drop schema annas")


def test_nodes_that_do_not_share_a_catalog_say_so(neighbours: Neighbours, capsys: pytest.CaptureFixture[str]) -> None:
    anna, clara = neighbours["anna"], neighbours["clara"]
    # It has heard of what tests before this one made, too.
    eventually(lambda: problems(clara) == [])
    create(anna, "annas_own")
    missing = "node anna has made lake table public.annas_own, and the catalog of this node does not have it"
    eventually(lambda: missing in str(problems(clara)))
    [(_, name, message, hint)] = problems(clara)
    assert name == "annas_own"
    assert "has a catalog of its own" in message
    assert "must share one Iceberg catalog" in hint
    with connect(clara.dsn) as connection:
        status.show(connection, Output(json=False, quiet=False), None, neighbours.apps["clara"].lake)
    assert "public.annas_own follow: node anna has made" in "".join(capsys.readouterr())
    # Both have one of that name: that is no shared one either.
    create(clara, "annas_own")
    eventually(lambda: 'node "anna" has made lake table public.annas_own, and so has this one' in str(problems(clara)))
    drop(clara, "annas_own")
    drop(anna, "annas_own")
    eventually(lambda: problems(clara) == [] and problems(anna) == [])


def test_who_comes_later_hears_of_everything(neighbours: Neighbours) -> None:
    """Also of what was made while a node was out of the mesh; and what it attached stays when it leaves."""
    anna, berta = neighbours["anna"], neighbours["berta"]
    create(anna, "early")
    eventually(lambda: is_there(berta, "early"))
    berta.run("select modak.leave_mesh()")
    for name in ("anna", "clara"):
        neighbours[name].join(("anna", "clara"))
    assert is_there(berta, "early")
    assert berta.rows("select node from modak.shared_tables union all select node from modak.followed_tables") == []
    create(anna, "meanwhile")
    for node in neighbours.mesh.nodes.values():
        node.join()
    eventually(neighbours.mesh.streams)
    eventually(lambda: is_there(berta, "meanwhile"))
    assert is_there(berta, "early")
    for name in ("early", "meanwhile"):
        drop(anna, name)
    eventually(lambda: not is_there(berta, "meanwhile"))
    # It was attached before this mesh: nobody here knows by whom.
    berta.rows("select modak.drop_iceberg_table('public', 'early')")
