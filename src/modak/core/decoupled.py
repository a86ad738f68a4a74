"""Decoupled tables as plain data: columns, partitioning, and which types they take. Pure.

``modak.create_iceberg_table`` checks the same in SQL, before it asks anything of the lake; here it is checked again, because what comes
over a connection is only text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from modak.core.table import Name, quoted
from modak.core.type_map import LakeType, PgType, is_plain, lake_type, numeric_display
from modak.errors import Problem, Refused

TYPES = (
    "smallint, integer, bigint, real, double precision, boolean, numeric(p,s) up to 38 digits, text, varchar(n), char(n), bytea, uuid, "
    "date, time, timestamp, timestamptz, interval, json, jsonb"
)
_BASES = frozenset(
    ("bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar", "bpchar", "bytea", "uuid", "date", "time")
) | {"timestamp", "timestamptz", "interval", "json", "jsonb"}

# What Iceberg's own types become in Postgres, for tables that other engines made. The others are nested, or Postgres has none like them.
_FROM_ICEBERG: Mapping[str, tuple[str, str]] = {
    "boolean": ("boolean", "bool"),
    "int": ("integer", "int4"),
    "long": ("bigint", "int8"),
    "float": ("real", "float4"),
    "double": ("double precision", "float8"),
    "date": ("date", "date"),
    "time": ("time without time zone", "time"),
    "timestamp": ("timestamp without time zone", "timestamp"),
    "timestamptz": ("timestamp with time zone", "timestamptz"),
    "string": ("text", "text"),
    "uuid": ("uuid", "uuid"),
    "binary": ("bytea", "bytea"),
}
_DUCKDB = {"time": "TIME", "fixed": "BLOB"}

_TRANSFORM = re.compile(r"([a-zA-Z]+)\s*+\((.*)\)", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,10}")
_TIME_TRANSFORMS = ("year", "month", "day", "hour")
_WITH_NUMBER = ("bucket", "truncate")
TRANSFORMS = "a column, or identity, year, month, day, hour, bucket(n, …), truncate(n, …) of one"
# Equal values of these have several texts, or are not compared as their text is: files must not be told apart by it.
_NO_PARTITION = frozenset(("float4", "float8", "json", "jsonb", "interval", "bytea"))
_NUMBER_MAX = 2**31 - 1


@dataclass(frozen=True)
class PartitionField:
    """One field of an Iceberg partition spec; ``number`` is the count of buckets or the width."""

    transform: str
    column: str
    number: int | None = None

    @classmethod
    def parse(cls, text: str) -> PartitionField:
        """``day(at)``, ``bucket(16, id)`` and also ``bucket(id, 16)``; anything without parentheses is a column's name."""
        match = _TRANSFORM.fullmatch(text.strip())
        if match is None:
            return cls("identity", _unquoted(text.strip()))
        word, inside = match[1].lower(), match[2].strip()
        if word in _WITH_NUMBER:
            return cls._with_number(word, inside, text)
        if word not in ("identity", *_TIME_TRANSFORMS):
            raise Refused(f"there is no partition transform {word!r} in {text!r}", hint=f"possible: {TRANSFORMS}")
        return cls(word, _unquoted(inside))

    @classmethod
    def _with_number(cls, word: str, inside: str, text: str) -> PartitionField:
        before, _, after = inside.partition(",")
        number, column = before.strip(), after.strip()
        if not _NUMBER.fullmatch(number):
            before, _, after = inside.rpartition(",")
            number, column = after.strip(), before.strip()
        if not _NUMBER.fullmatch(number) or not column:
            raise Refused(f"{word} in {text!r} wants a number and a column", hint=f"for example {word}(16, id)")
        if not 1 <= int(number) <= _NUMBER_MAX:
            raise Refused(f"the number of {word} in {text!r} is not between 1 and {_NUMBER_MAX}")
        return cls(word, _unquoted(column), int(number))

    def __str__(self) -> str:
        column = quoted(self.column)
        if self.transform == "identity":
            return column
        return f"{self.transform}({column})" if self.number is None else f"{self.transform}({self.number}, {column})"


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text.startswith('"') and text.endswith('"'):
        return text[1:-1].replace('""', '"')
    return text


