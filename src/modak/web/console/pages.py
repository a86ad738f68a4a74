"""The console's pages: what is asked for, what is shown, and what comes of a form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import psycopg
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from modak.app import App
from modak.catalog import overview, tables
from modak.core.operation import OperationKind
from modak.core.table import Name
from modak.errors import ConnectionFailed, ModakError, NotFound, NotRegistered, Refused
from modak.registration import policy
from modak.web.api import kind_of, moment_of, named, table_of
from modak.web.console import views
from modak.web.console.guard import LOGIN_BYTES_MAX, Elsewhere, Guard, check_origin, local_path
from modak.web.console.query import Queries, QueryFailed
from modak.web.console.rendering import LIVE_SECONDS, Rendering
from modak.web.console.session import Access, Session
from modak.web.errors import Answer
from modak.web.reports import Reports
from modak.worker.errands import Errands

_PAGE_OPERATIONS = 50
_log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]
_SAID = {
    "policy": "The policy is changed.",
    "maintain": "Maintenance is requested; the leader takes it up with its next cycle.",
    "fold": "The fold is asked for. It runs when this worker has nothing else of that kind to do.",
    "verify": "The comparison is asked for. It may take a while; its result appears below.",
}


@dataclass
class Console:
    """One console of one server. At most a few pages ask Postgres at a time, so that no crowd takes all connections."""

    app: App
    reports: Reports
    queries: Queries
    errands: Errands
    guard: Guard
    places: asyncio.Semaphore
    live_seconds: float = LIVE_SECONDS

    def __post_init__(self) -> None:
        self._rendering = Rendering(self.guard, self.live_seconds)

    def routes(self) -> list[Route]:
        return [
            Route("/", self._page(self._overview), methods=["GET"]),
            Route("/login", self._page(self._login), methods=["GET", "POST"]),
            Route("/logout", self._page(self._logout), methods=["POST"]),
            Route("/tables/{table:path}", self._page(self._table), methods=["GET", "POST"]),
            Route("/operations", self._page(self._operations), methods=["GET"]),
            Route("/sql", self._page(self._sql), methods=["GET", "POST"]),
            Route("/static/{name}", self._rendering.static, methods=["GET"]),
        ]

    def missing(self, request: Request) -> Response | None:
        """For browsers that are logged in, or need not be; programs get JSON."""
        if "text/html" not in request.headers.get("accept", "") or request.url.path.startswith("/api/"):
            return None
        try:
            self.guard.page(request)
        except (Answer, Elsewhere):
            return None
        return self._error(request, 404, "there is nothing at this address", None)

    # Pages

    async def _overview(self, request: Request) -> Response:
        session = self.guard.page(request)
        found = await self._ask(self.reports.overview)
        return self._show(request, "overview.html", session, **views.overview(found, self.reports.samples))

    async def _table(self, request: Request) -> Response:
        name = table_of(request)
        if request.method == "POST":
            return await self._act(request, name)
        return await self._table_page(request, name, self.guard.page(request))

    async def _table_page(self, request: Request, name: Name, session: Session | None, status: int = 200, **more: Any) -> Response:
        def read() -> dict[str, Any]:
            return views.table(self.reports.table(name), self.reports.history(name), self.reports.samples)

        said = _SAID.get(request.query_params.get("said", ""))
        return self._show(request, "table.html", session, status, said=said, **(await self._ask(read) | more))

    async def _operations(self, request: Request) -> Response:
        session = self.guard.page(request)
        asked = request.query_params
        name, kind = named(asked["table"]) if asked.get("table") else None, kind_of(asked.get("kind"))
        before = moment_of(asked.get("before"))

        def read() -> tuple[list[dict[str, Any]], list[str]]:
            found = self.reports.operations(name=name, kind=kind, before=before, limit=_PAGE_OPERATIONS)
            return found, [line["table"] for line in self.reports.tables()["tables"]]

        found, known = await self._ask(read)
        more = views.operations(found, full=len(found) == _PAGE_OPERATIONS)
        kinds = [one.value for one in OperationKind]
        return self._show(
            request, "operations.html", session, known=known, kinds=kinds, table=str(name) if name else "", kind=kind or "", **more
        )

    async def _sql(self, request: Request) -> Response:
        if request.method == "GET":
            session = self.guard.page(request)
            return self._show(request, "sql.html", session, **views.query(request.query_params.get("sql", "")[:2000]))
        given = await self.guard.form(request)
        session, statement = self.guard.session(request), given.get("sql", "")
        try:
            if given.get("what") == "explain":
                found = await asyncio.to_thread(self.queries.explain, statement)
                return self._show(request, "sql.html", session, **views.query(statement, route=found))
            outcome = await asyncio.to_thread(self.queries.run, statement)
        except (QueryFailed, ModakError) as failed:
            return self._show(request, "sql.html", session, 400, **views.query(statement, failed=failed))
        return self._show(request, "sql.html", session, **views.query(statement, outcome=outcome))

    # Forms

    async def _login(self, request: Request) -> Response:
        if self.guard.access is not Access.GUARDED:
            self.guard.page(request)
            raise Elsewhere("/")
        after = local_path(request.query_params.get("next", ""))
        if request.method == "GET":
            if self.guard.session(request) is not None:
                raise Elsewhere(after)
            return self._show(request, "login.html", None, after=after, wrong=None)
        check_origin(request)
        given = await self.guard.fields(request, LOGIN_BYTES_MAX)
        after = local_path(given.get("next", ""))
        try:
            wrong = None if self.guard.knows(request, given.get("password", "")) else "This is not the password."
        except Answer as waits:
            return self._show(request, "login.html", None, waits.status, waits.headers, after=after, wrong=waits.message)
        if wrong:
            return self._show(request, "login.html", None, 401, after=after, wrong=wrong)
        response = RedirectResponse(after, 303)
        self.guard.log_in(response)
        return response

    async def _logout(self, request: Request) -> Response:
        await self.guard.form(request)
        response = RedirectResponse("/login", 303)
        self.guard.log_out(request, response)
        return response

    async def _act(self, request: Request, name: Name) -> Response:
        given = await self.guard.form(request)
        what = given.pop("what", "")
        _log.info("%s of %s, by %s", what[:20] or "nothing", name, request.client.host if request.client else "somebody")
        try:
            if what == "policy":
                await self._ask(lambda: self._change_policy(name, given))
            elif what == "maintain":
                await self._ask(lambda: self._request_maintenance(name))
            elif what in self.errands.jobs:
                await self._ask(lambda: self.errands.ask(self._registered(name), what))
            else:
                raise Answer(400, "unknown_action", "there is no such button")
        except (Refused, NotFound) as refused:
            session = self.guard.session(request)
            return await self._table_page(request, name, session, 400, refused=refused, given=given if what == "policy" else {})
        return RedirectResponse(f"/tables/{quote(str(name))}?said={what}", 303)

    def _change_policy(self, name: Name, given: dict[str, str]) -> None:
        """Only what the form changed: what somebody else changed meanwhile stays."""
        with self.app.connection() as connection, connection.transaction():
            table = tables.get(connection, name)
            known = {key: views.policy_text(value) for key, value in policy.show(table).items()}
            wanted = {key: text.strip()[:200] for key, text in given.items() if not key.startswith("was.")}
            changed = {key: text for key, text in wanted.items() if text != given.get(f"was.{key}", known.get(key, ""))}
            if changed:
                policy.change(connection, table, changed)
                _log.info("the policy of %s is changed: %s", table.name, ", ".join(f"{key}={text}" for key, text in changed.items()))

    def _request_maintenance(self, name: Name) -> None:
        with self.app.connection() as connection:
            overview.request_maintenance(connection, tables.get(connection, name).table_id, "console")

    def _registered(self, name: Name) -> Name:
        with self.app.connection() as connection:
            return tables.get(connection, name).name

    # What all of them share

    async def _ask(self, read: Callable[[], Any]) -> Any:
        async with self.places:
            return await asyncio.to_thread(read)

    def _show(
        self,
        request: Request,
        template: str,
        session: Session | None,
        status: int = 200,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> Response:
        return self._rendering.page(request, template, session, status, headers, worker=views.worker(self.reports.worker()), **more)

    def _page(self, handle: Handler) -> Handler:
        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except Elsewhere as page:
                return page.response()
            except Answer as known:
                return self._error(request, known.status, known.message, known.hint, known.headers)
            except (NotRegistered, NotFound) as missing:
                return self._error(request, 404, missing.message, missing.hint)
            except ConnectionFailed as away:
                _log.warning("%s: %s", request.url.path, away)
                return self._error(request, 503, "Postgres does not answer", "This page comes back by itself when it does.", retry=True)
            except ModakError as error:
                return self._error(request, 503 if error.retry.value == "later" else 400, str(error), error.hint)
            except psycopg.Error as cause:
                _log.warning("%s: %s", request.url.path, cause)
                return self._error(request, 503, "Postgres did not answer this", "The worker's log says more.", retry=True)
            except Exception:  # noqa: BLE001 - never a stack trace for a browser
                _log.exception("%s failed", request.url.path)
                return self._error(request, 500, "The console failed, and the worker's log says how", None)

        return answer

    def _error(
        self, request: Request, status: int, message: str, hint: str | None, headers: dict[str, str] | None = None, *, retry: bool = False
    ) -> Response:
        try:
            session = self.guard.session(request)
        except Answer:
            session = None
        return self._show(request, "error.html", session, status, headers, message=message, hint=hint, retry=retry, code=status)
