"""What postgres_fdw says, recognised by its text. Pure.

Its vocabulary is small and fixed (contrib/postgres_fdw of Postgres 15 to 18); whatever is not in it is an error, not a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from modak.errors import ModakError


class NotUnderstood(ModakError):
    """A statement that no postgres_fdw sends."""

    code = "not_understood"
    sqlstate = "0A000"


# Those that postgres_fdw hands over: functions of Postgres's own that give sets, and the same sets whenever they are called.
_SETS = (
    r"generate_series|generate_subscripts|jsonb?_(?:array_elements|each)(?:_text)?|jsonb?_object_keys|jsonb_path_query|regexp_matches|"
    r"regexp_split_to_table|string_to_table|ts_parse|ts_token_type|(?:txid|pg)_snapshot_xip|unnest"
)
_ORDERED_BY_SETS = re.compile(rf" ORDER BY (?:(?! ORDER BY ).)*\b(?:{_SETS})\(", re.S)


@dataclass(frozen=True)
class Simple:
    """Transaction control and settings: a command tag is all the answer. ``savepoint`` is the one that is made, kept or gone back to."""

    tag: str
    status: Literal[b"I", b"T"] | None = None  # the transaction status afterwards, where it changes
    savepoint: str | None = None
    is_serializable: bool = False  # it begins such a transaction


@dataclass(frozen=True)
class Declare:
    cursor: str
    sql: str


@dataclass(frozen=True)
class Fetch:
    cursor: str
    count: int


@dataclass(frozen=True)
class Rewind:
    cursor: str


@dataclass(frozen=True)
class CloseCursor:
    cursor: str


@dataclass(frozen=True)
class Explain:
    sql: str


@dataclass(frozen=True)
class RelationPages:
    """ANALYZE wants to know how large the table is."""

    relation: str


@dataclass(frozen=True)
class RelationFacts:
    """ANALYZE wants rows and kind, to choose how to sample (Postgres 16 and later)."""

    relation: str


@dataclass(frozen=True)
class Select:
    sql: str


Statement = Simple | Declare | Fetch | Rewind | CloseCursor | Explain | RelationPages | RelationFacts | Select

_CURSOR = r'"?([A-Za-z_][A-Za-z0-9_]*)"?'
_SIMPLE: list[tuple[re.Pattern[str], Simple]] = [
    (re.compile(r"SET\s+\w+.*", re.I | re.S), Simple("SET")),
    (
        re.compile(r"START\s+TRANSACTION\s+ISOLATION\s+LEVEL\s+SERIALIZABLE\b.*", re.I | re.S),
        Simple("START TRANSACTION", b"T", is_serializable=True),
    ),
    (re.compile(r"(START\s+TRANSACTION|BEGIN)\b.*", re.I | re.S), Simple("START TRANSACTION", b"T")),
    (re.compile(r"COMMIT\b.*", re.I | re.S), Simple("COMMIT", b"I")),
    (re.compile(r"(ABORT(\s+TRANSACTION)?|ROLLBACK(\s+TRANSACTION)?)", re.I), Simple("ROLLBACK", b"I")),
    (re.compile(r"SAVEPOINT\s+(?P<savepoint>\w+)", re.I), Simple("SAVEPOINT")),
    (re.compile(r"RELEASE(\s+SAVEPOINT)?\s+(?P<savepoint>\w+)", re.I), Simple("RELEASE")),
    (re.compile(r"ROLLBACK\s+TO(\s+SAVEPOINT)?\s+(?P<savepoint>\w+)", re.I), Simple("ROLLBACK", b"T")),
    (re.compile(r"DEALLOCATE\b.*", re.I | re.S), Simple("DEALLOCATE")),
    (re.compile(r"DISCARD\s+ALL", re.I), Simple("DISCARD ALL")),
]
_DECLARE = re.compile(rf"DECLARE\s+{_CURSOR}\s+(?:NO\s+SCROLL\s+|SCROLL\s+)?CURSOR\s+(?:WITH(?:OUT)?\s+HOLD\s+)?FOR\s+(.*)", re.I | re.S)
_FETCH = re.compile(rf"FETCH\s+(\d+)\s+FROM\s+{_CURSOR}", re.I)
_REWIND = re.compile(rf"MOVE\s+BACKWARD\s+ALL\s+(?:IN|FROM)\s+{_CURSOR}", re.I)
_CLOSE = re.compile(rf"CLOSE\s+{_CURSOR}", re.I)
_EXPLAIN = re.compile(r"EXPLAIN\s+(.*)", re.I | re.S)
_PAGES = re.compile(r"SELECT\s+pg_catalog\.pg_relation_size\('((?:[^']|'')*)'::pg_catalog\.regclass\)\s*/\s*\d+", re.I)
_FACTS = re.compile(
    r"SELECT\s+reltuples(?:,\s*relkind)?\s+FROM\s+pg_catalog\.pg_class\s+WHERE\s+oid\s*=\s*'((?:[^']|'')*)'::pg_catalog\.regclass", re.I
)


def is_ordered_by_sets(select: str) -> bool:
    """Rows in the order of what they become several of: no answer to this is of any use, though postgres_fdw may ask for one."""
    return _ORDERED_BY_SETS.search(select) is not None


def parse(sql: str) -> Statement:
    text = sql.strip().rstrip(";").strip()
    for pattern, found in _SIMPLE:
        if match := pattern.fullmatch(text):
            return replace(found, savepoint=match["savepoint"]) if "savepoint" in pattern.groupindex else found
    if match := _FETCH.fullmatch(text):
        return Fetch(match[2], int(match[1]))
    if match := _DECLARE.fullmatch(text):
        return Declare(match[1], match[2])
    if match := _CLOSE.fullmatch(text):
        return CloseCursor(match[1])
    if match := _REWIND.fullmatch(text):
        return Rewind(match[1])
    if match := _EXPLAIN.fullmatch(text):
        return Explain(match[1])
    if match := _PAGES.fullmatch(text):
        return RelationPages(match[1].replace("''", "'"))
    if match := _FACTS.fullmatch(text):
        return RelationFacts(match[1].replace("''", "'"))
    if re.match(r"SELECT\b", text, re.I):
        return Select(text)
    raise NotUnderstood(
        f"the gateway does not take this statement from Postgres: {text[:80]}",
        hint="write through the registered name; the cold side's foreign tables are read-only",
    )


def split(sql: str) -> Iterator[str]:
    """The statements of one message. Only transaction control comes in company, and holds no quotes."""
    if re.match(r"\s*(ROLLBACK|ABORT|RELEASE|SAVEPOINT|COMMIT|SET|START|BEGIN|CLOSE|DEALLOCATE)\b", sql, re.I) and "'" not in sql:
        yield from (part for part in sql.split(";") if part.strip())
    else:
        yield sql


@dataclass(frozen=True)
class RemoteName:
    """What a foreign table stands for: a table, the build of its cold side, and a range of tier keys."""

    table_id: int
    build: int
    lower: int
    upper: int

    @classmethod
    def parse(cls, schema: str | None, table: str) -> RemoteName:
        match = re.fullmatch(r"(\d+):(-?\d+):(-?\d+)", table)
        if schema is None or not schema.isdigit() or match is None:
            raise NotUnderstood(f"no cold table {schema}.{table}", hint="foreign tables on this server are Modak's own")
        return cls(int(schema), int(match[1]), int(match[2]), int(match[3]))

    @classmethod
    def parse_quoted(cls, relation: str) -> RemoteName:
        """From ``"16402"."1:0:200"`` as it stands in a regclass."""
        parts = re.findall(r'"((?:[^"]|"")*)"', relation)
        return cls.parse(*parts) if len(parts) == 2 else cls.parse(None, relation)
