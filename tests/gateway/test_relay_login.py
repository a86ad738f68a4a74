"""Clients log in to Postgres through the gateway: Postgres decides, in its own words, and the gateway learns no password."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo
from relay_support import Gateway, Raw, cells, roles, wait_for

from modak.embedded.postgres import Cluster
from modak.errors import ConnectionFailed
from modak.gateway.relay.backend import Backend
from modak.gateway.relay.endpoint import Endpoint
from modak.gateway.relay.login import AuthenticationUnsupported, login
from modak.gateway.wire.messages import PROTOCOL_3_0, Query, StartupMessage, parse_backend_key_data, parse_parameter_status


@pytest.fixture(scope="module")
def with_roles(cluster: Cluster) -> Iterator[None]:
    with roles(cluster):
        yield


@pytest.fixture
def gateway(cluster: Cluster) -> Iterator[Gateway]:
    started = Gateway(cluster.dsn("postgres"), None)
    yield started
    started.stop()


def refusal(dsn: str) -> str:
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(dsn)
    return str(caught.value).rpartition("FATAL:")[2]


@pytest.mark.usefixtures("with_roles")
@pytest.mark.parametrize("role", ["r_trust", "r_md5", "r_clear", "r_scram"])
def test_every_way_to_prove_oneself_works(gateway: Gateway, role: str) -> None:
    with gateway.connect(user=role, password="secret") as connection:
        assert connection.execute("select current_user, session_user").fetchone() == (role, role)


@pytest.mark.usefixtures("with_roles")
@pytest.mark.parametrize("role", ["r_md5", "r_clear", "r_scram"])
def test_a_wrong_password_is_refused_in_postgres_own_words(cluster: Cluster, gateway: Gateway, role: str) -> None:
    wrong = {"user": role, "password": "wrong"}
    told = refusal(gateway.conninfo(**wrong))
    assert told == refusal(conninfo.make_conninfo(cluster.dsn("postgres"), **wrong))
    assert "password authentication failed" in told
    assert gateway.sessions == {}


def test_an_unknown_database_is_refused_in_postgres_own_words(gateway: Gateway) -> None:
    assert 'database "nowhere" does not exist' in refusal(gateway.conninfo(dbname="nowhere"))


def test_what_the_client_asks_for_reaches_postgres(gateway: Gateway) -> None:
    with gateway.connect(application_name="a tool", options="-c work_mem=1234kB -c search_path=elsewhere") as connection:
        settings = "current_setting('application_name'), current_setting('work_mem'), current_setting('search_path')"
        assert connection.execute(f"select {settings}").fetchone() == ("a tool", "1234kB", "elsewhere")
        assert connection.info.parameter_status("application_name") == "a tool"
        assert connection.info.parameter_status("server_version").startswith(str(connection.info.server_version)[:2])


@pytest.mark.usefixtures("with_roles")
def test_the_key_for_cancelling_is_the_gateways_own(gateway: Gateway) -> None:
    with Raw(gateway.port, "r_trust") as raw:
        (key,) = [parse_backend_key_data(message) for message in raw.greeting if message.tag == b"K"]
        assert (key.pid, key.secret) == (gateway.pid, b"key!")
        assert cells(raw.ask(Query("select pg_backend_pid()"))) == [(str(gateway.backends[0].key.pid),)]
        assert gateway.backends[0].key.pid != key.pid
        reported = dict(parse_parameter_status(message) for message in raw.greeting if message.tag == b"S")
        assert reported["client_encoding"] == gateway.backends[0].setting("client_encoding") == "UTF8"


@pytest.mark.usefixtures("with_roles")
def test_a_client_that_names_no_database_gets_that_of_the_dsn(cluster: Cluster) -> None:
    started = Gateway(cluster.dsn("template1"), None)
    with Raw(started.port, "r_trust", database="") as raw:
        assert cells(raw.ask(Query("select current_database()"))) == [("template1",)]
    started.stop()


def test_replication_is_refused(gateway: Gateway) -> None:
    assert "does not relay replication" in refusal(gateway.conninfo(replication="database"))


def test_a_newer_protocol_is_negotiated_down(gateway: Gateway) -> None:
    with gateway.connect(max_protocol_version="latest") as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_postgres_out_of_reach_is_said_without_its_address(gateway: Gateway) -> None:
    gateway.dsn = conninfo.make_conninfo(gateway.dsn, port=1)
    told = refusal(gateway.conninfo())
    assert "the gateway cannot reach Postgres" in told
    assert "port" not in told


class FarChannel:
    """A client on another machine, without TLS."""

    peer = "192.0.2.7:5432"

    def __init__(self) -> None:
        self.sent = b""

    async def send(self, *parts: bytes) -> None:
        self.sent += b"".join(parts)


@pytest.mark.usefixtures("with_roles")
@pytest.mark.parametrize(("role", "reason"), [("r_clear", "password in the clear"), ("r_trust", "no proof")])
def test_what_only_holds_on_this_machine_is_refused_to_others(cluster: Cluster, role: str, reason: str) -> None:
    startup = StartupMessage(PROTOCOL_3_0, {"user": role, "database": "postgres"})
    channel: Any = FarChannel()
    with pytest.raises(AuthenticationUnsupported, match=reason) as caught:
        asyncio.run(login(channel, startup, cluster.dsn("postgres"), 1, b"key!"))
    assert "scram-sha-256" in caught.value.hint
    assert channel.sent == b""


# TLS towards Postgres, and on both sides.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "server.crt", folder / "server.key"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(made)], check=True, capture_output=True)
    return made, key


@pytest.fixture(scope="module")
def tls_cluster(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Cluster]:
    started = Cluster.start(tmp_path_factory.mktemp("tls_cluster") / "postgres", options={"fsync": "off"})
    data = started.folder / "data"
    for source in certificate:
        copied = data / source.name
        copied.write_text(source.read_text())
        copied.chmod(0o600)
        os.chown(copied, data.stat().st_uid, data.stat().st_gid)
    with psycopg.connect(started.dsn(), autocommit=True) as connection:
        try:
            connection.execute("alter system set ssl = on")
        except psycopg.errors.InvalidParameterValue:
            started.stop("immediate")
            pytest.skip("this Postgres was built without TLS")
        connection.execute("select pg_reload_conf()")
    wait_for(lambda: psycopg.connect(started.dsn(), sslmode="require").close())
    yield started
    started.stop("immediate")


def ask(dsn: str) -> str:
    """Whether a connection of the gateway's own is encrypted, as Postgres sees it."""

    async def asked() -> str:
        backend = Backend(Endpoint.of(dsn))
        await backend.connect()
        await backend.send(StartupMessage(PROTOCOL_3_0, {"user": "nobody", "database": "postgres"}).encode())
        message = await backend.receive()
        await backend.close()
        return "plain" if "no encryption" in message.body.decode(errors="replace") else message.tag.decode()

    return asyncio.run(asked())


