"""INSERT … SELECT into a decoupled table, on the port: the client's session runs the query, and its rows come here as a COPY.

Everything happens in the client's own transaction and with its rights. The statement without its rows is run before and after: before,
so that rights are checked and the table's trigger begins the lake's transaction, and after, when the trigger takes what has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from modak.errors import ModakError, NotFound
from modak.gateway.decoupled import bulk
from modak.gateway.decoupled.bulk import Column, Relation, Source, Statement
from modak.gateway.decoupled.parcels import Parcel
from modak.gateway.decoupled.world import World
from modak.gateway.relay.backend import Backend, BackendError
from modak.gateway.relay.lake import Declined

log = logging.getLogger("modak.gateway")
T = TypeVar("T")

_BLOCK_BYTES = 2 * 1024 * 1024
_BLOCKS_MAX = 6


class NotTaken(ModakError):
    """The transaction did not get the rows that were brought for it."""

    code = "rows_not_taken"
    sqlstate = "58000"


@dataclass(frozen=True)
class Order:
    """What is to be done, once everything about it is certain."""

    statement: Statement
    relation: Relation
    given: tuple[Column, ...]
    copy: str
    parcel: Parcel


class BulkInserts:
    """One per gateway."""

    def __init__(self, world: World, executor: Executor) -> None:
        self._world = world
        self._executor = executor

    async def prepare(self, sql: str, statement: Statement, backend: Backend) -> Order | None:
        """None if Postgres is to do it. Nothing has happened then."""
        relation = bulk.relation_of(await backend.query(bulk.probe(statement.name)))
        if relation is None or not relation.is_suited or not bulk.is_plain_query(sql):
            return None
        try:
            definition = await self._run(self._world.definition, relation.table_id)
        except NotFound:
            return None  # made in a transaction that has not committed
        styles = {"date_style": backend.setting("DateStyle"), "interval_style": backend.setting("IntervalStyle")}
        if not bulk.suits(definition, relation, **styles):
            return None
        types = await self._described(statement.query, backend)
        given = bulk.targets(statement, relation, len(types))
        if given is None:
            return None
        defaulted = bulk.absent(relation, given)
        presets = await self._described(f"select {', '.join(f'({one.default})' for one in defaulted)}", backend) if defaulted else ()
        pairs = tuple(zip(given, types, strict=True)), tuple(zip(defaulted, presets, strict=True))
        copy = bulk.copy_sql(statement, definition, relation, *pairs)
        return None if copy is None else Order(statement, relation, given, copy, await self._run(Parcel, definition, self._world))

    async def _described(self, query: str, backend: Backend) -> tuple[Source, ...]:
        """The types of a query's columns. Outside of a transaction Postgres says by itself what is wrong with it."""
        try:
            parameters, fields = await backend.describe(query, ())
        except BackendError as error:
            if backend.transaction_status == b"I":
                raise Declined from error
            raise
        return () if parameters else tuple(Source(field.type_oid, field.typmod) for field in fields)

    async def carry_out(self, order: Order, backend: Backend) -> int:
        """How many rows there were. The transaction that was begun here, if none was open, is the caller's to end."""
        parcel = order.parcel
        with self._world.parcels.lend(parcel):
            try:
                if backend.transaction_status == b"I":
                    await backend.query("begin")
                known = bulk.relation_of(await self._mention(order, backend))
                # This server's gateway is another one, or the table was altered before this transaction locked it.
                if not parcel.met or known != order.relation:
                    raise Declined
                await self._fill(parcel, backend.copy_out(order.copy))
                if parcel.rows != backend.copied:
                    raise NotTaken("rows were lost on their way", hint="run the statement again", sent=backend.copied, read=parcel.rows)
                await self._mention(order, backend)
                if not parcel.taken:
                    raise NotTaken("the rows did not reach their transaction", hint="run the statement again")
            finally:
                if not parcel.taken:
                    await asyncio.shield(self._run(parcel.drop))
        return parcel.rows

    async def _mention(self, order: Order, backend: Backend) -> list[tuple[str | None, ...]]:
        """What the table is now. The number is not set for longer: the query may call functions that write to the table as well."""
        number = order.parcel.id
        steps = (f"set local modak.parcel = '{number}'", bulk.zero_rows(order.statement, order.given), "set local modak.parcel = ''")
        return await backend.query("; ".join([*steps, bulk.probe(order.statement.name)]))

    async def _fill(self, parcel: Parcel, rows: AsyncGenerator[bytes | memoryview]) -> None:
        """Blocks wait in a short line, so that Postgres goes on while a row group is being compressed."""
        line: asyncio.Queue[bytes | None] = asyncio.Queue(_BLOCKS_MAX)
        reading = asyncio.ensure_future(self._read(parcel, line))
        held, size = list[bytes | memoryview](), 0
        try:
            async with aclosing(rows):
                async for piece in rows:
                    held.append(piece)
                    size += len(piece)
                    if size >= _BLOCK_BYTES:
                        await _queue_up(line, b"".join(held), reading)
                        held, size = [], 0
            if held:
                await _queue_up(line, b"".join(held), reading)
            await _queue_up(line, None, reading)
            await asyncio.shield(reading)
        finally:
            if not reading.done():
                # Not cancelled: a thread would go on with the block that it has, while the parcel is being dropped.
                while not line.empty():
                    line.get_nowait()
                line.put_nowait(None)
                await asyncio.wait([reading])
            if not reading.cancelled():
                reading.exception()
        await asyncio.shield(self._run(parcel.close))

    async def _read(self, parcel: Parcel, line: asyncio.Queue[bytes | None]) -> None:
        while (block := await line.get()) is not None:
            await self._run(parcel.feed, block)

    def _run(self, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)


async def _queue_up(line: asyncio.Queue[bytes | None], block: bytes | None, reading: asyncio.Future[None]) -> None:
    """Waits for a place in the line; raises what went wrong at its head."""
    putting = asyncio.ensure_future(line.put(block))
    try:
        await asyncio.wait({putting, reading}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not putting.done():
            putting.cancel()
    if reading.done():
        reading.result()
