"""A session of postgres_fdw by itself: what it answers, and on which threads it works."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from modak.gateway.fdw.session import FdwSession, InFailedTransaction


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
