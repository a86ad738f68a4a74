"""What postgres_fdw says of a decoupled table beyond reading it, recognised by its text. Pure.

``iceberg."<table id>"`` is the table, ``a<field id>`` a column, ``ctid`` a row as this transaction numbers them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from modak.gateway.fdw.statements import NotUnderstood

_TABLE = r'iceberg\."(\d+)"'
_NAMED = re.compile(rf"\b{_TABLE}")
_ALIASED = re.compile(rf"\b{_TABLE} (r\d+)\b")
_LOCKS = re.compile(r"(?: FOR (?:UPDATE|SHARE)(?: OF r\d+)?)+\s*$")
_LOCKED = re.compile(r" FOR (?:UPDATE|SHARE)(?: OF (r\d+))?")
_ORDER = re.compile(r'\bFROM\s+modak\."order"')
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
_RETURNING = " RETURNING "
_INSERT = re.compile(rf"INSERT INTO {_TABLE}\(([^)]*)\)\s+VALUES\s+(\(.*)", re.S)
_DEFAULTS = re.compile(rf"INSERT INTO {_TABLE}\s+DEFAULT VALUES")
_UPDATE_ROW = re.compile(rf"UPDATE {_TABLE} SET (.*) WHERE ctid = \$1", re.S)  # noqa: S608
_DELETE_ROW = re.compile(rf"DELETE FROM {_TABLE} WHERE ctid = \$1")  # noqa: S608
_DIRECT = re.compile(rf"(UPDATE|DELETE FROM)\s+{_TABLE}(?:\s+(r\d+))?(?:\s|$)", re.S)
_TRUNCATE = re.compile(r"TRUNCATE\s+(.*?)\s+(?:CONTINUE|RESTART)\s+IDENTITY\s+(?:RESTRICT|CASCADE)", re.S)
# Rows are numbered within 48 bits, as Postgres numbers its own: a block and a place in it that is never 0.
PLACES = 32_768


@dataclass(frozen=True)
class Insert:
    table_id: int
    columns: tuple[int, ...]
    returning: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Values come, and a count is all that is wanted back."""
        return bool(self.columns) and not self.returning


@dataclass(frozen=True)
class UpdateRow:
    """New values of one row; the first parameter is its ctid, the others are these columns."""

    table_id: int
    columns: tuple[int, ...]
    returning: tuple[int, ...]


@dataclass(frozen=True)
class DeleteRow:
    table_id: int
    returning: tuple[int, ...]


@dataclass(frozen=True)
class Direct:
    """An UPDATE or DELETE of whatever meets its condition. ``body`` is its text without RETURNING, ``alias`` the target's, if any.

    ``returning`` are the expressions asked for, which may be of any of its tables.
    """

    kind: str
    table_id: int
    alias: str | None
    body: str
    returning: tuple[str, ...]


@dataclass(frozen=True)
class Truncate:
    table_ids: tuple[int, ...]


Write = Insert | UpdateRow | DeleteRow | Direct | Truncate


def concerns(sql: str) -> bool:
    return _NAMED.search(sql) is not None or is_order(sql)


def is_order(sql: str) -> bool:
    return _ORDER.search(sql) is not None


def tables_in(sql: str) -> tuple[int, ...]:
    """Every decoupled table that a text names, each once."""
    return tuple(dict.fromkeys(int(found) for found in _NAMED.findall(sql)))


def locked_in(sql: str) -> tuple[int, ...]:
    """The tables whose rows a SELECT locks: all that it names, or those that it says."""
    locks = sql[_locks_at(sql) :]
    if not locks:
        return ()
    aliases = _LOCKED.findall(locks)
    named = {found[1]: int(found[0]) for found in _ALIASED.findall(sql)}
    return tables_in(sql) if "" in aliases else tuple(dict.fromkeys(named[alias] for alias in aliases))


def without_locks(sql: str) -> str:
    return sql[: _locks_at(sql)]


def _locks_at(sql: str) -> int:
    """Where they begin, or the end. They stand behind all quotes: what looks like many of them inside of a text is not looked at."""
    found = _LOCKS.search(sql, max(sql.rfind("'"), sql.rfind('"')) + 1)
    return found.start() if found else len(sql)


def quoted_name(table_id: int) -> str:
    return f'iceberg."{table_id}"'


@functools.lru_cache(maxsize=64)
def parse_write(sql: str) -> Write:
    text = sql.strip()
    body, returning = _without_returning(text)
    body = body.removesuffix(" ON CONFLICT DO NOTHING")
    if match := _INSERT.fullmatch(body):
        return Insert(int(match[1]), _columns(match[2].split(",")), _columns(returning))
    if match := _DEFAULTS.fullmatch(body):
        return Insert(int(match[1]), (), _columns(returning))
    if match := _UPDATE_ROW.fullmatch(body):
        return UpdateRow(int(match[1]), _assigned(match[2]), _columns(returning))
    if match := _DELETE_ROW.fullmatch(body):
        return DeleteRow(int(match[1]), _columns(returning))
    if match := _TRUNCATE.fullmatch(body):
        return Truncate(tables_in(match[1]))
    if match := _DIRECT.match(body):
        alias = match[3] if match[3] and match[3] not in ("SET", "WHERE") else None
        return Direct(match[1].split()[0], int(match[2]), alias, body, returning)
    raise NotUnderstood(f"the gateway does not take this statement from Postgres: {text[:80]}", hint="write through the table's own name")


def _without_returning(text: str) -> tuple[str, tuple[str, ...]]:
    """A statement's text before RETURNING, and the expressions after it."""
    if _RETURNING not in text:
        return text, ()
    # Of the same length, so that places are the same: nothing in quotes is a word of the statement.
    bare = _QUOTED.sub(lambda found: "x" * len(found[0]), text)
    at = bare.rfind(_RETURNING)
    if at < 0:
        return text, ()
    items, depth, first = [], 0, at + len(_RETURNING)
    for place in range(first, len(bare)):
        depth += {"(": 1, ")": -1}.get(bare[place], 0)
        if bare[place] == "," and not depth:
            items.append(text[first:place].strip())
            first = place + 1
    return text[:at], (*items, text[first:].strip())


def _columns(names: Sequence[str]) -> tuple[int, ...]:
    return tuple(_field(name) for name in names)


def _assigned(text: str) -> tuple[int, ...]:
    """``a2 = $2, a3 = $3``: in order of the parameters, which begin after the ctid."""
    parts = [part.split("=") for part in text.split(",")]
    if [part[1].strip() for part in parts] != [f"${number}" for number in range(2, len(parts) + 2)]:
        raise NotUnderstood(f"an UPDATE of one row with more than its values: {text[:80]}", hint="write through the table's own name")
    return tuple(_field(part[0]) for part in parts)


def _field(name: str) -> int:
    match = re.fullmatch(r"a(\d+)", name.strip())
    if match is None:
        raise NotUnderstood(
            f"no column {name.strip()} in the lake", hint="columns of a decoupled table are made with it, not added by ALTER"
        )
    return int(match[1])


def row_number(ctid: str) -> int:
    match = re.fullmatch(r"\((\d+),(\d+)\)", ctid)
    if match is None:
        raise NotUnderstood("not the place of a row", hint="write through the table's own name")
    return int(match[1]) * PLACES + int(match[2]) - 1


def ctid_sql(rid: str) -> str:
    """The text of a row's ctid, for the engine."""
    return f"('(' || ({rid} // {PLACES}) || ',' || ({rid} % {PLACES} + 1) || ')')"
