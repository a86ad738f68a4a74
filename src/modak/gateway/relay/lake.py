"""Statements that the lake answers: asked about on the event loop, computed on worker threads, stoppable at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Final, TypeVar

from modak.errors import ModakError
from modak.gateway.interception import Answer, Interceptor, Parameter
from modak.gateway.relay.backend import Backend, BackendError
from modak.gateway.relay.peer import BackendGone, ClientGone, Peer
from modak.gateway.relay.pump import AHEAD_BYTES
from modak.gateway.wire.cells import Unsupported
from modak.gateway.wire.messages import ErrorFields
from modak.scan.sqltext import string

log = logging.getLogger("modak.gateway")

_T = TypeVar("_T")

_DURATION = re.compile(r"(\d+)(us|ms|s|min|h|d)?")
_UNIT_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, None: 1e-3}


class StatementCancelled(ModakError):
    """The client or its time limit stopped the statement."""

    code = "statement_cancelled"
    sqlstate = "57014"


class Declined(Exception):
    """The lake turned out not to have the answer, before anything of it was sent: Postgres gives it."""


class LakeFailure(Exception):
    """The statement failed; this is what the client is to see."""

    def __init__(self, fields: ErrorFields) -> None:
        super().__init__(fields.message)
        self.fields = fields


class Lake:
    """What one session asks of the lake. One statement at a time, each inside ``statement()``."""

    def __init__(self, interceptor: Interceptor | None, backend: Backend, client: Peer, executor: Executor) -> None:
        self._interceptor = interceptor
        self._backend = backend
        self._client = client
        self._executor = executor
        self._interrupt: asyncio.Future[str] | None = None
        self.forestalled: str | None = None
        """Why the statement that is about to begin is over already."""

    @property
    def working(self) -> bool:
        return self._interrupt is not None

    def interrupt(self, reason: str) -> None:
        if self._interrupt is not None and not self._interrupt.done():
            self._interrupt.set_result(reason)

    @contextlib.asynccontextmanager
    async def statement(self, *, timed: bool = True) -> AsyncIterator[None]:
        """A statement from beginning to end. What goes wrong is a LakeFailure.

        ``timed`` ones keep the client's own ``statement_timeout``, for which Postgres must be between two statements to be asked.
        """
        self._interrupt = asyncio.get_running_loop().create_future()
        if self.forestalled is not None:
            self._interrupt.set_result(self.forestalled)
            self.forestalled = None
        timer: asyncio.TimerHandle | None = None
        try:
            timer = await self._timer() if timed else None
            yield
        except (ClientGone, BackendGone, Declined):
            raise
        except ModakError as error:
            raise LakeFailure(_fields(error)) from error
        except Exception as error:
            log.exception("the lake failed over a statement")
            raise LakeFailure(ErrorFields(message=f"internal error of the gateway: {type(error).__name__}: {error}")) from error
        finally:
            if timer is not None:
                timer.cancel()
            self._interrupt = None
            await self._recover()

    async def _timer(self) -> asyncio.TimerHandle | None:
        seconds = _seconds((await self._backend.query("show statement_timeout"))[0][0])
        if not seconds:
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(seconds, self.interrupt, "canceling statement due to statement timeout")

    async def abort(self, fields: ErrorFields) -> None:
        """Where Postgres had failed over the statement, it would have failed the transaction: let it."""
        if self._backend.transaction_status == b"T":
            with contextlib.suppress(BackendError):
                await self._backend.query(raising(fields))

    async def ask(self, candidate: Any, parameters: Sequence[Parameter]) -> Answer | None:
        assert self._interceptor is not None
        work = asyncio.ensure_future(self._interceptor.answer(candidate, self._backend, parameters))
        try:
            found = await self._until(work, work.cancel)
            notices, self._backend.notices = self._backend.notices, []
            if notices:
                await self._client.send(*notices)
            return found
        except BaseException:
            # Stopped a moment too late: it was just there.
            if work.done() and not work.cancelled() and work.exception() is None and (answer := work.result()) is not None:
                await self.close(answer)
            raise

    async def stream(self, answer: Answer, formats: Sequence[int], rows_max: int, head: bytes = b"") -> int:
        """Send ``head`` and the rows; how many. While one block is on its way the next is being made, and no more than that."""
        before = answer.rows
        blocks = await self._until(self._run(answer.encoded, formats, rows_max), answer.cancel)
        coming = self._next(blocks)
        sent = False
        try:
            while (block := await self._until(coming, answer.cancel)) is not None:
                coming = self._next(blocks)
                await self._client.send(b"" if sent else head, block)
                sent = True
            if not sent:
                await self._client.send(head)
        except BaseException as error:
            await self._stop(answer, coming)
            if isinstance(error, Unsupported) and not sent:
                raise Declined from error
            raise
        return answer.rows - before

    async def _stop(self, answer: Answer, coming: asyncio.Future[memoryview | None]) -> None:
        if not coming.done():
            answer.cancel()
            await asyncio.wait([coming])
        if not coming.cancelled():
            coming.exception()

    async def close(self, answer: Answer) -> None:
        try:
            await self._run(answer.close)
        except Exception:
            log.exception("an answer of the lake could not be closed")

    def _next(self, blocks: Iterator[memoryview]) -> asyncio.Future[memoryview | None]:
        return self._run(next, blocks, None)

    def _run(self, call: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)

    async def follow(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Work on the event loop, inside ``statement()``."""
        task = asyncio.ensure_future(work)
        return await self._until(task, task.cancel)

    async def _until(self, work: asyncio.Future[_T], stop: Callable[[], object]) -> _T:
        """The work's result, unless it is interrupted or the client goes away; then it is stopped, and over when this returns."""
        assert self._interrupt is not None
        try:
            while not work.done():
                watched: set[asyncio.Future[Any]] = {work, self._interrupt}
                if self._client.decoder.buffered < AHEAD_BYTES:
                    watched.add(self._client.arrival())
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                self._client.arrived()
                if self._interrupt.done():
                    break
        finally:
            if not work.done():
                stop()
                await asyncio.wait([work])
        if self._interrupt.done():
            if not work.cancelled():
                work.exception()
            raise StatementCancelled(self._interrupt.result())
        return work.result()

    async def _recover(self) -> None:
        """Whoever was stopped may have left a question of ours unanswered in the client's session."""
        if self._backend.busy:
            await self._backend.cancel()
            await self._backend.settle()


def _fields(error: ModakError) -> ErrorFields:
    if isinstance(error, BackendError):
        return replace(error.fields, position=None)  # which counts in SQL of ours, not in the client's
    return ErrorFields.of(error)


def raising(fields: ErrorFields) -> str:
    """A statement that fails with this error."""
    told = {"errcode": fields.sqlstate, "message": fields.message, "detail": fields.detail, "hint": fields.hint}
    using = ", ".join(f"{name} = {_literal(text)}" for name, text in told.items() if text is not None)
    return f"do {_literal(f'begin raise exception using {using}; end')}"


def _literal(text: str) -> str:
    """Standard strings: with others nothing is the lake's."""
    printable = text.replace("\0", "").encode(errors="replace").decode()
    return string(printable)


def _seconds(setting: str | None) -> float:
    found = _DURATION.fullmatch(setting or "0")
    return int(found[1]) * _UNIT_SECONDS[found[2]] if found else 0.0
