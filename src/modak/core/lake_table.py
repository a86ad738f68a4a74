"""The lake's side of a registered table as plain data: columns, layout, order, properties, and its name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from modak.core.table import Column, Name
from modak.core.tier_key import TierKeyType
from modak.core.type_map import LakeType, lake_type
from modak.errors import Problem

GRANULARITIES = ("hour", "day", "month", "year", "none")
# Iceberg's truncate transform takes a 32-bit width.
WIDTH_MAX = 2**31 - 1


@dataclass(frozen=True)
class LakeColumn:
    name: str
    type: LakeType
    required: bool
    comment: str | None = None


@dataclass(frozen=True)
class Shape:
    """What expressions over one row of a table need to know; ``registered`` is the name users know, for messages."""

    table_id: int
    registered: Name
    tier_key: str
    key_type: TierKeyType
    primary_key: tuple[str, ...]
    columns: tuple[LakeColumn, ...]


@dataclass(frozen=True)
class LakeTable:
    """What is created in the lake when a table is registered."""

    ref: str  # namespace.table
    columns: tuple[LakeColumn, ...]
    tier_key: str
    primary_key: tuple[str, ...]
    layout: str  # 'none', 'hour', 'day', 'month', 'year' or a width in digits
    properties: tuple[tuple[str, str], ...]


def lake_columns(
    columns: Sequence[Column], required: Sequence[str], text_columns: Sequence[str] = ()
) -> tuple[tuple[LakeColumn, ...], tuple[Problem, ...]]:
    """The lake's columns, and a problem for each one that cannot be kept."""
    found: list[LakeColumn] = []
    problems: list[Problem] = []
    for column in columns:
        kept = lake_type(column.type, force_text=column.name in text_columns)
        if isinstance(kept, Problem):
            problems.append(Problem("type", f"column {column.name}: {kept.message}", kept.hint))
        else:
            found.append(LakeColumn(column.name, kept, column.name in required, column.comment))
    return tuple(found), tuple(problems)


def layout(width: str | None, key_type: TierKeyType) -> str | Problem:
    """How the lake table is partitioned: a width for integers, a calendar unit for times."""
    if key_type.is_time:
        return _temporal_layout(width, key_type)
    if width is None:
        return "none"
    if width in GRANULARITIES and width != "none":
        return _wrong(f"layout {width!r} needs a time as tier key", "give a width in keys, for example --width 1000")
    if width == "none":
        return width
    if not re.fullmatch(r"[0-9]{1,19}", width) or not 1 <= int(width) <= WIDTH_MAX:
        return _wrong(f"width {width!r} is not between 1 and {WIDTH_MAX}", "Iceberg truncates by 32-bit widths")
    return str(int(width))


def _temporal_layout(width: str | None, key_type: TierKeyType) -> str | Problem:
    if width is None:
        return "day"
    if width not in GRANULARITIES:
        return _wrong(f"layout {width!r} does not fit a time", f"one of {', '.join(GRANULARITIES)}")
    if width == "hour" and key_type is TierKeyType.DATE:
        return _wrong("an hourly layout needs hours, and the tier key is a date", "use day, month or year")
    return width


def _wrong(message: str, hint: str) -> Problem:
    return Problem("layout", message, hint, is_usage=True)


_PLAIN = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def lake_identifier(name: str) -> str:
    """A name every lake catalog and file system takes as it is.

    Plain lower-case names stay; any other keeps its readable part and gets a digest of the exact name, so that two names never meet.
    """
    if _PLAIN.fullmatch(name):
        return name
    readable = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:40] or "t"
    if readable[0].isdigit():
        readable = f"t_{readable}"
    return f"{readable}_{hashlib.sha256(name.encode()).hexdigest()[:10]}"


def default_ref(name: Name) -> str:
    return f"{lake_identifier(name.schema)}.{lake_identifier(name.name)}"


def properties(primary_key: Sequence[str], stamps: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Table properties: merge-on-read deletes, row groups small enough for look-ups, bloom filters on the key."""
    fixed = {
        "format-version": "2",
        "write.format.default": "parquet",
        "write.parquet.compression-codec": "zstd",
        "write.target-file-size-bytes": str(128 * 1024 * 1024),
        "write.parquet.row-group-size-bytes": str(16 * 1024 * 1024),
        # Without a limit each filter takes 1 MiB per row group, more than the data of a small file.
        "write.parquet.bloom-filter-max-bytes": str(128 * 1024),
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
        "write.delete.granularity": "file",
        "write.metadata.compression-codec": "none",
        # Pinned readers open the metadata file of their S; only maintenance, which knows the pins, may remove one.
        "write.metadata.delete-after-commit.enabled": "false",
    }
    blooms = {f"write.parquet.bloom-filter-enabled.column.{column}": "true" for column in primary_key}
    return tuple(sorted((fixed | blooms | stamps).items()))
