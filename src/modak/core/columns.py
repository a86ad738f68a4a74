"""What became of a table's columns between two looks at it, and which changes of a type the lake can follow. Pure.

Columns are the same by their number (pg_attribute.attnum), whatever they are called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modak.core.table import Column
from modak.core.type_map import LakeType, PgType, is_plain, lake_type

_INTEGERS = ("int2", "int4", "int8")
_STRINGS = ("varchar", "text")
_WIDENINGS = {("int", "long"), ("float", "double")}


@dataclass(frozen=True)
class ColumnChanges:
    """Pairs are (before, after)."""

    renamed: tuple[tuple[str, str], ...] = ()
    dropped: tuple[Column, ...] = ()
    retyped: tuple[tuple[Column, Column], ...] = ()
    added: tuple[Column, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.renamed or self.dropped or self.retyped or self.added)

    @property
    def new_names(self) -> dict[str, str]:
        return dict(self.renamed)


def compare(before: Sequence[Column], after: Sequence[Column]) -> ColumnChanges:
    old, new = ({column.number: column for column in columns} for columns in (before, after))
    kept = [(old[number], new[number]) for number in sorted(old.keys() & new.keys())]
    return ColumnChanges(
        renamed=tuple((was.name, now.name) for was, now in kept if was.name != now.name),
        dropped=tuple(old[number] for number in sorted(old.keys() - new.keys())),
        retyped=tuple((was, now) for was, now in kept if was.type != now.type),
        added=tuple(new[number] for number in sorted(new.keys() - old.keys())),
    )


def renamed(names: Sequence[str], new_names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(new_names.get(name, name) for name in names)


def widens(found: str, wanted: str) -> bool:
    """Whether Iceberg lets a field of one type become one of another, with every value kept."""
    if (found, wanted) in _WIDENINGS:
        return True
    if found.startswith("decimal(") and wanted.startswith("decimal("):
        old, new = (tuple(int(part) for part in text[8:-1].split(",")) for text in (found, wanted))
        return old[1] == new[1] and new[0] > old[0]
    return False


def lake_follows(old: Column, new: Column, text_columns: Sequence[str] = ()) -> bool:
    """Whether rows in the lake read right under the new type, as if they had been converted with the others.

    The lake's type must be able to follow, and each old value must be one of the new type too: a shorter varchar is the same type to the
    lake, and would fail when the row that does not fit is read.
    """
    before = lake_type(old.type, force_text=old.name in text_columns)
    after = lake_type(new.type, force_text=new.name in text_columns)
    if not isinstance(before, LakeType) or not isinstance(after, LakeType):
        return False
    if before.iceberg != after.iceberg and not widens(before.iceberg, after.iceberg):
        return False
    return old.type == new.type or _keeps_values(old.type, new.type)


def _keeps_values(old: PgType, new: PgType) -> bool:
    if not is_plain(new):
        return False  # a domain has conditions, a user's type may read a text in any way
    if new.base in _STRINGS and _is_string(old):
        return new.modifier < 0 or (old.base == "varchar" and 0 <= old.modifier <= new.modifier)
    if old.namespace != "pg_catalog" or old.element is not None:
        return False
    if (old.base, new.base) == ("float4", "float8"):
        return True
    if old.base in _INTEGERS and new.base in _INTEGERS:
        return _INTEGERS.index(old.base) <= _INTEGERS.index(new.base)
    return old.base == new.base and (new.modifier < 0 or _grows(old, new))


def _is_string(old: PgType) -> bool:
    """Kept in the lake as the text that a cast to text gives."""
    kept = lake_type(old)
    return isinstance(kept, LakeType) and kept.iceberg == "string" and (old.namespace == "pg_catalog" or old.kind == "e")


def _grows(old: PgType, new: PgType) -> bool:
    if old.base == "numeric":
        # Precision above sixteen bits, scale below: same scale, more digits.
        return old.modifier >= 4 and (old.modifier - 4) & 0xFFFF == (new.modifier - 4) & 0xFFFF and old.modifier <= new.modifier
    return old.base in ("bpchar", "timestamp", "timestamptz", "time") and 0 <= old.modifier <= new.modifier