def test_the_dsns_sslmode_holds_towards_postgres(tls_cluster: Cluster, certificate: tuple[Path, Path], cluster: Cluster) -> None:
    root = str(certificate[0])

    def dsn(started: Cluster, **changed: Any) -> str:
        return conninfo.make_conninfo(started.dsn("postgres"), **({"host": "localhost"} | changed))

    for mode, extra in (("require", {}), ("verify-full", {"sslrootcert": root}), ("verify-ca", {"host": "127.0.0.1", "sslrootcert": root})):
        started = Gateway(dsn(tls_cluster, sslmode=mode, **extra), None)
        with started.connect() as connection:
            query = "select ssl from pg_stat_ssl where pid = pg_backend_pid()"
            assert connection.execute(query).fetchone() == (True,), mode
            (text,) = connection.execute("select repeat('x', 3000000)").fetchone()
            assert len(text) == 3_000_000
        started.stop()
    for wrong in (dsn(tls_cluster, sslmode="verify-full"), dsn(tls_cluster, sslmode="verify-full", host="127.0.0.1", sslrootcert=root)):
        with pytest.raises(ConnectionFailed):
            ask(wrong)
    with pytest.raises(ConnectionFailed):
        ask(dsn(cluster, sslmode="require"))


def test_a_client_with_tls_reaches_a_postgres_with_tls(tls_cluster: Cluster, certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    # On one machine the second leg needs no TLS, and the client's word on channel binding stays true.
    started = Gateway(tls_cluster.dsn("postgres"), None, tls=context)
    with started.connect(sslmode="require") as connection:
        assert connection.pgconn.ssl_in_use
        assert connection.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchone() == (False,)
    started.stop()
    demanding = Gateway(conninfo.make_conninfo(tls_cluster.dsn("postgres"), sslmode="require"), None, tls=context)
    assert "channel_binding=disable" in refusal(demanding.conninfo(sslmode="require"))
    with demanding.connect(sslmode="require", channel_binding="disable") as connection:
        assert connection.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchone() == (True,)
    demanding.stop()
