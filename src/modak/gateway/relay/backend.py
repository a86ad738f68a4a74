"""The client's own Postgres session, seen from the gateway: what it reports, and questions of ours between two statements."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final

from modak.errors import ModakError
from modak.gateway.channel import Channel
from modak.gateway.relay.copied import MARK, copied_rows
from modak.gateway.relay.endpoint import Address, Endpoint
from modak.gateway.relay.peer import BackendGone, Peer
from modak.gateway.wire.messages import (
    BackendKeyData,
    CancelRequest,
    Close,
    CopyFail,
    Describe,
    ErrorFields,
    FieldDescription,
    Message,
    Parse,
    Query,
    Status,
    Sync,
    Terminate,
    notice_response,
    parse_backend_key_data,
    parse_command_complete,
    parse_data_row,
    parse_error,
    parse_parameter_description,
    parse_parameter_status,
    parse_ready_for_query,
    parse_row_description,
)

log = logging.getLogger("modak.gateway")

# Postgres bounds its own messages (1 GB); this only keeps the length word positive.
_MESSAGE_BYTES_MAX: Final = (1 << 31) - 1
_CANCEL_SECONDS_MAX: Final = 10.0
# A name that no driver gives to a statement; it is closed again in the same breath.
_PROBE: Final = "_modak_describe"


class BackendError(ModakError):
    """An error of Postgres's, with everything it said."""

    code = "postgres"

    def __init__(self, fields: ErrorFields) -> None:
        super().__init__(fields.message, hint=fields.hint)
        self.fields = fields
        self.sqlstate = fields.sqlstate


