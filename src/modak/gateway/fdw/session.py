"""A session of postgres_fdw: its statements one after the other, by the simple and by the extended protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from modak.errors import ModakError
from modak.gateway.channel import Channel
from modak.gateway.decoupled.session import DecoupledSession
from modak.gateway.decoupled.statements import concerns, is_order
from modak.gateway.decoupled.world import World
from modak.gateway.decoupled.writing import Written
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.failures import EngineFailed, InFailedTransaction
from modak.gateway.fdw import statements
from modak.gateway.fdw.answers import columns as _columns
from modak.gateway.fdw.answers import rows as _rows
from modak.gateway.fdw.authority import COLUMN, Authority, said_in
from modak.gateway.fdw.costs import PAGE_BYTES, dissuading, plan_line
from modak.gateway.fdw.cursor import BatchCursor, ColdCursor
from modak.gateway.fdw.request import understand
from modak.gateway.fdw.residue import Residue
from modak.gateway.fdw.scan import ColdScans
from modak.gateway.fdw.statements import RemoteName
from modak.gateway.fdw.whole import WholeCursor, WholeQueries, asked
from modak.gateway.pins import PinKeeper
from modak.gateway.wire.messages import (
    Bind,
    Close,
    Describe,
    ErrorFields,
    Execute,
    Flush,
    FrontendMessage,
    Message,
    Parse,
    ProtocolError,
    Query,
    Status,
    Sync,
    Terminate,
    bind_complete,
    close_complete,
    command_complete,
    error_response,
    no_data,
    parse_complete,
    parse_frontend,
    ready_for_query,
)
from modak.gateway.wire.packed import VALUES_MIN, Packed, PackedBind, parse_packed
from modak.gateway.wire.rows import encode_text
from modak.lake.history import remembered
from modak.scan.engine import Engine
from modak.scan.estimate import Estimate

log = logging.getLogger("modak.gateway")
T = TypeVar("T")

_WRITE = re.compile(r"\s*(INSERT|UPDATE|DELETE|TRUNCATE)\b")
_MESSAGE_BYTES_MAX = (1 << 30) - 1
_REPEATED_MIN, _CURSORS_MAX = 32, 100
_ESTIMATE_SECONDS_MAX = 5.0
_GUESS = Estimate(rows=100_000, bytes=10_000_000, files=10, width=100)


@dataclass
class Lake:
    """What every session shares."""

    engine: Engine
    scans: ColdScans
    pins: PinKeeper
    residue: Residue
    whole: WholeQueries
    decoupled: World
    executor: Executor
    authority: Authority


@dataclass
class FdwSession:
    channel: Channel
    lake: Lake
    _cursors: dict[str, BatchCursor | WholeCursor] = field(default_factory=dict)
    _prepared: dict[str, str] = field(default_factory=dict)
    _portals: dict[str, tuple[str, tuple[bytes | None, ...] | Packed]] = field(default_factory=dict)
    _status: Status = b"I"
    _sampled: set[RemoteName] = field(default_factory=set)
    _open_at: dict[str | None, frozenset[str]] = field(default_factory=dict)
    """The cursors that were there at each savepoint."""
    _skipping: bool = False
    _running: BatchCursor | WholeCursor | None = None
    _busy: bool = False
    _repeated: int = 0
    """How often the statement that was prepared last has run."""
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _replies: list[bytes | memoryview] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._decoupled = DecoupledSession(self.lake.decoupled)
        # Rows that are inserted come in one message per batch, and Postgres's own have this bound.
        self.channel.decoder.allow(_MESSAGE_BYTES_MAX)

    async def run(self) -> None:
        try:
            await self._ready()
            while True:
                message = self._parsed(await self.channel.receive())
                if isinstance(message, Terminate):
                    return
                self._busy = True
                await self._handle(message)
                self._busy = False
        finally:
            # Where the gateway stops, a statement may still be running: it ends first.
            self.cancel()
            await self._in_thread(self._close_all)

    def _parsed(self, message: Message) -> FrontendMessage | PackedBind:
        """Many rows are kept as they came: in one message or, as COPY has them before Postgres 16, in many, one after the other."""
        packed = parse_packed(message, 1 if self._repeated > _REPEATED_MIN else VALUES_MIN)
        sql = self._prepared.get(packed.statement) if packed is not None else None
        if packed is not None and sql is not None and _is_write(sql) and self._decoupled.takes_packed(sql):
            return packed
        return parse_frontend(message)

    def cancel(self) -> None:
        self._decoupled.cancel()
        running = self._running
        if running is not None:
            running.cancel()

    async def shutdown(self) -> None:
        """An idle session ends at once; Postgres connects anew when it needs one."""
        if not self._busy:
            await self.channel.close()

    async def _handle(self, message: object) -> None:
        if isinstance(message, Sync):
            self._skipping = False
            self._portals.clear()
            await self._ready()
            return
        if self._skipping:
            return
        try:
            await self._answer(message)
        except ModakError as error:
            await self._fail(error)
        except Exception as error:
            log.exception("a statement of postgres_fdw failed")
            await self._fail(EngineFailed(f"{type(error).__name__}: {error}", hint="see the gateway's log"))
        else:
            return
        if isinstance(message, Query):
            await self._ready()
        else:
            self._skipping = True

    async def _fail(self, error: ModakError) -> None:
        if self._status == b"T":
            self._status = b"E"
        self._reply(error_response(ErrorFields.of(error)))

    def _reply(self, *parts: bytes | memoryview) -> None:
        """Goes out with the next ReadyForQuery: one packet for the four messages that a batch of rows comes in."""
        self._replies += parts

    async def _ready(self) -> None:
        await self._flush(ready_for_query(self._status))

    async def _flush(self, *parts: bytes) -> None:
        replies, self._replies = [*self._replies, *parts], []
        await self.channel.send(*replies)

    async def _answer(self, message: object) -> None:
        match message:
            case Query(sql):
                for part in statements.split(sql):
                    self._reply(*await self._run(part, ()))
                await self._ready()
            case Parse(name, sql, _):
                self._prepared[name] = sql
                self._repeated = 0
                self._reply(parse_complete())
            case PackedBind(portal, statement, packed):
                self._portals[portal] = (self._prepared[statement], packed)
                self._reply(bind_complete())
            case Bind(portal, statement, _, values, _):
                if statement not in self._prepared:
                    raise ProtocolError(f'prepared statement "{statement}" does not exist')
                self._portals[portal] = (self._prepared[statement], values)
                self._reply(bind_complete())
            case Describe():
                # DECLARE and transaction control have no rows; whatever else has is described when it runs.
                self._reply(no_data())
            case Execute(portal, _):
                if portal not in self._portals:
                    raise ProtocolError(f'portal "{portal}" does not exist')
                self._repeated += 1
                self._reply(*await self._run(*self._portals[portal]))
            case Close(kind, name):
                (self._prepared if kind == b"S" else self._portals).pop(name, None)
                self._reply(close_complete())
            case Flush():
                await self._flush()
            case _:
                raise ProtocolError(f"unexpected message {type(message).__name__}")

    async def _run(self, sql: str, given: Sequence[bytes | None] | Packed) -> list[bytes | memoryview]:
        if isinstance(given, Packed):
            return [command_complete((await self._put(sql, given)).tag)]
        if _is_write(sql):
            return await self._write(sql, given)
        statement = statements.parse(sql)
        values = tuple(None if value is None else value.decode() for value in given)
        match statement:
            case statements.Simple():
                return await self._transaction(statement)
            case statements.Declare(cursor, select):
                await self._declare(cursor, select, values)
                return [command_complete("DECLARE CURSOR")]
            case statements.Fetch(cursor, count):
                return await self._fetch(self._cursor(cursor), count, "FETCH")
            case statements.Rewind(cursor):
                self._cursor(cursor).rewind()
                return [command_complete("MOVE 0")]
            case statements.CloseCursor(cursor):
                await self._close(cursor)
                return [command_complete("CLOSE CURSOR")]
            case statements.Explain(select):
                return _rows(["QUERY PLAN"], [[await self._explain(select, values)]], "EXPLAIN")
            case statements.RelationPages(relation):
                rows, size = await self._in_thread(lambda: self._facts(relation))
                self._note_sample(relation)
                return _rows(["pages"], [[str(max(1, size // PAGE_BYTES))]], "SELECT 1")
            case statements.RelationFacts(relation):
                rows, _ = await self._in_thread(lambda: self._facts(relation))
                self._note_sample(relation)
                return _rows(["reltuples", "relkind"], [[str(rows), "r"]], "SELECT 1")
            case statements.Select(select):
                cursor_name = "modak direct"
                await self._declare(cursor_name, select, values)
                try:
                    return await self._fetch(self._cursors[cursor_name], 2**31, "SELECT")
                finally:
                    await self._close(cursor_name)
        raise AssertionError(statement)

    async def _transaction(self, statement: statements.Simple) -> list[bytes | memoryview]:
        tag, status = statement.tag, statement.status
        # postgres_fdw does not read the tag: a COMMIT that is none must not look like one.
        is_lost = self._status == b"E" and tag == "COMMIT" and not self._decoupled.is_idle
        tag = "ROLLBACK" if self._status == b"E" and tag == "COMMIT" else tag
        if status == b"I":
            self._sampled.clear()
            self._open_at.clear()
        if tag == "SAVEPOINT":
            self._open_at[statement.savepoint] = frozenset(self._cursors)
        elif tag in ("COMMIT", "ROLLBACK"):
            # A statement that failed has left its cursor open: whoever goes on behind a savepoint would leave ever more.
            for name in frozenset(self._cursors) - self._open_at.get(statement.savepoint, frozenset()):
                await self._close(name)
        if tag == "START TRANSACTION":
            self._decoupled.is_serializable = statement.is_serializable
        ended, self._status = self._status, status or self._status
        if not self._decoupled.is_idle and (ended != b"I" or status is None):
            await self._in_thread(lambda: self._follow(tag, status, statement.savepoint))
        if is_lost:
            raise InFailedTransaction("the transaction failed before, and was rolled back", hint="run it again")
        return [command_complete(tag)]

    def _follow(self, tag: str, status: Status | None, savepoint: str | None) -> None:
        """What the transaction's course means to decoupled tables."""
        decoupled = self._decoupled
        if savepoint is not None:
            {"SAVEPOINT": decoupled.savepoint, "RELEASE": decoupled.release, "ROLLBACK": decoupled.roll_back_to}[tag](savepoint)
        elif tag == "DEALLOCATE":
            decoupled.arrive()
        elif tag == "COMMIT":
            decoupled.commit()
        elif status == b"I":
            decoupled.roll_back()

    async def _put(self, sql: str, values: Packed) -> Written:
        """On another thread only if there is something to wait for: a million rows come in thousands of messages."""
        self._check_transaction()
        if self._decoupled.has_room(sql):
            return self._decoupled.put(sql, values)
        return await self._in_thread(lambda: self._decoupled.put(sql, values))

    def _check_transaction(self) -> None:
        if self._status != b"T":
            raise ProtocolError("a decoupled table is written to within a transaction")

    async def _write(self, sql: str, values: Sequence[bytes | None]) -> list[bytes | memoryview]:
        self._check_transaction()
        written = await self._in_thread(lambda: self._decoupled.write(sql, values))
        if written.returned is None:
            return [command_complete(written.tag)]
        blocks = [encode_text(batch) for batch in written.returned if batch.num_rows]
        return [_columns(written.returned[0].num_columns if written.returned else 0), *blocks, command_complete(written.tag)]

    def _note_sample(self, relation: str) -> None:
        if not concerns(relation):
            self._sampled.add(RemoteName.parse_quoted(relation))

    async def _declare(self, name: str, select: str, values: Sequence[str | None]) -> None:
        if len(self._cursors) >= _CURSORS_MAX:
            raise ProtocolError("too many open cursors", limit=_CURSORS_MAX)

        def open_cursor() -> BatchCursor:
            if is_order(select):
                self.lake.authority.check(said_in(select, values))
            if concerns(select):
                return self._decoupled.open(select, values)
            request = understand(select, values)
            scan = self.lake.scans.plan(request, sample=not request.is_pinned and request.name in self._sampled)
            return ColdCursor(self.lake.engine, scan, request, self.lake.pins, self.lake.residue)

        await self._close(name)
        wanted = asked(select, values)
        if wanted is not None and not self.lake.authority.knows(said := wanted.get(COLUMN)):
            await self._in_thread(lambda: self.lake.authority.check(said))
        self._cursors[name] = await self._in_thread(open_cursor) if wanted is None else await self.lake.whole.open(wanted)

    async def _close(self, name: str) -> None:
        """Without a change of threads where there is nothing to wait for: a look-up has its rows in one FETCH."""
        found = self._cursors.pop(name, None)
        if isinstance(found, BatchCursor) and found.is_idle:
            found.close()
        elif found is not None:
            await self._in_thread(found.close)

    async def _fetch(self, cursor: BatchCursor | WholeCursor, count: int, verb: str) -> list[bytes | memoryview]:
        self._running = cursor
        try:
            blocks, rows, columns = await self._in_thread(lambda: cursor.fetch(count))
        finally:
            self._running = None
        return [_columns(columns), *blocks, command_complete(f"{verb} {rows}")]

    def _cursor(self, name: str) -> BatchCursor | WholeCursor:
        if name not in self._cursors:
            failed = ProtocolError(f'cursor "{name}" does not exist')
            failed.sqlstate = "34000"
            raise failed
        return self._cursors[name]

    async def _explain(self, select: str, values: Sequence[str | None]) -> str:
        """Never an error and never for long: many a plan that asks is run without cold rows, and must not need the lake to be made."""

        def estimate() -> Estimate:
            if is_order(select):
                return _GUESS
            return self._decoupled.explain(select, values) if concerns(select) else self.lake.scans.estimate(understand(select, values))

        try:
            async with asyncio.timeout(_ESTIMATE_SECONDS_MAX):
                found = await self._in_thread(estimate, alone=False)
        except (ModakError, Untranslatable, OSError, TimeoutError) as cause:
            log.warning("an estimate was guessed: %s", cause or "the lake does not answer in time")
            found = _GUESS
        return plan_line(dissuading(found) if statements.is_ordered_by_sets(select) else found)

    def _facts(self, relation: str) -> tuple[int, int]:
        if concerns(relation):
            return self._decoupled.facts(relation)
        found = self.lake.scans.estimate(understand(f"SELECT NULL FROM {relation}"))  # noqa: S608
        return found.rows, found.bytes

    def _close_all(self) -> None:
        while self._cursors:
            self._cursors.popitem()[1].close()
        self._decoupled.close()

    async def _in_thread(self, work: Callable[[], T], *, alone: bool = True) -> T:
        """``alone``: not before what the session did on another thread has ended, though nobody may be waiting for it any more."""

        def run() -> T:
            # Statement after statement looks at the same few tables.
            with self._turn if alone else contextlib.nullcontext(), remembered():
                return work()

        return await asyncio.get_running_loop().run_in_executor(self.lake.executor, run)


def _is_write(sql: str) -> bool:
    return _WRITE.match(sql) is not None and concerns(sql)
