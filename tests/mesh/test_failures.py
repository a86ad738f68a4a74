"""SCENARIOS 107: what happens to the turns when processes, servers and links fail, and when they come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.mesh.conftest import Mesh, Node, eventually
from tests.mesh.ledger import Ledger
from tests.mesh.test_mesh import TABLE, in_thread, waiting

from modak.errors import ClaimLost, MeshSplit, ModakError
from modak.mesh import Bakery

CLAIMANT = """
import sys, time
from modak.mesh import Bakery
claim = Bakery(sys.argv[1]).claim(sys.argv[2], cancelled=lambda: False)
print(claim.ticket, flush=True)
time.sleep(600)
"""


def claimant(dsn: str, table: str = TABLE) -> tuple[subprocess.Popen[str], int]:
    """A process that has its turn and never ends it."""
    process = subprocess.Popen([sys.executable, "-c", CLAIMANT, dsn, table], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def mend(mesh: Mesh) -> None:
    eventually(mesh.streams)
    # Looked at again by everybody: nobody is silent any more.
    silent = "select 1 from modak.nodes where not is_self and (reply_time is null or clock_timestamp() - noticed_at > interval '3 seconds')"
    eventually(lambda: not any(node.rows(silent) for node in mesh.nodes.values()))


def test_a_killed_writer_gives_its_turn_back(mesh: Mesh, anna: Node, bakeries: dict[str, Bakery]) -> None:
    """To writers of its own node and of others."""
    for name in ("anna", "berta"):
        process, ticket = claimant(anna.dsn)
        thread, got = in_thread(bakeries[name])
        eventually(
            lambda name=name, ticket=ticket: mesh[name].rows("select 1 from modak.claims where node = %s and ticket > %s", name, ticket)
        )
        assert not got
        process.send_signal(signal.SIGKILL)
        process.wait()
        thread.join(60)
        assert got[0].ticket > ticket
        got[0].release()
        eventually(mesh.is_quiet)


def test_a_writer_killed_where_nobody_else_is_gives_its_turn_back(mesh: Mesh, anna: Node, berta: Node) -> None:
    """No gateway of that node is left: the node itself clears it away when it is asked again."""
    process, _ = claimant(anna.dsn)
    bakery = Bakery(berta.dsn)
    thread, got = in_thread(bakery)
    waiting(berta, 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    thread.join(60)
    got[0].release()
    bakery.close()
    eventually(mesh.is_quiet)


def test_survivors_go_on_and_a_restarted_node_clears_its_claims(mesh: Mesh, clara: Node, bakeries: dict[str, Bakery]) -> None:
    lost = bakeries["clara"].claim(TABLE, cancelled=lambda: False)
    clara.listen(False)
    clara.kill()
    for name in ("anna", "berta"):
        with bakeries[name].claim(TABLE, cancelled=lambda: False) as claim:
            claim.check()
    with pytest.raises(ClaimLost):
        lost.check()
    with pytest.raises(ModakError):
        bakeries["clara"].claim(TABLE, cancelled=lambda: False)
    holder = bakeries["anna"].claim(TABLE, cancelled=lambda: False)
    clara.start()
    # It comes back with a clock that has not heard of the holder, draws an earlier ticket, and still has to wait.
    thread, got = in_thread(bakeries["clara"])
    eventually(lambda: clara.rows("select ticket < %s from modak.claims where node = 'clara' and ticket > %s", holder.ticket, lost.ticket))
    assert clara.rows("select bool_and(ticket < %s) from modak.claims where node = 'clara'", holder.ticket) == [(True,)]
    clara.listen(True)
    eventually(mesh.streams)
    eventually(lambda: mesh["anna"].rows("select node from modak.deferred_acks") == [("clara",)])
    assert not got
    holder.check()
    holder.release()
    thread.join(60)
    got[0].release()
    lost.release()
    mend(mesh)


def test_a_node_that_is_cut_off_stops_and_the_others_go_on(mesh: Mesh, anna: Node, bakeries: dict[str, Bakery], tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    held = bakeries["anna"].claim(TABLE, cancelled=lambda: False)
    anna.cut(mesh["berta"], mesh["clara"])
    try:
        for name in ("berta", "clara"):
            with bakeries[name].claim(TABLE, cancelled=lambda: False) as claim:
                # By the time that others have their turn, the one who was cut off knows that his is over.
                with pytest.raises(ClaimLost):
                    held.check()
                ledger.write("enter", claim.ticket, claim.node)
                claim.check()
                ledger.write("leave", claim.ticket, claim.node)
        with pytest.raises(MeshSplit) as refused:
            bakeries["anna"].claim(TABLE, cancelled=lambda: False)
        assert "berta, clara" in str(refused.value)
    finally:
        anna.heal(mesh["berta"], mesh["clara"])
    assert [node for _, node in ledger.turns()] == ["berta", "clara"]
    held.release()
    mend(mesh)
    with bakeries["anna"].claim(TABLE, cancelled=lambda: False) as claim:
        claim.check()


def test_answers_that_take_longer_than_the_patience_of_who_asks_count(mesh: Mesh, anna: Node, bakeries: dict[str, Bakery]) -> None:
    """A slow link, or a peer that first has to apply something large: the claim has been sent again by the time its answer comes."""
    for name in ("berta", "clara"):
        mesh[name].run(
            "create function public.linger() returns trigger language plpgsql as $$ begin perform pg_sleep(1.3); return new; end $$;"
            "create trigger linger before insert on modak.claims for each row execute function public.linger();"
            "alter table modak.claims enable replica trigger linger"
        )
    try:
        thread, got = in_thread(bakeries["anna"])
        thread.join(20)
        asked = anna.rows("select asked, counts_from from modak.claims where node = 'anna'")
        assert got, asked
        assert asked[0][0] > 0
        got[0].check()
        got[0].release()
    finally:
        for name in ("berta", "clara"):
            mesh[name].run("drop function public.linger() cascade")
    mend(mesh)
    eventually(mesh.is_quiet)


@pytest.mark.soak
def test_two_nodes_that_do_not_hear_each_other_wait_for_each_other(
    mesh: Mesh, anna: Node, berta: Node, bakeries: dict[str, Bakery]
) -> None:
    """The third hears both, so neither is dead: nobody may go on without the other."""
    anna.cut(berta)
    try:
        thread, got = in_thread(bakeries["anna"])
        other, got_too = in_thread(bakeries["berta"])
        # Both have found each other silent, asked the third, and its answer says otherwise.
        for node in (anna, berta):
            eventually(lambda node=node: node.rows("select 1 from modak.claims where node = %s and asked > 8", node.name))
        assert not got
        assert not got_too
        assert mesh["clara"].rows("select distinct silent_nodes from modak.claim_acks where ack_from_node = 'clara'") == [([],)]
    finally:
        anna.heal(berta)
    first = eventually(lambda: got or got_too)[0]
    assert len(got) + len(got_too) == 1
    first.release()
    thread.join(60)
    other.join(60)
    (got if first.node == "berta" else got_too)[0].release()
    mend(mesh)


@pytest.mark.soak
def test_answers_from_before_a_cut_count_no_more(mesh: Mesh, anna: Node, berta: Node, clara: Node, bakeries: dict[str, Bakery]) -> None:
    """What TLC found in the first draft: a node has all but one answer, is passed over, and gets the last one while another is at work."""
    holder = bakeries["berta"].claim(TABLE, cancelled=lambda: False)
    thread, got = in_thread(bakeries["anna"])
    eventually(lambda: anna.rows("select ack_from_node from modak.claim_acks where node = 'anna'") == [("clara",)])
    anna.cut(berta, clara)
    holder.release()
    with bakeries["clara"].claim(TABLE, cancelled=lambda: False) as claim:
        anna.heal(berta)
        answered = "select c.asked from modak.claims c join modak.claim_acks a using (iceberg_table, ticket, node, asked)"
        [[asked]] = eventually(lambda: anna.rows(f"{answered} where c.node = 'anna' and a.ack_from_node = 'berta'"))
        eventually(lambda: anna.rows(f"{answered} where c.node = 'anna' and c.asked > %s", asked + 3))
        assert not got
        claim.check()
    anna.heal(clara)
    thread.join(60)
    got[0].release()
    mend(mesh)


def test_a_link_that_breaks_for_a_moment_changes_nothing(mesh: Mesh, berta: Node, bakeries: dict[str, Bakery]) -> None:
    """The walsender dies, its subscriber comes back by itself."""
    holder = bakeries["berta"].claim(TABLE, cancelled=lambda: False)
    thread, got = in_thread(bakeries["anna"])
    eventually(lambda: berta.rows("select node from modak.deferred_acks") == [("anna",)])
    berta.run("select pg_terminate_backend(active_pid) from pg_replication_slots where active_pid is not null")
    assert not got
    holder.release()
    thread.join(60)
    got[0].release()
    mend(mesh)


@pytest.mark.soak
def test_turns_while_nodes_and_links_come_and_go(mesh: Mesh, bakeries: dict[str, Bakery], tmp_path: Path) -> None:
    """For a minute; whoever checks his turn just before he writes is alone, whatever happens around him."""
    ledger, stop, done = Ledger(tmp_path / "ledger"), threading.Event(), dict.fromkeys(bakeries, 0)

    def work(name: str) -> None:
        while not stop.is_set():
            try:
                with bakeries[name].claim(TABLE, cancelled=stop.is_set) as claim:
                    claim.check()
                    ledger.write("enter", claim.ticket, claim.node)
                    ledger.write("leave", claim.ticket, claim.node)
                    done[name] += 1
            except ModakError:
                time.sleep(0.1)

    threads = [threading.Thread(target=work, args=(name,)) for name in bakeries for _ in range(3)]
    for thread in threads:
        thread.start()
    anna, berta, clara = mesh["anna"], mesh["berta"], mesh["clara"]
    for _ in range(2):
        clara.kill()
        time.sleep(8)
        clara.start()
        time.sleep(3)
        anna.cut(berta, clara)
        time.sleep(9)
        anna.heal(berta, clara)
        time.sleep(3)
        os.kill(berta.cluster.pid, 0)
        berta.cut(anna)
        time.sleep(6)
        berta.heal(anna)
        time.sleep(3)
    stop.set()
    for thread in threads:
        thread.join(60)
    turns = ledger.turns()
    assert len(turns) == len(set(turns)) == sum(done.values())
    assert all(count > 20 for count in done.values()), done
    mend(mesh)
