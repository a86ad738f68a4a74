"""A small gateway for the relay's tests: the real login and sessions, in a thread, with a lake that is easy to predict.

A SELECT with the word ``lake`` in a comment is the lake's: it counts from 1 to its first parameter (or ``rows=``) and says ``lake`` where
Postgres would say ``postgres``, so that a test sees who answered. Further words make it decline, fail, dawdle.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import conninfo

from modak.embedded.postgres import Cluster
from modak.errors import ModakError
from modak.gateway.channel import Channel, Disconnected
from modak.gateway.interception import ClientSession, Parameter
from modak.gateway.relay.backend import Backend
from modak.gateway.relay.login import login
from modak.gateway.relay.session import RelaySession
from modak.gateway.wire.messages import (
    PROTOCOL_3_0,
    CancelRequest,
    Decoder,
    ErrorFields,
    FieldDescription,
    Message,
    SSLRequest,
    StartupMessage,
    error_response,
    negotiation,
    parse_data_row,
    parse_error,
    parse_startup,
)
from modak.gateway.wire.rows import ColumnFormat, blocks

BATCH_ROWS = 1000
COLUMNS = "g as n, 'postgres' || g as who"


def counted(rows: str = "$1::int", words: str = "") -> str:
    """A statement of the lake's; Postgres understands it as well."""
    return f"select {COLUMNS} from generate_series(1, {rows}) g /* lake {words} */"


class Failed(ModakError):
    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message, hint="mend it's cause", place="the lake")
        self.sqlstate = sqlstate


@dataclass
class Candidate:
    sql: str
    words: str

    def number(self, name: str) -> int | None:
        found = re.search(rf"{name}=(\d+)", self.words)
        return int(found[1]) if found else None


