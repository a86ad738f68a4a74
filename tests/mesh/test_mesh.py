"""SCENARIOS 104 to 106 on three real nodes: claims travel, one writer at a time, in the order of tickets."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.mesh.conftest import Mesh, Node, eventually
from tests.mesh.ledger import Ledger

from modak.errors import ClaimCancelled
from modak.mesh import Bakery, Claim

TABLE = "lake/public.events"


def in_thread(bakery: Bakery, table: str = TABLE) -> tuple[threading.Thread, list[Claim]]:
    """A writer that waits beside the test; its claim is in the list once it has its turn."""
    got: list[Claim] = []
    thread = threading.Thread(target=lambda: got.append(bakery.claim(table, cancelled=lambda: False)), daemon=True)
    thread.start()
    return thread, got


def waiting(node: Node, count: int) -> None:
    eventually(lambda: node.rows("select count(*) from modak.claims where node = %s", node.name) == [(count,)])


def test_a_claim_is_seen_everywhere_and_so_is_its_end(mesh: Mesh, bakeries: dict[str, Bakery]) -> None:
    for name, bakery in bakeries.items():
        claim = bakery.claim(TABLE, cancelled=lambda: False)
        assert claim.node == name
        for node in mesh.nodes.values():
            eventually(lambda node=node, claim=claim: node.rows("select ticket, node from modak.claims") == [(claim.ticket, claim.node)])
        claim.check()
        claim.release()
        claim.release()
        eventually(mesh.is_quiet)


def test_claims_of_different_tables_do_not_meet(bakeries: dict[str, Bakery]) -> None:
    with (
        bakeries["anna"].claim("lake/one", cancelled=lambda: False),
        bakeries["berta"].claim("lake/two", cancelled=lambda: False) as second,
    ):
        second.check()


def test_a_later_claim_waits_and_is_answered_on_release(
    mesh: Mesh, anna: Node, berta: Node, clara: Node, bakeries: dict[str, Bakery]
) -> None:
    first = bakeries["berta"].claim(TABLE, cancelled=lambda: False)
    thread, got = in_thread(bakeries["anna"])
    eventually(lambda: berta.rows("select node from modak.deferred_acks") == [("anna",)])
    # Who has nothing to say against it has answered: one node defers, the other does not.
    eventually(lambda: anna.rows("select ack_from_node from modak.claim_acks where node = 'anna'") == [("clara",)])
    assert clara.rows("select node from modak.deferred_acks") == []
    assert not got
    first.release()
    thread.join(60)
    assert got[0].ticket > first.ticket
    got[0].release()


def test_the_order_is_ticket_then_node(mesh: Mesh, bakeries: dict[str, Bakery], tmp_path: Path) -> None:
    """Equal tickets, drawn behind a holder before anybody has heard of the others: the names decide."""
    ledger = Ledger(tmp_path / "ledger")
    nodes = [mesh["anna"], mesh["berta"], mesh["clara"]]
    holder = bakeries["clara"].claim(TABLE, cancelled=lambda: False)
    clocks = [node.rows("select max(clock) from modak.nodes")[0][0] for node in nodes]
    nodes[0].cut(nodes[1])
    for node in nodes[:2]:
        node.run(f"update modak.nodes set clock = {max(clocks)} where is_self")
    writers = []
    for name in ("berta", "anna"):
        thread, got = in_thread(bakeries[name])
        waiting(mesh[name], 1)
        writers.append((thread, got))
    nodes[0].heal(nodes[1])
    tickets = {row for node in nodes[:2] for row in node.rows("select ticket, node from modak.claims where node in ('anna', 'berta')")}
    assert {ticket for ticket, _ in tickets} == {max(clocks) + 1}
    holder.release()
    second = eventually(lambda: writers[1][1])[0]
    ledger.write("enter", second.ticket, second.node)
    assert not writers[0][1]
    ledger.write("leave", second.ticket, second.node)
    second.release()
    third = eventually(lambda: writers[0][1])[0]
    assert (third.ticket, third.node) == (second.ticket, "berta")
    third.release()


def work(bakery: Bakery, ledger: Ledger, turns: int, failures: list[BaseException]) -> None:
    try:
        for _ in range(turns):
            with bakery.claim(TABLE, cancelled=lambda: False) as claim:
                ledger.write("enter", claim.ticket, claim.node)
                time.sleep(0.002)
                claim.check()
                ledger.write("leave", claim.ticket, claim.node)
    except BaseException as failure:  # noqa: BLE001 - shown by the test
        failures.append(failure)


def at_once(bakeries: dict[str, Bakery], ledger: Ledger, writers: int, turns: int) -> list[tuple[int, str]]:
    failures: list[BaseException] = []
    threads = [
        threading.Thread(target=work, args=(bakery, ledger, turns, failures)) for bakery in bakeries.values() for _ in range(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not failures
    return ledger.turns()


@pytest.mark.parametrize("names", [("anna", "berta"), ("anna", "berta", "clara")], ids=len)
def test_several_writers_on_each_node(names: tuple[str, ...], bakeries: dict[str, Bakery], tmp_path: Path) -> None:
    """Everybody gets every turn, nobody two at once, and on each node by ticket."""
    turns = at_once({name: bakeries[name] for name in names}, Ledger(tmp_path / "ledger"), 5, 3)
    assert len(turns) == len(set(turns)) == len(names) * 5 * 3
    for name in names:
        tickets = [ticket for ticket, node in turns if node == name]
        assert tickets == sorted(tickets)
        assert len(tickets) == 15
    # Where everybody is heard the order of turns is the order of tickets, on all nodes together.
    assert turns == sorted(turns)


@pytest.mark.soak
def test_many_writers_for_long(bakeries: dict[str, Bakery], tmp_path: Path) -> None:
    turns = at_once(bakeries, Ledger(tmp_path / "ledger"), 10, 40)
    assert len(turns) == 3 * 10 * 40
    assert turns == sorted(turns)


def test_a_wait_can_be_cancelled(mesh: Mesh, anna: Node, bakeries: dict[str, Bakery]) -> None:
    holder = bakeries["berta"].claim(TABLE, cancelled=lambda: False)
    stop = threading.Event()
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            bakeries["anna"].claim(TABLE, cancelled=stop.is_set)
        except ClaimCancelled as failure:
            failures.append(failure)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting(anna, 1)
    stop.set()
    thread.join(30)
    assert failures
    assert anna.rows("select 1 from modak.claims where node = 'anna'") == []
    holder.release()
