"""The endpoint against its own OpenAPI document: whatever is sent, the answer is one that the document has, in the shape that it gives.

A failure prints its seed; ``FUZZ_SEED=n FUZZ_REQUESTS=m pytest tests/flows/test_http_fuzz.py`` repeats or extends a run.
"""

from __future__ import annotations

import gzip
import http.client
import io
import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tests.serving import PATH, TOKEN, RunningHttp, jsonl, served_table, serving

from modak.app import App
from modak.connection import connect
from modak.embedded.postgres import Cluster
from modak.web.bodies import BodyLimits
from modak.web.openapi import DOCUMENT

SEED = int(os.environ.get("FUZZ_SEED", "1"))
REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "300"))
LEAKS = (b"Traceback", b"psycopg", b'File "', b"site-packages", b"0x7f")
COLUMNS = ["id", "event_time", "val", "n", "doc", "amount", "tags"]


@pytest.fixture(scope="module")
def app(cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with served_table(cluster, template, tmp_path_factory.mktemp("data")) as made:
        yield made


@pytest.fixture(scope="module")
def server(app: App) -> Iterator[RunningHttp]:
    limits = BodyLimits(bytes_max=24 * 1024 * 1024, idle_seconds=0.2)
    with serving(app, body_limits=limits, loads_max=4) as running:
        yield running


# What is sent


def values(dice: random.Random) -> list[Callable[[], bytes]]:
    text = "".join(
        chr(dice.choice([0, 9, 10, 34, 92, 127, 233, 0x2028, 0xFFFF, 0x1F600, *range(32, 127)])) for _ in range(dice.randint(0, 30))
    )
    return [
        lambda: str(dice.randint(-5, 2000)).encode(),
        lambda: b"9" * dice.choice([1, 18, 19, 20, 400, 5000]),
        lambda: b"-1e" + str(dice.choice([1, 400, 99999999])).encode(),
        lambda: json.dumps(text, ensure_ascii=dice.random() < 0.5).encode(errors="surrogatepass"),
        lambda: b'"' + bytes(dice.randrange(256) for _ in range(dice.randint(0, 8))) + b'"',
        lambda: dice.choice(
            [b"null", b"true", b"NaN", b"Infinity", b"01", b"+1", b"1.", b".5", b"", b"'x'", b'"\\ud800"', b'"\\u0000"', b'"\\x"']
        ),
        lambda: b"[" * dice.choice([1, 50, 5000]) + b"]" * dice.choice([1, 50, 5000]),
        lambda: b'{"a":' * (depth := dice.choice([1, 50, 5000])) + b"1" + b"}" * depth,
        lambda: b'[1,"a",null,{"b":[true]}]',
        lambda: b'"' + b"x" * dice.choice([10, 100_000, 10_000_000]) + b'"',
    ]


def a_line(dice: random.Random, number: int) -> bytes:
    if dice.random() < 0.05:
        return dice.choice([b"", b"  ", b"{}", b"[]", b"1", b"null", b"{", b"}", b'{"id":1}{"id":2}', b"\xef\xbb\xbf{}", b"\xff\xfe{\0}\0"])
    pairs = [(b'"id"', str(number).encode()), (b'"event_time"', b"50")] if dice.random() < 0.95 else []
    for _ in range(dice.choice([0, 0, 1, 2])):
        name = json.dumps(dice.choice([*COLUMNS, "nope", "", "ID", "a" * 300])).encode()
        pairs.append((name, dice.choice(values(dice))()))
    return b"{" + b",".join(name + b":" + value for name, value in pairs) + b"}"


def a_body(dice: random.Random, number: int) -> tuple[str | None, bytes]:
    """(content type, bytes): mostly of the kind that it says."""
    types = list(DOCUMENT["paths"]["/api/load/{table}"]["post"]["requestBody"]["content"])
    content_type = dice.choice([*types * 6, None, None, "image/png", "text/plain; charset=utf-16", ";"])
    if content_type in types and "vnd" in content_type and dice.random() < 0.8:
        return content_type, _bent(dice, _columnar(dice, content_type, number))
    lines = [a_line(dice, number * 100 + one) for one in range(dice.choice([0, 1, 1, 3, 20]))]
    return content_type, dice.choice([b"\n", b"\n", b"\n", b"\r\n", b"\n\n"]).join(lines)


def _columnar(dice: random.Random, content_type: str, number: int) -> bytes:
    table = pa.table({"id": [number * 100, number * 100 + 1], "event_time": [60, 60], dice.choice(COLUMNS[2:]): dice.choice([[1, 2], ["a", None], [b"x", b"y"], [[1], []], [1.5, float("nan")]])})  # fmt: skip  # noqa: E501
    sink = io.BytesIO()
    if content_type.endswith("parquet"):
        pq.write_table(table, sink)
    else:
        with (pa.ipc.new_stream if content_type.endswith("stream") else pa.ipc.new_file)(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


def _bent(dice: random.Random, whole: bytes) -> bytes:
    bent = bytearray(whole)
    for _ in range(dice.choice([0, 0, 1, 3])):
        bent[dice.randrange(len(bent))] = dice.randrange(256)
    return bytes(bent[: dice.choice([len(bent), len(bent), dice.randrange(len(bent))])])


def a_request(dice: random.Random, number: int) -> tuple[str, str, str, bytes, dict[str, str]]:
    """(path of the document, method, address, body, headers)."""
    table = dice.choice(["public.events"] * 50 + ["public.missing", "events", "a.b.c", "", "public.events_hot", "%00.x", "%FF.%FE", '%22a%22%22.b', "modak.tables"])  # fmt: skip  # noqa: E501
    label = dice.choice([f"fuzz-{number}"] * 30 + ["fuzz-0", "", "x" * 257, "\xc3\xa9", "\xff", "a b/c", "\x7f"])
    headers = {"X-Modak-Token": dice.choice([TOKEN] * 80 + ["wrong", "", "\xff"])}
    if dice.random() < 0.04:
        headers = {"Authorization": dice.choice([f"Bearer {TOKEN}", "Bearer", "Basic x", TOKEN])}
    if dice.random() < 0.15:
        from urllib.parse import quote

        method = dice.choice(["GET", "GET", "GET", "POST", "DELETE"])
        return "/api/load/{table}/{label}", method, f"/api/load/{table}/{quote(label, safe='')}", b"", headers
    content_type, body = a_body(dice, number)
    if content_type is not None:
        headers["Content-Type"] = content_type
    encoding = dice.choice([None] * 12 + ["gzip", "gzip", "zstd", "zstd", "identity", "br", "gzip, zstd"])
    if encoding is not None:
        headers["Content-Encoding"] = encoding
        packed = {"gzip": gzip.compress, "zstd": zstandard.compress}.get(encoding, bytes)(body)
        body = packed if dice.random() < 0.8 else _bent(dice, packed or b"x")
    if label or dice.random() < 0.5:
        headers["X-Modak-Label"] = label
    return "/api/load/{table}", dice.choice(["POST"] * 60 + ["GET", "PUT", "HEAD", "TRACE"]), f"/api/load/{table}", body, headers


# What is answered


def matches(found: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is of a schema, as far as the document's go."""
    if "$ref" in schema:
        return matches(found, DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "enum" in schema:
        return found in schema["enum"]
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list, "null": type(None)}
    named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(type(found) is kinds[name] for name in named):
        return False
    if isinstance(found, dict):
        properties = schema["properties"]
        return set(schema["required"]) <= set(found) <= set(properties) and all(
            matches(one, properties[name]) for name, one in found.items()
        )
    return all(matches(one, schema["items"]) for one in found) if isinstance(found, list) else True


def check(template: str, method: str, status: int, headers: Any, text: bytes) -> None:
    documented = DOCUMENT["paths"][template]
    # A batch that is sent to schema/table is no look-up by the wrong method, but a load with a wrong address.
    described = DOCUMENT["paths"]["/api/load/{table}"] if method == "POST" else documented
    answers = described[method.lower()]["responses"] if method.lower() in described else {"405": {}}
    assert str(status) in answers, (status, text[:500])
    assert not any(leak in text for leak in LEAKS), text
    if status == 405:
        assert headers["Allow"].lower() in documented
    if status in (409, 429, 503):
        assert int(headers["Retry-After"]) > 0
    if method != "HEAD":
        schema = answers[str(status)].get("content", {}).get("application/json", {}).get("schema", {"$ref": "/Error"})
        assert matches(json.loads(text), schema), text


def test_only_documented_answers(server: RunningHttp, app: App) -> None:
    statuses: dict[int, int] = {}
    for number in range(REQUESTS):
        dice = random.Random(f"{SEED} {number}")
        template, method, address, body, headers = a_request(dice, number)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        try:
            connection.request(method, address, body, headers)
            found = connection.getresponse()
            text = found.read()
            check(template, method, found.status, found.headers, text)
        except Exception as cause:
            raise AssertionError(f"FUZZ_SEED={SEED}, request {number}: {method} {address} {headers} {body[:300]!r}") from cause
        finally:
            connection.close()
        statuses[found.status] = statuses.get(found.status, 0) + 1
        if found.status == 200 and method == "POST":
            _check_applied(app, json.loads(text))
    print(f"seed {SEED}: {dict(sorted(statuses.items()))}")
    assert {200, 400, 401, 404, 405, 415} <= statuses.keys()


def _check_applied(app: App, answer: dict[str, Any]) -> None:
    with connect(app.dsn, autocommit=True) as connection:
        found = connection.execute(
            "select hot_rows + delta_rows as n from modak.load_labels where label = %s", [answer["label"]]
        ).fetchone()
    assert found is not None
    assert found["n"] == answer["hot_rows"] + answer["delta_rows"]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_only_documented_answers_for_long(server: RunningHttp, app: App, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.flows.test_http_fuzz.SEED", seed)
    monkeypatch.setattr("tests.flows.test_http_fuzz.REQUESTS", 500)
    test_only_documented_answers(server, app)


def test_a_pause_and_a_leave_in_the_middle_of_a_body(server: RunningHttp) -> None:
    """A slow client gets 408; one that leaves leaves nothing behind, and the server goes on."""
    import socket

    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nX-Modak-Token: {TOKEN}\r\nX-Modak-Label: slow\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as slow:
        slow.sendall(head.encode() + b"1\r\n{\r\n")
        assert b" 408 " in slow.recv(1000)
    for rest in (b"", b"5\r\n{", b"zz\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as gone:
            gone.sendall(head.encode() + rest)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", PATH, jsonl([{"id": 1, "event_time": 70}]), {"X-Modak-Token": TOKEN, "X-Modak-Label": "after"})
    assert connection.getresponse().status == 200
    connection.close()