@dataclass
class FakeAnswer:
    fields: Sequence[FieldDescription]
    total: int
    candidate: Candidate
    rows: int = 0
    closed: bool = False
    stopped: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)

    @property
    def exhausted(self) -> bool:
        return self.rows >= self.total

    def encoded(self, result_formats: Sequence[int], rows_max: int = 0) -> Iterator[memoryview]:
        assert len(result_formats) == len(self.fields)
        last = min(self.total, self.rows + rows_max) if rows_max else self.total
        self.started.set()
        if "slow" in self.candidate.words:
            assert self.stopped.wait(30)
        while self.rows < last:
            if self.stopped.is_set():
                raise RuntimeError("INTERRUPT Error: Interrupted!")
            if self.rows and self.rows == self.candidate.number("fail_after"):
                raise Failed("22012", "division by zero, lately")
            until = min(last, self.rows + BATCH_ROWS)
            numbers = range(self.rows + 1, until + 1)
            self.rows = until
            yield from self._blocks(numbers, result_formats)

    def _blocks(self, numbers: range, formats: Sequence[int]) -> Iterator[memoryview]:
        first = pa.array(numbers, pa.int32()) if formats[0] else pa.array([str(number) for number in numbers])
        batch = pa.record_batch([first, pa.array([f"lake{number}" for number in numbers])], ["n", "who"])
        kinds = ("no such type" if "unsupported" in self.candidate.words else "int4", "text")
        return blocks(batch, [ColumnFormat(kind if form else None) for kind, form in zip(kinds, formats, strict=True)])

    def cancel(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.closed = True


class FakeLake:
    """An Interceptor. It asks the client's session something on the way, as a real one does."""

    def __init__(self) -> None:
        self.answers: list[FakeAnswer] = []
        self.seen: list[tuple[str, bytes]] = []
        self.parameters: list[tuple[Parameter, ...]] = []

    def candidate(self, sql: str) -> Candidate | None:
        found = re.search(r"/\* lake (.*)\*/", sql)
        if found and "unreadable" in found[1]:
            raise ValueError("a fault of the lake's")
        return Candidate(sql, found[1]) if found and sql.startswith("select") else None

    async def answer(self, candidate: Candidate, session: ClientSession, parameters: Sequence[Parameter]) -> FakeAnswer | None:
        ((user,),) = await session.query("select current_user")
        assert user is not None
        self.seen.append((user, session.transaction_status))
        self.parameters.append(tuple(parameters))
        words = candidate.words
        if "sleep" in words:
            await session.query("select pg_sleep(30)")
        if "nap" in words:
            await session.query("select pg_sleep(0.3)")
        if "decline" in words:
            return None
        if "crash" in words:
            raise ZeroDivisionError("a fault of the lake's")
        if "missing" in words:
            await session.query("select * from no_such_table")
        if "fail" in words and "fail_after" not in words:
            raise Failed("22012", "division by zero isn't done here")
        oids, fields = await session.describe(candidate.sql, [parameter.oid for parameter in parameters])
        assert len(oids) == len(parameters)
        if "othertype" in words:
            fields = (FieldDescription("n", type_oid=20, type_size=8), fields[1])
        answer = FakeAnswer(fields, self._rows(candidate, parameters), candidate)
        self.answers.append(answer)
        return answer

    def _rows(self, candidate: Candidate, parameters: Sequence[Parameter]) -> int:
        named = candidate.number("rows")
        if named is not None or not parameters:
            return named or 0
        value, form = parameters[0].value, parameters[0].format
        assert value is not None
        return int.from_bytes(value, "big") if form else int(value)


class Gateway:
    """Start-up dispatch and nothing else; the server proper has tests of its own."""

    def __init__(self, dsn: str, lake: FakeLake | None, *, tls: ssl.SSLContext | None = None, trust: bool = False) -> None:
        self.dsn = dsn
        self.lake = lake
        self.sessions: dict[int, RelaySession] = {}
        self.backends: list[Backend] = []
        self._tls = tls
        self._trust = trust
        self._executor = ThreadPoolExecutor(4)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self.run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._tasks: set[asyncio.Task[Any]] = set()
        self.pid = 4000

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def conninfo(self, **changed: Any) -> str:
        return conninfo.make_conninfo(self.dsn, **({"host": "127.0.0.1", "port": self.port, "sslmode": "disable"} | changed))

    def connect(self, **changed: Any) -> psycopg.Connection[Any]:
        options = {name: changed.pop(name) for name in ("autocommit", "prepare_threshold", "row_factory") if name in changed}
        return psycopg.connect(self.conninfo(**changed), **options)

    def stop(self) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._executor.shutdown()

    async def _stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        channel = Channel(reader, writer, 16 << 20, startup=True)
        try:
            await self._serve(channel)
        except (Disconnected, asyncio.CancelledError):
            pass
        except ModakError as error:
            await channel.send(error_response(ErrorFields.of(error, severity="FATAL")))
        finally:
            self._tasks.discard(task)
            await channel.close()

    async def _serve(self, channel: Channel) -> None:
        encrypted = False
        while not isinstance(packet := parse_startup(await channel.receive()), StartupMessage):
            if isinstance(packet, CancelRequest):
                assert packet.secret == b"key!"
                await self.sessions[packet.pid].cancel()
                return
            encrypted = self._tls is not None and isinstance(packet, SSLRequest)
            await channel.send(b"S" if encrypted else b"N")
            channel.decoder.expect_startup(encrypted=encrypted)
            if encrypted and self._tls is not None:
                await channel.encrypt(self._tls)
        if declined := negotiation(packet):
            await channel.send(declined)
        self.pid += 1
        pid = self.pid
        backend = await login(channel, packet, self.dsn, pid, b"key!", encrypted=encrypted, trust=self._trust)
        self.backends.append(backend)
        self.sessions[pid] = RelaySession(channel, backend, self.lake, self._executor)
        await self.sessions[pid].run()


class Raw:
    """A client that says exactly what a test wants to say, which no driver does."""

    def __init__(self, port: int, user: str, **parameters: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._decoder = Decoder(1 << 30)
        self.send(StartupMessage(PROTOCOL_3_0, {"user": user, "database": "postgres", **parameters}))
        self.greeting = self.receive()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *messages: Any) -> None:
        self._socket.sendall(b"".join(message.encode() for message in messages))

    def one(self) -> Message:
        while (message := self._decoder.next()) is None:
            data = self._socket.recv(65536)
            if not data:
                return Message(b"", b"")  # the other side closed
            self._decoder.feed(data)
        return message

    def receive(self, until: bytes = b"Z") -> list[Message]:
        found = [self.one()]
        while found[-1].tag not in (b"", until):
            found.append(self.one())
        return found

    def ask(self, *messages: Any, until: bytes = b"Z") -> list[Message]:
        self.send(*messages)
        return self.receive(until)


def tags(messages: Sequence[Message]) -> str:
    """What came, in letters; settings that were reported on the side are left out."""
    return "".join(message.tag.decode() for message in messages if message.tag != b"S")


def cells(messages: Sequence[Message]) -> list[tuple[str, ...]]:
    rows = [parse_data_row(message) for message in messages if message.tag == b"D"]
    return [tuple((value or b"NULL").decode() for value in row) for row in rows]


def errors(messages: Sequence[Message]) -> list[str]:
    return [parse_error(message).sqlstate for message in messages if message.tag == b"E"]


@contextlib.contextmanager
def roles(cluster: Cluster) -> Iterator[None]:
    """``r_trust``, ``r_md5``, ``r_clear`` and ``r_scram``, for whom pg_hba.conf asks what the name says. Their password is ``secret``."""
    file = cluster.folder / "data" / "pg_hba.conf"
    before = file.read_text()
    methods = {"r_trust": "trust", "r_md5": "md5", "r_clear": "password", "r_scram": "scram-sha-256"}
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as connection:
        for role in methods:
            connection.execute(f"set password_encryption = '{'md5' if role == 'r_md5' else 'scram-sha-256'}'")
            connection.execute(f"create role {role} login password 'secret'")
        file.write_text("".join(f"host all {role} 127.0.0.1/32 {method}\n" for role, method in methods.items()) + before)
        try:
            _reload(connection, cluster)
            yield
        finally:
            file.write_text(before)
            connection.execute("select pg_reload_conf()")
            for role in methods:
                connection.execute(f"drop role {role}")


def _reload(connection: psycopg.Connection[Any], cluster: Cluster) -> None:
    connection.execute("select pg_reload_conf()")
    trusted = conninfo.make_conninfo(cluster.dsn("postgres"), user="r_trust", password="wrong")
    wait_for(lambda: psycopg.connect(trusted).close())


def wait_for(attempt: Callable[[], object], seconds: float = 60) -> None:
    """Until it neither raises nor is False."""
    end = time.monotonic() + seconds
    while True:
        try:
            if attempt() is not False:
                return
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)
