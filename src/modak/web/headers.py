"""Headers that every answer has: what a browser may do with it, which is little."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

# Our own files only: no inline script, no inline style, no other host, no frame around us.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    # Not no-referrer: with it browsers call the origin of our own forms null.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_ENCODED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

Message = MutableMapping[str, Any]
Application = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


def with_headers(application: Application) -> Application:
    async def answer(scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message.get("headers", ())}
                more = [(name, value) for name, value in _ENCODED if name not in present]
                if b"cache-control" not in present:
                    more.append((b"cache-control", b"no-store"))
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        await application(scope, receive, sent)

    return answer
