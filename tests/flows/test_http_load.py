"""Stream Load by HTTP: every answer it documents, bodies of every kind, and small batches that share a transaction but not a fate."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import io
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from psycopg import sql
from tests import serving
from tests.serving import (
    PATH,
    TOKEN,
    Answer,
    Gate,
    RunningHttp,
    WorkerProcess,
    call,
    forget,
    gathered,
    jsonl,
    load,
    row,
    served_table,
    until,
    waiting,
)
from tests.support import rows, value

from modak.app import App
from modak.connection import Connection, connect
from modak.embedded.postgres import Cluster
from modak.load import group
from modak.load.group import GroupLimits
from modak.web.bodies import BodyLimits

QUICK = GroupLimits(committers=1)


@pytest.fixture(scope="module")
def app(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """One table for all of these tests, everything at or above 0 is hot; labels and keys are each test's own."""
    with served_table(cluster, template, tmp_path_factory.mktemp("data")) as made:
        yield made


@pytest.fixture(scope="module")
def http(app: App) -> Iterator[RunningHttp]:
    with serving.serving(app) as running:
        yield running


@pytest.fixture
def connection(app: App) -> Iterator[Connection]:
    with connect(app.dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def label(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "-", request.node.name)


def recorded(connection: Connection, label: str) -> int:
    return int(value(connection, "select count(*) from modak.load_labels where label = %s", label))


# What it promises


def test_a_batch_is_applied_once(http: RunningHttp, connection: Connection, label: str) -> None:
    first = load(http.port, label, [row(1), row(2, -5)])
    assert (first.status, first.headers["content-type"]) == (200, "application/json")
    expected = {
        "label": label,
        "state": "committed",
        "hot_rows": 1,
        "delta_rows": 1,
        "spooled_rows": 0,
        "staged_files": [],
        "replay": False,
    }
    assert first.json == expected
    assert load(http.port, label, [row(1), row(2, -5)]).json == expected | {"replay": True}
    other = load(http.port, label, [row(1, val="other")])
    assert other.json.pop("warning")
    assert {name: other.json[name] for name in expected} == expected | {"replay": True}
    assert rows(connection, "select val from public.events_hot where id = 1") == [("v1",)]
    assert load(http.port, label + "2", [row(1, val="newer")]).json["hot_rows"] == 1
    assert rows(connection, "select val from public.events_hot where id = 1") == [("newer",)]


def test_what_curl_sends(http: RunningHttp, label: str) -> None:
    """As in the guide: --data-binary says that it is a form."""
    body = b'{"id":101,"event_time":260,"val":"a"}\n{"id":102,"event_time":261,"val":"b"}'
    assert load(http.port, label, body, content_type="application/x-www-form-urlencoded").json["hot_rows"] == 2


def test_values_are_exact(http: RunningHttp, connection: Connection, label: str) -> None:
    digits = "12345678901234567890.12345678901234567890"
    awkward = '"tags":["a,b",null,"\\"c\\""],"val":"tab\\tend\\\\"'
    body = f'{{"id":110,"event_time":1,"amount":{digits},"doc":{{"b":{digits},"a":"\\u00e9\\n"}},{awkward}}}'
    assert load(http.port, label, body.encode()).status == 200
    found = rows(connection, "select amount::text, doc->>'b', doc->>'a', tags, val, n from public.events_hot where id = 110")
    assert found == [(digits, digits, "é\n", ["a,b", None, '"c"'], "tab\tend\\", 7)]


def test_labels_can_be_looked_up(http: RunningHttp, label: str) -> None:
    odd = f"{label}/é ?#"
    header = odd.encode().decode("latin-1")
    assert load(http.port, header, [row(120)]).json["label"] == odd
    token = {"Authorization": f"bearer {TOKEN}"}
    found = call(http.port, "GET", f"{PATH}/{label}%2F%C3%A9%20%3F%23", headers=token)
    assert (found.status, found.json["label"], found.json["hot_rows"], found.json["replay"]) == (200, odd, 1, False)
    assert call(http.port, "GET", f"{PATH}/unknown", headers=token).error["code"] == "unknown_label"
    assert call(http.port, "GET", f"{PATH}/unknown").status == 401
    assert call(http.port, "GET", "/api/load/public.missing/x", headers=token).status == 404


def test_an_empty_batch_commits_its_label(http: RunningHttp, connection: Connection, label: str) -> None:
    for number, body in enumerate((b"", b"\n \n")):
        assert load(http.port, f"{label}{number}", body).json["state"] == "committed"
        assert recorded(connection, f"{label}{number}") == 1


def test_cold_volume_is_staged(http: RunningHttp, app: App, label: str) -> None:
    whole = {"n": 1, "doc": None, "amount": 1, "tags": None}
    answer = load(http.port, label, [row(number, -10, **whole) for number in range(1001)]).json
    assert (answer["state"], answer["spooled_rows"], len(answer["staged_files"]) > 0) == ("staged", 1001, True)
    page = call(http.port, "GET", "/metrics").text.decode()
    assert 'modak_load_staged_labels{table="public.events"} 1.0' in page
    lag = re.search(r'modak_load_adoption_lag_seconds\{table="public.events"\} (\S+)', page)
    assert lag is not None
    assert float(lag[1]) > 0


# Bodies


TABLE_OF_ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "event_time": pa.array([3, 3], pa.int64()), "val": ["a", None]})


