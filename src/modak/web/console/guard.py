"""The door of console and API: who comes in, and whether a form is one of ours."""

from __future__ import annotations

import hmac
import logging
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from modak.errors import UsageError
from modak.patience import Gone, Patience, Slow, TooLarge, whole
from modak.web.console.session import (
    Access,
    Session,
    Sessions,
    Throttle,
    basic_password,
    is_password,
    names_loopback,
)
from modak.web.errors import Answer, gone, late

COOKIE = "modak_session"
FORM_BYTES_MAX = 128 * 1024
# Before anybody is known: a password, with every character of it as an escape, and a page to go back to.
LOGIN_BYTES_MAX = 16 * 1024
# A form is small, and a page or a script sends it at once.
FORM_PATIENCE = Patience(idle_seconds=10.0, seconds_max=30.0)
_FIELDS_MAX = 60
_log = logging.getLogger(__name__)

OFF = "the console is off, since no password is set and others could come"
OFF_HINT = "set MODAK_CONSOLE_PASSWORD, or serve on a loopback address: MODAK_HTTP=127.0.0.1:9090"
READ_ONLY = "this console only shows, since no password is set"
READ_ONLY_HINT = "set MODAK_CONSOLE_PASSWORD and start the worker again"


class Elsewhere(Exception):
    """Whoever asks has to go to another page first."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def response(self) -> Response:
        return RedirectResponse(self.path, 303)


@dataclass
class Guard:
    access: Access
    password: str = field(default="", repr=False)
    is_tls: bool = False
    patience: Patience = FORM_PATIENCE
    sessions: Sessions = field(default_factory=Sessions)
    throttle: Throttle = field(default_factory=Throttle)

    @property
    def may_act(self) -> bool:
        return self.access is Access.GUARDED

    def page(self, request: Request) -> Session | None:
        """Who looks at a page; None where nobody has to log in. Others are sent to the log-in."""
        self._open_or_guarded(request)
        if self.access is Access.OPEN:
            return None
        session = self.session(request)
        if session is None:
            raise Elsewhere("/login" + _next(request))
        request.state.is_known = True
        return session

    def api(self, request: Request, *, acts: bool = False) -> None:
        """By the console's session, or by HTTP Basic with any name."""
        self._open_or_guarded(request)
        if self.access is Access.OPEN:
            if acts:
                raise Answer(403, "read_only", READ_ONLY, hint=READ_ONLY_HINT)
            return
        if self.session(request) is not None:
            request.state.is_known = True
            return
        given = basic_password(request.headers.get("authorization", ""))
        headers = {"WWW-Authenticate": 'Basic realm="modak", charset="UTF-8"'}
        if given is None:
            raise Answer(401, "unauthorized", "log in first", hint="HTTP Basic, with any name and MODAK_CONSOLE_PASSWORD", headers=headers)
        if not self.knows(request, given):
            raise Answer(401, "unauthorized", "the password is wrong", headers=headers)
        request.state.is_known = True

    def knows(self, request: Request, given: str) -> bool:
        """Whether the password is right. Too many wrong ones have to wait."""
        address = request.client.host if request.client else "unknown"
        wait = self.throttle.wait(address)
        if wait:
            raise Answer(429, "too_many_attempts", f"too many wrong passwords; wait {wait} s", headers={"Retry-After": str(wait)})
        if is_password(given, self.password):
            self.throttle.succeeded(address)
            return True
        self.throttle.failed(address)
        _log.warning("a wrong password for the console from %s", address)
        return False

    def session(self, request: Request) -> Session | None:
        token = request.cookies.get(COOKIE, "")
        return self.sessions.find(token) if token else None

    def log_in(self, response: Response) -> None:
        response.set_cookie(COOKIE, self.sessions.open().token, httponly=True, samesite="strict", secure=self.is_tls, path="/")

    def log_out(self, request: Request, response: Response) -> None:
        self.sessions.close(request.cookies.get(COOKIE, ""))
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=self.is_tls)

    async def body(self, request: Request, bytes_max: int = FORM_BYTES_MAX) -> bytes:
        try:
            return await whole(request.receive, self.patience, bytes_max)
        except TooLarge as cause:
            raise Answer(413, "too_large", f"this takes {bytes_max:,} bytes at most") from cause
        except Slow as cause:
            raise late() from cause
        except Gone as cause:
            raise gone() from cause

    async def fields(self, request: Request, bytes_max: int = FORM_BYTES_MAX) -> dict[str, str]:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
            raise Answer(415, "unsupported_type", "a form is sent as application/x-www-form-urlencoded")
        try:
            text = (await self.body(request, bytes_max)).decode()
            return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS_MAX, errors="strict"))
        except ValueError as cause:
            raise UsageError("the form cannot be read") from cause

    async def form(self, request: Request) -> dict[str, str]:
        """A form that a page of ours sent in this session."""
        session = self.page(request)
        if session is None:
            raise Answer(403, "read_only", READ_ONLY, hint=READ_ONLY_HINT)
        given = await self.fields(request)
        check_origin(request)
        if not hmac.compare_digest(given.pop("form_token", "").encode(), session.form_token.encode()):
            raise Answer(403, "bad_form", "the form is not from this session", hint="load the page again and send it once more")
        return given

    def _open_or_guarded(self, request: Request) -> None:
        if self.access is Access.OFF:
            raise Answer(403, "console_off", OFF, hint=OFF_HINT)
        if self.access is Access.OPEN and not names_loopback(request.headers.get("host", "")):
            raise Answer(403, "bad_host", "without a password the console answers to this machine's own names only", hint="use localhost")


def check_origin(request: Request) -> None:
    """Browsers say where a form comes from. Programs say nothing, and have no cookies to abuse."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise Answer(403, "bad_form", "the form comes from another site")


def local_path(text: str) -> str:
    """A page of ours to go back to; everything else is the first page. A backslash is a slash to browsers."""
    plain = text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable() and len(text) < 500
    return text if plain and not text.startswith("/login") else "/"


def _next(request: Request) -> str:
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return "" if request.method != "GET" or path == "/" else "?next=" + quote(path, safe="")
