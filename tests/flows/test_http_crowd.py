"""Clients that hold connections and do not go on: the server gives them up, and answers others meanwhile."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.serving import PATH, TOKEN, RunningHttp, call, jsonl, load, row, served_table, serving, until

from modak.app import App
from modak.embedded.postgres import Cluster
from modak.patience import Patience

PLACES = 12
BATCH = jsonl([row(1)])
LOAD = f"POST {PATH} HTTP/1.1\r\nX-Modak-Token: {TOKEN}\r\nX-Modak-Label: slow"
CATALOG = "POST /iceberg/v1/default/namespaces HTTP/1.1\r\nAuthorization: Bearer a catalog's token"
QUERY = "POST /api/v1/sql HTTP/1.1\r\nAuthorization: Basic eDphIHBhc3N3b3Jk\r\nContent-Type: application/json"
FORM = "POST /login HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded"
LOGIN = f"{FORM}\r\nHost: x\r\nContent-Length: 100\r\n\r\np".encode()


@pytest.fixture(scope="module")
def app(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with served_table(cluster, template, tmp_path_factory.mktemp("data")) as made:
        yield App(replace(made.settings, console_password="a password", rest_token="a catalog's token"))


@pytest.fixture
def small(app: App) -> Iterator[RunningHttp]:
    """A server with few places, and with so much patience that a test does not see the end of it."""
    with serving(app, connections_max=PLACES, form_patience=Patience(300, 300), header_seconds=300) as running:
        yield running


@contextlib.contextmanager
def clients(http: RunningHttp, sent: bytes, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(("127.0.0.1", http.port), timeout=30)) for _ in range(count)]
        for client in made:
            client.sendall(sent)
        yield made


@contextlib.contextmanager
def begun(http: RunningHttp, head: str, body: bytes) -> Iterator[socket.socket]:
    """Somebody whose body is waited for: the server said so, and has half of it."""
    sent = f"{head}\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with clients(http, sent, 1) as (client,):
        assert client.recv(1000).startswith(b"HTTP/1.1 100 ")
        client.sendall(body[:1])
        yield client


def everything(client: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65536):
            found += part
    return found


@pytest.mark.parametrize("head", [FORM, QUERY], ids=["form", "query"])
@pytest.mark.parametrize("patience", [Patience(0.2, 60), Patience(60, 0.2)], ids=["idle", "whole"])
def test_a_body_that_does_not_come_is_408_and_the_end(app: App, head: str, patience: Patience) -> None:
    with serving(app, form_patience=patience) as http, begun(http, head, b"{" * 100) as client:
        answer = everything(client)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"\r\nconnection: close\r\n" in answer
        assert b"did not arrive in time" in answer


@pytest.mark.parametrize(
    "sent",
    [
        LOGIN,
        b"",
        b"GET / HTTP/1.1\r\nHost:",
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
        # Hundreds of answers, and nobody who reads them.
        b"GET /static/console.css HTTP/1.1\r\nHost: x\r\n\r\n" * 2000,
    ],
    ids=["half a form", "nothing", "half a header", "half a request that is answered", "nobody reads"],
)
def test_whoever_does_not_go_on_gives_way(small: RunningHttp, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), clients(small, sent, PLACES * 2):
        for path in ("/healthz", "/metrics", "/login") * 3:
            assert call(small.port, "GET", path).status == 200
        assert len([line for line in caplog.messages if "connections are taken" in line]) == 1


def test_whoever_gives_way_is_told(small: RunningHttp) -> None:
    with clients(small, LOGIN, 1) as (first,), clients(small, LOGIN, PLACES):
        head, _, body = everything(first).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after" in head
        assert json.loads(body)["error"]["code"] == "too_many_connections"


def test_whoever_is_known_stays(small: RunningHttp, caplog: pytest.LogCaptureFixture) -> None:
    """Bodies on their way of people with a token or a password; the rest of the places is anybody's."""
    bodies = {LOAD: BATCH, CATALOG: b'{"namespace": ["known"]}', QUERY: b"[1]"}
    with contextlib.ExitStack() as stack:
        known = [(stack.enter_context(begun(small, head, body)), body) for head, body in bodies.items()]
        stack.enter_context(clients(small, LOGIN, PLACES * 3))
        assert call(small.port, "GET", "/healthz").status == 200
        for (client, body), status in zip(known, (b"200", b"200", b"400"), strict=True):
            client.sendall(body[1:])
            assert client.recv(65536).split()[1] == status
    assert load(small.port, "after", [row(2)]).status == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_where_nobody_gives_way_the_next_is_refused(app: App) -> None:
    """All places are taken by people who are known."""
    with serving(app, connections_max=3) as http:
        with begun(http, LOAD, BATCH), begun(http, LOAD, BATCH), begun(http, LOAD, BATCH):
            assert call(http.port, "GET", "/healthz").error["code"] == "too_many_connections"
        until(lambda: call(http.port, "GET", "/healthz").status == 200)
