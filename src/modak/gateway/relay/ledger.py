"""What was sent to Postgres since the last Sync, what it still owes for it, and what kind of transaction that makes. Pure."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from modak.gateway.relay.statements import Statement
from modak.gateway.wire.messages import Status


class Kind(enum.Enum):
    """A request to Postgres, by what it is answered with."""

    PARSE = "parse"
    BIND = "bind"
    DESCRIBE_STATEMENT = "describe statement"
    DESCRIBE_PORTAL = "describe portal"
    EXECUTE = "execute"
    CLOSE_STATEMENT = "close statement"
    CLOSE_PORTAL = "close portal"
    SYNC = "sync"
    QUERY = "query"  # a function call too: whatever comes, ReadyForQuery is the last


_ENDS: Final[Mapping[Kind, frozenset[bytes]]] = {
    Kind.PARSE: frozenset({b"1"}),
    Kind.BIND: frozenset({b"2"}),
    Kind.DESCRIBE_STATEMENT: frozenset({b"T", b"n"}),
    Kind.DESCRIBE_PORTAL: frozenset({b"T", b"n"}),
    Kind.EXECUTE: frozenset({b"C", b"I", b"s"}),
    Kind.CLOSE_STATEMENT: frozenset({b"3"}),
    Kind.CLOSE_PORTAL: frozenset({b"3"}),
    Kind.SYNC: frozenset({b"Z"}),
    Kind.QUERY: frozenset({b"Z"}),
}
# Messages that may come at any time and answer nothing: notices, changed settings, notifications.
ASIDES: Final = frozenset({b"N", b"S", b"A"})

_BEGIN: Final = frozenset({"BEGIN", "START TRANSACTION"})
_END: Final = frozenset({"COMMIT", "ROLLBACK", "PREPARE TRANSACTION"})


@dataclass(frozen=True)
class Request:
    """``silent`` ones are the gateway's own: the client hears of them only if they fail."""

    kind: Kind
    name: bytes = b""
    statement: Statement | None = None
    silent: bool = False


class Ledger:
    def __init__(self, status: Status = b"I") -> None:
        self._owed: deque[Request] = deque()
        self.skipping = False
        """An error happened: whatever the client sends up to its next Sync is to be ignored."""
        self.copying = False
        """Postgres takes CopyData from the client now."""
        self.open = False
        """Something of the extended protocol was sent since the last Sync."""
        self._effects = False
        self._block = status != b"I"

    @property
    def head(self) -> Request | None:
        return self._owed[0] if self._owed else None

    @property
    def owes(self) -> bool:
        return bool(self._owed)

    @property
    def needs_flush(self) -> bool:
        """Whether Postgres might sit on its last answers."""
        return bool(self._owed) and self._owed[-1].kind not in (Kind.SYNC, Kind.QUERY)

    @property
    def interruptible(self) -> bool:
        """Whether a Sync of our own would change nothing for the client; asked when nothing is owed.

        Inside a transaction block it does not. Outside, it would commit what ran before it and drop the portals.
        """
        return self._block or not self._effects

    @property
    def at_stake(self) -> bool:
        """Whether an error of ours must be Postgres's error too, for there is a transaction that has to fail of it."""
        return self.open and (self._block or self._effects)

    def sent(self, request: Request) -> None:
        self._owed.append(request)
        self.open = self.open or request.kind is not Kind.QUERY
        self._effects = self._effects or request.kind in (Kind.BIND, Kind.EXECUTE)

    def reply(self, tag: bytes) -> None:
        """Postgres sent this; ``head`` is then what the next message answers."""
        head = self.head
        if tag in ASIDES:
            return
        if tag == b"E":
            self._failed(head)
        elif tag == b"G":
            self._copy_in(head)
        elif head is not None and tag in _ENDS[head.kind]:
            self._owed.popleft()
            self.copying = False
        elif tag == b"Z":
            self.skipping = self.copying = False  # a Sync that we thought Postgres would overlook

    def ready(self, status: Status) -> None:
        self.open = self._effects = False
        self._block = status != b"I"

    def command(self, tag: str) -> None:
        if tag in _BEGIN:
            self._block = True
        elif tag in _END:
            self._block = False  # or perhaps not (AND CHAIN, TO SAVEPOINT), but then this errs on the safe side

    def _failed(self, head: Request | None) -> None:
        self.copying = False
        if head is None or head.kind in (Kind.QUERY, Kind.SYNC):
            return  # ReadyForQuery follows
        while self._owed and self._owed[0].kind is not Kind.SYNC:
            self._owed.popleft()
        # A Sync of our own brings Postgres round, but the client does not know of it.
        self.skipping = not self._owed or self._owed[0].silent

    def _copy_in(self, head: Request | None) -> None:
        self.copying = True
        # libpq sends its Sync before it knows that a COPY begins, and again at the end; Postgres overlooks the first.
        while head is not None and head.kind is Kind.EXECUTE and len(self._owed) > 1 and self._owed[1].kind is Kind.SYNC:
            del self._owed[1]
