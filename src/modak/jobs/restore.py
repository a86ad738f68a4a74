"""How rows of the lake cross to Postgres: as Arrow by binary COPY into a temporary table, and from there in the heap's types."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from modak.connection import PINNED_SETTINGS, UNHURRIED, pinned
from modak.core.lake_table import LakeColumn
from modak.core.table import Column
from modak.scan.sqltext import quoted

LOCK_TIMEOUT = "5min"

# How a value of the lake crosses to Postgres: what DuckDB gives, and the column of the temporary table that takes it.
_RAW = {
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "binary": "bytea",
}


@dataclass(frozen=True)
class Restored:
    """A column on its way back. Where Postgres's binary form and Arrow's do not meet, it crosses as text."""

    name: str
    lake: str
    raw: str
    display: str

    @classmethod
    def of(cls, heap: Column, kept: LakeColumn) -> Restored:
        lake = kept.type.iceberg
        return cls(heap.name, lake, _RAW.get(lake, "text"), heap.type.display)

    def duckdb_sql(self, place: int) -> str:
        name = quoted(self.name)
        return f"{name if self.raw != 'text' or self.lake == 'string' else f'CAST({name} AS VARCHAR)'} AS c{place}"


@contextlib.contextmanager
def writing(dsn: str) -> Iterator[Any]:
    """A cursor in one transaction, committed if the block ends well. A dead first attempt is waited for, but not for ever."""
    import adbc_driver_postgresql.dbapi as adbc

    with adbc.connect(pinned(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(UNHURRIED)
        for name, value in {**PINNED_SETTINGS, "lock_timeout": LOCK_TIMEOUT, "application_name": "modak-flush"}.items():
            cursor.execute(f"select set_config('{name}', '{value}', true)")
        yield cursor
        connection.commit()
