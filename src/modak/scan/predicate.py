"""What a lake file's statistics can refute: the simple half of a WHERE clause, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from modak.core.type_map import LakeType, PgType

Operator = Literal["=", "<", "<=", ">", ">=", "in", "is null", "is not null"]


@dataclass(frozen=True)
class Predicate:
    """A condition on one column. It only narrows what is read: whoever scans applies the whole condition to the rows as well.

    ``values`` are Postgres text forms of the column's type, in UTC and ISO; a column kept as text in the lake compares as text,
    so only ``=``, ``in`` and the null tests are given for it.
    """

    column: str
    operator: Operator
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnType:
    """A column of a registered table as both sides know it."""

    pg: PgType
    lake: LakeType


Columns = Mapping[str, ColumnType]
