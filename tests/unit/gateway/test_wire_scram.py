"""SCRAM against the RFC's own example, against libpq, and against clients that cheat."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from modak.errors import UsageError
from modak.gateway.wire import messages as m
from modak.gateway.wire.scram import MECHANISM, Exchange, ScramError, Verifier

# RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
CLIENT_FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
# The same as it stands in pg_authid.rolpassword.
STORED = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)
PENCIL = Verifier.make("pencil", salt=SALT)


def opened() -> Exchange:
    exchange = Exchange(PENCIL, server_nonce=SERVER_NONCE)
    exchange.first(f"n,,n=user,r={CLIENT_NONCE}".encode())
    return exchange


def answer(first: str, server_first: bytes, password: str = "pencil", header: str = "n,,") -> bytes:
    """A client, written apart from the code under test."""
    fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    bare = first.removeprefix(header)
    without_proof = f"c={base64.b64encode(header.encode()).decode()},r={fields['r']}"
    signature = hmac.digest(hashlib.sha256(client_key).digest(), f"{bare},{server_first.decode()},{without_proof}".encode(), "sha256")
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def test_the_example_of_the_rfc() -> None:
    exchange = Exchange(PENCIL, server_nonce=SERVER_NONCE)
    reply = exchange.first(f"n,,n=user,r={CLIENT_NONCE}".encode())
    assert reply == f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert exchange.final(CLIENT_FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_verifiers_are_written_as_postgres_writes_them() -> None:
    assert PENCIL.text() == STORED
    assert Verifier.parse(STORED) == PENCIL
    assert "W22Za" not in repr(PENCIL)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pencil",
        "md5" + "0" * 32,
        STORED + "x",
        STORED + "\n",
        STORED.replace("4096", "0"),
        STORED.replace("4096", "-1"),
        STORED.replace("SHA-256", "SHA-1"),
        STORED.replace(":wfPL", ":"),
        STORED.replace("W22Za", "!!!!!"),
    ],
)
def test_what_is_not_a_verifier_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        Verifier.parse(text)
    assert "pencil" not in str(refused.value)
    assert "wfPL" not in str(refused.value)


def test_two_verifiers_of_one_password_differ() -> None:
    assert Verifier.make("pencil") != Verifier.make("pencil")


@pytest.mark.parametrize("header", ["n,,", "y,,"])
@pytest.mark.parametrize("name", ["", "user", "usér", "a=2Cb"])
def test_a_right_proof_is_taken(header: str, name: str) -> None:
    exchange, first = Exchange(PENCIL), f"{header}n={name},r=abc"
    reply = exchange.first(first.encode())
    assert exchange.final(answer(first, reply, header=header)).startswith(b"v=")


def test_a_wrong_password_is_refused() -> None:
    exchange, first = Exchange(PENCIL), "n,,n=,r=abc"
    with pytest.raises(ScramError) as refused:
        exchange.final(answer(first, exchange.first(first.encode()), password="Pencil"))
    assert refused.value.sqlstate == "28P01"


def test_a_proof_is_good_once() -> None:
    exchange = opened()
    exchange.final(CLIENT_FINAL)
    with pytest.raises(m.ProtocolError):
        exchange.final(CLIENT_FINAL)


def test_after_a_wrong_proof_there_is_no_second_guess() -> None:
    exchange = opened()
    with pytest.raises(ScramError):
        exchange.final(CLIENT_FINAL.replace(b"p=dHzb", b"p=AAAA"))
    with pytest.raises(m.ProtocolError):
        exchange.final(CLIENT_FINAL)


def test_a_proof_of_one_exchange_is_no_good_in_another() -> None:
    exchange = Exchange(PENCIL)
    exchange.first(f"n,,n=user,r={CLIENT_NONCE}".encode())
    with pytest.raises(m.ProtocolError, match="nonce"):
        exchange.final(CLIENT_FINAL)


def test_nonces_are_fresh() -> None:
    assert Exchange(PENCIL).first(b"n,,n=,r=abc") != Exchange(PENCIL).first(b"n,,n=,r=abc")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"p=tls-server-end-point,,n=,r=abc", "channel binding"),
        (b"n,a=root,n=,r=abc", "authorization identity"),
        (b"n,,m=ext,n=,r=abc", "extension"),
        (b"x,,n=,r=abc", "header"),
        (b"n", "header"),
        (b"n,", "header"),
        (b"n,,", "malformed"),
        (b"n,,n=user", "malformed"),
        (b"n,,n=user,x=abc", "attribute r"),
        (b"n,,n=,r=", "nonce"),
        (b"n,,n=,r=a b", "nonce"),
        (b"n,,n=,r=\xc3\xa9", "nonce"),
        (b"n,,n=\xff,r=abc", "malformed"),
        (b"n,,n=\0,r=abc", "malformed"),
        (b"", "header"),
    ],
)
def test_a_broken_opening(message: bytes, why: str) -> None:
    with pytest.raises(m.ProtocolError, match=why):
        Exchange(PENCIL).first(message)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "attribute p"),
        (b"p=dHzb", "malformed"),
        (CLIENT_FINAL.rpartition(b",")[0], "attribute p"),
        (CLIENT_FINAL.replace(b"c=biws", b"c=eSws"), "channel binding"),
        (CLIENT_FINAL.replace(b"c=biws", b"x=biws"), "attribute c"),
        (CLIENT_FINAL.replace(b"r=rOpr", b"r=xOpr"), "nonce"),
        (CLIENT_FINAL.replace(b"p=dHzb", b"p=!!!!"), "base64"),
        (CLIENT_FINAL.replace(b"p=dHzb", b"p="), "proof"),
        (CLIENT_FINAL.replace(b"p=dHzb", b"p=\xff"), "malformed"),
    ],
)
def test_a_broken_end(message: bytes, why: str) -> None:
    with pytest.raises(m.ProtocolError, match=why):
        opened().final(message)


def test_the_order_is_kept() -> None:
    with pytest.raises(m.ProtocolError):
        Exchange(PENCIL).final(CLIENT_FINAL)
    with pytest.raises(m.ProtocolError):
        opened().first(b"n,,n=,r=abc")


def test_an_unknown_user_looks_like_a_known_one() -> None:
    mock = Verifier.mock("nobody", b"secret of this gateway")
    assert mock == Verifier.mock("nobody", b"secret of this gateway"), "a changing salt would tell"
    assert mock.salt != Verifier.mock("noone", b"secret of this gateway").salt
    assert mock.salt != Verifier.mock("nobody", b"another").salt
    assert (len(mock.salt), mock.iterations) == (len(PENCIL.salt), PENCIL.iterations)
    exchange, first = Exchange(mock), "n,,n=,r=abc"
    with pytest.raises(ScramError, match="password authentication failed"):
        exchange.final(answer(first, exchange.first(first.encode())))


@pytest.mark.parametrize(
    ("typed", "same"),
    [
        ("I\u00adX", "IX"),  # mapped to nothing
        ("\u00aa", "a"),  # compatibility form
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),  # a space of another kind
        ("e\u0301", "\u00e9"),
        ("a\u200bb", "a b"),  # in both tables; Postgres takes it for a space
    ],
)
def test_passwords_are_prepared(typed: str, same: str) -> None:
    assert Verifier.make(typed, salt=SALT) == Verifier.make(same, salt=SALT)


@pytest.mark.parametrize("password", ["\u0627\u0031", "\u0627a\u0627", "\u00ad", "\u0007\u00e9", "\u0221"])
def test_a_password_that_cannot_be_prepared_is_taken_as_it_is(password: str) -> None:
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), SALT, 4096)
    assert Verifier.make(password, salt=SALT).server_key == hmac.digest(salted, b"Server Key", "sha256")


# --- libpq, through psycopg


class Server:
    """Just enough of a server: it declines TLS, checks the password, and answers every query with the start-up's version."""

    def __init__(self, users: dict[str, Verifier]) -> None:
        self.users = users
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = m.Decoder(1 << 20, startup=True)

        async def receive() -> m.Message:
            while (message := decoder.next()) is None:
                data = await reader.read(4096)
                if not data:
                    raise EOFError
                decoder.feed(data)
            return message

        try:
            startup = m.parse_startup(await receive())
            while isinstance(startup, m.SSLRequest | m.GSSENCRequest):
                writer.write(b"N")
                decoder.expect_startup()
                startup = m.parse_startup(await receive())
            assert isinstance(startup, m.StartupMessage)
            writer.write(m.negotiation(startup) or b"")
            verifier = self.users.get(startup.parameters["user"]) or Verifier.mock(startup.parameters["user"], b"secret")
            exchange = Exchange(verifier)
            writer.write(m.authentication_sasl([MECHANISM]))
            initial = m.parse_sasl_initial(await receive())
            writer.write(m.authentication_sasl_continue(exchange.first(initial.data or b"")))
            writer.write(m.authentication_sasl_final(exchange.final(m.parse_sasl_response(await receive()).data)))
            writer.write(m.authentication_ok() + m.parameter_status("client_encoding", "UTF8"))
            writer.write(m.parameter_status("server_version", "18.0") + m.backend_key_data(7, b"abcd") + m.ready_for_query(b"I"))
            while not isinstance(query := m.parse_frontend(await receive()), m.Terminate):
                if isinstance(query, m.Query):
                    row = m.data_row([query.sql.encode(), b"%d" % startup.minor, None])
                    described = m.row_description([m.FieldDescription(name) for name in ("sql", "minor", "nothing")])
                    writer.write(described + row + m.command_complete("SELECT 1") + m.ready_for_query(b"I"))
        except ScramError as error:
            writer.write(m.error_response(m.ErrorFields.of(error, severity="FATAL")))
        except EOFError:
            pass
        finally:
            writer.close()


