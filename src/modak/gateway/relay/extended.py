"""The extended protocol: Parse goes to Postgres, and so does everything else, unless a portal is one that the lake answers.

Messages are taken strictly in order. Those for Postgres are gathered and sent together; before the gateway answers one itself, all of
Postgres's answers have been passed on, so that the client gets its answers in the order of its questions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from modak.gateway.relay.backend import Backend
from modak.gateway.relay.lake import Declined, Lake, LakeFailure, raising
from modak.gateway.relay.ledger import Kind, Request
from modak.gateway.relay.peer import Peer
from modak.gateway.relay.pump import Pump
from modak.gateway.relay.statements import Book, Portal, Statement
from modak.gateway.wire.messages import (
    Bind,
    Describe,
    ErrorFields,
    Execute,
    Message,
    Parse,
    ProtocolError,
    bind_complete,
    close_complete,
    command_complete,
    error_response,
    parse_frontend,
    portal_suspended,
    row_description,
)

_ABORTED = ErrorFields(sqlstate="25P02", message="current transaction is aborted, commands ignored until end of transaction block")


class Extended:
    def __init__(
        self,
        client: Peer,
        backend: Backend,
        pump: Pump,
        book: Book,
        lake: Lake,
        candidate: Callable[[bytes], Any | None],
        readable: Callable[[], bool],
    ) -> None:
        self._client = client
        self._backend = backend
        self._pump = pump
        self._book = book
        self._lake = lake
        self._candidate = candidate
        self._readable = readable
        self._handlers = {
            b"P": self._parse,
            b"B": self._bind,
            b"D": self._describe,
            b"E": self._execute,
            b"C": self._close,
            b"S": self._sync,
        }

    async def handle(self, message: Message) -> None:
        """Any message of the extended protocol but Flush, which needs none: answers never wait for it."""
        await self._handlers[message.tag](message)
        if self._pump.full:
            await self._pump.drain()

    def release(self, statement: bytes) -> None:
        """The statement is about to be replaced: portals that may yet need it go to Postgres, where they outlive it."""
        for name in self._book.undecided_of(statement):
            self._materialise(name)

    async def _parse(self, message: Message) -> None:
        name, _, rest = message.body.partition(b"\0")
        candidate = self._candidate(rest.partition(b"\0")[0])
        # The unnamed one is kept in any case, since a question of ours would cost the client its own.
        statement = Statement(name, message.encode(), candidate) if candidate is not None or not name else None
        self.release(name)
        if not name:
            self._backend.unnamed_lost = False
        self._book.sent(name, statement)
        self._pump.gather(message.encode(), Request(Kind.PARSE, name, statement))

    async def _bind(self, message: Message) -> None:
        portal, name = [*message.body.split(b"\0", 2), b""][:2]
        statement = self._book.statement(name)
        if statement is None or statement.candidate is None:
            self._bind_in_postgres(portal, name, message.encode())
            return
        if statement.fields is None or statement.doubtful:
            self._restore(name)
            describe = Describe(b"S", name.decode(errors="surrogateescape")).encode()
            self._pump.gather(describe, Request(Kind.DESCRIBE_STATEMENT, name, statement, silent=True))
        await self._pump.drain()
        if self._pump.ledger.skipping:
            return
        bound = self._bound(message, statement)
        if bound is None:
            self._bind_in_postgres(portal, name, message.encode())
        elif portal and portal in self._book.portals:
            await self._fail(ErrorFields(sqlstate="42P03", message=f'cursor "{bound.portal}" already exists'))
        else:
            self._book.drop(portal)
            self._book.portals[portal] = Portal(statement, bound, message.encode(), statement.fields or ())
            await self._client.send(bind_complete())

    def _bound(self, message: Message, statement: Statement) -> Bind | None:
        """None if Postgres is to hear of it right away, be it only to refuse it."""
        if self._backend.transaction_status == b"E" or not self._readable():
            return None
        try:
            bound = parse_frontend(message)
        except ProtocolError:
            return None
        return bound if isinstance(bound, Bind) and statement.takes(bound) else None

    async def _describe(self, message: Message) -> None:
        kind, name = message.body[:1], message.body[1:].partition(b"\0")[0]
        if kind == b"S":
            self._restore(name)
            self._pump.gather(message.encode(), Request(Kind.DESCRIBE_STATEMENT, name, self._book.statement(name)))
            return
        portal = await self._own(name)
        if portal is None:
            self._pump.gather(message.encode(), Request(Kind.DESCRIBE_PORTAL, name))
        elif not self._pump.ledger.skipping:
            fields = [replace(one, format=form) for one, form in zip(portal.fields, portal.formats, strict=True)]
            await self._client.send(row_description(fields))

    async def _execute(self, message: Message) -> None:
        name = message.body.partition(b"\0")[0]
        portal = await self._own(name)
        if portal is None:
            self._pump.gather(message.encode(), Request(Kind.EXECUTE, name))
        elif self._pump.ledger.skipping:
            return
        elif self._backend.transaction_status == b"E":
            await self._fail(_ABORTED)
        elif portal.undecided and not self._pump.ledger.interruptible:
            # In the middle of an implicit transaction whose changes only Postgres can see.
            self._execute_in_postgres(name, message)
        else:
            await self._answer(name, portal, message)

    async def _close(self, message: Message) -> None:
        kind, name = message.body[:1], message.body[1:].partition(b"\0")[0]
        if kind == b"S":
            self.release(name)
            self._book.sent(name, None)
        elif await self._own(name):
            if not self._pump.ledger.skipping:
                self._book.drop(name)
                await self._client.send(close_complete())
            return
        self._pump.gather(message.encode(), Request(Kind.CLOSE_STATEMENT if kind == b"S" else Kind.CLOSE_PORTAL, name))

    async def _sync(self, message: Message) -> None:
        self._pump.gather(message.encode(), Request(Kind.SYNC))

    async def _own(self, name: bytes) -> Portal | None:
        """A portal that is not Postgres's. All that went before is answered then."""
        if name in self._book.portals:
            await self._pump.drain()
        return self._book.portals.get(name)

    async def _answer(self, name: bytes, portal: Portal, message: Message) -> None:
        between = self._pump.ledger.interruptible
        if between:
            await self._pump.resync()
        try:
            execute = parse_frontend(message)
            assert isinstance(execute, Execute)
            async with self._lake.statement(timed=between):
                if portal.undecided and not await self._asked(portal):
                    raise Declined
                tail = await self._stream(portal, max(execute.max_rows, 0))
        except Declined:
            self._book.drop(name)
            self._book.portals[name] = Portal(portal.statement, portal.bound, portal.bind, portal.fields)
            self._execute_in_postgres(name, message)
        except LakeFailure as failure:
            self._book.drop(name)
            await self._fail(failure.fields)
        else:
            await self._client.send(tail)

    async def _asked(self, portal: Portal) -> bool:
        answer = await self._lake.ask(portal.statement.candidate, portal.parameters)
        if answer is None:
            return False
        portal.answer = answer
        # The client was told the columns when it described the statement; it must not get others.
        return [one.type_oid for one in answer.fields] == [one.type_oid for one in portal.fields]

    async def _stream(self, portal: Portal, rows_max: int) -> bytes:
        rows = 0
        if portal.answer is not None:
            rows = await self._lake.stream(portal.answer, portal.formats, rows_max)
            if not portal.answer.exhausted:
                return portal_suspended()
            self._book.retired.append(portal.answer)
            portal.answer, portal.finished = None, True
        return command_complete(f"SELECT {rows}")

    async def _fail(self, fields: ErrorFields) -> None:
        if self._pump.ledger.at_stake:
            await self._fail_in_postgres(fields)
        else:
            await self._lake.abort(fields)
            await self._client.send(error_response(fields))
        self._pump.ledger.skipping = True

    async def _fail_in_postgres(self, fields: ErrorFields) -> None:
        """Its own error ends the transaction there, and is what the client gets."""
        steps = ((Parse("", raising(fields)), Kind.PARSE), (Bind("", ""), Kind.BIND), (Execute(""), Kind.EXECUTE))
        for step, kind in steps:
            self._pump.gather(step.encode(), Request(kind, statement=self._book.statement(b""), silent=True))
        self._backend.unnamed_lost = True
        await self._pump.drain()

    def _restore(self, statement: bytes) -> None:
        """A question of ours made Postgres forget the unnamed statement."""
        kept = self._book.statement(b"")
        if statement == b"" and self._backend.unnamed_lost and kept is not None:
            self._backend.unnamed_lost = False
            self._pump.gather(kept.parse, Request(Kind.PARSE, b"", kept, silent=True))

    def _bind_in_postgres(self, portal: bytes, statement: bytes, bind: bytes, *, silent: bool = False) -> None:
        self._restore(statement)
        self._book.drop(portal)
        self._pump.gather(bind, Request(Kind.BIND, portal, silent=silent))

    def _materialise(self, name: bytes) -> None:
        """Give Postgres a portal that the client believes to be bound since long."""
        portal = self._book.portals[name]
        self._bind_in_postgres(name, portal.statement.name, portal.bind, silent=True)

    def _execute_in_postgres(self, name: bytes, message: Message) -> None:
        self._materialise(name)
        self._pump.gather(message.encode(), Request(Kind.EXECUTE, name))
