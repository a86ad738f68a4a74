"""The routes of the worker's HTTP server."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from modak.web.errors import error_response, internal, json_response
from modak.web.openapi import DOCUMENT
from modak.web.stream_load import PREFIX, StreamLoad
from modak.worker.metrics import Metrics


def build(metrics: Metrics, stream_load: StreamLoad | None) -> Starlette:
    """Without a token there is no Stream Load, and its address is one that does not exist."""

    async def metrics_page(_: Request) -> Response:
        return Response(await asyncio.to_thread(metrics.text), media_type=metrics.content_type)

    routes = [
        Route("/healthz", _health, methods=["GET"]),
        Route("/metrics", metrics_page, methods=["GET"]),
        Route("/api/v1/openapi.json", _openapi, methods=["GET"]),
    ]
    if stream_load is not None:
        routes.append(Route(PREFIX + "{rest:path}", _Endpoint(stream_load)))
    made = Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _failed})
    made.router.redirect_slashes = False
    return made


class _Endpoint:
    """As an ASGI application, which gets every method: what is allowed depends on the address."""

    def __init__(self, stream_load: StreamLoad) -> None:
        self._stream_load = stream_load

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        response = await self._stream_load(Request(scope, receive))
        await response(scope, receive, send)


async def _health(_: Request) -> Response:
    return json_response({"status": "ok"})


async def _openapi(_: Request) -> Response:
    return json_response(DOCUMENT)


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return error_response(405, "method_not_allowed", "the method is not for this address", headers=error.headers)
    hint = "/api/v1/openapi.json lists what there is; Stream Load is there when MODAK_LOAD_TOKEN is set"
    return error_response(error.status_code, "not_found", "there is nothing at this address", hint, headers=error.headers)


def _failed(_: Request, _error: Exception) -> Response:
    return internal().response()
