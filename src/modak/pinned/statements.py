"""SQL for Postgres: hot rows, corrected rows and corrected keys, each value in the form in which it crosses exactly. Pure.

There are two ways across. A binary COPY into Arrow carries what ``copy_sql`` yields, JDBC what ``read_sql`` yields.
"""

# ruff: noqa: S608 - identifiers and literals are quoted by psycopg; the rest is ours

from __future__ import annotations

from collections.abc import Callable, Sequence

from psycopg import sql

from modak.core.type_map import LakeType
from modak.pinned.seam import HeapPart, Seam, SeamColumn
from modak.source.expressions import reference
from modak.source.heap import Chunk
from modak.source.spill import identifier

Form = Callable[[LakeType], str]
BAD = "modak_bad"


def by_copy(kept: LakeType) -> str:
    return kept.copy_sql


def by_jdbc(kept: LakeType) -> str:
    return kept.read_sql


def items(columns: Sequence[SeamColumn], form: Form, names: Sequence[str]) -> str:
    """A select list; columns are referred to by their own names and come out as ``names``."""
    values = [form(column.lake.type).format(column=reference(column.name)) for column in columns]
    return ", ".join(f"{value} as {reference(name)}" for value, name in zip(values, names, strict=True))


def bad_item(columns: Sequence[SeamColumn]) -> str:
    """The name of the first column whose value the lake's type cannot hold; NULL for rows that are fine."""
    checks = [
        f"when {reference(column.name)} is not null and not {column.lake.type.holds_sql.format(column=reference(column.name))} "
        f"then {sql.Literal(column.name).as_string()}"
        for column in columns
        if column.lake.type.holds_sql is not None
    ]
    return f"case {' '.join(checks)} end as {BAD}" if checks else f"null::text as {BAD}"


def hot_rows(seam: Seam, columns: Sequence[SeamColumn], chunk: Chunk) -> str:
    """The rows of some pages of a partition, for COPY."""
    part = next(part for part in seam.parts if part.name == chunk.partition)
    conditions = [*_pages(chunk, "ctid"), *_above(seam, part)]
    select = f"select {items(columns, by_copy, [column.name for column in columns])}, {bad_item(columns)}"
    return f"{select} from only {identifier(part.name).as_string()} where {' and '.join(conditions)}"


def hot_source(seam: Seam, columns: Sequence[SeamColumn], names: Sequence[str]) -> str:
    """The hot rows of all partitions as one relation for JDBC, with the partition's number and the row's place to cut it by.

    The number is constant in each arm, so that Postgres looks at one partition only for a condition on it.
    """
    arms = []
    for number, part in enumerate(seam.parts):
        where = " and ".join(_above(seam, part)) or "true"
        select = f"select {number} as modak_part, ctid as modak_place, {items(columns, by_jdbc, names)}"
        arms.append(f"{select} from only {identifier(part.name).as_string()} where {where}")
    return "(" + " union all ".join(arms) + ") hot"


def hot_predicate(seam: Seam, chunk: Chunk) -> str:
    number = next(number for number, part in enumerate(seam.parts) if part.name == chunk.partition)
    return " and ".join([f"modak_part = {number}", *_pages(chunk, "modak_place")])


def corrected_rows(seam: Seam, columns: Sequence[SeamColumn], form: Form, names: Sequence[str], *, bad: bool = False) -> str:
    """Rows that the delta puts in the place of cold ones, or adds. There is one per key, which is the newest."""
    images = ", ".join(f"{_from_image(column)} as {reference(column.name)}" for column in columns)
    source = f"(select {images} from modak.delta d where d.table_id = {seam.pin.table_id} and d.op = 0) image"
    return f"select {items(columns, form, names)}{', ' + bad_item(columns) if bad else ''} from {source}"


def corrected_keys(seam: Seam, form: Form, names: Sequence[str], *, bad: bool = False) -> str:
    """Keys of cold rows that the delta speaks for, replaced or removed, in the types of the key."""
    keys = seam.keys
    texts = ["d.pk"] if len(keys) == 1 else [f"(modak.pk_parts(d.pk))[{number}]" for number in range(1, len(keys) + 1)]
    casts = ", ".join(f"({text})::{key.heap.type.display} as {reference(key.name)}" for key, text in zip(keys, texts, strict=True))
    source = f"(select {casts} from modak.delta d where d.table_id = {seam.pin.table_id}) keys"
    return f"select {items(keys, form, names)}{', ' + bad_item(keys) if bad else ''} from {source}"


def _pages(chunk: Chunk, place: str) -> list[str]:
    lower = [f"{place} >= '({chunk.first_page},0)'::tid"]
    return lower if chunk.last_page is None else [*lower, f"{place} < '({chunk.last_page},0)'::tid"]


def _above(seam: Seam, part: HeapPart) -> list[str]:
    if not part.crosses:
        return []
    line = sql.Literal(seam.table.key_type.encode_bound(seam.pin.tier_key_hi)).as_string()
    return [f"{reference(seam.table.tier_key_col)} >= {line}::{seam.table.key_type.value}"]


def _from_image(column: SeamColumn) -> str:
    """A value of a correction's image, in the column's type; the delta's row is called d."""
    return f"(d.payload ->> {sql.Literal(column.name).as_string()})::{column.heap.type.display}"
