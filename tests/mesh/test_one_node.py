"""A node that never joined a mesh: the same turns, at once where nobody is before one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.mesh.conftest import eventually
from tests.mesh.ledger import Ledger
from tests.mesh.test_failures import claimant
from tests.mesh.test_mesh import at_once, in_thread
from tests.support import rows, value

from modak.connection import Connection
from modak.errors import ClaimCancelled, ClaimLost, ConnectionFailed
from modak.mesh import Bakery

TABLE = "lake/public.events"


@pytest.fixture
def bakery(dsn: str) -> Iterator[Bakery]:
    opened = Bakery(dsn)
    yield opened
    opened.close()


def test_a_claim_alone_is_granted_at_once(bakery: Bakery, connection: Connection) -> None:
    with bakery.claim(TABLE, cancelled=lambda: True) as claim:  # would be cancelled if it waited
        assert (claim.ticket, claim.node) == (1, "local")
        claim.check()
        assert rows(connection, "select ticket, node, granted_at is not null from modak.claims") == [(1, "local", True)]
    assert rows(connection, "select * from modak.claims") == []
    assert rows(connection, "select * from modak.claim_acks") == []
    assert rows(connection, "select objid from pg_locks where locktype = 'advisory' and classid = (modak.claim_lock(1) >> 32)::oid") == []


def test_tickets_rise_and_sessions_are_used_again(bakery: Bakery, connection: Connection) -> None:
    tickets = []
    for _ in range(20):
        with bakery.claim(TABLE) as claim:
            tickets.append(claim.ticket)
    assert tickets == list(range(1, 21))
    assert (
        value(connection, "select count(*) from pg_stat_activity where application_name = 'modak claim' and datname = current_database()")
        <= 2
    )


def test_writers_of_one_node_take_turns_in_the_order_of_tickets(bakery: Bakery, tmp_path: Path) -> None:
    turns = at_once({"local": bakery}, Ledger(tmp_path / "ledger"), 8, 5)
    assert [ticket for ticket, _ in turns] == list(range(1, 41))


def test_two_gateways_of_one_node(dsn: str, tmp_path: Path) -> None:
    """Each has its own sessions; the turns are the database's."""
    bakeries = {"one": Bakery(dsn), "other": Bakery(dsn)}
    turns = at_once(bakeries, Ledger(tmp_path / "ledger"), 3, 5)
    assert [ticket for ticket, _ in turns] == list(range(1, 31))
    for bakery in bakeries.values():
        bakery.close()


def test_a_killed_process_gives_its_turn_back(bakery: Bakery, dsn: str) -> None:
    process, ticket = claimant(dsn)
    thread, got = in_thread(bakery)
    process.kill()
    process.wait()
    thread.join(60)
    assert got[0].ticket == ticket + 1
    got[0].release()


def test_what_a_killed_process_left_is_cleared_away_without_writers(dsn: str, connection: Connection) -> None:
    process, _ = claimant(dsn)
    assert rows(connection, "select node from modak.claims") == [("local",)]
    # A question that its own sessions had begun may still clear it away; otherwise the next process does.
    process.kill()
    process.wait()
    bakery = Bakery(dsn)
    eventually(lambda: rows(connection, "select node from modak.claims") == [])
    bakery.close()


def test_the_end_of_its_session_ends_a_claim(bakery: Bakery, connection: Connection) -> None:
    claim = bakery.claim(TABLE)
    connection.execute("select pg_terminate_backend(backend_pid, 5000) from modak.claims")
    with pytest.raises(ClaimLost) as lost:
        claim.check()
    assert lost.value.sqlstate == "40001"
    with bakery.claim(TABLE) as following:
        assert following.ticket == claim.ticket + 1
    claim.release()


def test_a_session_that_ended_while_it_was_kept_is_replaced(bakery: Bakery, connection: Connection) -> None:
    bakery.claim(TABLE).release()
    connection.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'modak claim'")
    with bakery.claim(TABLE) as claim:
        claim.check()


def test_a_session_that_ends_while_it_waits(bakery: Bakery, connection: Connection) -> None:
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            bakery.claim(TABLE)
        except ConnectionFailed as failure:
            failures.append(failure)

    with bakery.claim(TABLE):
        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: rows(connection, "select 1 from modak.claims where granted_at is null"))
        connection.execute("select pg_terminate_backend(backend_pid, 5000) from modak.claims where granted_at is null")
        thread.join(30)
    assert failures


def test_closing_cancels_who_waits_and_not_who_works(dsn: str) -> None:
    bakery = Bakery(dsn)
    claim = bakery.claim(TABLE)
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            bakery.claim(TABLE)
        except ClaimCancelled as failure:
            failures.append(failure)

    thread = threading.Thread(target=wait)
    thread.start()
    bakery.close()
    thread.join(30)
    assert failures
    claim.check()
    claim.release()
    with pytest.raises(ClaimCancelled):
        bakery.claim(TABLE)


def test_sessions_whose_database_likes_short_ones(dsn: str, connection: Connection) -> None:
    """A claim is not lost over settings that people make for their own sessions."""
    name = psycopg.sql.Identifier(connection.info.dbname)
    for setting in ("idle_session_timeout = '50ms'", "default_transaction_isolation = 'serializable'", "statement_timeout = '50ms'"):
        connection.execute(psycopg.sql.SQL("alter database {} set " + setting).format(name))  # type: ignore[arg-type]
    bakery = Bakery(dsn)
    with bakery.claim(TABLE) as claim:
        thread, got = in_thread(bakery)
        time.sleep(0.3)
        claim.check()
    thread.join(30)
    got[0].release()
    bakery.close()


def test_without_a_server_the_error_says_so(dsn: str) -> None:
    bakery = Bakery(dsn.replace("127.0.0.1", "127.0.0.9") if "127.0.0.1" in dsn else "host=127.0.0.9 port=1")
    with pytest.raises(ConnectionFailed):
        bakery.claim(TABLE)
    bakery.close()
