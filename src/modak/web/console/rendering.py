"""Templates and the files beside them. Read once; what a page is given is escaped, always."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any
from urllib.parse import quote

import jinja2
from starlette.requests import Request
from starlette.responses import Response

from modak.web.console import words
from modak.web.console.guard import Guard
from modak.web.console.session import Session
from modak.web.errors import Answer

LIVE_SECONDS = 3.0
_PACKAGE = "modak.web.console"


@dataclass(frozen=True)
class File:
    content: bytes
    media_type: str
    version: str


def static_files() -> dict[str, File]:
    found = {}
    for entry in resources.files(_PACKAGE).joinpath("static").iterdir():
        content = entry.read_bytes()
        kind = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
        found[entry.name] = File(content, kind, hashlib.sha256(content).hexdigest()[:12])
    return found


class Rendering:
    def __init__(self, guard: Guard, live_seconds: float = LIVE_SECONDS) -> None:
        self._guard = guard
        self._files = static_files()
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader(_PACKAGE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._templates.globals |= {
            "file": self._address,
            "access": guard.access.value,
            "may_act": guard.may_act,
            "live_milliseconds": round(live_seconds * 1000),
        }
        self._templates.filters |= {
            "size": words.size,
            "number": words.number,
            "span": words.span,
            "moment": words.moment,
            "shown": words.shown,
            "sentence": words.sentence,
            "count": words.count,
            "page_of": lambda name: "/tables/" + quote(str(name)),
        }

    def page(
        self, request: Request, template: str, session: Session | None, status: int, headers: dict[str, str] | None, **more: Any
    ) -> Response:
        now = datetime.now(UTC)
        given = {
            "path": request.url.path,
            "form_token": session.form_token if session is not None else "",
            "now": now,
            "ago": lambda at: words.ago(at, now),
            "said": None,
            **more,
        }
        text = self._templates.get_template(template).render(given)
        return Response(text, status, headers or {}, media_type="text/html; charset=utf-8")

    async def static(self, request: Request) -> Response:
        """Named by their content, so a browser may keep them for ever. Nothing in them is secret."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            return Answer(404, "not_found", "there is no such file").response()
        kept = request.query_params.get("v") == found.version
        return Response(
            found.content,
            200,
            {"cache-control": "public, max-age=31536000, immutable" if kept else "no-cache"},
            media_type=found.media_type,
        )

    def _address(self, name: str) -> str:
        return f"/static/{name}?v={self._files[name].version}"
