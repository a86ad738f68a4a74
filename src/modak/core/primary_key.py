"""The primary key as one text, so that a correction in ``modak.delta`` finds its row whatever the key is made of.

A key of one column is its Postgres text, untouched. A composite key is its parts joined with the unit separator; the
separator and the escape character are escaped inside parts, so no two keys share a text.
"""

from __future__ import annotations

from collections.abc import Sequence

from modak.errors import ValueRefused

SEPARATOR = chr(31)
ESCAPE = "\\"

# chr() in place of a quoted backslash reads the same whatever standard_conforming_strings says, and Postgres folds it.
_SQL_SEPARATOR = "chr(31)"
_SQL_ESCAPE = "chr(92)"


def encode(parts: Sequence[str | None]) -> str:
    """One text for the parts, in the order of the key's columns."""
    if isinstance(parts, str):
        raise TypeError("a primary key is a sequence of texts, one per column, not one text")
    texts = [part for part in parts if part is not None]
    if not texts or len(texts) < len(parts):
        raise ValueRefused("a primary key has at least one part and none is NULL", parts=len(parts))
    return texts[0] if len(texts) == 1 else SEPARATOR.join(map(_escape, texts))


def decode(text: str, count: int) -> tuple[str, ...]:
    """The parts of a key of ``count`` columns."""
    if count == 1:
        return (text,)
    parts = _split(text)
    if len(parts) != count:
        raise ValueRefused("an encoded primary key has the wrong number of parts", expected=count, found=len(parts), pk=repr(text))
    return tuple(parts)


def sql_expression(columns: Sequence[str], prefix: str = "") -> str:
    """SQL that encodes the key of a row in Postgres.

    ``columns`` are references that are quoted already, and ``prefix`` stands before each of them as it is (``new.``).
    The result is one operand: it can stand beside any operator. The text depends on the session for some types
    (TimeZone, DateStyle, bytea_output), so sessions that encode keys must pin those settings.
    """
    if isinstance(columns, str) or not columns:
        raise TypeError("a primary key expression needs a sequence of at least one column")
    # concat() takes the type's output function, as COPY and logical decoding do; a cast to text differs from it for some types
    # (true and t), and a user may have defined one that says anything.
    return join_texts([f"pg_catalog.concat({prefix}{column})" for column in columns])


def join_texts(texts: Sequence[str]) -> str:
    """SQL that encodes a key whose parts are texts already."""
    if len(texts) == 1:
        return texts[0]
    return f"({f' || {_SQL_SEPARATOR} || '.join(map(_sql_escape, texts))})"


def _escape(part: str) -> str:
    # The escape character goes first: the other order would escape the escapes of the separator.
    return part.replace(ESCAPE, ESCAPE + ESCAPE).replace(SEPARATOR, ESCAPE + SEPARATOR)


def _sql_escape(text: str) -> str:
    escaped = f"replace({text}, {_SQL_ESCAPE}, {_SQL_ESCAPE} || {_SQL_ESCAPE})"
    return f"replace({escaped}, {_SQL_SEPARATOR}, {_SQL_ESCAPE} || {_SQL_SEPARATOR})"


def _split(text: str) -> list[str]:
    parts = [""]
    characters = iter(text)
    for character in characters:
        if character == SEPARATOR:
            parts.append("")
        elif character == ESCAPE:
            parts[-1] += _escaped(next(characters, ""), text)
        else:
            parts[-1] += character
    return parts


def _escaped(character: str, text: str) -> str:
    if character not in (ESCAPE, SEPARATOR):
        raise ValueRefused("an encoded primary key holds an escape of nothing", pk=repr(text))
    return character
