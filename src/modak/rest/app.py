"""The Iceberg REST protocol: addresses, bodies and errors as it says; what they mean is in ``modak.rest.face``."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pyiceberg import exceptions as iceberg
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.table import CommitTableRequest, StagedTable, Table
from sqlalchemy.exc import DataError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from modak.errors import NotFound, UsageError
from modak.lake.loading import find_table, load_table
from modak.patience import Gone, Patience, Slow, TooLarge, whole
from modak.rest.face import Face, Forbidden, Place

log = logging.getLogger("modak.rest")

BODY_BYTES_MAX = 64 * 1024 * 1024
_SEPARATOR = "\x1f"


class NoSuchPrefix(Exception):
    """A prefix is a storage profile's name, and there is no such profile, or its tables are in another catalog."""


class Malformed(Exception):
    """A body that has not the shape that the protocol gives it."""


_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (iceberg.NoSuchTableError, 404, "NoSuchTableException"),
    (iceberg.NoSuchNamespaceError, 404, "NoSuchNamespaceException"),
    (iceberg.TableAlreadyExistsError, 409, "AlreadyExistsException"),
    (iceberg.NamespaceAlreadyExistsError, 409, "AlreadyExistsException"),
    (iceberg.NamespaceNotEmptyError, 409, "NamespaceNotEmptyException"),
    (iceberg.CommitFailedException, 409, "CommitFailedException"),
    (Forbidden, 403, "ForbiddenException"),
    (NoSuchPrefix, 404, "NoSuchWarehouseException"),
    (Malformed, 400, "BadRequestException"),
    (Slow, 408, "RequestTimeoutException"),
    (TooLarge, 400, "BadRequestException"),
    # Nobody reads this.
    (Gone, 400, "BadRequestException"),
    (ValidationError, 400, "BadRequestException"),
    (iceberg.ValidationError, 400, "BadRequestException"),
    # Of PyIceberg, where it can read what it cannot write.
    (NotImplementedError, 406, "UnsupportedOperationException"),
    (DataError, 400, "BadRequestException"),
    (RecursionError, 400, "BadRequestException"),
    (ValueError, 400, "BadRequestException"),
    (KeyError, 400, "BadRequestException"),
)
_ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "POST /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "DELETE /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces/{namespace}/properties",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/tables/rename",
    "POST /v1/{prefix}/transactions/commit",
)
Work = Callable[[Face, Request, Any], Any]


@dataclass
class RestCatalog:
    """``face`` gives the face of a storage profile, by its name; ``token`` is what every client shows."""

    face: Callable[[str], Face]
    token: str = field(repr=False)
    default: str = "default"
    patience: Patience = field(default_factory=Patience)

    def build(self) -> Starlette:
        tables = "/v1/{prefix}/namespaces/{namespace}/tables"
        routes = [
            Route("/v1/config", self._config, methods=["GET"]),
            self._route("/v1/{prefix}/namespaces", GET=_list_namespaces, POST=_create_namespace),
            self._route("/v1/{prefix}/namespaces/{namespace}", GET=_namespace, HEAD=_namespace, DELETE=_drop_namespace),
            self._route("/v1/{prefix}/namespaces/{namespace}/properties", POST=_change_namespace),
            self._route(tables, GET=_list_tables, POST=_create_table),
            self._route(tables + "/{table}", GET=_load_table, HEAD=_table_exists, POST=_commit_table, DELETE=_drop_table),
            self._route(tables + "/{table}/metrics", POST=lambda *_: None),
            self._route("/v1/{prefix}/tables/rename", POST=_rename_table),
            self._route("/v1/{prefix}/transactions/commit", POST=_commit_tables),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _refused})

    async def _config(self, request: Request) -> Response:
        if not self._knows(request):
            return _error(401, "NotAuthorizedException", "the token is missing or wrong")
        profile = request.query_params.get("warehouse") or self.default
        try:
            face = await asyncio.to_thread(self._face, profile)
        except NoSuchPrefix as cause:
            return _error(404, "NoSuchWarehouseException", str(cause))
        # With the catalog and not with each table: from settings beside a table DuckDB makes credentials, and there are none among them.
        return JSONResponse({"defaults": face.settings, "overrides": {"prefix": profile}, "endpoints": list(_ENDPOINTS)})

    def _route(self, path: str, **works: Work) -> Route:
        async def endpoint(request: Request) -> Response:
            if not self._knows(request):
                return _error(401, "NotAuthorizedException", "the token is missing or wrong")
            # Whoever is known need not give way to others while the rest of his body comes.
            request.state.is_known = True
            return await _answered(lambda: self._work(works[request.method], request), is_commit=request.method == "POST")

        return Route(path, endpoint, methods=list(works))

    async def _work(self, work: Work, request: Request) -> Response:
        body = await self._body(request) if request.method == "POST" else None

        def run() -> Any:
            return work(self._face(request.path_params["prefix"]), request, body)

        found = await asyncio.to_thread(run)
        return Response(status_code=204) if found is None else JSONResponse(found)

    async def _body(self, request: Request) -> Any:
        if int(request.headers.get("content-length") or 0) > BODY_BYTES_MAX:
            raise TooLarge(f"a body has {BODY_BYTES_MAX:,} bytes at most here")
        return _object(json.loads(await whole(request.receive, self.patience, BODY_BYTES_MAX) or b"{}"), "the body")

    def _face(self, profile: str) -> Face:
        try:
            return self.face(profile)
        except (NotFound, UsageError) as cause:
            raise NoSuchPrefix(str(cause)) from cause

    def _knows(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and secrets.compare_digest(given.encode(), self.token.encode())


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not an object")
    return value


def _names(value: Any, what: str) -> Place:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
        raise Malformed(f"{what} is not a list of names")
    return tuple(value)


def _texts(value: Any, what: str) -> dict[str, str]:
    if not all(isinstance(text, str) for text in _object(value, what).values()):
        raise Malformed(f"{what} has values that are no texts")
    return dict(value)


async def _answered(work: Callable[[], Awaitable[Response]], *, is_commit: bool) -> Response:
    try:
        return await work()
    except Exception as cause:
        for kind, status, name in _ERRORS:
            if isinstance(cause, kind):
                # The database's own words, without the statement.
                return _error(status, name, str(getattr(cause, "orig", None) or cause))
        log.exception("a request failed")
        return _error(500, "CommitStateUnknownException" if is_commit else "InternalServerError", type(cause).__name__)


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, "BadRequestException", error.detail)


