"""Which answers end which request, and what an error leaves undone: the relay's book-keeping, without a server."""

from __future__ import annotations

import pytest

from modak.gateway.relay.endpoint import Address, Endpoint, is_loopback
from modak.gateway.relay.ledger import Kind, Ledger, Request
from modak.gateway.relay.statements import Book, Statement


def ledger(*kinds: Kind) -> Ledger:
    made = Ledger()
    for kind in kinds:
        made.sent(Request(kind))
    return made


def replies(made: Ledger, tags: bytes) -> Ledger:
    for tag in tags:
        made.reply(bytes([tag]))
    return made


@pytest.mark.parametrize(
    ("kinds", "tags"),
    [
        ([Kind.PARSE, Kind.BIND, Kind.DESCRIBE_PORTAL, Kind.EXECUTE, Kind.SYNC], b"12TDDCZ"),
        ([Kind.PARSE, Kind.DESCRIBE_STATEMENT, Kind.SYNC], b"1tnZ"),
        ([Kind.EXECUTE], b"DDs"),
        ([Kind.EXECUTE], b"I"),
        ([Kind.EXECUTE, Kind.SYNC], b"HddcCZ"),
        ([Kind.CLOSE_STATEMENT, Kind.CLOSE_PORTAL, Kind.SYNC], b"33Z"),
        ([Kind.QUERY], b"TDCTDCIEZ"),
        ([Kind.QUERY], b"GCZ"),
        ([Kind.PARSE], b"SNA1"),
    ],
)
def test_the_last_answer_settles_the_last_request_and_none_before(kinds: list[Kind], tags: bytes) -> None:
    made = replies(ledger(*kinds), tags[:-1])
    assert made.owes
    made.reply(tags[-1:])
    assert not made.owes
    assert not made.skipping


def test_an_error_leaves_everything_up_to_the_sync_unanswered() -> None:
    made = replies(ledger(Kind.PARSE, Kind.BIND, Kind.EXECUTE, Kind.SYNC, Kind.PARSE, Kind.SYNC), b"1E")
    assert made.head == Request(Kind.SYNC)
    assert not made.skipping
    assert not replies(made, b"Z1Z").owes


def test_an_error_before_the_sync_came_makes_the_client_be_ignored_until_then() -> None:
    assert replies(ledger(Kind.PARSE, Kind.BIND), b"E").skipping
    own = ledger(Kind.PARSE)
    own.sent(Request(Kind.SYNC, silent=True))
    assert replies(own, b"EZ").skipping


def test_a_sync_sent_before_a_copy_was_known_to_begin_is_not_answered() -> None:
    made = replies(ledger(Kind.EXECUTE, Kind.SYNC), b"G")
    assert made.copying
    assert not replies(made, b"C").owes


def test_a_sync_of_ours_is_allowed_only_where_it_commits_nothing() -> None:
    assert ledger(Kind.PARSE, Kind.DESCRIBE_STATEMENT).interruptible
    changed = ledger(Kind.PARSE, Kind.BIND, Kind.EXECUTE)
    assert not changed.interruptible
    changed.command("INSERT 0 1")
    assert not changed.interruptible
    changed.command("BEGIN")
    assert changed.interruptible
    changed.command("COMMIT")
    assert not changed.interruptible
    changed.ready(b"I")
    assert changed.interruptible


def test_a_statement_deallocated_by_sql_is_doubted_and_a_reused_name_forgotten() -> None:
    book = Book()
    for name in (b"one", b""):
        book.parsed(name, Statement(name, b"", "candidate"))
    book.command("DEALLOCATE")
    assert book.statement(b"one").doubtful
    assert not book.statement(b"").doubtful
    book.command("PREPARE")
    assert book.statement(b"one") is None
    assert book.statement(b"") is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "::ffff:10.0.0.1", "localhost.example.com", "fe80::1%lo"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_a_dsn_names_hosts_ports_sockets_and_tls() -> None:
    found = Endpoint.of("host=a,b port=1,2 dbname=d sslmode=verify-full sslrootcert=/root.crt connect_timeout=3")
    assert found.addresses == (Address("a", 1), Address("b", 2))
    assert (found.database, found.sslmode, found.sslrootcert, found.connect_seconds_max) == ("d", "verify-full", "/root.crt", 3)
    (unix,) = Endpoint.of("postgresql:///d?host=/run/pg&port=5").addresses
    assert (unix.unix, unix.socket_path) == (True, "/run/pg/.s.PGSQL.5")