@dataclass(frozen=True)
class DecoupledColumn:
    """A column of the foreign table and of the Iceberg table; ``required`` is what the gateway enforces, as Postgres does not."""

    name: str
    pg: PgType
    lake: LakeType
    field_id: int
    required: bool = False
    comment: str | None = None
    default: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> DecoupledColumn:
        pg = PgType(str(given["type"]), str(given["base"]), modifier=int(given.get("modifier", -1)))
        kept = given.get("lake")
        found = accepted(pg) if kept is None else replace(_kept(pg), iceberg=str(kept), duckdb=_DUCKDB.get(str(kept).split("[")[0], "BLOB"))
        if isinstance(found, Problem):
            raise Refused(f"column {given['name']}: {found.message}", hint=found.hint)
        comment, default = given.get("comment"), given.get("default")
        return cls(str(given["name"]), pg, found, int(given["field_id"]), bool(given.get("required")), comment, default)

    def as_json(self) -> dict[str, Any]:
        usual = accepted(self.pg)
        unusual = {"lake": self.lake.iceberg} if isinstance(usual, Problem) or usual.iceberg != self.lake.iceberg else {}
        return {
            "name": self.name,
            "type": self.pg.display,
            "base": self.pg.base,
            "modifier": self.pg.modifier,
            "field_id": self.field_id,
            "required": self.required,
            "comment": self.comment,
            "default": self.default,
            **unusual,
        }


@dataclass(frozen=True)
class Definition:
    """One decoupled table. ``uuid`` is the Iceberg table that was attached; None for one that was made here."""

    table_id: int
    name: Name
    ref: str
    profile: str
    columns: tuple[DecoupledColumn, ...]
    partition_by: tuple[PartitionField, ...] = ()
    is_attached: bool = False
    uuid: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Definition:
        """From an order's request or a row of the catalog; what does not fit together is refused."""
        definition = cls(
            table_id=int(given["table_id"]),
            name=Name(str(given["schema"]), str(given["name"])),
            ref=str(given["ref"]),
            profile=str(given["profile"]),
            columns=tuple(DecoupledColumn.parse(column) for column in given["columns"]),
            partition_by=tuple(PartitionField.parse(text) for text in given.get("partition_by") or ()),
            is_attached=bool(given.get("is_attached")),
            uuid=given.get("uuid"),
        )
        problems = [] if definition.is_attached else [*column_problems(definition.columns), *partition_problems(definition)]
        if problems:
            raise Refused(f"table {definition.name} cannot be made", problems, hint="nothing was changed")
        return definition

    def as_json(self) -> dict[str, Any]:
        return {
            "table_id": self.table_id,
            "schema": self.name.schema,
            "name": self.name.name,
            "ref": self.ref,
            "profile": self.profile,
            "columns": [column.as_json() for column in self.columns],
            "partition_by": [str(field) for field in self.partition_by],
            "is_attached": self.is_attached,
            **({"uuid": self.uuid} if self.uuid is not None else {}),
        }

    @property
    def field_ids(self) -> tuple[int, ...]:
        """The lake's numbers of the columns, in their order."""
        return tuple(column.field_id for column in self.columns)

    def column(self, name: str) -> DecoupledColumn | None:
        return next((column for column in self.columns if column.name == name), None)


def accepted(pg: PgType) -> LakeType | Problem:
    """How a decoupled table keeps a type; one that the lake keeps only as text is refused, where no heap has the value itself."""
    if not is_plain(pg) or pg.kind != "b" or pg.base not in _BASES:
        return Problem("type", f"type {pg.display} has no exact form in Iceberg", f"accepted: {TYPES}")
    if pg.base == "numeric" and numeric_display(pg.modifier) is None:
        return Problem("type", "numeric without digits has no bounded form in Iceberg", "declare it, for example numeric(20,4)")
    kept = lake_type(pg)
    if isinstance(kept, Problem) or (kept.as_text and pg.base == "numeric"):
        return Problem("type", f"type {pg.display} does not fit an Iceberg decimal", "up to 38 digits, and a scale between 0 and that")
    return kept