@contextmanager
def running(users: dict[str, Verifier]) -> Iterator[Server]:
    server, loop, ready = Server(users), asyncio.new_event_loop(), threading.Event()

    async def main() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()
        await stopped.wait()
        listening.close()

    stopped = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert ready.wait(60)
    yield server
    loop.call_soon_threadsafe(stopped.set)
    thread.join(60)
    loop.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running({"ana": Verifier.make("pencil"), "élise": Verifier.make("mot de passé\u00a0\u2168")}) as started:
        yield started


def connect(server: Server, user: str, password: str, **more: str) -> psycopg.ClientCursor[tuple[str | None, ...]]:
    connection = psycopg.connect(
        host="127.0.0.1", port=server.port, user=user, password=password, dbname="shop", connect_timeout=60, autocommit=True, **more
    )
    return psycopg.ClientCursor(connection)


@pytest.mark.parametrize("more", [{}, {"channel_binding": "disable"}, {"require_auth": "scram-sha-256"}], ids=str)
def test_libpq_gets_in(server: Server, more: dict[str, str]) -> None:
    with connect(server, "ana", "pencil", **more) as cursor, cursor.connection:
        assert cursor.execute("select 'é'").fetchall() == [("select 'é'", "0", None)]
        assert cursor.connection.info.backend_pid == 7


def test_libpq_prepares_the_password_as_we_do(server: Server) -> None:
    with connect(server, "élise", "mot de passe\u0301 IX") as cursor, cursor.connection:
        assert cursor.execute("x").rowcount == 1


def test_libpq_of_a_later_protocol_is_brought_down(server: Server) -> None:
    if psycopg.pq.version() < 180000:
        pytest.fail("the test needs libpq 18, which asks for protocol 3.2")
    with connect(server, "ana", "pencil", max_protocol_version="latest") as cursor, cursor.connection:
        assert cursor.execute("x").fetchall() == [("x", "2", None)], "libpq did not ask for 3.2, so this test shows nothing"


@pytest.mark.parametrize(("user", "password"), [("ana", "Pencil"), ("nobody", "pencil")])
def test_libpq_is_kept_out(server: Server, user: str, password: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect(server, user, password)


def test_libpq_that_insists_on_channel_binding_gives_up(server: Server) -> None:
    with pytest.raises(psycopg.OperationalError, match="channel binding"):
        connect(server, "ana", "pencil", channel_binding="require")
