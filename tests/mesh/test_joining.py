"""Two more databases of the three servers become a mesh of their own, in every order and more than once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.mesh.conftest import WINDOW_MS, Mesh, Node, eventually
from tests.mesh.ledger import Ledger
from tests.mesh.test_mesh import at_once, in_thread

from modak.catalog.migrate import migrate
from modak.connection import connect
from modak.errors import ClaimLost, MeshSplit
from modak.mesh import Bakery

TABLE = "lake/public.events"
TEMPLATE = "joining_template"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def _templates(mesh: Mesh) -> None:
    """A catalog to copy on each server."""
    for node in (mesh["anna"], mesh["berta"]):
        place = Place(node, TEMPLATE)
        place.create(template="template1")
        place.migrate()


@dataclass
class Place:
    """A database on a node's server, which may not be there yet."""

    node: Node
    name: str

    @property
    def dsn(self) -> str:
        return self.node.cluster.dsn(self.name)

    def create(self, *, template: str = TEMPLATE) -> None:
        self.node.run(sql.SQL("create database {} template {}").format(sql.Identifier(self.name), sql.Identifier(template)))
        self.run(f"alter database {self.name} set modak.peer_alive_window_ms = 1500")

    def migrate(self) -> None:
        with connect(self.dsn) as connection:
            migrate(connection)

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query, parameters or None).fetchall()  # type: ignore[arg-type]

    def run(self, command: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(command)  # type: ignore[arg-type]

    def join(self, *peers: Place) -> list[tuple[Any, ...]]:
        told = json.dumps({peer.name: peer.dsn for peer in peers})
        return self.rows("select peer, is_connected from modak.join_mesh(%s, %s)", self.name, told)

    def made(self) -> tuple[Any, ...]:
        """Everything that joining makes, with its names."""
        slots = self.rows("select slot_name from pg_replication_slots where database = current_database() order by 1")
        subscriptions = self.rows(
            "select subname, subslotname, subenabled from pg_subscription s join pg_database d on d.oid = s.subdbid"
            " where datname = current_database() order by 1"
        )
        return slots, subscriptions, self.rows("select node_name, is_self from modak.nodes order by 1")


@pytest.fixture
def pair(mesh: Mesh, _templates: None) -> Iterator[tuple[Place, Place]]:
    number = next(_numbers)
    places = Place(mesh["anna"], f"east_{number}"), Place(mesh["berta"], f"west_{number}")
    yield places
    for place in places:
        if place.node.rows("select 1 from pg_database where datname = %s", place.name):
            if place.rows("select to_regclass('modak.nodes') is not null") == [(True,)]:
                place.run("select modak.leave_mesh()")
            place.node.run(sql.SQL("drop database {} with (force)").format(sql.Identifier(place.name)))


@pytest.fixture
def joined(pair: tuple[Place, Place]) -> tuple[Place, Place]:
    for place in pair:
        place.create()
    for place in pair:
        # Both are told of both: a node passes itself over.
        assert place.join(*pair) == [(other.name, True) for other in pair if other is not place]
    return pair


def take_turns(*places: Place) -> None:
    """One turn on each, answered by all."""
    bakeries = [Bakery(place.dsn) for place in places]
    for bakery in bakeries:
        with bakery.claim(TABLE) as claim:
            claim.check()
    for bakery in bakeries:
        bakery.close()
    eventually(lambda: not any(place.rows("select 1 from modak.claims union all select 1 from modak.claim_acks") for place in places))


def test_joining_again_changes_nothing(joined: tuple[Place, Place]) -> None:
    before = [place.made() for place in joined]
    assert [len(slots) for slots, _, _ in before] == [1, 1]
    for place in joined:
        place.join(*joined)
    assert [place.made() for place in joined] == before
    take_turns(*joined)


def test_no_table_holds_an_address(joined: tuple[Place, Place]) -> None:
    east, west = joined
    password = conninfo_to_dict(west.dsn)["password"]
    for table in ("nodes", "claims", "claim_acks", "deferred_acks"):
        assert password not in str(east.rows(f"select t::text from modak.{table} t"))
    assert password in str(east.rows("select subconninfo from pg_subscription"))
    role = f"looker_{east.name}"
    east.run(f"create role {role} login password 'x' in role modak_reader, modak_writer, modak_worker")
    with psycopg.connect(make_conninfo(east.dsn, user=role, password="x"), autocommit=True) as looker:
        assert looker.execute("select count(*) from modak.nodes").fetchone() == (2,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            looker.execute("select subconninfo from pg_subscription")
    east.run(f"drop role {role}")


@pytest.mark.parametrize("catalog", [pytest.param(False, marks=pytest.mark.soak), True], ids=["without a catalog", "absent"])
def test_a_peer_that_comes_later(catalog: bool, pair: tuple[Place, Place]) -> None:
    east, west = pair
    east.create()
    if not catalog:
        west.create(template="template1")
    assert east.join(west) == [(west.name, False)]
    bakery = Bakery(east.dsn)
    if catalog:
        west.create()
    else:
        west.migrate()
    assert west.join(east) == [(east.name, True)]
    # The gateway's bakery completes what was begun.
    eventually(lambda: east.rows("select count(*) from pg_subscription_rel") == [(3,)])
    bakery.close()
    take_turns(*pair)


def test_a_mesh_of_before_tables_were_told_of(joined: tuple[Place, Place]) -> None:
    """Migrated on both nodes, the subscriptions learn of the third table by themselves."""
    for place in joined:
        place.run("alter publication modak_mesh drop table modak.shared_tables")
    for place in joined:
        [[name]] = place.rows(
            "select subname from pg_subscription s join pg_database d on d.oid = subdbid where datname = current_database()"
        )
        place.run(f"alter subscription {name} refresh publication with (copy_data = false)")
        assert place.rows("select count(*) from pg_subscription_rel") == [(2,)]
    take_turns(*joined)
    for place in joined:
        place.rows("select modak.publish_claims(%s)", place.name)
    bakeries = [Bakery(place.dsn) for place in joined]
    for place in joined:
        eventually(lambda place=place: place.rows("select count(*) from pg_subscription_rel") == [(3,)])
    for bakery in bakeries:
        bakery.close()
    take_turns(*joined)


@pytest.mark.soak
def test_joining_again_completes_it_too(pair: tuple[Place, Place]) -> None:
    east, west = pair
    east.create()
    assert east.join(west) == [(west.name, False)]
    west.create()
    west.join(east)
    assert east.join(west) == [(west.name, True)]
    take_turns(*pair)


def test_a_stream_that_was_begun_anew_stops_at_nothing(joined: tuple[Place, Place]) -> None:
    """Whoever lost his subscription is sent again what he has already."""
    east, west = joined
    bakery = Bakery(east.dsn)
    with bakery.claim(TABLE):
        eventually(lambda: west.rows("select node from modak.claims") == [(east.name,)])
        west.run("select modak.drop_subscription(subname) from pg_subscription where subname like 'modak_mesh_east%'")
        # As if the slot had not been told how far the subscriber came.
        assert west.join(east) == [(east.name, True)]
        west.run(f"insert into modak.claims (iceberg_table, ticket, node) values ('{TABLE}', 1000, '{east.name}')")
        east.run(f"insert into modak.claims (iceberg_table, ticket, node) values ('{TABLE}', 1000, '{east.name}')")
        eventually(lambda: west.rows("select count(*) from modak.deferred_acks") == [(0,)])
    bakery.close()
    take_turns(*joined)


def test_leaving(joined: tuple[Place, Place]) -> None:
    east, west = joined
    east.run("select modak.leave_mesh()")
    assert east.made() == ([], [], [(east.name, True)])
    take_turns(east)
    west.join()
    assert west.made() == ([], [], [(west.name, True)])
    take_turns(west)
    for place in joined:
        place.join(*joined)
    take_turns(*joined)


def test_refusals_and_a_list_of_peers(joined: tuple[Place, Place]) -> None:
    east, west = joined
    wrong = [("a", "1"), ("a", '{"b": 1}'), ("", "{}"), ("a", '[{"name": "b"}]'), ("a", '[{"dsn": "b"}]'), ("a", '{"": "b"}')]
    for name, peers, code in [*((name, peers, "22023") for name, peers in wrong), ("another", "{}", "55000")]:
        with pytest.raises(psycopg.Error) as refused:
            east.rows("select modak.join_mesh(%s, %s)", name, peers)
        assert refused.value.sqlstate == code, (name, peers)
        assert refused.value.diag.message_hint
    with psycopg.connect(east.dsn) as connection:
        connection.execute("create temporary table t ()")
        with pytest.raises(psycopg.errors.ActiveSqlTransaction, match="has written"):
            connection.execute("select modak.join_mesh('a', '{}')")
    listed = json.dumps([{"name": west.name, "dsn": west.dsn}])
    assert east.rows("select peer from modak.join_mesh(%s, %s)", east.name, listed) == [(west.name,)]


def test_of_two_nodes_either_goes_on_alone_unless_told_otherwise(joined: tuple[Place, Place]) -> None:
    east, west = joined
    take_turns(*joined)
    west.run("alter subscription {} disable".format(west.rows("select modak.mesh_slot(%s, %s)", east.name, west.name)[0][0]))
    bakery = Bakery(east.dsn)
    bakery.claim(TABLE).release()
    east.run(f"alter database {east.name} set modak.mesh_quorum = 'majority'")
    bakery.close()
    bakery = Bakery(east.dsn)
    with pytest.raises(MeshSplit) as refused:
        bakery.claim(TABLE)
    assert west.name in str(refused.value)
    # Mended, it goes on by itself, with the answer that it waits for.
    thread, got = in_thread(bakery)
    west.join(east)
    thread.join(60)
    got[0].release()
    bakery.close()


def test_a_node_that_stood_still_has_lost_its_turn(joined: tuple[Place, Place]) -> None:
    """It cannot know what the others did meanwhile, whatever it hears now."""
    east, _ = joined
    bakery = Bakery(east.dsn)
    with bakery.claim(TABLE) as claim:
        claim.check()
        east.run("update modak.nodes set noticed_at = noticed_at - interval '1 hour' where is_self")
        with pytest.raises(ClaimLost):
            claim.check()
    take_turns(*joined)
    bakery.close()


def test_a_node_that_stood_still_passes_over_nobody_before_it_has_listened(joined: tuple[Place, Place]) -> None:
    """After a pause of the machine, or a jump of its clock, the last words of a peer at work seem to be old."""
    east, west = joined
    bakery = Bakery(west.dsn)
    with bakery.claim(TABLE) as claim, psycopg.connect(east.dsn, autocommit=True) as connection:
        eventually(lambda: east.rows("select 1 from modak.claims where node = %s", west.name))
        with connection.transaction():
            connection.execute("select modak.lock_node(), modak.look_at_peers()")
            [ticket] = connection.execute("select ticket from modak.claim_table(%s)", [TABLE]).fetchone() or (0,)
            connection.execute("update modak.nodes set noticed_at = noticed_at - interval '1 hour'")
            found = connection.execute("select state from modak.grant_claim(%s, %s, true)", [TABLE, ticket]).fetchone()
            assert found == ("waiting",)
        claim.check()
        connection.execute("select modak.release_claim(%s, %s)", [TABLE, ticket])
    take_turns(*joined)
    bakery.close()


def test_a_clock_that_was_set_back_does_not_keep_the_dead_alive(joined: tuple[Place, Place]) -> None:
    east, west = joined
    take_turns(*joined)
    west.run("alter subscription {} disable".format(west.rows("select modak.mesh_slot(%s, %s)", east.name, west.name)[0][0]))
    gone = "select 1 from modak.lock_node(), modak.look_at_peers() join modak.nodes using (node_name) where reply_time is null"
    eventually(lambda: east.rows(gone))
    east.run("update modak.nodes set noticed_at = noticed_at + interval '1 hour'")
    bakery = Bakery(east.dsn)
    thread, got = in_thread(bakery)
    thread.join(20)
    assert got
    got[0].release()
    bakery.close()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_databases_that_like_other_isolation(pair: tuple[Place, Place], tmp_path: Path, level: str) -> None:
    """Replication workers have the database's default, and one that fails is away for seconds, as if its node were dead."""
    for place in pair:
        place.create()
        place.run(f"alter database {place.name} set default_transaction_isolation = '{level}'")
        place.run(f"alter database {place.name} set modak.peer_alive_window_ms = {WINDOW_MS}")
    for place in pair:
        place.join(*pair)
    take_turns(*pair)
    failed = "select sum(apply_error_count) from pg_stat_subscription_stats"
    before = [place.rows(failed) for place in pair]
    bakeries = {place.name: Bakery(place.dsn) for place in pair}
    assert len(at_once(bakeries, Ledger(tmp_path / "ledger"), 4, 8)) == 64
    for bakery in bakeries.values():
        bakery.close()
    assert [place.rows(failed) for place in pair] == before
