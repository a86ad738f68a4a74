"""Moves what Postgres answers to the client, in order and without holding more of it than the sockets do; COPY data the other way too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from modak.gateway.relay.backend import Backend
from modak.gateway.relay.ledger import ASIDES, Kind, Ledger, Request
from modak.gateway.relay.peer import ClientGone, Peer
from modak.gateway.relay.statements import Book
from modak.gateway.wire.messages import (
    Flush,
    Message,
    Sync,
    parse_command_complete,
    parse_parameter_description,
    parse_row_description,
)

# Requests are gathered up to here before they are sent and their answers waited for.
_RUN_BYTES: Final = 64 * 1024
# A client that sends while it does not read is read ahead up to here; then its own socket makes it wait.
AHEAD_BYTES: Final = 256 * 1024
_COPY_BYTES: Final = 1024 * 1024

_ROWS: Final = frozenset(b"Dd")
_COPY_DATA: Final = frozenset(b"d")


class Pump:
    def __init__(self, client: Peer, backend: Backend, book: Book, advised: Callable[[Message], Message] | None = None) -> None:
        self._advised = advised
        self.ledger = Ledger(backend.transaction_status)
        self.said_farewell = False
        """The client knows why Postgres ended the session."""
        self._client = client
        self._backend = backend
        self._book = book
        self._gathered = bytearray()

    @property
    def full(self) -> bool:
        return len(self._gathered) >= _RUN_BYTES

    @property
    def pending(self) -> bool:
        return bool(self._gathered) or self.ledger.owes

    def gather(self, data: bytes, request: Request) -> None:
        """To be sent with the next ``drain``."""
        self._gathered += data
        self.ledger.sent(request)

    async def drain(self) -> None:
        """Send what was gathered and pass the answers on, until Postgres owes nothing."""
        if self.ledger.needs_flush:
            self._gathered += Flush().encode()
        if self._gathered:
            # Not waiting for Postgres to take it all: it may be waiting for us to take answers.
            self._backend.write(bytes(self._gathered))
            self._gathered.clear()
        await self.pass_on()
        while self.ledger.owes:
            if self.ledger.copying:
                self._copy_from_client()
            await self._wait()
            await self.pass_on()
        self._book.settled()

    async def resync(self) -> None:
        """Bring Postgres to the state between two statements, where questions of ours are allowed; the client does not notice."""
        if self.ledger.open:
            self.gather(Sync().encode(), Request(Kind.SYNC, silent=True))
        await self.drain()

    async def pass_on(self) -> None:
        """Everything that has arrived."""
        parts, self._backend.asides = self._backend.asides, []
        decoder = self._backend.peer.decoder
        while True:
            if rows := decoder.next_run(_ROWS):
                parts.append(rows)
            message = decoder.next()
            if message is None:
                break
            parts.append(self._reply(message))
        if parts:
            await self._client.send(b"".join(parts))

    def _reply(self, message: Message) -> bytes:
        """Take note of a message; what the client is to see of it."""
        tag, head = message.tag, self.ledger.head
        self._backend.note(message)
        self.ledger.reply(tag)
        if tag == b"Z":
            self._ready(own=head is not None and head.silent)
        elif tag == b"C":
            self._command(parse_command_complete(message))
        elif tag == b"E":
            self.said_farewell = self._backend.farewell is not None
            message = message if self._advised is None else self._advised(message)
        elif head is not None:
            self._learn(head, message)
        silent = head is not None and head.silent and tag not in ASIDES and tag != b"E"
        return b"" if silent else message.encode()

    def _ready(self, *, own: bool) -> None:
        status = self._backend.transaction_status
        self.ledger.ready(status)
        if not own:
            self._book.ready(status)

    def _command(self, tag: str) -> None:
        self.ledger.command(tag)
        self._book.command(tag)

    def _learn(self, head: Request, message: Message) -> None:
        tag, statement = message.tag, head.statement
        if tag == b"1":
            self._book.parsed(head.name, statement)
        elif tag == b"3" and head.kind is Kind.CLOSE_STATEMENT:
            self._book.forget(head.name)
        elif statement is not None and tag == b"t":
            statement.described(parse_parameter_description(message))
        elif statement is not None and tag == b"T":
            statement.fields = parse_row_description(message)
        elif statement is not None and tag == b"n":
            statement.fields = ()

    async def _wait(self) -> None:
        """Until Postgres has something for us, or the client has, if it may. A client that goes away is noticed here."""
        watched = {self._backend.peer.arrival()}
        if self.ledger.copying and self._backend.backlog >= _COPY_BYTES:
            watched.add(self._backend.taken())
        elif self._client.decoder.buffered < AHEAD_BYTES or self.ledger.copying:
            watched.add(self._client.arrival())
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        self._client.arrived()
        self._backend.peer.arrived()

    def _copy_from_client(self) -> None:
        decoder = self._client.decoder
        while self.ledger.copying and self._backend.backlog < _COPY_BYTES:
            if data := decoder.next_run(_COPY_DATA):
                self._backend.write(data)
            message = decoder.next()
            if message is None:
                return
            if message.tag == b"X":
                raise ClientGone("the client ended the session in the middle of a COPY")
            if message.tag not in (b"S", b"H"):  # which Postgres overlooks during a COPY
                # CopyDone or CopyFail; anything else is an error that Postgres will report.
                self._backend.write(message.encode() + Flush().encode())
                self.ledger.copying = False
