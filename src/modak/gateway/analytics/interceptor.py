"""The interceptor: SELECTs over registered relations that people send to the gateway, answered whole by the lake's engine.

Whatever is not certain to read as Postgres's own answer is declined, and Postgres answers it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeVar

from sqlglot import exp

from modak.core.mirror_reads import HEAP, HYBRID, wait_seconds
from modak.core.opening import is_query
from modak.core.tier_key import KEY_MAX
from modak.errors import ConnectionFailed
from modak.gateway.analytics import mirrors
from modak.gateway.analytics.answer import LakeAnswer
from modak.gateway.analytics.hot import is_only_hot
from modak.gateway.analytics.in_full import in_full
from modak.gateway.analytics.parameters import bound
from modak.gateway.analytics.plan import Plan, plan
from modak.gateway.analytics.preparation import Preparation, Tables
from modak.gateway.analytics.reader import Reader, Readers, ReadFailed
from modak.gateway.analytics.relations import RegisteredRelation, Relations
from modak.gateway.analytics.route import Route, read_route
from modak.gateway.analytics.seam import Behind, Client, Declined, Stale, ask_client
from modak.gateway.analytics.statement import Candidate, read_statement, taken_apart, with_views
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.functions import register_functions
from modak.gateway.dialect.literals import timestamp_text
from modak.gateway.interception import ClientSession, Parameter
from modak.gateway.own_session import QueryRefused
from modak.gateway.pins import PinKeeper
from modak.gateway.wire.cells import Unsupported
from modak.gateway.wire.messages import FieldDescription
from modak.scan.sqltext import regclass
from modak.scan.table import ColdTables

log = logging.getLogger("modak.gateway")

_T = TypeVar("_T")
# Drivers and dashboards send the same texts again and again.
_CACHED_CHARS_MAX = 20_000
_PLANS_MAX = 200
# A plan with the time in it is good for one statement.
_TELLS_TIME = re.compile(r"now|current|local|_timestamp|age", re.IGNORECASE)
_read = functools.lru_cache(maxsize=500)(read_statement)


class LakeInterceptor:
    """Implements ``interception.Interceptor``; one for all sessions."""

    def __init__(
        self,
        relations: Relations,
        tables: ColdTables,
        pins: PinKeeper,
        dsn: str,
        executor: Executor,
        *,
        collation_is_c: bool,
        heap_names: bool = False,
    ) -> None:
        """``heap_names``: where the heap kept the plain name, that name means both tiers here. Turn it on only if what is declined goes
        to Postgres as ``forwarded`` writes it: by its own text it would read the heap alone."""
        self._relations, self._executor, self._dsn = relations, executor, dsn
        self._collation_is_c, self._heap_names = collation_is_c, heap_names
        self._refreshing = False
        self._has_chosen = False
        self._readers = Readers(dsn)
        self._tables = Tables(tables, relations, pins)
        self._plans: dict[tuple[str, tuple[int, ...], tuple[FieldDescription, ...] | None, str], Plan] = {}
        self._names: tuple[frozenset[str], re.Pattern[str]] = (frozenset(), re.compile(r"(?!)"))
        cursor = tables.engine.cursor()
        register_functions(cursor)
        cursor.close()
        relations.refresh()

    def close(self) -> None:
        self._readers.close()

    def note_choice(self) -> None:
        """A session reads mirrored tables from the lake: from now on sessions are asked."""
        self._has_chosen = True

    def candidate(self, sql: str) -> Candidate | None:
        if not self._relations.is_fresh and not self._refreshing:
            self._refreshing = True
            self._executor.submit(self._refresh)
        if not self._has_chosen and "modak.mirrored_reads" in sql.lower():
            self.note_choice()
        if not is_query(sql) or not self._mentions().search(sql):
            return None
        found = _read(sql) if len(sql) <= _CACHED_CHARS_MAX else read_statement(sql)
        if found is None:
            return None
        if any(name[-1] not in self._names[0] for name in found.names):
            # Not for the lake, but perhaps to be forwarded under other names.
            return replace(found, reason="it names other relations too") if self._calls_a_heap(found) else None
        return None if self._is_only_hot(found, ()) else found

    def _calls_a_heap(self, candidate: Candidate) -> bool:
        heaps = {relation.heap.name for relation in self._relations.all() if relation.surface == "heap" and not relation.is_mirror}
        return self._heap_names and any(name[-1] in heaps for name in candidate.names)

    async def answer(self, candidate: Candidate, session: ClientSession, parameters: Sequence[Parameter]) -> LakeAnswer | None:
        try:
            return await self._answer(candidate, session, parameters)
        except (Declined, Untranslatable, Unsupported) as reason:
            log.debug("left to Postgres: %s", reason)
        except (ReadFailed, ConnectionFailed) as cause:
            log.warning("left to Postgres: %s", cause)
        return None

    async def forwarded(self, candidate: Candidate, session: ClientSession) -> str:
        """The statement as Postgres must run it to read both tiers: a heap's plain name becomes its view's."""
        if not any(relation.surface == "heap" and not relation.is_mirror for relation in self._relations.all()):
            return candidate.sql
        names = ", ".join(f"pg_catalog.to_regclass({regclass(name)})::pg_catalog.oid" for name in candidate.names)
        row = (await session.query(f"select {names}"))[0]
        heaps = {place: self._relations.by_oid(int(oid)) for place, oid in enumerate(row) if oid is not None}
        replaced = {
            place: found
            for place, found in heaps.items()
            if found is not None and not found.is_mirror and int(row[place] or 0) == found.table_id
        }
        return with_views(candidate, replaced) if replaced else candidate.sql

    async def describe_route(self, sql: str, session: ClientSession, parameters: Sequence[Parameter] = ()) -> Route:
        """Where this session's statement would run, and why; nothing is run. Mistakes in it raise what Postgres says."""
        await self._run(self._relations.refresh)
        candidate = read_statement(sql) if is_query(sql) else None
        if candidate is None:
            return Route("postgres", "not a SELECT over tables that the gateway understands")
        try:
            planned, client = await self._planned(candidate, session, parameters)
            return await self._with_reader(planned, client, read_route)
        except (Declined, Untranslatable, ReadFailed, ConnectionFailed) as reason:
            return Route("postgres", str(reason))

    async def _answer(self, candidate: Candidate, session: ClientSession, parameters: Sequence[Parameter]) -> LakeAnswer:
        try:
            return await self._attempt(candidate, session, parameters)
        except Stale:
            # Left to Postgres, a query over a large lake would take minutes where this takes one more look.
            try:
                return await self._attempt(candidate, session, parameters)
            except Behind as behind:
                if behind.is_told:
                    session.notify("the lake did not come to this moment in time: Postgres answers from the heap")
                raise

    async def _attempt(self, candidate: Candidate, session: ClientSession, parameters: Sequence[Parameter]) -> LakeAnswer:
        planned, client = await self._planned(candidate, session, parameters)
        # Rows that Postgres holds are read here and now: after that the answer needs its snapshot no more.
        answer = await self._with_reader(planned, client, Preparation.run, LakeAnswer.close)
        if answer.notice and client.wants_notices:
            session.notify(answer.notice)
        return answer

    def _is_only_hot(self, candidate: Candidate, parameters: Sequence[Parameter]) -> bool:
        """A first look, by names and the last T seen: what speaks of hot rows alone is not worth a question. Wrong guesses do no harm."""
        by_name = {name: relation for relation in self._relations.all() for name in (relation.name.name, relation.view.name)}
        if any(name[-1] not in by_name for name in candidate.names):
            return False
        relations = [by_name[candidate.names[number][-1]] for number in candidate.uses]
        lines = [KEY_MAX if relation.is_mirror else self._relations.line(relation.table_id) for relation in relations]
        try:
            tree = bound(candidate.tree, parameters, [parameter.oid for parameter in parameters]) if parameters else candidate.tree
            _, uses = taken_apart(tree, relations, None)
        except (Declined, Untranslatable):
            return False
        return all(line is not None and is_only_hot(use.relation, line, use.predicates) for use, line in zip(uses, lines, strict=True))

    async def _planned(self, candidate: Candidate, session: ClientSession, parameters: Sequence[Parameter]) -> tuple[Plan, Client]:
        if session.transaction_status == b"E":
            raise Declined("the transaction has failed")
        if candidate.reason:
            raise Declined(candidate.reason)
        if parameters and self._is_only_hot(candidate, parameters):
            raise Declined("only hot rows are asked for, which Postgres holds itself")
        if not self._relations.is_fresh:
            await self._run(self._relations.refresh)
        if session.stands_for is not None:
            return await self._planned_for(candidate, session)
        given = [parameter.oid for parameter in parameters]
        oids, fields = await session.describe(candidate.sql, given)
        tree = bound(candidate.tree, parameters, oids)
        client, relations = await self._asked(candidate, session)
        heaps = _heaps(candidate, relations, client)
        if heaps:
            # A heap may have columns that its view does not show yet, and the view's are what is read.
            fields = (await session.describe(with_views(candidate, heaps), given))[1]
        if parameters or heaps:
            return await self._run(lambda: self._plan(tree, relations, fields, client)), client
        return await self._kept(candidate, relations, fields, client), client

    async def _planned_for(self, candidate: Candidate, session: ClientSession) -> tuple[Plan, Client]:
        """Somebody's statement in a session of ours. Already to read it Postgres runs what the types of its constants name, so only what
        was translated whole, and so speaks of nothing but built-in functions and types, is shown to it."""
        client, relations = await self._asked(candidate, session)
        planned = await self._kept(candidate, relations, None, client)
        try:
            return planned.described((await session.describe(in_full(candidate, relations), ()))[1]), client
        except QueryRefused as cause:
            raise Declined(f"Postgres does not take it: {cause}") from cause

    async def _asked(self, candidate: Candidate, session: ClientSession) -> tuple[Client, list[RegisteredRelation]]:
        client = await ask_client(session, candidate.names, candidate.functions)
        relations = self._resolved(candidate, client)
        return await self._choose(relations, session, client), relations

    async def _kept(
        self, candidate: Candidate, relations: Sequence[RegisteredRelation], fields: Sequence[FieldDescription] | None, client: Client
    ) -> Plan:
        """The plan of a statement without parameters, as it was made the last time if nothing changed since."""
        if _TELLS_TIME.search(candidate.sql) or len(candidate.sql) > _CACHED_CHARS_MAX:
            return await self._run(lambda: self._plan(candidate.tree, relations, fields, client))
        # Relations are compared as objects: what changes in the catalog makes new ones.
        key = (candidate.sql, tuple(map(id, relations)), None if fields is None else tuple(fields), client.settings["TimeZone"])
        known = self._plans.get(key)
        if known is None:
            known = await self._run(lambda: self._plan(candidate.tree, relations, fields, client))
            if len(self._plans) >= _PLANS_MAX:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = known
        return known

    async def _choose(self, relations: Sequence[RegisteredRelation], session: ClientSession, client: Client) -> Client:
        """Declined unless this session reads these mirrored tables from the lake, and the lake has come far enough."""
        copies = {relation.table_id: relation for relation in relations if relation.is_mirror}
        if not copies:
            return client
        chosen = mirrors.choice(client.reads, list(copies.values()))
        if chosen == HEAP:
            raise Declined("a mirrored table is complete in Postgres: modak.mirrored_reads chooses the lake")
        if len(copies) < len({relation.table_id for relation in relations}):
            raise Declined("mirrored and tiered tables together are of one moment in Postgres only")
        if client.snapshot is not None:
            raise Declined("the lake is not at this transaction's snapshot")
        if chosen != HYBRID:
            return client
        seconds = wait_seconds(client.wait)
        wanted = await self._run(lambda: mirrors.passes(self._dsn, list(copies), seconds))
        if wanted is None:
            if client.wants_notices:
                session.notify(f"the lake did not come to this moment within {seconds:g} s: Postgres answers from the heap")
            raise Declined("the lake is behind")
        return replace(client, wanted_lsn=wanted)

    async def _with_reader(
        self, planned: Plan, client: Client, call: Callable[[Preparation], _T], undo: Callable[[_T], object] | None = None
    ) -> _T:
        reading = _Reading(self._readers, client.snapshot, lambda reader: Preparation(self._tables, planned, reader, client))
        try:
            return await self._run(lambda: reading.run(call), undo, reading.cancel)
        finally:
            # The answer does not wait for it.
            self._executor.submit(reading.end)

    def _plan(
        self, tree: exp.Expr, relations: Sequence[RegisteredRelation], fields: Sequence[FieldDescription] | None, client: Client
    ) -> Plan:
        now = timestamp_text(client.now_micros, "+00")
        timezone = client.settings["TimeZone"]
        return plan(tree, relations, fields, timezone=timezone, now=now, collation_is_c=self._collation_is_c)

    def _resolved(self, candidate: Candidate, client: Client) -> list[RegisteredRelation]:
        """The relation of each table in the statement, by the OIDs that the client's own search path gave."""
        found = [self._relations.by_oid(oid) if oid is not None else None for oid in client.oids]
        by_name: list[RegisteredRelation] = []
        for name, relation, oid in zip(candidate.names, found, client.oids, strict=True):
            if relation is None or (oid == relation.table_id and not relation.is_mirror and not self._heap_names):
                raise Declined(f"{'.'.join(name)} is no registered relation")
            by_name.append(relation)
        return [by_name[number] for number in candidate.uses]

    async def _run(
        self, call: Callable[[], _T], undo: Callable[[_T], object] | None = None, cancel: Callable[[], object] | None = None
    ) -> _T:
        """A call on a worker thread, over when this returns: who is cancelled stops it, waits for it, and undoes what it still gave."""
        work = asyncio.get_running_loop().run_in_executor(self._executor, call)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if cancel is not None:
                cancel()
            await asyncio.wait([work])
            if work.exception() is None and undo is not None:
                undo(work.result())
            raise

    def _refresh(self) -> None:
        try:
            self._relations.refresh()
            self._refreshing = False
        except Exception as cause:  # noqa: BLE001 - the next statement asks again
            self._refreshing = False
            log.warning("registered tables could not be read: %s", cause)

    def _mentions(self) -> re.Pattern[str]:
        # No session reads a mirror from the lake without having said so, and until one does nobody is asked.
        names = self._relations.names(mirrors=self._has_chosen or self._relations.has_choosers)
        if self._names[0] != names:
            spellings = {spelling for name in names for spelling in (name, name.replace('"', '""'))}
            self._names = names, re.compile("|".join(map(re.escape, sorted(spellings))) or "(?!)", re.IGNORECASE)
        return self._names[1]


class _Reading:
    """A preparation with its reader, on one worker thread; ``cancel`` from any, ``end`` when it is over."""

    def __init__(self, readers: Readers, snapshot: str | None, prepare: Callable[[Reader], Preparation]) -> None:
        self._readers, self._snapshot, self._prepare = readers, snapshot, prepare
        self._reader: Reader | None = None
        self._preparation: Preparation | None = None
        self._cancelled = False

    def run(self, call: Callable[[Preparation], _T]) -> _T:
        self._reader = self._readers.take(self._snapshot)
        self._preparation = self._prepare(self._reader)
        if self._cancelled:
            self._preparation.cancel()
        return call(self._preparation)

    def cancel(self) -> None:
        self._cancelled = True
        if self._preparation is not None:
            self._preparation.cancel()

    def end(self) -> None:
        if self._reader is not None:
            self._readers.give_back(self._reader)


def _heaps(candidate: Candidate, relations: Sequence[RegisteredRelation], client: Client) -> dict[int, RegisteredRelation]:
    """Relations that the statement calls by their heap's name, by their place among its names."""
    by_place = dict(zip(candidate.uses, relations, strict=True))
    return {place: relation for place, relation in by_place.items() if client.oids[place] == relation.table_id and not relation.is_mirror}
