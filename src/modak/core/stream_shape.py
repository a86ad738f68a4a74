"""Which column of the table a column of the stream is. Pure.

The stream describes columns by name and type only; a rename, and a column that was dropped and added again, show in the number that the
catalog has for it (pg_attribute.attnum). The catalog may be further on than the stream, so both are asked, and a doubt is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ShapeColumn:
    name: str
    type_oid: int
    modifier: int
    number: int

    @property
    def described(self) -> tuple[str, int, int]:
        return self.name, self.type_oid, self.modifier

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "type_oid": self.type_oid, "modifier": self.modifier, "number": self.number}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ShapeColumn:
        return cls(data["name"], data["type_oid"], data["modifier"], data["number"])


Shape = tuple[ShapeColumn, ...]


def recognise(
    described: Sequence[tuple[str, int, int]], history: Sequence[Shape], catalog: Shape, *, is_replay: bool = False
) -> Shape | str:
    """The columns that the stream describes, with their numbers; or why that cannot be told.

    ``history`` has the shapes that the stream had before, newest last; ``catalog`` is the table as it is now. A return to an older shape is
    in doubt like any other: its columns may be new. ``is_replay``: the stream was here before, so the last shape of the history
    that looks like this is the one, whatever came later.
    """
    wanted = tuple(described)
    for shape in reversed(history):
        if tuple(column.described for column in shape) == wanted:
            again = None if is_replay else _made_anew(shape, catalog)
            return f"column {again} was dropped and added again" if again else shape
    if tuple(column.described for column in catalog) == wanted:
        return catalog
    return _between(wanted, history[-1] if history else (), catalog)


def _made_anew(shape: Shape, catalog: Shape) -> str | None:
    numbers = {column.name: column.number for column in catalog}
    return next(
        (column.name for column in shape if numbers.get(column.name, column.number) != column.number and not _kept(column, catalog)), None
    )


def _kept(column: ShapeColumn, catalog: Shape) -> bool:
    """Two columns may have swapped their names; then the number is still there."""
    return any(other.number == column.number for other in catalog)


def _between(wanted: Sequence[tuple[str, int, int]], before: Shape, after: Shape) -> Shape | str:
    """A shape that was neither the last one nor is the present one: several changes came one after the other."""
    old, new = ({column.name: column.number for column in shape} for shape in (before, after))
    numbers: dict[str, int] = {}
    for name, _, _ in wanted:
        found = {numbers_of[name] for numbers_of in (old, new) if name in numbers_of}
        if len(found) > 1:
            return f"the name {name} passed from one column to another"
        if found:
            numbers[name] = found.pop()
    unknown = [name for name, _, _ in wanted if name not in numbers]
    left = sorted((set(old.values()) & set(new.values())) - set(numbers.values()))
    if len(unknown) == 1 and len(left) == 1:
        # Renamed twice: the name in between is in neither.
        numbers[unknown[0]] = left[0]
    elif unknown:
        return f"column {unknown[0]} came and went, or was renamed more than once, before the stream was read"
    if len(set(numbers.values())) < len(numbers):
        return "two columns of the stream would be one"
    return tuple(ShapeColumn(name, type_oid, modifier, numbers[name]) for name, type_oid, modifier in wanted)
