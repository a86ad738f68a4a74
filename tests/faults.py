"""A proxy between Modak and an HTTP server, which is down, slow or wrong when a test says so."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.ports import free_ports

_HOP = {"connection", "keep-alive", "transfer-encoding", "expect"}
_ERROR = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>injected</Message></Error>"
_JSON_ERROR = b'{"error": {"message": "injected", "type": "Injected", "code": %d}}'


@dataclass
class Fault:
    """What happens to requests of this method and path. ``lost``: done by the server, and the answer never comes; ``twice``: sent again, as
    a proxy that lost the first answer does; ``late``: answered with 504, and sent when ``arrive`` says so."""

    method: str = ".*"
    path: str = ".*"
    status: int | None = None
    lost: bool = False
    twice: bool = False
    late: bool = False
    seconds: float = 0.0
    times: int = 1_000_000
    met: int = 0
    waiting: list[Callable[[], object]] = field(default_factory=list)

    def arrive(self) -> None:
        """What came late is done by the server now."""
        while self.waiting:
            self.waiting.pop(0)()

    def takes(self, method: str, path: str) -> bool:
        if self.met >= self.times or not re.fullmatch(self.method, method) or not re.search(self.path, path):
            return False
        self.met += 1
        return True


@dataclass
class FaultProxy:
    upstream: str
    port: int = field(default_factory=lambda: free_ports(1)[0])
    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    _server: http.server.ThreadingHTTPServer | None = None
    _clients: set[socket.socket] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def failing(self, **fault: object) -> Iterator[Fault]:
        made = Fault(**fault)  # type: ignore[arg-type]
        self.faults.append(made)
        try:
            yield made
        finally:
            self.faults.remove(made)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Nobody listens, and whoever was connected is cut off."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def start(self) -> None:
        proxy = self

        class Handler(_Handler):
            of = proxy

        http.server.ThreadingHTTPServer.allow_reuse_address = True
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for client in list(self._clients):
            _cut(client)


def _cut(client: socket.socket) -> None:
    """With a reset, as a server that dies does."""
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.shutdown(socket.SHUT_RDWR)
        client.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    of: FaultProxy
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.of._clients.add(self.request)

    def finish(self) -> None:
        self.of._clients.discard(self.request)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *_: object) -> None:
        return

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def _serve(self) -> None:
        self.of.seen.append((self.command, self.path))
        body = self._body()
        fault = next((one for one in self.of.faults if one.takes(self.command, self.path)), None)
        if fault is not None:
            time.sleep(fault.seconds)
        if fault is not None and fault.status is not None:
            json = "/v1/" in self.path
            self._answer(fault.status, [], _JSON_ERROR % fault.status if json else _ERROR)
            return
        # A handler serves one request after the other: what is sent later has to be known by then.
        command, path, given = self.command, self.path, self.headers.items()
        if fault is not None and fault.late:
            fault.waiting.append(lambda: self._forward(command, path, given, body))
            self._answer(504, [], _JSON_ERROR % 504)
            return
        status, headers, content = self._forward(command, path, given, body)
        if fault is not None and fault.twice:
            status, headers, content = self._forward(command, path, given, body)
        if fault is not None and fault.lost:
            self.close_connection = True
            _cut(self.request)
            return
        self._answer(status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _forward(self, command: str, path: str, given: Sequence[tuple[str, str]], body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        host = urlsplit(self.of.upstream)
        upstream = http.client.HTTPConnection(host.hostname or "", host.port, timeout=60)
        with contextlib.closing(upstream):
            # As they came, the host too: the signature covers them.
            upstream.putrequest(command, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given:
                if name.lower() not in _HOP | {"content-length"}:
                    upstream.putheader(name, value)
            if body or any(name.lower() == "content-length" for name, _ in given):
                upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body or None)
            response = upstream.getresponse()
            return response.status, response.getheaders(), response.read()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        length = {name.lower(): value for name, value in headers}.get("content-length")
        for name, value in headers:
            if name.lower() not in _HOP | {"content-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextlib.contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(upstream)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
