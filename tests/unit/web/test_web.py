"""The parts of the HTTP server that need neither a socket nor a database."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import threading

import pytest
import zstandard

from modak import errors
from modak.errors import ModakError, Problem, Refused
from modak.load import LabelInFlight, LoadFailed, LoadRejected
from modak.web.app import shared
from modak.web.bodies import _PIECE_BYTES, Unpacking, _Gzip, _Zstd
from modak.web.errors import response_of
from modak.web.openapi import DOCUMENT
from modak.web.protocol import connections_max

DOCUMENTED = {int(status) for status in DOCUMENT["paths"]["/api/load/{table}"]["post"]["responses"]}
ENCODINGS = {"gzip": (gzip.compress, _Gzip), "zstd": (zstandard.compress, _Zstd)}


def every_error(base: type[ModakError] = ModakError) -> list[type[ModakError]]:
    """Of what a load can meet: the shared ones and its own."""
    known = [child for child in base.__subclasses__() if child.__module__.startswith(("modak.errors", "modak.load"))]
    return [base, *(one for child in known for one in every_error(child))]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_documented_answer(kind: type[ModakError]) -> None:
    response = response_of(kind("what happened", hint="what to do"))
    assert response.status_code in DOCUMENTED
    assert json.loads(response.body)["error"] == {
        "code": kind.code, "message": "what happened", "hint": "what to do", "line": None, "column": None, "value": None,
    }  # fmt: skip
    assert ("retry-after" in response.headers) == (response.status_code in (409, 503))


def test_what_the_client_can_mend_is_his() -> None:
    statuses = {
        LoadRejected("x"): 400, errors.UsageError("x"): 400, Refused("x", [Problem("a", "b")]): 400, errors.NotRegistered("x"): 404,
        LabelInFlight("x"): 409, LoadFailed("x"): 503, errors.ConnectionFailed("x"): 503, errors.MissingComponent("x"): 503,
    }  # fmt: skip
    assert {response_of(error).status_code: error for error in statuses}.keys() == set(statuses.values())
    assert all(response_of(error).status_code == status for error, status in statuses.items())


def test_an_error_carries_any_value() -> None:
    found = json.loads(response_of(LoadRejected("x", line=3, column="c", value="\ud800" * 1000)).body)["error"]
    assert (found["line"], found["column"], len(found["value"]) < 2000) == (3, "c", True)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("bite", [1, 7, 100_000])
def test_bodies_are_unpacked_however_they_arrive(encoding: str, bite: int) -> None:
    pack, kind = ENCODINGS[encoding]
    packed = pack(b"a" * 1000) + pack(b"b" * 1000) + pack(b"")
    unpacking: Unpacking = kind()
    assert unpacking.is_complete
    found = b"".join(piece for start in range(0, len(packed), bite) for piece in unpacking.feed(packed[start : start + bite]))
    assert found == b"a" * 1000 + b"b" * 1000
    assert unpacking.is_complete
    list(unpacking.feed(pack(b"c" * 1000)[:5]))
    assert not unpacking.is_complete


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_piece_is_large(encoding: str) -> None:
    """Whoever counts the bytes can stop in time."""
    pack, kind = ENCODINGS[encoding]
    largest = max(len(piece) for piece in kind().feed(pack(b"\0" * 100_000_000)))
    assert largest <= 16 * _PIECE_BYTES


@pytest.mark.parametrize(("files", "places"), [(resource.RLIM_INFINITY, 1000), (1_000_000, 1000), (1024, 512)])
def test_connections_leave_files_for_the_jobs(monkeypatch: pytest.MonkeyPatch, files: int, places: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert connections_max() == places


def test_a_crowd_shares_a_look() -> None:
    """However many ask at once, and whoever of them leaves; and nobody gets one that began before he asked."""
    gate, looks = threading.Event(), list[int]()

    def look() -> int:
        looks.append(len(looks) + 1)
        assert gate.wait(30)
        return looks[-1]

    async def crowd() -> None:
        ask = shared(look)
        first = asyncio.ensure_future(ask())
        while not looks:
            await asyncio.sleep(0.001)
        others = [asyncio.ensure_future(ask()) for _ in range(100)]
        await asyncio.sleep(0.01)
        others[0].cancel()
        gate.set()
        assert await first == 1
        assert await asyncio.gather(*others[1:]) == [2] * 99
        assert await ask() == 3

    asyncio.run(crowd())


def test_a_look_that_fails_fails_those_who_share_it_and_nobody_else() -> None:
    answers = iter([ValueError("away"), 7])

    def look() -> int:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    async def crowd() -> None:
        ask = shared(look)
        found = await asyncio.gather(*(ask() for _ in range(5)), return_exceptions=True)
        assert [str(one) for one in found] == ["away"] * 5
        assert await ask() == 7

    asyncio.run(crowd())
