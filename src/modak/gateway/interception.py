"""Between the relay, which speaks the protocol for a client, and the lake, which answers some of its statements itself.

The relay asks about every SELECT; None means "Postgres answers this one". Whatever the lake cannot do exactly as Postgres does it, or
may not do for this client, is a None as well, so the relay never needs to know why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from modak.gateway.wire.messages import FieldDescription


@dataclass(frozen=True)
class Parameter:
    """A bound value as the client sent it: format 0 is text, 1 binary; ``oid`` is what Postgres inferred or the client said."""

    value: bytes | None
    format: int
    oid: int


@dataclass(frozen=True)
class Caller:
    """Somebody whose session is elsewhere: his role, the schemas his names are looked up in, and what he chose about mirrored tables."""

    role: str
    schemas: tuple[str, ...]
    reads: str = ""
    wait: str = ""


class ClientSession(Protocol):
    """The client's own authenticated Postgres session, idle between two of its messages.

    ``in_savepoint``: its transaction may be in one. ``exported`` is for us to keep a snapshot in that the transaction has exported, and
    forgotten by the session when the transaction is over. ``stands_for``: the session is not the client's but ours, with rights that he
    does not have: nothing may run there that he could have written, and who he is goes into questions as a value.
    """

    exported: str | None

    @property
    def stands_for(self) -> Caller | None: ...

    @property
    def in_savepoint(self) -> bool: ...

    @property
    def transaction_status(self) -> bytes:
        """``I`` outside a transaction, ``T`` inside, ``E`` inside a failed one."""
        ...

    def setting(self, name: str) -> str | None:
        """A ParameterStatus that Postgres reported: TimeZone, DateStyle, client_encoding, is_superuser, in_hot_standby, …"""
        ...

    def notify(self, text: str) -> None:
        """A notice for the client, to be sent before what comes next."""
        ...

    async def query(self, sql: str) -> list[tuple[str | None, ...]]:
        """Run SQL of our own in this session by the simple protocol; rows of the last result as text. Errors raise BackendError."""
        ...

    async def describe(self, sql: str, oids: Sequence[int]) -> tuple[tuple[int, ...], tuple[FieldDescription, ...]]:
        """Parse a statement there without running it: parameter types and result columns as Postgres sees them."""
        ...


class Answer(Protocol):
    """A result that is being computed; ``encoded`` is called on a worker thread and gives blocks of DataRow messages."""

    fields: Sequence[FieldDescription]

    def encoded(self, result_formats: Sequence[int], rows_max: int = 0) -> Iterator[memoryview]:
        """``rows_max`` 0 means all; the iterator may be continued by a later call where the limit stopped it."""
        ...

    @property
    def rows(self) -> int:
        """Rows given so far, for the command tag."""
        ...

    @property
    def exhausted(self) -> bool: ...

    def cancel(self) -> None:
        """Interrupt what runs; from any thread."""
        ...

    def close(self) -> None: ...


class Interceptor(Protocol):
    def candidate(self, sql: str) -> Any | None:
        """Quick and pure: the parsed statement if it is one SELECT that may be ours, else None."""
        ...

    async def answer(self, candidate: Any, session: ClientSession, parameters: Sequence[Parameter]) -> Answer | None:
        """Start answering at one pinned seam, or None to let Postgres do it. Raises what the client should see."""
        ...
