"""Bodies of requests: how long a client is waited for, and that what serves them says so and closes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import Request

from modak.patience import Gone, Patience, Slow, TooLarge, pieces, whole
from modak.rest.app import RestCatalog
from modak.web.console.guard import Guard
from modak.web.console.session import Access
from modak.web.errors import Answer

QUICK = Patience(idle_seconds=0.1, seconds_max=0.3)
Receive = Callable[[], Awaitable[dict[str, Any]]]


def sending(*parts: bytes, every: float = 0.0, end: str = "whole") -> Receive:
    """A client that sends these parts and then is done (``whole``), leaves (``leaves``), or says nothing any more (``waits``)."""
    left = list(parts)

    async def receive() -> dict[str, Any]:
        if left:
            await asyncio.sleep(every)
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or end != "whole"}
        if end == "waits":
            await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    return receive


def test_a_body_arrives_in_pieces() -> None:
    async def read() -> list[bytes]:
        return [piece async for piece in pieces(sending(b"a", b"", b"bc"), QUICK)]

    assert asyncio.run(read()) == [b"a", b"", b"bc"]
    assert asyncio.run(whole(sending(b"a", b"bc"), QUICK, 3)) == b"abc"


@pytest.mark.parametrize(
    ("client", "how"),
    [
        (sending(b"a", end="waits"), Slow),
        (sending(end="waits"), Slow),
        # Never a pause, and never an end.
        (sending(*[b"a"] * 1000, every=0.02), Slow),
        (sending(b"a", end="leaves"), Gone),
        (sending(b"aaaa", b"aaaa", b"aaaa", end="waits"), TooLarge),
    ],
)
def test_a_client_is_given_up(client: Receive, how: type[Exception]) -> None:
    began = time.monotonic()
    with pytest.raises(how):
        asyncio.run(whole(client, QUICK, 10 if how is TooLarge else 10_000))
    assert time.monotonic() - began < 5


def test_a_form_that_does_not_come_is_408() -> None:
    scope = {"type": "http", "method": "POST", "path": "/login", "headers": [(b"content-type", b"application/x-www-form-urlencoded")]}
    guard = Guard(Access.GUARDED, "x", patience=QUICK)
    for read in (guard.fields, guard.body):
        with pytest.raises(Answer) as found:
            asyncio.run(read(Request(scope, sending(b"p", end="waits"))))
        assert (found.value.status, found.value.headers) == (408, {"Connection": "close"})
    with pytest.raises(Answer) as found:
        asyncio.run(guard.fields(Request(scope, sending(b"p=" + b"x" * 100)), 50))
    assert found.value.status == 413


@pytest.mark.parametrize(
    ("client", "status"), [(sending(b"{", end="waits"), 408), (sending(b"{", end="leaves"), 400), (sending(b"[]"), 400)]
)
def test_a_body_of_the_rest_catalog_that_does_not_come_is_408(client: Receive, status: int) -> None:
    def nobody(_: str) -> Any:
        raise AssertionError("there is no body to work on")

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    path = "/v1/default/namespaces"
    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"authorization", b"Bearer t")], "query_string": b""}
    asyncio.run(RestCatalog(nobody, "t", patience=QUICK).build()(scope, client, send))  # type: ignore[arg-type]
    headers = dict(sent[0]["headers"])
    assert (sent[0]["status"], headers.get(b"connection")) == (status, b"close" if status == 408 else None)
    assert json.loads(sent[1]["body"])["error"]["code"] == status
