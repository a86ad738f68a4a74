"""Names and texts inside SQL, for Postgres with standard strings and for DuckDB, which agree on both."""

from __future__ import annotations

from collections.abc import Sequence


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def string(text: str) -> str:
    """A string constant that knows no escapes besides the doubled quote."""
    return "'" + text.replace("'", "''") + "'"


def regclass(parts: Sequence[str]) -> str:
    """A relation's name as to_regclass reads it, as a string constant."""
    return string(".".join(map(quoted, parts)))
