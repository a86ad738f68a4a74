"""What the engine's errors mean to whoever waits for rows."""

from __future__ import annotations

import re

from modak.errors import LakeError, ModakError
from modak.gateway.dialect.errors import runtime_problem

_KIND = re.compile(r"(?:^|: )(INTERRUPT|Out of Memory|IO|HTTP|FATAL|INTERNAL|Could not set lock on file) Error: ")


class Cancelled(ModakError):
    """The client asked for it, or time ran out."""

    code = "query_canceled"
    sqlstate = "57014"


class EngineFailed(ModakError):
    """The engine gave up on a statement for reasons of its own."""

    code = "engine"
    sqlstate = "XX000"


class EngineOutOfMemory(ModakError):
    """The engine's memory limit was reached, and what may go to disk was there already."""

    code = "engine_memory"
    sqlstate = "53200"


class InFailedTransaction(ModakError):
    """COMMIT after an error that nobody went back behind."""

    code = "in_failed_transaction"
    sqlstate = "25P02"


class StatementFailed(ModakError):
    """An error that Postgres would have raised too, with its SQLSTATE."""

    code = "statement"

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


def known_failure(message: str, *, cancelled: bool = False) -> ModakError | None:
    """The engine's errors come as its own exceptions, or as Arrow's while rows are streamed; the text is the same.

    None: a limit or a fault of the engine's own, of which the caller makes what he can.
    """
    found = _KIND.search(message)
    kind = found[1] if found else ""
    if cancelled or kind == "INTERRUPT":
        return Cancelled("canceling statement due to user request")
    first = first_line(message)
    if kind == "Out of Memory":
        return EngineOutOfMemory(
            "the statement needs more memory than the gateway has", hint="ask for less at once, or give it more", engine=first
        )
    if kind in ("IO", "HTTP"):
        return LakeError("the lake's files cannot be read", hint="check the storage; `modak verify` shows what is there", engine=first)
    problem = runtime_problem(message)
    return StatementFailed(problem.sqlstate, problem.message) if problem.sqlstate is not None else None


def first_line(message: str) -> str:
    return message.split("\n", 1)[0]
