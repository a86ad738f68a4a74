"""What a load answers when it does not go through. Nothing is recorded in either case, so the same label may be used again."""

from __future__ import annotations

from modak.errors import ModakError, Retry

VALUE_CHARS_MAX = 200


class LoadRejected(ModakError):
    """The batch is wrong, as a whole or in one row; ``line`` counts from 1. Correct it and load it under the same label."""

    code = "load_rejected"
    sqlstate = "22000"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        line: int | None = None,
        column: str | None = None,
        value: object = None,
        **facts: object,
    ) -> None:
        super().__init__(message, hint=hint, line=line, column=column, value=None if value is None else shown(value), **facts)
        self.line = line
        self.column = column
        self.value = value


class LabelInFlight(ModakError):
    """Another connection is applying this label right now; one of the two wins, and the other will see its result."""

    code = "label_in_flight"
    sqlstate = "55P03"
    retry = Retry.NOW


def shown(value: object) -> str:
    """A value as an error prints it: whole if it is short."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
