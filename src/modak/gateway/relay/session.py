"""One client, from its first statement to its last: Postgres answers, and the lake where it can."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Protocol

from modak.gateway.channel import Channel
from modak.gateway.decoupled.bulk import recognise
from modak.gateway.interception import Answer, Interceptor
from modak.gateway.relay.backend import Backend, BackendError
from modak.gateway.relay.bulk import BulkInserts
from modak.gateway.relay.extended import Extended
from modak.gateway.relay.lake import Declined, Lake, LakeFailure
from modak.gateway.relay.ledger import Kind, Request
from modak.gateway.relay.peer import BackendGone, ClientGone, Peer
from modak.gateway.relay.pump import Pump
from modak.gateway.relay.statements import Book
from modak.gateway.wire.messages import (
    TEXT,
    ErrorFields,
    Message,
    ProtocolError,
    command_complete,
    error_response,
    ready_for_query,
    row_description,
)
from modak.scan.sqltext import regclass

log = logging.getLogger("modak.gateway")

_SHUTDOWN = ErrorFields("FATAL", "57P01", "terminating connection due to administrator command")
_LOST = ErrorFields("FATAL", "08006", "the connection to Postgres was lost", hint="connect again")


class Rewriter(Protocol):
    """Knows names that mean another relation on this port; see ``modak.gateway.native``."""

    def names(self, sql: str) -> Sequence[tuple[str, ...]]: ...

    def rewritten(self, sql: str, oids: Mapping[tuple[str, ...], int | None]) -> str: ...


def _parsed(body: bytes) -> tuple[bytes, bytes, bytes]:
    name, _, rest = body.partition(b"\0")
    text, _, types = rest.partition(b"\0")
    return name + b"\0", text, types


class RelaySession:
    """``run`` returns when the session is over, whoever ended it; client and Postgres are closed then."""

    def __init__(
        self,
        channel: Channel,
        backend: Backend,
        interceptor: Interceptor | None,
        executor: Executor,
        rewriter: Rewriter | None = None,
        bulk: BulkInserts | None = None,
        advised: Callable[[Message], Message] | None = None,
    ) -> None:
        self._bulk = bulk
        self._rewriter = rewriter
        self._client = Peer(channel, ClientGone)
        self._backend = backend
        self._interceptor = interceptor
        self._book = Book()
        self._pump = Pump(self._client, backend, self._book, advised)
        self._lake = Lake(interceptor, backend, self._client, executor)
        self._extended = Extended(self._client, backend, self._pump, self._book, self._lake, self._candidate, self._readable)
        self._stopping = asyncio.Event()
        self._idling = False
        self._told_to_stop: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        self._told_to_stop = asyncio.create_task(self._stopping.wait())
        try:
            await self._converse()
        except ClientGone:
            pass
        except BackendGone:
            if not self._pump.said_farewell:
                await self._last_words(self._backend.farewell or _LOST)
        except ProtocolError as error:
            await self._last_words(ErrorFields.of(error, severity="FATAL"))
        finally:
            await self._end()

    async def cancel(self) -> None:
        """A CancelRequest for this session came: the running statement, if there is one, fails with 57014."""
        reason = "canceling statement due to user request"
        if self._lake.working:
            self._lake.interrupt(reason)
            return
        if not self._idling:
            # Perhaps between the client's message and the lake's part in it, where Postgres has nothing to cancel.
            self._lake.forestalled = reason
        await self._backend.cancel()

    async def shutdown(self) -> None:
        """End the session as soon as no statement is running; ``run`` returns then."""
        self._stopping.set()

    async def _converse(self) -> None:
        while True:
            message = self._client.decoder.next()
            if message is None and self._pump.pending:
                await self._pump.drain()  # during which the client may have said more
            elif message is None:
                await self._close_retired()
                if self._stopping.is_set():
                    await self._last_words(_SHUTDOWN)
                    return
                await self._idle()
            elif message.tag == b"X":
                await self._pump.drain()
                return
            else:
                await self._handle(message)

    async def _handle(self, message: Message) -> None:
        tag, ledger = message.tag, self._pump.ledger
        await self._close_retired()
        if tag == b"S":
            ledger.skipping = False
        if ledger.skipping or tag in b"Hdcf":
            return  # Flush has nothing to do here, and data that comes after a COPY has failed is let go
        if tag in b"QP":
            message = await self._rewritten(message)
        if tag == b"Q":
            await self._query(message)
        elif tag == b"F":
            await self._in_postgres(message)
        elif tag in b"PBDECS":
            await self._extended.handle(message)
        else:
            raise ProtocolError(f"unexpected frontend message type {tag!r}")

    async def _idle(self) -> None:
        """Until the client has something to say. Notifications pass meanwhile."""
        await self._pump.pass_on()
        assert self._told_to_stop is not None
        watched = [self._client.arrival(), self._backend.peer.arrival(), self._told_to_stop]
        self._idling, self._lake.forestalled = True, None
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        self._idling = False
        self._backend.peer.arrived()
        self._client.arrived()

    def _readable(self) -> bool:
        """The lake reads and writes UTF-8 and standard strings, and nothing else."""
        spoken = (self._backend.setting("client_encoding"), self._backend.setting("standard_conforming_strings"))
        return self._interceptor is not None and spoken == ("UTF8", "on")

    def _candidate(self, sql: bytes) -> Any | None:
        """The statement if it may be the lake's."""
        if self._interceptor is None or not self._readable():
            return None
        try:
            return self._interceptor.candidate(sql.decode())
        except UnicodeDecodeError:
            return None
        except Exception:
            log.exception("a statement could not be looked at; Postgres answers it")
            return None

    async def _rewritten(self, message: Message) -> Message:
        """The statement with names as they are meant on this port. Where Postgres cannot be asked what they mean, it stays as it is."""
        if self._rewriter is None or not self._readable():
            return message
        head, text, rest = (b"", *message.body.partition(b"\0")[::2]) if message.tag == b"Q" else _parsed(message.body)
        try:
            sql = text.decode()
            names = self._rewriter.names(sql)
        except UnicodeDecodeError:
            return message
        if not names:
            return message
        await self._pump.drain()
        if self._pump.ledger.skipping or not self._pump.ledger.interruptible or self._backend.transaction_status == b"E":
            return message
        await self._pump.resync()
        asked = ", ".join(f"pg_catalog.to_regclass({regclass(parts)})::pg_catalog.oid" for parts in names)
        row = (await self._backend.query(f"select {asked}"))[0]
        new = self._rewriter.rewritten(sql, {parts: int(oid) if oid else None for parts, oid in zip(names, row, strict=True)})
        return Message(message.tag, head + new.encode() + b"\0" + rest)

    async def _query(self, message: Message) -> None:
        # It takes the place of the unnamed statement and portal.
        self._extended.release(b"")
        await self._pump.drain()
        if self._pump.ledger.skipping:
            return
        self._book.drop(b"")
        self._book.forget(b"")
        possible = self._pump.ledger.interruptible and self._backend.transaction_status != b"E"
        candidate = self._candidate(message.body.partition(b"\0")[0]) if possible else None
        if candidate is not None and await self._by_lake(candidate):
            return
        if not possible or self._bulk is None or not await self._in_bulk(message.body.partition(b"\0")[0], self._bulk):
            await self._in_postgres(message)

    async def _in_postgres(self, message: Message) -> None:
        self._pump.gather(message.encode(), Request(Kind.QUERY))
        await self._pump.drain()

    async def _by_lake(self, candidate: Any) -> bool:
        """Answer by the simple protocol; False if Postgres is to do it."""
        await self._pump.resync()
        try:
            async with self._lake.statement():
                answer = await self._lake.ask(candidate, ())
                if answer is None:
                    return False
                self._book.retired.append(answer)
                tail = await self._rows(answer)
        except Declined:
            return False
        except LakeFailure as failure:
            await self._lake.abort(failure.fields)
            tail = error_response(failure.fields)
        status = self._backend.transaction_status
        self._book.ready(status)
        await self._client.send(tail, ready_for_query(status))
        return True

    async def _in_bulk(self, text: bytes, bulk: BulkInserts) -> bool:
        """INSERT … SELECT into a decoupled table; False if Postgres is to do it."""
        if not self._readable() or (statement := recognise(sql := text.decode(errors="replace"))) is None:
            return False
        await self._pump.resync()
        backend = self._backend
        own = backend.transaction_status == b"I"
        try:
            # Postgres minds its own time limits, for each of its parts.
            async with self._lake.statement(timed=False):
                order = await self._lake.follow(bulk.prepare(sql, statement, backend))
                if order is None:
                    return False
                rows = await self._lake.follow(bulk.carry_out(order, backend))
            if own:
                # From here on only Postgres knows whether a cancel comes too late.
                await backend.query("commit")
            tail = command_complete(f"INSERT 0 {rows}")
        except Declined:
            await self._give_up(own)
            return False
        except (LakeFailure, BackendError) as failure:
            await self._give_up(own)
            await self._lake.abort(failure.fields)
            tail = error_response(failure.fields)
        notices, backend.notices = backend.notices, []
        self._book.ready(backend.transaction_status)
        await self._client.send(*notices, tail, ready_for_query(backend.transaction_status))
        return True

    async def _give_up(self, own: bool) -> None:
        """A transaction that we began ends with the statement."""
        if own and self._backend.transaction_status != b"I":
            await self._backend.query("rollback")

    async def _rows(self, answer: Answer) -> bytes:
        fields = [replace(one, format=TEXT) for one in answer.fields]
        rows = await self._lake.stream(answer, [TEXT] * len(fields), 0, row_description(fields))
        return command_complete(f"SELECT {rows}")

    async def _close_retired(self) -> None:
        retired, self._book.retired = self._book.retired, []
        for answer in retired:
            await self._lake.close(answer)

    async def _last_words(self, fields: ErrorFields) -> None:
        with contextlib.suppress(ClientGone):
            await self._client.send(error_response(fields))

    async def _end(self) -> None:
        """Nothing of the session goes on: not in the lake, not in Postgres, which would not notice by itself that nobody waits."""
        if self._told_to_stop is not None:
            self._told_to_stop.cancel()
        self._book.ready(b"I")
        await self._close_retired()
        if self._pump.ledger.owes or self._backend.busy:
            await self._backend.cancel()
        await self._backend.close()
        await self._client.close()
