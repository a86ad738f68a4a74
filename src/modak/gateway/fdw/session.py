"""A session of postgres_fdw: its statements one after the other, by the simple and by the extended protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from modak.errors import ModakError
from modak.gateway.channel import Channel
from modak.gateway.failures import EngineFailed
from modak.gateway.fdw import statements
from modak.gateway.fdw.cursor import ColdCursor
from modak.gateway.fdw.request import Request, understand
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
    FieldDescription,
    Flush,
    Parse,
    ProtocolError,
    Query,
    Status,
    Sync,
    Terminate,
    bind_complete,
    close_complete,
    command_complete,
    data_row,
    error_response,
    no_data,
    parse_complete,
    parse_frontend,
    ready_for_query,
    row_description,
)
from modak.scan.engine import Engine
from modak.scan.estimate import Estimate

log = logging.getLogger("modak.gateway")
T = TypeVar("T")

_TEXT_OID = 25
_CURSORS_MAX = 100
# Postgres's own cost units: a remote query has a price before its first row, a file a seek, a page and a row what they cost there.
_STARTUP_COST, _FILE_COST, _PAGE_COST, _ROW_COST, _PAGE_BYTES = 25.0, 2.0, 0.05, 0.01, 8192
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
    executor: Executor


@dataclass
class FdwSession:
    channel: Channel
    lake: Lake
    _cursors: dict[str, ColdCursor | WholeCursor] = field(default_factory=dict)
    _prepared: dict[str, str] = field(default_factory=dict)
    _portals: dict[str, tuple[str, tuple[str | None, ...]]] = field(default_factory=dict)
    _status: Status = b"I"
    _sampled: set[RemoteName] = field(default_factory=set)
    _skipping: bool = False
    _running: ColdCursor | WholeCursor | None = None
    _busy: bool = False

    async def run(self) -> None:
        try:
            await self._ready()
            while True:
                message = parse_frontend(await self.channel.receive())
                if isinstance(message, Terminate):
                    return
                self._busy = True
                await self._handle(message)
                self._busy = False
        finally:
            await self._in_thread(self._close_cursors)

    def cancel(self) -> None:
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
        await self.channel.send(error_response(ErrorFields.of(error)))

    async def _ready(self) -> None:
        await self.channel.send(ready_for_query(self._status))

    async def _answer(self, message: object) -> None:
        match message:
            case Query(sql):
                for part in statements.split(sql):
                    await self.channel.send(*await self._run(part, (), described=False))
                await self._ready()
            case Parse(name, sql, _):
                self._prepared[name] = sql
                await self.channel.send(parse_complete())
            case Bind(portal, statement, _, values, _):
                if statement not in self._prepared:
                    raise ProtocolError(f'prepared statement "{statement}" does not exist')
                texts = tuple(None if value is None else value.decode() for value in values)
                self._portals[portal] = (self._prepared[statement], texts)
                await self.channel.send(bind_complete())
            case Describe():
                # DECLARE and transaction control have no rows; whatever else has is described when it runs.
                await self.channel.send(no_data())
            case Execute(portal, _):
                if portal not in self._portals:
                    raise ProtocolError(f'portal "{portal}" does not exist')
                sql, texts = self._portals[portal]
                await self.channel.send(*await self._run(sql, texts, described=True))
            case Close(kind, name):
                (self._prepared if kind == b"S" else self._portals).pop(name, None)
                await self.channel.send(close_complete())
            case Flush():
                pass
            case _:
                raise ProtocolError(f"unexpected message {type(message).__name__}")

    async def _run(self, sql: str, values: Sequence[str | None], *, described: bool) -> list[bytes | memoryview]:
        statement = statements.parse(sql)
        match statement:
            case statements.Simple(tag, status):
                return await self._transaction(tag, status)
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
                return _rows(["QUERY PLAN"], [[await self._explain(understand(select, values))]], "EXPLAIN")
            case statements.RelationPages(relation):
                rows, size = await self._in_thread(lambda: self._facts(relation))
                self._sampled.add(RemoteName.parse_quoted(relation))
                return _rows(["pages"], [[str(max(1, size // _PAGE_BYTES))]], "SELECT 1")
            case statements.RelationFacts(relation):
                rows, _ = await self._in_thread(lambda: self._facts(relation))
                self._sampled.add(RemoteName.parse_quoted(relation))
                return _rows(["reltuples", "relkind"], [[str(rows), "r"]], "SELECT 1")
            case statements.Select(select):
                cursor_name = "modak direct"
                await self._declare(cursor_name, select, values)
                try:
                    return await self._fetch(self._cursors[cursor_name], 2**31, "SELECT")
                finally:
                    await self._close(cursor_name)
        raise AssertionError(statement)

    async def _transaction(self, tag: str, status: Status | None) -> list[bytes | memoryview]:
        if self._status == b"E" and tag in ("COMMIT", "ROLLBACK") and status == b"I":
            tag = "ROLLBACK"
        if status == b"I":
            self._sampled.clear()
            for name in list(self._cursors):
                await self._close(name)
        if status is not None:
            self._status = status
        return [command_complete(tag)]

    async def _declare(self, name: str, select: str, values: Sequence[str | None]) -> None:
        if len(self._cursors) >= _CURSORS_MAX:
            raise ProtocolError("too many open cursors", limit=_CURSORS_MAX)

        def open_cursor() -> ColdCursor:
            request = understand(select, values)
            scan = self.lake.scans.plan(request, sample=not request.is_pinned and request.name in self._sampled)
            return ColdCursor(self.lake.engine, scan, request, self.lake.pins, self.lake.residue)

        await self._close(name)
        wanted = asked(select, values)
        self._cursors[name] = await self._in_thread(open_cursor) if wanted is None else await self.lake.whole.open(wanted)

    async def _close(self, name: str) -> None:
        """Without a change of threads where there is nothing to wait for: a look-up has its rows in one FETCH."""
        found = self._cursors.pop(name, None)
        if isinstance(found, ColdCursor) and found.is_idle:
            found.close()
        elif found is not None:
            await self._in_thread(found.close)

    async def _fetch(self, cursor: ColdCursor | WholeCursor, count: int, verb: str) -> list[bytes | memoryview]:
        self._running = cursor
        try:
            blocks, rows, columns = await self._in_thread(lambda: cursor.fetch(count))
        finally:
            self._running = None
        return [_description([f"c{place}" for place in range(columns)]), *blocks, command_complete(f"{verb} {rows}")]

    def _cursor(self, name: str) -> ColdCursor | WholeCursor:
        if name not in self._cursors:
            failed = ProtocolError(f'cursor "{name}" does not exist')
            failed.sqlstate = "34000"
            raise failed
        return self._cursors[name]

    async def _explain(self, request: Request) -> str:
        """Never an error and never for long: many a plan that asks is run without cold rows, and must not need the lake to be made."""
        try:
            async with asyncio.timeout(_ESTIMATE_SECONDS_MAX):
                found = await self._in_thread(lambda: self.lake.scans.estimate(request))
        except (ModakError, OSError, TimeoutError) as cause:
            log.warning("an estimate was guessed, for the lake does not answer: %s", cause or "in time")
            found = _GUESS
        startup = _STARTUP_COST + found.files * _FILE_COST
        total = startup + found.bytes / _PAGE_BYTES * _PAGE_COST + found.rows * _ROW_COST
        return f"Cold Scan  (cost={startup:.2f}..{total:.2f} rows={found.rows} width={found.width})"

    def _facts(self, relation: str) -> tuple[int, int]:
        found = self.lake.scans.estimate(understand(f"SELECT NULL FROM {relation}"))  # noqa: S608
        return found.rows, found.bytes

    def _close_cursors(self) -> None:
        while self._cursors:
            self._cursors.popitem()[1].close()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.lake.executor, work)


def _description(names: Sequence[str]) -> bytes:
    return row_description([FieldDescription(name, type_oid=_TEXT_OID, type_size=-1) for name in names])


def _rows(names: Sequence[str], rows: Sequence[Sequence[str]], tag: str) -> list[bytes | memoryview]:
    return [_description(names), *(data_row([value.encode() for value in row]) for row in rows), command_complete(tag)]
