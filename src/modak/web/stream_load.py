"""``/api/load``: one batch per POST, and what is recorded of a label by GET."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from modak.core.table import Name
from modak.errors import ModakError, NotRegistered, UsageError
from modak.load import LabelInFlight, LoadRejected, LoadResult
from modak.load.files import ArrowFile, ArrowStream, ParquetRows
from modak.load.group import Batch, Loads, table_named
from modak.load.jsonl import JsonLines
from modak.load.request import RowFile, check_label
from modak.patience import Gone
from modak.web.bodies import Body, BodyLimits, receive
from modak.web.errors import Answer, busy, gone, internal, json_response, response_of
from modak.worker.metrics import Metrics

PREFIX = "/api/load/"
_log = logging.getLogger(__name__)
# What curl and others say when nobody told them is JSON lines as well.
KINDS: dict[str, Callable[[BinaryIO], RowFile]] = {
    "": JsonLines,
    "application/x-ndjson": JsonLines,
    "application/jsonl": JsonLines,
    "application/jsonlines": JsonLines,
    "application/json": JsonLines,
    "text/plain": JsonLines,
    "application/octet-stream": JsonLines,
    "application/x-www-form-urlencoded": JsonLines,
    "application/vnd.apache.parquet": ParquetRows,
    "application/vnd.apache.arrow.stream": ArrowStream,
    "application/vnd.apache.arrow.file": ArrowFile,
}


@dataclass
class StreamLoad:
    """The endpoint. At most ``loads_max`` requests are received, waiting or at work; the next ones are told to come back."""

    loads: Loads
    token: str = field(repr=False)
    metrics: Metrics
    folder: Path
    limits: BodyLimits = field(default_factory=BodyLimits)
    loads_max: int = 128
    _present: int = 0
    _receiving: set[asyncio.Task[object]] = field(default_factory=set)
    _stopping: bool = False

    async def __call__(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except Answer as answer:
            return answer.response()
        except ModakError as error:
            return response_of(error)
        except Gone:
            return gone().response()
        except Exception:  # noqa: BLE001 - never a stack trace for a client
            _log.exception("%s %s failed", request.method, request.url.path)
            return internal().response()

    def stop(self) -> None:
        """Bodies that are still on their way are not waited for; what is complete is applied."""
        self._stopping = True
        for task in self._receiving:
            task.cancel()

    async def _answer(self, request: Request) -> Response:
        parts = _segments(request)
        allowed = "POST" if len(parts) == 1 else "GET"
        # A batch for schema/table is no look-up of a label by the wrong method.
        is_bad = len(parts) > 2 or (len(parts) == 2 and request.method == "POST" and not _is_table(parts[0]))
        if request.method != allowed and not (is_bad and request.method == "POST"):
            raise Answer(
                405, "method_not_allowed", f"{request.method} is not for this address", hint=f"{allowed} is", headers={"Allow": allowed}
            )
        self._check_token(request)
        if is_bad:
            raise Answer(400, "bad_path", "the address has too many parts", hint=f"{PREFIX}schema.table, with %2F for a / in a name")
        table = table_named(parts[0])
        return await self._load(request, table) if len(parts) == 1 else await self._find(table, check_label(parts[1]))

    def _check_token(self, request: Request) -> None:
        given = request.headers.get("x-modak-token")
        if given is None:
            scheme, _, rest = request.headers.get("authorization", "").partition(" ")
            given = rest.strip() if scheme.lower() == "bearer" else ""
        # Starlette reads headers as Latin-1, which is bytes as they came.
        if not hmac.compare_digest(given.encode("latin-1"), self.token.encode()):
            hint = "send MODAK_LOAD_TOKEN's value as X-Modak-Token, or as Authorization: Bearer"
            raise Answer(401, "unauthorized", "the token is missing or wrong", hint=hint, headers={"WWW-Authenticate": "Bearer"})
        request.state.is_known = True

    async def _load(self, request: Request, table: Name) -> Response:
        label, kind = _label(request), _kind(request)
        if self._present >= self.loads_max:
            raise busy(429, "too_many_loads", f"{self.loads_max} loads are under way already")
        self._present += 1
        try:
            body = await self._receive(request)
            result = await self._apply(table, label, kind, body)
        finally:
            self._present -= 1
        return json_response(result.as_dict())

    async def _receive(self, request: Request) -> Body:
        task = asyncio.current_task()
        assert task is not None
        if self._stopping:
            raise _stopping()
        self._receiving.add(task)
        try:
            return await receive(request, self.limits, self.folder)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            task.uncancel()
            raise _stopping() from None
        finally:
            self._receiving.discard(task)

    async def _apply(self, table: Name, label: str, kind: Callable[[BinaryIO], RowFile], body: Body) -> LoadResult:
        try:
            answer = self.loads.submit(table, Batch(label, kind(body.file), body.size, body.lines))
        except BaseException:
            body.close()
            raise
        # Also when nobody waits for the answer any more: whoever reads the body has to be done with it.
        answer.add_done_callback(lambda _: body.close())
        try:
            result = await asyncio.wrap_future(answer)
        except LabelInFlight:
            self.metrics.loaded(table, "in_flight")
            raise
        except LoadRejected:
            self.metrics.loaded(table, "rejected")
            raise
        except NotRegistered:
            # Not counted: anybody could make up names.
            raise
        except Exception:
            self.metrics.loaded(table, "failed")
            raise
        self._count(table, result)
        return result

    def _count(self, table: Name, result: LoadResult) -> None:
        if result.replay:
            self.metrics.loaded(table, "replayed")
        else:
            self.metrics.loaded(table, result.state, hot=result.hot_rows, delta=result.delta_rows, spooled=result.spooled_rows)

    async def _find(self, table: Name, label: str) -> Response:
        found = await asyncio.wrap_future(self.loads.find(table, label))
        if found is None:
            raise Answer(404, "unknown_label", f"nothing is recorded of label {label!r} of {table}", hint="it was never applied: load it")
        return json_response(found.as_dict())


def _stopping() -> Answer:
    return busy(503, "stopping", "the server is stopping; the batch was not applied", hint="load the same label again")


def _segments(request: Request) -> list[str]:
    """The parts of the address behind the prefix; a / inside of a part is written %2F."""
    raw = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.decode("ascii", "replace")
    return [unquote(part, errors="replace") for part in path.removeprefix(PREFIX).split("/")]


def _is_table(text: str) -> bool:
    try:
        table_named(text)
    except UsageError:
        return False
    return True


def _label(request: Request) -> str:
    """In UTF-8, as bytes of a header may be."""
    given = request.headers.get("x-modak-label")
    if given is None:
        raise LoadRejected("a load needs a label", hint="send it as X-Modak-Label, such as orders-topic-3-offset-91100")
    try:
        return check_label(given.encode("latin-1").decode())
    except UnicodeDecodeError:
        raise LoadRejected("the label is not UTF-8", hint="plain letters and digits are the safest") from None


def _kind(request: Request) -> Callable[[BinaryIO], RowFile]:
    given = request.headers.get("content-type", "")
    media, *parameters = (part.strip().lower() for part in given.split(";"))
    charset = next((one.removeprefix("charset=").strip('"') for one in parameters if one.startswith("charset=")), "utf-8")
    if media not in KINDS or charset not in ("utf-8", "utf8", "us-ascii"):
        hint = "application/x-ndjson in UTF-8, application/vnd.apache.parquet, or application/vnd.apache.arrow.stream"
        raise Answer(415, "unsupported_type", f"content type {given[:80]!r} is not known", hint=hint)
    return KINDS[media]
