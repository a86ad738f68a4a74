"""The routes of the worker's HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from modak.web.errors import error_response, internal, json_response
from modak.web.headers import Application, with_headers
from modak.web.openapi import DOCUMENT
from modak.web.stream_load import PREFIX, StreamLoad
from modak.worker.health import HealthCheck
from modak.worker.metrics import Metrics

T = TypeVar("T")


def build(
    metrics: Metrics,
    stream_load: StreamLoad | None,
    health: HealthCheck,
    more: Sequence[BaseRoute] = (),
    rest: Starlette | None = None,
    missing: Callable[[Request], Response | None] = lambda _: None,
) -> Application:
    """Without a token there is no Stream Load and no REST catalog, and their addresses are ones that do not exist.

    ``missing`` may have a page for people.
    """

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        page = missing(request) if error.status_code == 404 else None
        return page if page is not None else _refused(error)

    # Anybody may ask for these, as often as he likes, and each asks Postgres.
    measured, examined = shared(metrics.text), shared(health)

    async def metrics_page(_: Request) -> Response:
        return Response(await measured(), media_type=metrics.content_type)

    async def health_page(_: Request) -> Response:
        found = await examined()
        return json_response(found.as_dict(), 200 if found.is_fine else 503, {} if found.is_fine else {"Retry-After": "5"})

    routes: list[BaseRoute] = [
        Route("/healthz", health_page, methods=["GET"]),
        Route("/metrics", metrics_page, methods=["GET"]),
        Route("/api/v1/openapi.json", _openapi, methods=["GET"]),
        *more,
    ]
    if stream_load is not None:
        routes.append(Route(PREFIX + "{rest:path}", _Endpoint(stream_load)))
    if rest is not None:
        routes.append(Mount("/iceberg", rest))
    made = Starlette(routes=routes, exception_handlers={HTTPException: refused, Exception: _failed})
    made.router.redirect_slashes = False
    return with_headers(made)


def shared(look: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    """One look at a time, however many ask: those who come while one is under way share the next, and nobody is told what was before."""
    turn = asyncio.Lock()
    following: asyncio.Task[T] | None = None

    async def next_look() -> T:
        nonlocal following
        async with turn:
            following = None
            return await asyncio.to_thread(look)

    async def ask() -> T:
        nonlocal following
        if following is None:
            following = asyncio.create_task(next_look())
        # Whoever leaves does not take the answer from the others.
        return await asyncio.shield(following)

    return ask


class _Endpoint:
    """As an ASGI application, which gets every method: what is allowed depends on the address."""

    def __init__(self, stream_load: StreamLoad) -> None:
        self._stream_load = stream_load

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        response = await self._stream_load(Request(scope, receive))
        await response(scope, receive, send)


async def _openapi(_: Request) -> Response:
    return json_response(DOCUMENT)


def _refused(error: HTTPException) -> Response:
    if error.status_code == 405:
        return error_response(405, "method_not_allowed", "the method is not for this address", headers=error.headers)
    hint = "/api/v1/openapi.json lists what there is; Stream Load is there when MODAK_LOAD_TOKEN is set"
    return error_response(error.status_code, "not_found", "there is nothing at this address", hint, headers=error.headers)


def _failed(_: Request, _error: Exception) -> Response:
    return internal().response()
