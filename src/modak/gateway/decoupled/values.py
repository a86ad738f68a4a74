"""Parameters of postgres_fdw as Arrow columns of a decoupled table: exact, or refused as Postgres would refuse them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from modak.core.decoupled import DecoupledColumn, Definition
from modak.errors import ModakError, ValueRefused
from modak.lake.text_values import arrow_column

Values = Sequence[bytes | None]
_HINT = "the lake keeps finite dates and times up to the year 294246, and numbers of the declared digits"
# Postgres has checked these already: whatever it has, the lake keeps.
_ALWAYS_KEPT = frozenset(("string", "binary", "boolean", "uuid"))
# Finite numbers, and dates and times with a year of four digits.
_KEPT = re.compile(rb"-?[0-9.]+(e[+-][0-9]+)?|[0-9]{4}-[0-9]{2}-[0-9]{2}( [0-9:.+-]+)?")


class NullRefused(ModakError):
    """Postgres leaves NOT NULL of foreign tables to whoever keeps the rows."""

    code = "not_null_violation"
    sqlstate = "23502"

    @classmethod
    def of(cls, definition: Definition, column: DecoupledColumn) -> NullRefused:
        return cls(f'null value in column "{column.name}" of relation "{definition.name.name}" violates not-null constraint')


class ValueNotKept(ModakError):
    code = "value_not_kept"
    sqlstate = "22003"


def remote_name(column: DecoupledColumn) -> str:
    return f"a{column.field_id}"


def engine_type(column: DecoupledColumn) -> str:
    """A time of day is text to the engine, as everywhere else: it is compared and shown by Postgres's rules."""
    return "VARCHAR" if column.lake.iceberg == "time" else column.lake.duckdb


def kind_of(column: DecoupledColumn) -> str:
    """What the engine and the files are given for it, by an Iceberg type."""
    return "string" if engine_type(column) == "VARCHAR" else "binary" if column.lake.duckdb == "BLOB" else column.lake.iceberg


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """A value that the lake cannot hold is an error of the statement."""
    try:
        yield
    except ValueRefused as refused:
        raise ValueNotKept(str(refused), hint=_HINT, **refused.facts) from refused


def array(definition: Definition, column: DecoupledColumn, values: Values | pa.Array) -> Any:
    if column.required and (values.null_count if isinstance(values, pa.Array) else None in values):
        raise NullRefused.of(definition, column)
    with kept():
        return arrow_column(values, kind_of(column), column.pg.base, column.name)


def check(definition: Definition, column: DecoupledColumn, value: bytes | None) -> None:
    """As ``array`` would for this one value, of which Arrow takes as long as for a hundred: most are seen to be kept."""
    if value is None or (kind_of(column) not in _ALWAYS_KEPT and _KEPT.fullmatch(value) is None):
        array(definition, column, [value])


def batch(definition: Definition, given: Mapping[str, Values | pa.Array], rows: int) -> Any:
    """Rows with every column, by remote names; what is not given is NULL."""
    nothing: Values = [None] * rows
    arrays = [array(definition, column, given.get(remote_name(column), nothing)) for column in definition.columns]
    return pa.record_batch(arrays, names=[remote_name(column) for column in definition.columns])
