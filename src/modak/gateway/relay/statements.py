"""The prepared statements and portals of a client, as far as the lake may have a part in them. Pure.

Postgres knows every statement, for each Parse goes there. Of the portals it knows those it executes itself: one that is bound to a
statement of the lake's stays here until it is executed, because only then is it decided who answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from modak.gateway.interception import Answer, Parameter
from modak.gateway.wire.messages import Bind, FieldDescription, Status, format_at


@dataclass(eq=False)
class Statement:
    """``candidate`` is None for one that is kept only to be sent again; ``fields`` until Postgres described it (again)."""

    name: bytes
    parse: bytes = field(repr=False)
    candidate: Any | None = None
    oids: tuple[int, ...] = ()
    fields: tuple[FieldDescription, ...] | None = None
    doubtful: bool = False

    def described(self, oids: tuple[int, ...]) -> None:
        self.oids = oids
        self.doubtful = False

    def takes(self, bind: Bind) -> bool:
        """Whether there is nothing wrong with it that Postgres should tell the client."""
        return (
            bool(self.fields)
            and len(bind.values) == len(self.oids)
            and (len(bind.result_formats) <= 1 or len(bind.result_formats) == len(self.fields or ()))
        )


@dataclass(eq=False)
class Portal:
    """``bind`` is the client's message, for Postgres if the lake does not want it. ``answer`` is None until it is first executed."""

    statement: Statement
    bound: Bind
    bind: bytes = field(repr=False)
    fields: tuple[FieldDescription, ...] = ()
    answer: Answer | None = None
    finished: bool = False

    @property
    def undecided(self) -> bool:
        return self.answer is None and not self.finished

    @property
    def formats(self) -> tuple[int, ...]:
        return tuple(format_at(self.bound.result_formats, index) for index in range(len(self.fields)))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        values = enumerate(zip(self.bound.values, self.statement.oids, strict=True))
        return tuple(Parameter(value, format_at(self.bound.formats, index), oid) for index, (value, oid) in values)


class Book:
    def __init__(self) -> None:
        self.portals: dict[bytes, Portal] = {}
        self.retired: list[Answer] = []
        """Answers that nobody will ask for again, to be closed by whoever may wait for that."""
        self._statements: dict[bytes, Statement] = {}
        self._coming: dict[bytes, Statement | None] = {}

    def statement(self, name: bytes) -> Statement | None:
        """As it will be once Postgres has worked off what was sent to it."""
        return self._coming[name] if name in self._coming else self._statements.get(name)

    def sent(self, name: bytes, statement: Statement | None) -> None:
        """A Parse, or with None a Close, is on its way."""
        self._coming[name] = statement

    def settled(self) -> None:
        """Nothing is on its way any more; what did not come about never will."""
        self._coming.clear()

    def parsed(self, name: bytes, statement: Statement | None) -> None:
        if statement is None:
            self._statements.pop(name, None)
        else:
            self._statements[name] = statement

    def forget(self, name: bytes) -> None:
        self._statements.pop(name, None)

    def undecided_of(self, name: bytes) -> list[bytes]:
        """Portals that still need the statement of this name in Postgres."""
        return [key for key, portal in self.portals.items() if portal.undecided and portal.statement.name == name]

    def drop(self, name: bytes) -> None:
        portal = self.portals.pop(name, None)
        if portal is not None and portal.answer is not None:
            self.retired.append(portal.answer)

    def ready(self, status: Status) -> None:
        """Portals end with their transaction. (In a failed one they may come back to life, by ROLLBACK TO SAVEPOINT.)"""
        if status == b"I":
            for name in list(self.portals):
                self.drop(name)

    def command(self, tag: str) -> None:
        """Statements may go by SQL too. Which one DEALLOCATE named is not in its tag, so all of them are looked at before the next use."""
        if tag in ("DEALLOCATE ALL", "DISCARD ALL"):
            self._statements = {name: kept for name, kept in self._statements.items() if name == b""}
        elif tag == "CLOSE CURSOR ALL":
            self.ready(b"I")
        elif tag == "DEALLOCATE":
            for statement in self._statements.values():
                statement.doubtful = statement.name != b""
        elif tag == "PREPARE":
            # It may have taken the name of one that went: then that name means something else now.
            self._statements = {name: kept for name, kept in self._statements.items() if not kept.doubtful}
