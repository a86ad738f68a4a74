"""What Postgres knew of a decoupled table's columns when they were made, for whoever attaches the table later. Pure.

Iceberg has one string for varchar(3), jsonb and interval. A node that took them for text would write what the others cannot read, so the
declared types, and the defaults, stand in a property of the Iceberg table. By field id: engines rename columns, add, drop and widen them.
NOT NULL is not among them, since Iceberg's own schema has it, and an engine may have taken it back there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modak.core.decoupled import DecoupledColumn, accepted, from_iceberg
from modak.core.type_map import PgType, base_of
from modak.errors import Problem

PROPERTY = "modak.columns"
# Every commit writes the table's metadata anew, this property included.
_DEFAULT_LENGTH_MAX = 1_000
_DEFAULTS_LENGTH_MAX = 50_000
_READ_LENGTH_MAX = 1_000_000

# Types as format_type writes them. What passes goes into a statement as it stands, and whoever writes to the lake can write the property.
_SPAN = r"year|month|day|hour|minute|second|year to month|day to (?:hour|minute|second)|hour to (?:minute|second)|minute to second"
_TYPE = re.compile(
    rf"interval(?: (?:{_SPAN}))?(?:\([0-6]\))?|numeric\(\d{{1,2}},\d{{1,2}}\)|(?:character varying|character)\(\d{{1,8}}\)|"
    r"(?:time|timestamp)(?:\([0-6]\))? with(?:out)? time zone|[a-z0-9]+(?: [a-z]+)?"
)
_DIGITS = re.compile(r"numeric\((\d+),(\d+)\)")

_TOKEN = re.compile(r"\s+|'(?:[^'\\]|'')*'|\d+(?:\.\d+)?(?:e[+-]?\d+)?|(?P<word>[a-z_][a-z0-9_]*)|::|\|\||[-+*/%(),.]", re.IGNORECASE)
# Values, types, and functions that tell the time or draw lots: the same on every node, and harmless to whoever inserts.
_VALUES = frozenset(("true", "false", "null", "current_timestamp", "current_date", "current_time", "localtimestamp", "localtime"))
_FUNCTIONS = frozenset(("current_user", "session_user", "at", "zone", "with", "without", "cast", "as", "pg_catalog", "now", "random")) | {
    *("clock_timestamp", "statement_timestamp", "transaction_timestamp", "gen_random_uuid", "date_trunc", "timezone")
}
_TYPES = frozenset(("boolean", "bool", "smallint", "integer", "int", "bigint", "int2", "int4", "int8", "real", "float", "float4")) | {
    *("float8", "double", "precision", "numeric", "decimal", "text", "character", "varying", "varchar", "char", "bpchar", "bytea", "uuid"),
    *("date", "time", "timestamp", "timestamptz", "interval", "json", "jsonb"),
}
_WORDS = _VALUES | _FUNCTIONS | _TYPES


@dataclass(frozen=True)
class Declared:
    """One column; None where nothing else was said than what Iceberg has anyway."""

    type: str | None = None
    default: str | None = None


def text_of(columns: Sequence[DecoupledColumn]) -> str | None:
    """The property's value; None if Iceberg's schema says everything. Bounded: defaults that are too long are left out."""
    said: dict[str, dict[str, str]] = {}
    room = _DEFAULTS_LENGTH_MAX
    for column in columns:
        usual = from_iceberg(column.lake.iceberg)
        entry = {} if not isinstance(usual, Problem) and usual["type"] == column.pg.display else {"type": column.pg.display}
        if column.default is not None and len(column.default) <= min(room, _DEFAULT_LENGTH_MAX):
            room -= len(column.default)
            entry["default"] = column.default
        if entry:
            said[str(column.field_id)] = entry
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")) if said else None


def with_column(text: str | None, column: DecoupledColumn) -> str | None:
    """The property's value with one more column; what it says of others stays as it is, whoever wrote it."""
    said = _object(text)
    more = json.loads(text_of([column]) or "{}")
    return json.dumps({**said, **more}, ensure_ascii=False, separators=(",", ":")) if said or more else None


def read(text: str | None) -> dict[int, Declared]:
    """By field id. What is not written as above is passed over: it may be of a later version, or of somebody else."""
    return {
        int(number): Declared(_text(entry, "type"), _text(entry, "default"))
        for number, entry in _object(text).items()
        if number.isascii() and number.isdigit() and len(number) <= 10 and isinstance(entry, dict)
    }


def _object(text: str | None) -> dict[str, Any]:
    if text is None or len(text) > _READ_LENGTH_MAX:
        return {}
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def _text(entry: Mapping[str, Any], name: str) -> str | None:
    found = entry.get(name)
    return found if isinstance(found, str) else None


def column_of(iceberg: str, declared: Declared | None) -> tuple[dict[str, Any] | Problem, list[str]]:
    """A column for Postgres, as ``from_iceberg`` has it with what was declared, and what could not be honoured, for people."""
    usual = from_iceberg(iceberg)
    if declared is None or isinstance(usual, Problem):
        return usual, []
    told: list[str] = []
    found = dict(usual)
    if declared.type is not None:
        known = named(declared.type)
        kept = accepted(known) if known is not None else None
        if known is None or kept is None or isinstance(kept, Problem):
            told.append(f"its type {declared.type[:100]} is not known here, and it is {usual['type']}")
        elif kept.iceberg == iceberg:
            found |= {"type": known.display, "base": known.base, "modifier": known.modifier}
        # Otherwise an engine has widened it since, and the lake's type is the truth.
    if declared.default is not None:
        if travels(declared.default):
            found["default"] = declared.default
        else:
            told.append(f"its default {declared.default[:100]} may mean something else here, and is left out")
    return found, told


def named(text: str) -> PgType | None:
    """A type by its name as format_type writes it; None for anything else. The modifier is known for numeric alone, which needs it."""
    if not _TYPE.fullmatch(text):
        return None
    digits = _DIGITS.fullmatch(text)
    modifier = ((int(digits[1]) << 16) | int(digits[2])) + 4 if digits else -1
    return PgType(text, base_of(text), modifier=modifier)


def travels(default: str) -> bool:
    """Whether a default is the same on every node, and can do nothing to whoever inserts: constants, the time, and a little more."""
    if len(default) > _DEFAULT_LENGTH_MAX or "--" in default or "/*" in default:
        return False
    place = depth = 0
    while place < len(default) and depth >= 0:
        token = _TOKEN.match(default, place)
        if token is None or (token["word"] and token["word"].lower() not in _WORDS):
            return False
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        place = token.end()
    return bool(default.strip()) and depth == 0