def _error(status: int, name: str, message: str) -> Response:
    # Of a body that did not come the rest may come yet, and is nothing that a connection can go on with.
    headers = {"Connection": "close"} if status == 408 else None
    return JSONResponse({"error": {"message": message, "type": name, "code": status}}, status, headers)


def _place(request: Request) -> Place:
    namespace = _namespace_of(request)
    return (*namespace, request.path_params["table"]) if "table" in request.path_params else namespace


def _namespace_of(request: Request) -> Place:
    return tuple(request.path_params["namespace"].split(_SEPARATOR))


def _list_namespaces(face: Face, request: Request, _: Any) -> Mapping[str, Any]:
    parent = request.query_params.get("parent")
    return {"namespaces": [list(one) for one in face.catalog.list_namespaces(tuple(parent.split(_SEPARATOR)) if parent else ())]}


def _create_namespace(face: Face, _: Request, body: Any) -> Mapping[str, Any]:
    namespace, properties = _names(body["namespace"], "namespace"), _texts(body.get("properties") or {}, "properties")
    face.create_namespace(namespace, properties)
    return {"namespace": list(namespace), "properties": properties}


def _namespace(face: Face, request: Request, _: Any) -> Mapping[str, Any] | None:
    namespace = _namespace_of(request)
    properties = face.catalog.load_namespace_properties(namespace)
    return None if request.method == "HEAD" else {"namespace": list(namespace), "properties": properties}


def _drop_namespace(face: Face, request: Request, _: Any) -> None:
    face.drop_namespace(_namespace_of(request))


def _change_namespace(face: Face, request: Request, body: Any) -> Mapping[str, Any]:
    namespace = _namespace_of(request)
    removals, updates = body.get("removals") or [], _texts(body.get("updates") or {}, "updates")
    done = face.change_namespace(namespace, set(_names(removals, "removals") if removals else ()), updates)
    return {"removed": done.removed, "updated": done.updated, "missing": done.missing}


def _list_tables(face: Face, request: Request, _: Any) -> Mapping[str, Any]:
    namespace = _namespace_of(request)
    face.catalog.load_namespace_properties(namespace)
    return {"identifiers": [{"namespace": list(one[:-1]), "name": one[-1]} for one in face.catalog.list_tables(namespace)]}


def _create_table(face: Face, request: Request, body: Any) -> Mapping[str, Any]:
    given = CreateTableRequest.model_validate({"location": None, "partition-spec": None, "write-order": None, **body})
    made = face.create(_namespace_of(request), given)
    return _shown(made, metadata_location=None if given.stage_create else made.metadata_location)


def _load_table(face: Face, request: Request, _: Any) -> Mapping[str, Any]:
    found = load_table(face.catalog, _place(request))
    return _shown(found, metadata_location=found.metadata_location)


def _table_exists(face: Face, request: Request, _: Any) -> None:
    if find_table(face.catalog, _place(request)) is None:
        raise iceberg.NoSuchTableError(".".join(_place(request)))


def _commit_table(face: Face, request: Request, body: Any) -> Mapping[str, Any]:
    *namespace, name = _place(request)
    (done,) = face.commit([CommitTableRequest.model_validate({**body, "identifier": {"namespace": namespace, "name": name}})])
    return {"metadata-location": done.metadata_location, "metadata": _metadata(done)}


def _commit_tables(face: Face, _: Request, body: Any) -> None:
    changes = body["table-changes"]
    if not isinstance(changes, list):
        raise Malformed("table-changes is not a list")
    face.commit([CommitTableRequest.model_validate(change) for change in changes])


def _drop_table(face: Face, request: Request, _: Any) -> None:
    face.drop(_place(request), purge=request.query_params.get("purgeRequested", "false").lower() == "true")


def _rename_table(face: Face, _: Request, body: Any) -> None:
    source, target = (_named(body[which], which) for which in ("source", "destination"))
    face.rename(source, target)


def _named(value: Any, what: str) -> Place:
    given = _object(value, what)
    return (*_names(given["namespace"], f"the namespace of {what}"), *_names([given["name"]], f"the name of {what}"))


def _shown(table: Table | StagedTable, *, metadata_location: str | None) -> Mapping[str, Any]:
    located = {"metadata-location": metadata_location} if metadata_location else {}
    return {**located, "metadata": _metadata(table), "config": {}}


def _metadata(table: Table | StagedTable) -> Any:
    return json.loads(table.metadata.model_dump_json())