def _kept(pg: PgType) -> LakeType:
    found = accepted(pg)
    if isinstance(found, Problem):
        raise Refused(found.message, hint=found.hint)
    return found


def from_iceberg(kind: str) -> dict[str, Any] | Problem:
    """The Postgres type of an Iceberg column: type, base, modifier, and lake where it is not how we would keep that type."""
    decimal = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind)
    if decimal:
        digits, scale = int(decimal[1]), int(decimal[2])
        return {"type": f"numeric({digits},{scale})", "base": "numeric", "modifier": ((digits << 16) | scale) + 4}
    if kind.startswith("fixed["):
        return {"type": "bytea", "base": "bytea", "modifier": -1, "lake": kind}
    found = _FROM_ICEBERG.get(kind)
    if found is None:
        return Problem("type", f"Iceberg type {kind} has no plain type in Postgres", "read it with another engine, or leave the column out")
    return {"type": found[0], "base": found[1], "modifier": -1, **({"lake": kind} if kind == "time" else {})}


def differences(wanted: Definition, found: Definition) -> list[str]:
    """In what two tables differ that are to be one: columns in their order, and partitions. Defaults and comments are each node's own."""
    told = []
    for mine, theirs in itertools.zip_longest(wanted.columns, found.columns):
        if mine is None or theirs is None or mine.name != theirs.name:
            told.append(f"column {theirs.name if theirs else mine.name} is {'not wanted here' if theirs else 'not there'}")
            break
        kinds = [(one.pg.display, one.required, one.field_id) for one in (mine, theirs)]
        if kinds[0] != kinds[1]:
            there, here = (f"{one.pg.display}{' not null' if one.required else ''} (field {one.field_id})" for one in (theirs, mine))
            told.append(f"column {mine.name} is {there} there, and {here} here")
    parts = [", ".join(map(str, one.partition_by)) or "nothing" for one in (found, wanted)]
    if parts[0] != parts[1]:
        told.append(f"it is partitioned by {parts[0]} there, and by {parts[1]} here")
    return told


def column_problems(columns: Sequence[DecoupledColumn]) -> list[Problem]:
    if not columns:
        return [Problem("columns", "there are no columns", 'give them as [{"name": "id", "type": "bigint"}, …]')]
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    for column in columns:
        twin = seen.get(column.name.lower())
        seen[column.name.lower()] = column.name
        if twin is not None:
            problems.append(Problem("columns", f"columns {twin} and {column.name} are one to engines that ignore case", "rename one"))
        if not column.name or len(column.name.encode()) > 63:
            problems.append(Problem("columns", f"column name {column.name!r} has no letters, or more than 63 bytes"))
    return problems


def partition_problems(definition: Definition) -> list[Problem]:
    problems: list[Problem] = []
    seen: set[tuple[str, str]] = set()
    for field in definition.partition_by:
        column = definition.column(field.column)
        if column is None:
            known = ", ".join(column.name for column in definition.columns)
            problems.append(Problem("partition", f"partition column {field.column} is none of the table's", f"columns: {known}"))
            continue
        family = "time" if field.transform in _TIME_TRANSFORMS else field.transform
        if (family, field.column) in seen:
            problems.append(Problem("partition", f"column {field.column} is partitioned by {family} twice", "keep the finer one"))
        seen.add((family, field.column))
        if not _fits(field, column):
            hint = "times take year, month, day, hour; numbers and text identity, bucket, truncate; uuid and boolean identity"
            problems.append(Problem("partition", f"{field} does not fit column {column.name} of type {column.pg.display}", hint))
    return problems


def _fits(field: PartitionField, column: DecoupledColumn) -> bool:
    base = column.pg.base
    if base in _NO_PARTITION:
        return False
    if field.transform in _TIME_TRANSFORMS:
        return base in ("timestamp", "timestamptz") or (base == "date" and field.transform != "hour")
    if field.transform == "bucket":
        return base != "bool"
    if field.transform == "truncate":
        return base in ("int2", "int4", "int8", "numeric", "text", "varchar", "bpchar")
    return True