def written(kind: str) -> bytes:
    sink = io.BytesIO()
    if kind == "parquet":
        pq.write_table(TABLE_OF_ROWS, sink)
    else:
        with (pa.ipc.new_stream if kind == "arrow.stream" else pa.ipc.new_file)(sink, TABLE_OF_ROWS.schema) as writer:
            writer.write_table(TABLE_OF_ROWS)
    return sink.getvalue()


@pytest.mark.parametrize("kind", ["parquet", "arrow.stream", "arrow.file"])
def test_parquet_and_arrow(http: RunningHttp, connection: Connection, label: str, kind: str) -> None:
    for number, unpack in enumerate((None, "gzip")):
        body = written(kind) if unpack is None else gzip.compress(written(kind))
        more = {} if unpack is None else {"content_encoding": unpack}
        answer = load(http.port, f"{label}{number}", body, content_type=f"application/vnd.apache.{kind}", **more)
        assert (answer.status, answer.json["hot_rows"]) == (200, 2), answer.text
    assert rows(connection, "select val from public.events_hot where event_time = 3 order by id") == [("a",), (None,)]
    broken = load(http.port, f"{label}2", written(kind)[:-30][10:], content_type=f"application/vnd.apache.{kind}")
    assert (broken.status, recorded(connection, f"{label}2")) == (400, 0)


@pytest.mark.parametrize("content_type", ["application/x-ndjson", "application/jsonl; charset=UTF-8", "application/json", "text/plain"])
def test_content_types_of_lines(http: RunningHttp, label: str, content_type: str) -> None:
    assert load(http.port, label, [row(130)], content_type=content_type).status == 200


def packed(encoding: str, body: bytes) -> bytes:
    return {"gzip": gzip.compress, "zstd": zstandard.compress, "identity": bytes}[encoding](body)


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity"])
def test_compressed_bodies(http: RunningHttp, connection: Connection, label: str, encoding: str) -> None:
    whole = [row(number, 7) for number in range(200, 300)]
    # Two members, as files put behind each other have.
    body = packed(encoding, jsonl(whole[:50])) + packed(encoding, jsonl(whole[50:]))
    assert load(http.port, label, body, content_encoding=encoding).json["hot_rows"] == 100
    assert value(connection, "select count(*) from public.events_hot where event_time = 7") == 100
    if encoding != "identity":
        for bad in (body[:-9], b"x" + body, body + b"junk"):
            assert load(http.port, label + "bad", bad, content_encoding=encoding).error["code"] == "bad_encoding"


