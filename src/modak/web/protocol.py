"""One connection of the HTTP server: uvicorn's, with a clock, with a place that may have to give way, and with errors in our shape.

Anybody can take all places: with half of a request each, or with answers that nobody reads. Clocks bound how long that lasts, but not how
soon it begins again. So when all places are taken, the oldest connection gives way to the newest: a request that arrives at once, such as
one for health, is answered before it is the oldest. Connections of those who showed a password or a token stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
from collections import OrderedDict
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 30.0
_CONNECTIONS_MAX = 1000
# Between two warnings that places run out.
_TOLD_SECONDS = 60.0
_log = logging.getLogger(__name__)


class Connection(H11Protocol):
    """``places`` are the connections that may have to give way, in the order in which they came."""

    header_seconds: ClassVar[float]
    connections_max: ClassVar[int]
    places: ClassVar[OrderedDict[Connection, None]]
    told_at: ClassVar[float]
    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_max and not self._has_room():
            self._refuse(503, "too_many_connections", "the server has too many connections")
        else:
            self.places[self] = None
            self._wind_up()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            # Whoever reads the body has a clock of his own.
            self._halt()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Unless the next request stood behind this one already.
        if self.cycle.response_complete:
            self._wind_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._halt()
        self.places.pop(self, None)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "bad_request", "this is no HTTP request, or its headers are too large")

    # When all places are taken

    def _has_room(self) -> bool:
        """Made by the oldest connection of somebody unknown. Those that are known do not come up again."""
        while self.places:
            oldest, _ = self.places.popitem(last=False)
            if not oldest._is_known:
                self._tell()
                oldest._give_way()
                return True
        return False

    @property
    def _is_known(self) -> bool:
        """Also after the answer, until the next request: it may still be on its way."""
        return self.cycle is not None and bool(self.cycle.scope.get("state", {}).get("is_known"))

    def _give_way(self) -> None:
        """What it is told goes out at once or not at all: nobody waits for somebody who does not read."""
        self._refuse(503, "too_many_connections", "the server has too many connections, and this one is the oldest")
        if self.cycle is not None:
            # Whatever the request at work answers now is for nobody.
            self.cycle.disconnected = True
        self.transport.abort()

    def _tell(self) -> None:
        now, kind = self.loop.time(), type(self)
        if now >= kind.told_at + _TOLD_SECONDS:
            kind.told_at = now
            _log.warning("all %d connections are taken; the oldest ones of people who did not log in give way", self.connections_max)

    # The clock of a connection that has no request at work

    def _wind_up(self) -> None:
        self._halt()
        self._clock = self.loop.call_later(self.header_seconds, self._late)

    def _halt(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _late(self) -> None:
        if self.conn.trailing_data[0]:
            self._refuse(408, "timeout", "the headers did not arrive in time")
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        if self.transport.is_closing():
            return
        error = {"code": code, "message": message, "hint": None, "line": None, "column": None, "value": None}
        content = json.dumps({"error": error}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode()), (b"connection", b"close")]
        headers += [(b"retry-after", b"1")] if status == 503 else []
        # An answer that began already cannot become another one.
        with contextlib.suppress(h11.LocalProtocolError):
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def protocol(header_seconds: float, connections_max: int) -> type[Connection]:
    """Of one server: its places are its own."""
    own = {"header_seconds": header_seconds, "connections_max": connections_max, "places": OrderedDict(), "told_at": -_TOLD_SECONDS}
    return type("Connection", (Connection,), own)


def connections_max() -> int:
    """No more than half of the files that the process may open: the others are for Postgres, the lake and the jobs."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _CONNECTIONS_MAX if files == resource.RLIM_INFINITY else min(_CONNECTIONS_MAX, files // 2)
