"""A session of postgres_fdw by itself: what it answers, and on which threads it works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from modak.gateway.decoupled.session import DecoupledSession
from modak.gateway.failures import Cancelled, InFailedTransaction
from modak.gateway.fdw.session import FdwSession


class Decoupled:
    """In place of the decoupled tables' part; remembers what it was told."""

    is_idle = False

    def __init__(self) -> None:
        self.told: list[str] = []

    def commit(self) -> None:
        self.told.append("commit")

    def roll_back(self) -> None:
        self.told.append("roll back")


@pytest.fixture
def session() -> Iterator[FdwSession]:
    with ThreadPoolExecutor(4) as executor:
        lake: Any = SimpleNamespace(executor=executor, decoupled=None)
        channel: Any = SimpleNamespace(decoder=SimpleNamespace(allow=lambda _: None))
        made = FdwSession(channel, lake)
        made._decoupled = Decoupled()  # type: ignore[assignment]
        yield made


def told(session: FdwSession) -> list[str]:
    return session._decoupled.told  # type: ignore[attr-defined, no-any-return]


def run(session: FdwSession, *statements: str) -> None:
    async def one_by_one() -> None:
        for sql in statements:
            await session._run(sql, ())

    asyncio.run(one_by_one())


def test_a_commit_after_a_failure_is_no_success(session: FdwSession) -> None:
    """postgres_fdw asks whether the command succeeded, not what it was."""
    run(session, "START TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    session._status = b"E"
    with pytest.raises(InFailedTransaction):
        run(session, "COMMIT TRANSACTION")
    assert told(session) == ["roll back"]
    assert session._status == b"I"
    run(session, "START TRANSACTION ISOLATION LEVEL REPEATABLE READ", "COMMIT TRANSACTION")
    assert told(session) == ["roll back", "commit"]


def test_one_thing_at_a_time_though_nobody_waits_for_it(session: FdwSession) -> None:
    """A task that is cancelled leaves its thread at work. What comes next waits for that, or the two would share a transaction."""
    began, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        began.set()
        go_on.wait(10)
        done.append("slow")

    async def story() -> None:
        task = asyncio.create_task(session._in_thread(slow))
        await asyncio.to_thread(began.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = asyncio.create_task(session._in_thread(lambda: done.append("after")))
        # An estimate has nothing to wait for.
        await session._in_thread(lambda: done.append("estimate"), alone=False)
        await asyncio.sleep(0.1)
        go_on.set()
        await after

    asyncio.run(story())
    assert done == ["estimate", "slow", "after"]


def test_a_session_that_has_ended_begins_nothing() -> None:
    ended = DecoupledSession(None)  # type: ignore[arg-type]
    ended.close()
    with pytest.raises(Cancelled):
        _ = ended.transaction