def test_bombs_are_not_unpacked(app: App) -> None:
    limits = BodyLimits(bytes_max=1_000_000, memory_bytes=1000)
    with serving.serving(app, body_limits=limits) as http:
        zeros = b"\0" * 300_000_000
        for encoding in ("gzip", "zstd"):
            assert load(http.port, "bomb", packed(encoding, zeros), content_encoding=encoding).error["code"] == "too_large"
        assert load(http.port, "long", b"x" * 1_000_001).status == 413
        assert load(http.port, "endless", iter([b"x" * 100_000] * 11)).status == 413
        assert load(http.port, "fits", jsonl([row(140, val="x" * 900_000)])).status == 200


def test_expecting_clients_are_answered_before_they_send(http: RunningHttp) -> None:
    with socket.create_connection(("127.0.0.1", http.port), timeout=30) as client:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n"
        client.sendall(f"{head}X-Modak-Token: wrong\r\n\r\n".encode())
        assert b" 401 " in client.recv(1000)


# Refusals


REFUSED: dict[str, tuple[bytes, int | None, str | None]] = {
    "no JSON": (b'{"id":1,"event_time":1}\n{"id":', 2, None),
    "no object": (b"[1]", 1, None),
    "broken UTF-8": (b'{"id":1,"event_time":1,"val":"\xff"}', 1, None),
    "a wrong type": (b'{"id":1,"event_time":1}\n\n{"id":"x","event_time":1}', 3, "id"),
    "a number beyond the type": (b'{"id":99999999999999999999,"event_time":1}', 1, "id"),
    "another column": (b'{"id":1,"event_time":1,"nope":1}', 1, "nope"),
    "no tier key": (b'{"id":1}', 1, "event_time"),
    "a NULL key": (b'{"id":null,"event_time":1}', 1, "id"),
    "a key twice": (b'{"id":1,"event_time":1}\n\n\n{"id":1,"event_time":1}', 4, "id, event_time"),
    "a constraint": (b'{"id":1,"event_time":1}\n\n\n\n{"id":2,"event_time":1,"val":"forbidden"}', 5, None),
    "no partition": (b'{"id":1,"event_time":1}\n{"id":2,"event_time":5000}', 2, "event_time"),
    "no JSON for jsonb": (b'{"id":1,"event_time":1,"doc":{"a":"\\u0000"}}', 1, "doc"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_batch_is_refused_with_its_line(http: RunningHttp, connection: Connection, label: str, name: str) -> None:
    body, line, column = REFUSED[name]
    answer = load(http.port, label, body)
    assert (answer.status, answer.error["line"]) == (400, line), answer.text
    if column is not None:
        assert answer.error["column"] == column
    assert recorded(connection, label) == 0
    assert load(http.port, label, [row(150, 9)]).json["replay"] is False


def test_requests_that_are_wrong(http: RunningHttp) -> None:
    body, token = jsonl([row(1)]), {"X-Modak-Token": TOKEN}

    def post(path: str = PATH, **headers: str) -> Answer:
        return call(http.port, "POST", path, body, {name.replace("_", "-"): text for name, text in headers.items()})

    for headers in (
        {},
        {"X_Modak_Token": "wrong"},
        {"X_Modak_Token": ""},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
    ):
        answer = post(X_Modak_Label="x", **headers)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert post(X_Modak_Token=TOKEN).error["message"] == "a load needs a label"
    assert post(X_Modak_Token=TOKEN, X_Modak_Label="x" * 257).status == 400
    assert post(X_Modak_Token=TOKEN, X_Modak_Label="\xff").status == 400
    for path in ("/api/load/events", "/api/load/a.b.c", "/api/load/", "/api/load/public.events%00"):
        assert post(path, X_Modak_Token=TOKEN, X_Modak_Label="x").status == 400, path
    assert post("/api/load/public.missing", X_Modak_Token=TOKEN, X_Modak_Label="x").error["code"] == "not_registered"
    assert post("/api/load/public.events_hot", X_Modak_Token=TOKEN, X_Modak_Label="x").status == 404
    assert post(X_Modak_Token=TOKEN, X_Modak_Label="x", Content_Type="image/png").status == 415
    assert post(X_Modak_Token=TOKEN, X_Modak_Label="x", Content_Type="application/json; charset=utf-16").status == 415
    assert post(X_Modak_Token=TOKEN, X_Modak_Label="x", Content_Encoding="br").error["code"] == "unsupported_encoding"
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = call(http.port, method, PATH, headers=token)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert call(http.port, "POST", f"{PATH}/x", b"", token).headers["allow"] == "GET"
    assert call(http.port, "GET", f"{PATH}/x/y", headers=token).status == 400
    for path in ("/api/load/public/events", "/api/load/public/events/", "/api/load/public/events/x", f"{PATH}/x/y"):
        answer = post(path, X_Modak_Token=TOKEN, X_Modak_Label="x")
        assert (answer.status, answer.error["code"], "schema.table" in answer.error["hint"]) == (400, "bad_path", True), path
        assert post(path, X_Modak_Label="x").status == 401
    assert call(http.port, "PUT", "/api/load/public/events", headers=token).status == 405


def test_without_a_token_there_is_no_endpoint(app: App) -> None:
    with serving.serving(app, token=None) as http:
        for method, path in (("POST", PATH), ("GET", PATH), ("GET", f"{PATH}/x")):
            assert call(http.port, method, path, headers={"X-Modak-Token": ""}).error["code"] == "not_found"
        assert call(http.port, "GET", "/healthz").json["status"] == "ok"
        assert call(http.port, "POST", "/healthz").status == 405
        assert call(http.port, "GET", "/metrics").status == 200


def test_no_http_is_answered_in_our_shape(app: App) -> None:
    with serving.serving(app, header_seconds=0.2, body_limits=BodyLimits(idle_seconds=0.2)) as http:
        for sent, status in (
            (b"\x16\x03\x01 no http\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost:", 408),
            (f"POST {PATH} HTTP/1.1\r\nHost: x\r\nX-Modak-Token: {TOKEN}\r\nX-Modak-Label: x\r\nContent-Length: 9\r\n\r\n{{".encode(), 408),
        ):
            with socket.create_connection(("127.0.0.1", http.port), timeout=30) as client:
                with contextlib.suppress(OSError):
                    client.sendall(sent)
                head, _, body = _all(client).partition(b"\r\n\r\n")
                assert int(head.split()[1]) == status
                assert set(json.loads(body)["error"]) == {"code", "message", "hint", "line", "column", "value"}
        with socket.create_connection(("127.0.0.1", http.port), timeout=30) as client:
            assert client.recv(10) == b"", "a connection on which nothing is asked is closed"


def _all(client: socket.socket) -> bytes:
    found = b""
    while not (found.endswith(b"}") and b"\r\n\r\n" in found) and (part := client.recv(65536)):
        found += part
    return found


def test_the_document_is_served(http: RunningHttp) -> None:
    document = call(http.port, "GET", "/api/v1/openapi.json").json
    assert set(document["paths"]["/api/load/{table}"]["post"]["responses"]) == {"200", "400", "401", "404", "405", "408", "409", "413", "415", "429", "503"}  # fmt: skip  # noqa: E501


def test_metrics_count_what_happened(app: App) -> None:
    with serving.serving(app) as http:
        load(http.port, "metrics 1", [row(160), row(161, -1)])
        load(http.port, "metrics 1", [row(160), row(161, -1)])
        load(http.port, "metrics 2", b"{")
        load(http.port, "metrics 3", [row(1)], path="/api/load/public.missing")
        page = call(http.port, "GET", "/metrics").text.decode()
    for line in (
        'modak_load_total{state="committed",table="public.events"} 1.0',
        'modak_load_total{state="replayed",table="public.events"} 1.0',
        'modak_load_total{state="rejected",table="public.events"} 1.0',
        'modak_load_rows_total{path="hot",table="public.events"} 1.0',
        'modak_load_rows_total{path="delta",table="public.events"} 1.0',
        "modak_catalog_up 1.0",
    ):
        assert line in page, page
    assert "missing" not in page


# Many at once


def test_a_group_shares_a_transaction_and_no_fate(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    bodies: dict[str, Any] = {f"g{number}": [row(1000 + number * 10 + one, 30) for one in range(3)] for number in range(50)}
    bad = {
        "g7": b"{",
        "g8": b'{"id":"x","event_time":30}',
        "g20": [row(1, 5000)],
        "g21": [row(1, 30), row(1, 30)],
        "g33": [row(9, 30, val="forbidden")],
    }
    with serving.serving(app, group_limits=QUICK) as http, gathered(http, gate, bodies | bad) as answers:
        pass
    for name, future in answers.items():
        assert future.result(60).status == (400 if name in bad else 200), (name, future.result().text)
        assert recorded(connection, name) == (name not in bad)
    assert value(connection, "select count(*) from public.events_hot where event_time = 30") == 45 * 3
    # A transaction has one now().
    assert value(connection, "select count(distinct committed_at) from modak.load_labels where label like 'g%%'") == 1
    forget(connection, "first")


def test_the_same_label_in_flight_is_409(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with serving.serving(app, group_limits=QUICK) as http, gathered(http, gate, {"behind": [row(50, 21)]}) as answers:
        for name in ("first", "behind"):
            again = load(http.port, name, [row(51, 21)])
            assert (again.status, again.error["code"], again.headers["retry-after"]) == (409, "label_in_flight", "1")
    assert answers["behind"].result().status == 200
    forget(connection, "first")


def test_a_label_in_flight_elsewhere_is_409(http: RunningHttp, app: App, label: str) -> None:
    from modak.load import LoadOptions, LoadRequest, open_session

    other, loader = open_session(LoadOptions(app.dsn, "public.events"))
    with contextlib.closing(other), other.transaction(force_rollback=True):
        loader.apply(LoadRequest(label, [row(60, 22)]))
        assert load(http.port, label, [row(60, 22)]).error["code"] == "label_in_flight"
    assert load(http.port, label, [row(60, 22)]).json["replay"] is False


def test_a_row_that_somebody_holds_stops_only_its_own_batch(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_GROUP_LOCK_SECONDS", 0.1)
    """It leaves the group, waits by itself, and goes on when the row is free."""
    gate = Gate(monkeypatch)
    connection.execute("insert into public.events_hot (id, event_time) values (70, 23)")
    with serving.serving(app, group_limits=QUICK) as http, psycopg.connect(app.dsn) as holder:
        holder.execute("update public.events_hot set val = 'held' where id = 70")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with gathered(http, gate, {"h1": [row(71, 23)], "h2": [row(70, 23)], "h3": [row(72, 23)]}) as answers:
                pass_on = pool.submit(lambda: (answers["h1"].result(60).status, answers["h3"].result(60).status, holder.commit()))
                gate.opened.set()
            assert pass_on.result(60)[:2] == (200, 200)
        assert answers["h2"].result(60).status == 200
    assert value(connection, "select val from public.events_hot where id = 70") == "v70"
    forget(connection, "first")


def test_a_deferred_refusal_is_found_again(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constraint that speaks at COMMIT fails the whole group; by itself each batch has its own fate."""
    connection.execute("create table public.parents (id bigint primary key)")
    connection.execute("insert into public.parents select distinct n from public.events_hot where n is not null")
    connection.execute(
        "alter table public.events_hot add constraint to_parent foreign key (n) references public.parents deferrable initially deferred"
    )
    gate = Gate(monkeypatch)
    try:
        with serving.serving(app, group_limits=QUICK) as http:
            bodies = {"d1": [row(80, 24, n=None)], "d2": [row(81, 24, n=12_345)], "d3": [row(82, 24, n=None)]}
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                first = pool.submit(load, http.port, "first", [row(83, 24, n=None)])
                assert gate.reached.wait(30)
                with concurrent.futures.ThreadPoolExecutor(3) as more:
                    found = {name: more.submit(load, http.port, name, body) for name, body in bodies.items()}
                    until(lambda: waiting(http) == 3)
                    gate.opened.set()
                assert first.result().status == 200
        assert {name: one.result().status for name, one in found.items()} == {"d1": 200, "d2": 400, "d3": 200}, found["d2"].result().text
    finally:
        connection.execute("alter table public.events_hot drop constraint to_parent")
        connection.execute("drop table public.parents")
        forget(connection, "first")


def test_too_many_loads_are_told_to_come_back(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with serving.serving(app, group_limits=QUICK, loads_max=3) as http, gathered(http, gate, {"t1": [row(90, 25)], "t2": [row(91, 25)]}):
        answer = load(http.port, "t3", [row(92, 25)])
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert call(http.port, "GET", "/healthz").status == 200
    forget(connection, "first")


def test_postgres_is_away(app: App, cluster: Cluster) -> None:
    """503 while it is, and the same server goes on when it is back."""
    name = value_of_dsn(app.dsn)
    with serving.serving(app) as http:
        assert load(http.port, "away 0", [row(95, 26)]).status == 200
        with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
            admin.execute(sql.SQL("alter database {} allow_connections false").format(sql.Identifier(name)))
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
            try:
                answer = load(http.port, "away 1", [row(96, 26)])
                assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "connection_failed", "1")
                assert load(http.port, "away 2", jsonl([row(97, 26, val="x" * 2_000_000)])).status == 503
                health = call(http.port, "GET", "/healthz")
                assert (health.status, health.json["postgres"], health.json["reasons"]) == (503, "away", ["Postgres does not answer"])
                assert "modak_catalog_up 0.0" in call(http.port, "GET", "/metrics").text.decode()
                assert call(http.port, "GET", f"{PATH}/x", headers={"X-Modak-Token": TOKEN}).status == 503
            finally:
                admin.execute(sql.SQL("alter database {} allow_connections true").format(sql.Identifier(name)))
        assert load(http.port, "away 1", [row(96, 26)]).json["replay"] is False


def value_of_dsn(dsn: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])


# The process


def test_a_large_body_needs_little_memory_and_sigterm_ends_in_order(app: App, connection: Connection) -> None:
    worker = WorkerProcess(app)
    text = "x" * 10_000

    def body(first: int, count: int) -> Iterator[bytes]:
        return (json.dumps({"id": number, "event_time": 40, "val": text}).encode() + b"\n" for number in range(first, first + count))

    assert load(worker.port, "warm", body(0, 2000)).json["hot_rows"] == 2000
    before = _most_memory(worker.process.pid)
    assert load(worker.port, "large", body(2000, 8000)).json["hot_rows"] == 8000
    # 80 MB went through; rows held as objects would have taken more than that.
    assert _most_memory(worker.process.pid) - before < 50_000
    with socket.create_connection(("127.0.0.1", worker.port), timeout=30) as slow:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nX-Modak-Token: {TOKEN}\r\nX-Modak-Label: slow\r\nContent-Length: 9\r\n\r\n"
        slow.sendall(head.encode() + b"{")
        until(lambda: "modak_" in call(worker.port, "GET", "/metrics").text.decode())
        code, log = worker.terminate()
        assert code == 0, log
        assert b" 503 " in slow.recv(1000)
    assert "Traceback" not in log
    assert recorded(connection, "slow") == 0
    assert value(connection, "select count(*) from public.events_hot where event_time = 40") == 10_000


def _most_memory(pid: int) -> int:
    """Kilobytes the process had at most."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:  # noqa: PTH123
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1])


def test_a_load_at_work_is_finished_before_the_end(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    http = RunningHttp(app, group_limits=QUICK)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(load, http.port, "first", [row(99, 27)])
        assert gate.reached.wait(30)
        http.ask_to_stop()
        until(lambda: _refused(http.port))
        gate.opened.set()
        http.stop()
        assert answer.result(30).status == 200
    assert recorded(connection, "first") == 1
    forget(connection, "first")


def _refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False
