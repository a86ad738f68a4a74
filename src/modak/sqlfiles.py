"""SQL lives in .sql files; Python calls it by name.

A folder ``sql/queries`` holds named queries, several to a file, each headed by ``-- name: verb_noun``, with ``%(name)s`` parameters.
A folder ``sql/templates`` holds one generated object per file, with ``{part}`` for identifiers and literals that psycopg quotes.
"""

from __future__ import annotations

import functools
import re
import secrets
from importlib import resources

from psycopg import sql

_HEAD = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def trusted(text: str) -> sql.SQL:
    """SQL text that ships with the program; never for text that holds anybody's input."""
    return sql.SQL(text)


class SqlFiles:
    """The .sql files of one package."""

    def __init__(self, package: str) -> None:
        self._root = resources.files(package).joinpath("sql")

    def text(self, *path: str) -> str:
        return self._root.joinpath(*path).read_text(encoding="utf-8")

    def folder(self, name: str) -> list[tuple[str, str]]:
        """(file name, text) of each .sql file of a folder, in name order."""
        entries = sorted((entry for entry in self._root.joinpath(name).iterdir()), key=lambda entry: entry.name)
        return [(entry.name, entry.read_text(encoding="utf-8")) for entry in entries if entry.name.endswith(".sql")]

    @functools.cached_property
    def queries(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for file_name, text in self.folder("queries"):
            parts = _HEAD.split(text)
            for name, body in zip(parts[1::2], parts[2::2], strict=True):
                if name in found:
                    raise ValueError(f"query {name} stands twice (second: {file_name})")
                found[name] = body.strip().rstrip(";")
        return found

    def query(self, name: str) -> sql.SQL:
        return trusted(self.queries[name])

    def template(self, name: str, **parts: sql.Composable) -> sql.Composed:
        """A function's body ends with a word that nobody can know before: a column may be called $body$, and what follows."""
        text = self.text("templates", f"{name}.sql").replace("$body$", f"$body_{secrets.token_hex(8)}$")
        return trusted(text).format(**parts)