class Backend:
    """Implements ``interception.ClientSession``: ``query`` and ``describe`` are for when nothing of the client's is under way."""

    stands_for = None

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.key: BackendKeyData | None = None
        self.farewell: ErrorFields | None = None
        """The error that ended the session, if Postgres said one."""
        self.asides: list[bytes] = []
        """Notifications and changed settings that came with answers to questions of ours; the client is still to get them."""
        self.notices: list[bytes] = []
        """What the lake has to say about the statement at hand; the client gets it before the answer."""
        self.copied = 0
        """How many rows the last ``copy_out`` had, by Postgres's count."""
        self.unnamed_lost = False
        """A question of ours took the place of the client's unnamed statement."""
        self.in_savepoint = False
        """Whether the transaction may be in a savepoint; the tag of RELEASE does not say which one it ended."""
        self.exported: str | None = None
        """The snapshot that this transaction has exported for the lake."""
        self._settings: dict[str, str] = {}
        self._status: Status = b"I"
        self._draining: asyncio.Task[None] | None = None
        self._unread = 0  # answers to questions of ours that nobody waited for

    async def connect(self, *, plain: bool = False) -> None:
        self._plain = plain
        self._address, (reader, self._writer) = await self.endpoint.open(plain=plain)
        self.peer = Peer(Channel(reader, self._writer, _MESSAGE_BYTES_MAX), BackendGone)

    @property
    def address(self) -> Address:
        return self._address

    @property
    def transaction_status(self) -> Status:
        return self._status

    @property
    def busy(self) -> bool:
        """Whether a question of ours is still being worked on."""
        return self._unread > 0

    def setting(self, name: str) -> str | None:
        return self._settings.get(name)

    def notify(self, text: str) -> None:
        self.notices.append(notice_response(ErrorFields(severity="NOTICE", sqlstate="00000", message=text)))

    def note(self, message: Message) -> None:
        """Keep what the message says about the session; every message passes through here, whoever it is for."""
        if message.tag == b"S":
            name, value = parse_parameter_status(message)
            self._settings[name] = value
        elif message.tag == b"Z":
            self._status = parse_ready_for_query(message)
            if self._status == b"I":
                self._between_transactions()
        elif message.tag == b"C":
            self._note_command(parse_command_complete(message))
        elif message.tag == b"K":
            self.key = parse_backend_key_data(message)
        elif message.tag == b"E" and (fields := parse_error(message)).severity in ("FATAL", "PANIC"):
            self.farewell = fields

    def _note_command(self, tag: str) -> None:
        if tag == "SAVEPOINT":
            self.in_savepoint = True
        elif tag in ("COMMIT", "ROLLBACK"):
            # Perhaps AND CHAIN: another transaction, with another snapshot. Savepoints are over too, unless it was ROLLBACK TO one.
            self.exported = None
            self.in_savepoint = self.in_savepoint and tag == "ROLLBACK"

    def _between_transactions(self) -> None:
        self.in_savepoint, self.exported = False, None

    def write(self, data: bytes) -> None:
        """Send without waiting: while Postgres has no room for more, it may be because it wants to be read."""
        self._writer.write(data)

    @property
    def backlog(self) -> int:
        """Bytes written that Postgres has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    def taken(self) -> asyncio.Task[None]:
        """Done once Postgres has taken most of the backlog."""
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        return self._draining

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # reading from it says so too
            await self._writer.drain()

    async def send(self, data: bytes) -> None:
        await self.peer.send(data)

    async def receive(self) -> Message:
        message = await self.peer.receive()
        self.note(message)
        return message

    async def query(self, sql: str) -> list[tuple[str | None, ...]]:
        self.unnamed_lost = True
        rows: list[tuple[str | None, ...]] = []
        async for message in self._replies(Query(sql).encode()):
            if message.tag == b"T":
                rows = []
            elif message.tag == b"D":
                rows.append(tuple(None if value is None else value.decode() for value in parse_data_row(message)))
        return rows

    async def copy_out(self, sql: str) -> AsyncGenerator[bytes | memoryview]:
        """The data of a COPY TO STDOUT, in pieces of whole rows, each with a MARK, and ``copied`` afterwards."""
        self.unnamed_lost = True
        await self.settle()
        self._unread += 1
        await self.send(Query(sql).encode())
        error: BackendError | None = None
        while True:
            rows, rest = copied_rows(self.peer.decoder.take())
            self.peer.decoder.feed(rest)
            if rows:
                yield rows
            # Whatever is not a short row: a long one, the end, an error, a notice; or nothing whole.
            while (message := self.peer.decoder.next()) is not None and message.tag != b"d":
                self.note(message)
                if message.tag == b"Z":
                    self._unread -= 1
                    if error is not None:
                        raise error
                    return
                if message.tag == b"E":
                    error = error or BackendError(parse_error(message))
                elif message.tag == b"C":
                    self.copied = int(parse_command_complete(message).removeprefix("COPY "))
                elif message.tag in (b"A", b"S"):
                    self.asides.append(message.encode())
                elif message.tag == b"N":
                    self.notices.append(message.encode())  # not ours to hear
            if message is not None:
                yield MARK + message.body
            else:
                await asyncio.wait([self.peer.arrival()])
                self.peer.arrived()

    async def describe(self, sql: str, oids: Sequence[int]) -> tuple[tuple[int, ...], tuple[FieldDescription, ...]]:
        parameters: tuple[int, ...] = ()
        fields: tuple[FieldDescription, ...] = ()
        steps = (Parse(_PROBE, sql, tuple(oids)), Describe(b"S", _PROBE), Close(b"S", _PROBE), Sync())
        async for message in self._replies(b"".join(step.encode() for step in steps)):
            if message.tag == b"t":
                parameters = parse_parameter_description(message)
            elif message.tag == b"T":
                fields = parse_row_description(message)
        return parameters, fields

    async def _replies(self, request: bytes) -> AsyncIterator[Message]:
        """All answers up to ReadyForQuery, then the first error, if there was one. An abandoned wait leaves ``busy``; see ``settle``."""
        await self.settle()
        self._unread += 1
        await self.send(request)
        error: BackendError | None = None
        while (message := await self._own()).tag != b"Z":
            if message.tag == b"E":
                error = error or BackendError(parse_error(message))
            elif message.tag == b"G":
                await self.send(CopyFail("the gateway has no data to copy").encode())
            else:
                yield message
        if error is not None:
            raise error

    async def _own(self) -> Message:
        """The next message that belongs to a question of ours."""
        while True:
            message = await self.receive()
            if message.tag in (b"A", b"S"):
                self.asides.append(message.encode())
            elif message.tag == b"Z":
                self._unread -= 1
                return message
            elif message.tag != b"N":
                return message

    async def settle(self) -> None:
        """Read what an abandoned question of ours left behind."""
        while self._unread:
            await self._own()

    async def cancel(self) -> None:
        """Ask Postgres to stop what the session does; returns once it has taken note. It may be too late, as always."""
        if self.key is None:
            return
        try:
            async with asyncio.timeout(_CANCEL_SECONDS_MAX):
                reader, writer = await self.endpoint.open_at(self._address, plain=self._plain)
                try:
                    writer.write(CancelRequest(self.key.pid, self.key.secret).encode())
                    await reader.read()
                finally:
                    writer.close()
        except (OSError, ssl.SSLError, EOFError, TimeoutError) as cause:
            log.warning("a cancel request did not reach Postgres: %s", cause or type(cause).__name__)

    async def close(self) -> None:
        self.write(Terminate().encode())
        if self._draining is not None:
            self._draining.cancel()
        await self.peer.close()
