"""Errors as answers: one shape, whatever went wrong and wherever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from modak.errors import ModakError, NotFound, NotRegistered, Refused, UsageError
from modak.load import LabelInFlight, LoadRejected

RETRY_SECONDS = 1
_STATUS: tuple[tuple[type[ModakError], int], ...] = (
    (LoadRejected, 400),
    (UsageError, 400),
    (Refused, 400),
    (NotRegistered, 404),
    (NotFound, 404),
    (LabelInFlight, 409),
)


class Answer(Exception):
    """A request that ends here, with this answer."""

    def __init__(self, status: int, code: str, message: str, *, hint: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = dict(headers or {})

    def response(self) -> Response:
        return error_response(self.status, self.code, self.message, self.hint, headers=self.headers)


def busy(status: int, code: str, message: str, hint: str = "try again in a moment") -> Answer:
    return Answer(status, code, message, hint=hint, headers={"Retry-After": str(RETRY_SECONDS)})


def late(hint: str = "send it without pauses") -> Answer:
    """A body that did not come. What is left of it may come yet, and is nothing that a connection can go on with."""
    return Answer(408, "timeout", "the body did not arrive in time", hint=hint, headers={"Connection": "close"})


def gone() -> Answer:
    """Nobody reads this."""
    return Answer(400, "gone", "the client left before the body was complete")


def internal() -> Answer:
    """What nobody expected. The log has the rest."""
    return Answer(
        500, "internal", "the server failed, and its log says how; nothing is known to be applied", hint="load the same label again"
    )


def response_of(error: ModakError) -> Response:
    """What is not the client's fault is 503: something is away, and the same label may be loaded again later."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
    headers = {"Retry-After": str(RETRY_SECONDS)} if status in (409, 503) else {}
    facts = error.facts
    message = str(error) if isinstance(error, Refused) and error.problems else error.message
    return error_response(
        status,
        error.code,
        message,
        error.hint,
        line=facts.get("line"),
        column=facts.get("column"),
        value=facts.get("value"),
        headers=headers,
    )


def error_response(
    status: int,
    code: str,
    message: str,
    hint: str | None = None,
    *,
    line: object = None,
    column: object = None,
    value: object = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    error = {"code": code, "message": message, "hint": hint, "line": line, "column": column, "value": value}
    return json_response({"error": error}, status, headers)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """In ASCII: a value that is no whole text, in an error about it, must not fail here."""
    return Response(json.dumps(content), status, dict(headers or {}), media_type="application/json")
