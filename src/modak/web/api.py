"""``/api/v1``: what the console shows, as JSON. Read only; the query of ``sql`` is as well."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from datetime import date, datetime
from typing import Any

import psycopg
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from modak.core.operation import OperationKind
from modak.core.table import Name
from modak.errors import ConnectionFailed, ModakError, UsageError
from modak.source.relation import parse_name
from modak.web.console.guard import Guard
from modak.web.console.query import Queries, QueryFailed
from modak.web.errors import Answer, error_response, internal, json_response, response_of
from modak.web.reports import Reports
from modak.worker.health import HealthCheck

PREFIX = "/api/v1/"
LIMIT_MAX = 500
_SQL_BYTES_MAX = 128 * 1024
_log = logging.getLogger(__name__)


class Api:
    """Everything goes through ``_answered``: the door, threads for what waits, and one shape for what fails."""

    def __init__(self, reports: Reports, queries: Queries, guard: Guard, health: HealthCheck, places: asyncio.Semaphore) -> None:
        self._reports, self._queries, self._guard, self._health, self._places = reports, queries, guard, health, places

    def routes(self) -> list[Route]:
        get = ["GET"]
        return [
            Route(PREFIX + "worker", self._answered(self._worker), methods=get),
            Route(PREFIX + "tables", self._answered(self._tables), methods=get),
            Route(PREFIX + "tables/{table:path}", self._answered(self._table), methods=get),
            Route(PREFIX + "operations", self._answered(self._operations), methods=get),
            Route(PREFIX + "samples/{table:path}", self._answered(self._samples), methods=get),
            Route(PREFIX + "sql", self._answered(self._sql, acts=True), methods=["POST"]),
        ]

    async def _worker(self, _: Request) -> Any:
        workers = await asyncio.to_thread(self._reports.workers)
        return {**self._reports.worker(), "workers": workers, "health": (await asyncio.to_thread(self._health)).as_dict()}

    async def _tables(self, _: Request) -> Any:
        return await asyncio.to_thread(self._reports.tables)

    async def _table(self, request: Request) -> Any:
        return await asyncio.to_thread(self._reports.table, table_of(request))

    async def _operations(self, request: Request) -> Any:
        asked = request.query_params
        name = named(asked["table"]) if asked.get("table") else None
        kind = kind_of(asked.get("kind"))
        found = await asyncio.to_thread(
            lambda: self._reports.operations(
                name=name, kind=kind, before=moment_of(asked.get("before")), limit=limit_of(asked.get("limit"))
            )
        )
        return {"operations": found}

    async def _samples(self, request: Request) -> Any:
        name = table_of(request)
        found = await asyncio.to_thread(self._reports.series, name)
        return {"table": str(name), "kept": "in the memory of this worker", "series": found}

    async def _sql(self, request: Request) -> Any:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Answer(415, "unsupported_type", "send the query as application/json", hint='{"sql": "select 1"}')
        try:
            given = json.loads(await self._guard.body(request, _SQL_BYTES_MAX))
        except ValueError as cause:
            raise UsageError("the body is not JSON", hint='{"sql": "select 1"}') from cause
        if not isinstance(given, dict) or not isinstance(given.get("sql"), str) or set(given) != {"sql"}:
            raise UsageError("the body is an object with one text, sql", hint='{"sql": "select 1"}')
        found = await asyncio.to_thread(self._queries.run, given["sql"])
        return {
            "columns": list(found.columns),
            "rows": [list(row) for row in found.rows],
            "truncated": found.truncated_by is not None,
            "truncated_by": found.truncated_by,
            "values_cut": found.values_cut,
            "seconds": found.seconds,
            "engine": found.engine,
            "note": found.note,
            "tiers": list(found.tiers),
            "route": list(found.route),
        }

    def _answered(self, handle: Callable[[Request], Awaitable[Any]], *, acts: bool = False) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                self._guard.api(request, acts=acts)
                # A query has places of its own, and may take long.
                async with contextlib.nullcontext() if acts else self._places:
                    return json_response(plain(await handle(request)))
            except Answer as known:
                return known.response()
            except QueryFailed as failed:
                return error_response(400, failed.code, str(failed), failed.hint)
            except ModakError as error:
                return response_of(error)
            except psycopg.Error as cause:
                _log.warning("%s: %s", request.url.path, cause)
                return response_of(ConnectionFailed("Postgres does not answer as it should", hint="the worker's log says more"))
            except Exception:  # noqa: BLE001 - never a stack trace for a client
                _log.exception("%s failed", request.url.path)
                return internal().response()

        return answer


def table_of(request: Request) -> Name:
    return named(request.path_params["table"])


def named(text: str) -> Name:
    if "\0" in text or len(text) > 300:
        raise UsageError("this is not the name of a table", hint="schema.table")
    return parse_name(text)


def kind_of(text: str | None) -> str | None:
    known = [kind.value for kind in OperationKind]
    if text and text not in known:
        raise UsageError(f"there is no operation {text[:50]!r}", hint=f"one of {', '.join(known)}")
    return text or None


def limit_of(text: str | None) -> int:
    if not text:
        return 50
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= LIMIT_MAX:
        raise UsageError(f"limit is a number from 1 to {LIMIT_MAX}")
    return int(text)


def moment_of(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text[:40])
    except ValueError as cause:
        raise UsageError("before is a moment such as 2026-01-31T12:00:00+00:00") from cause
    if found.tzinfo is None:
        raise UsageError("before needs a time zone", hint="such as 2026-01-31T12:00:00+00:00")
    return found


def plain(value: Any) -> Any:
    """As JSON has it: moments in ISO 8601, keys beyond 2^53 are numbers all the same, as the catalog has them."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
